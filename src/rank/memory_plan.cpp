#include "rank/memory_plan.h"

#include <algorithm>

#include <fmt/core.h>

namespace spate {

std::string format_bytes(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (int64_t{1} << 30));
  if (bytes >= 1 << 20) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.1f} KiB", value / 1024);
}

Result<MemoryPlan> plan_memory(const MemoryPlanInput& in) {
  const int64_t budget = static_cast<int64_t>(static_cast<double>(in.free_bytes) * in.memory_fraction);
  const int64_t fixed = in.weight_bytes + in.workspace_bytes;
  const int64_t left = budget - fixed;
  if (in.weight_bytes + in.workspace_bytes > in.free_bytes) {
    return resource_exhausted(
        "memory: the weights take {} and the workspace {}, but {} are free. Use a smaller model, --tensor-parallel-size, or "
        "lower --max-num-batched-tokens and --max-num-seqs",
        format_bytes(in.weight_bytes), format_bytes(in.workspace_bytes), format_bytes(in.free_bytes));
  }
  const int64_t block_bytes = in.kv_block_bytes;
  const int64_t wanted_len = in.max_model_len > 0 ? in.max_model_len : in.model_max_len;
  const auto blocks_for = [&](int64_t tokens) { return (tokens + in.kv_block_size - 1) / in.kv_block_size; };

  MemoryPlan plan;
  if (in.kv_cache_bytes > 0) {
    if (in.kv_cache_bytes + fixed > in.free_bytes) {
      return resource_exhausted("memory: --kv-cache-memory {} and {} for weights and workspace exceed the {} that are free; "
                                "the most that fits is {}",
                                format_bytes(in.kv_cache_bytes), format_bytes(fixed), format_bytes(in.free_bytes),
                                format_bytes(std::max<int64_t>(0, in.free_bytes - fixed)));
    }
    plan.num_kv_blocks = in.kv_cache_bytes / block_bytes;
  } else {
    // More than every sequence at full length can never be used.
    const int64_t useful = in.max_num_seqs * blocks_for(wanted_len);
    const int64_t limit = in.max_kv_cache_bytes > 0 ? std::min(left, in.max_kv_cache_bytes) : left;
    plan.num_kv_blocks = std::min(useful, std::max<int64_t>(0, limit) / block_bytes);
  }
  plan.kv_cache_bytes = plan.num_kv_blocks * block_bytes;

  const int64_t capacity = plan.num_kv_blocks * in.kv_block_size;
  plan.max_model_len = wanted_len;
  if (capacity < wanted_len) {
    if (in.max_model_len > 0 || capacity < 2) {
      return resource_exhausted("kv cache: {} hold {} tokens; one sequence of max_model_len {} needs {} ({} a token). Use "
                                "--max-model-len {} or --kv-cache-memory {}",
                                format_bytes(plan.kv_cache_bytes), capacity, wanted_len,
                                format_bytes(blocks_for(wanted_len) * block_bytes), format_bytes(block_bytes / in.kv_block_size),
                                std::max<int64_t>(2, capacity), blocks_for(wanted_len) * block_bytes);
    }
    plan.max_model_len = capacity;
    plan.max_model_len_reduced = true;
  }
  return plan;
}

}  // namespace spate
