#include "rank/memory_plan.h"

#include <algorithm>
#include <limits>

#include <fmt/core.h>

#include "base/check.h"

namespace spate {

std::string format_bytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (int64_t{1} << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.1f} KiB", value / 1024);
}

namespace {

int64_t fixed_bytes(const RankMemory& rank) { return rank.weight_bytes + rank.workspace_bytes; }

// The memories that ranks allocate from: one for all, or one each.
std::vector<RankMemory> memories_of(const MemoryPlanInput& in) {
  if (!in.shares_memory) return in.ranks;
  RankMemory all{.free_bytes = in.ranks.front().free_bytes};
  for (const RankMemory& rank : in.ranks) {
    all.free_bytes = std::min(all.free_bytes, rank.free_bytes);
    all.weight_bytes += rank.weight_bytes;
    all.workspace_bytes += rank.workspace_bytes;
    all.kv_block_bytes += rank.kv_block_bytes;
  }
  return {all};
}

// " of rank 2", where ranks have memories of their own.
std::string of_rank(size_t memory_idx, size_t num_memories) {
  return num_memories > 1 ? fmt::format(" of rank {}", memory_idx) : "";
}

// The most blocks that fit into `share` of every memory beside weights and workspace.
int64_t blocks_that_fit(const std::vector<RankMemory>& memories, double share) {
  int64_t num_blocks = std::numeric_limits<int64_t>::max();
  for (const RankMemory& memory : memories) {
    const int64_t budget = static_cast<int64_t>(static_cast<double>(memory.free_bytes) * share);
    num_blocks = std::min(num_blocks, std::max<int64_t>(0, budget - fixed_bytes(memory)) / memory.kv_block_bytes);
  }
  return num_blocks;
}

Status check_weights(const std::vector<RankMemory>& memories) {
  for (size_t i = 0; i < memories.size(); ++i) {
    const RankMemory& memory = memories[i];
    if (fixed_bytes(memory) <= memory.free_bytes) continue;
    return resource_exhausted(
        "memory{}: the weights take {} and the workspace {}, but {} are free. Use a smaller model, "
        "--tensor-parallel-size, or lower --max-num-batched-tokens and --max-num-seqs",
        of_rank(i, memories.size()), format_bytes(memory.weight_bytes), format_bytes(memory.workspace_bytes),
        format_bytes(memory.free_bytes));
  }
  return ok_status();
}

// What was asked for, as blocks.
Result<int64_t> asked_blocks(const std::vector<RankMemory>& memories, int64_t kv_cache_bytes, int64_t block_bytes) {
  const int64_t num_blocks = kv_cache_bytes / block_bytes;
  for (size_t i = 0; i < memories.size(); ++i) {
    const RankMemory& memory = memories[i];
    // Not as a product: the sum of what was asked for and the weights may be more than a number holds.
    if (num_blocks <= (memory.free_bytes - fixed_bytes(memory)) / memory.kv_block_bytes) continue;
    const int64_t most = blocks_that_fit(memories, 1) * block_bytes;
    // Its text is rounded, perhaps up.
    const std::string exact = most > 0 ? fmt::format(": --kv-cache-memory {}", most) : std::string();
    return resource_exhausted(
        "memory{}: --kv-cache-memory {} and {} for weights and workspace exceed the {} that are free; the most that "
        "fits is {}{}",
        of_rank(i, memories.size()), format_bytes(kv_cache_bytes), format_bytes(fixed_bytes(memory)),
        format_bytes(memory.free_bytes), format_bytes(most), exact);
  }
  return num_blocks;
}

}  // namespace

Result<MemoryPlan> plan_memory(const MemoryPlanInput& in) {
  CHECK(!in.ranks.empty(), "a memory plan of no rank");
  const std::vector<RankMemory> memories = memories_of(in);
  RETURN_IF_ERROR(check_weights(memories));
  int64_t block_bytes = 0;  // of one block of all ranks
  for (const RankMemory& memory : memories) block_bytes += memory.kv_block_bytes;
  const int64_t wanted_len = in.limits.max_model_len > 0 ? in.limits.max_model_len : in.model_max_len;
  const auto blocks_for = [&](int64_t tokens) {
    return (tokens + in.limits.kv_block_size - 1) / in.limits.kv_block_size;
  };

  MemoryPlan plan;
  if (in.kv_cache_bytes > 0) {
    ASSIGN_OR_RETURN(plan.num_kv_blocks, asked_blocks(memories, in.kv_cache_bytes, block_bytes));
  } else {
    // More than every sequence at full length can never be used.
    plan.num_kv_blocks =
        std::min(in.limits.max_num_seqs * blocks_for(wanted_len), blocks_that_fit(memories, in.memory_fraction));
    if (in.max_kv_cache_bytes > 0)
      plan.num_kv_blocks = std::min(plan.num_kv_blocks, in.max_kv_cache_bytes / block_bytes);
  }
  plan.kv_cache_bytes = plan.num_kv_blocks * block_bytes;

  const int64_t capacity = plan.num_kv_blocks * in.limits.kv_block_size;
  plan.max_model_len = wanted_len;
  if (capacity < wanted_len) {
    if (in.limits.max_model_len > 0 || capacity < 2) {
      return resource_exhausted(
          "kv cache: {} hold {} tokens; one sequence of max_model_len {} needs {} ({} a token). Use {}--kv-cache-memory {}",
          format_bytes(plan.kv_cache_bytes), capacity, wanted_len, format_bytes(blocks_for(wanted_len) * block_bytes),
          format_bytes(block_bytes / in.limits.kv_block_size),
          capacity < 2 ? std::string() : fmt::format("--max-model-len {} or ", capacity),
          blocks_for(wanted_len) * block_bytes);
    }
    plan.max_model_len = capacity;
    plan.max_model_len_reduced = true;
  }
  return plan;
}

}  // namespace spate
