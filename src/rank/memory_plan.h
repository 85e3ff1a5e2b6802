// MemoryPlan: how the memory of all ranks is divided, computed before anything large is allocated, printed, never
// exceeded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/step_limits.h"

namespace spate {

// What one rank needs, of its own shard, and has.
struct RankMemory {
  int64_t free_bytes = 0;  // of its device
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;  // model workspace and running state at the largest max_model_len
  int64_t kv_block_bytes = 0;   // of one block of every layer, as its device stores it
};

struct MemoryPlanInput {
  std::vector<RankMemory> ranks;
  bool shares_memory = false;  // free_bytes of all ranks are the same bytes
  StepLimits limits;           // of one data-parallel index; max_model_len 0 = the largest that fits
  int64_t model_max_len = 0;   // max_position_embeddings
  int64_t kv_cache_bytes =
      0;  // --kv-cache-memory, of all ranks together; 0 = what the sequences can use, within the two limits below
  int64_t max_kv_cache_bytes = 0;  // of all ranks together, where nobody asked for a size; 0 = no such limit
  double memory_fraction = 0.9;    // of free_bytes of each device, for weights, workspace and KV together
};

struct MemoryPlan {
  int64_t max_model_len = 0;
  int64_t num_kv_blocks = 0;           // of every rank: what the rank with the least room for blocks holds
  int64_t kv_cache_bytes = 0;          // of all ranks together
  bool max_model_len_reduced = false;  // below model_max_len because the KV cache is small
};

// The blocks are whole, so that a KV cache which fits is never cut afterwards.
// Errors (resource_exhausted): the weights do not fit; the KV cache cannot hold one sequence of max_model_len. Each
// names what is needed, what is there, and a flag with a value that works.
Result<MemoryPlan> plan_memory(const MemoryPlanInput& input);

std::string format_bytes(int64_t bytes);  // "18.2 GiB", "650 MiB", "12 KiB"

}  // namespace spate
