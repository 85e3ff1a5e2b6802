// MemoryPlan: how a rank's memory is divided, computed before anything large is allocated, printed, never exceeded.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace spate {

struct MemoryPlanInput {
  int64_t free_bytes = 0;            // of the device, for this rank
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;       // model workspace and running state at the largest max_model_len
  int64_t kv_block_bytes = 0;        // of one block of every layer of this rank, as its device stores it
  int64_t kv_block_size = 0;         // tokens in it
  int64_t max_num_seqs = 0;
  int64_t model_max_len = 0;         // max_position_embeddings
  int64_t max_model_len = 0;         // --max-model-len; 0 = the largest that fits
  int64_t kv_cache_bytes = 0;        // --kv-cache-memory; 0 = what the sequences can use, within the two limits below
  int64_t max_kv_cache_bytes = 0;    // of a KV cache that nobody asked for; 0 = no such limit
  double memory_fraction = 0.9;      // of free_bytes, for weights, workspace and KV together
};

struct MemoryPlan {
  int64_t max_model_len = 0;
  int64_t num_kv_blocks = 0;
  int64_t kv_cache_bytes = 0;
  bool max_model_len_reduced = false;  // below model_max_len because the KV cache is small
};

// The blocks are whole, so that a KV cache which fits is never cut afterwards.
// Errors (resource_exhausted): the weights do not fit; the KV cache cannot hold one sequence of max_model_len. Each names
// what is needed, what is there, and a flag with a value that works.
Result<MemoryPlan> plan_memory(const MemoryPlanInput& input);

std::string format_bytes(int64_t bytes);  // "18.2 GiB", "650 MiB", "12 KiB"

}  // namespace spate
