// How several models share the memory of one machine: computed before the first is loaded, printed, and kept by giving each
// model its part as a limit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "llm/llm_config.h"

namespace spate {

// What a model takes, seen from its config and its files' headers.
struct ModelNeed {
  std::string name;
  std::string memory;             // that it lies in: the back-end's name; empty: it takes none (device mock)
  int64_t free_bytes = 0;         // of that memory, all ranks together
  double memory_share = 0;        // of free_bytes that may be used
  int64_t fixed_bytes = 0;        // weights and workspace, all ranks together
  int64_t least_kv_bytes = 0;     // of one sequence: of max_model_len where that is given, else of one block
  int64_t most_kv_bytes = 0;      // that its sequences can use; where nobody asked, at most the back-end's own limit
  int64_t kv_cache_bytes = 0;     // --kv-cache-memory; 0: computed
};

Result<ModelNeed> model_need(const std::string& name, const LlmConfig& llm);

struct MemoryShares {
  std::vector<int64_t> kv_cache_bytes;  // by model: for LlmConfig::max_kv_cache_bytes; 0: no limit
  std::vector<std::string> lines;       // for people
};

// Of each memory: weights and workspaces first, then the KV caches that were asked for, then equal parts of what is left for the
// others; what one cannot use goes to the rest. An error (resource_exhausted): a model does not fit; what is free, what it
// needs, what to lower.
Result<MemoryShares> share_memory(std::span<const ModelNeed> needs);

}  // namespace spate
