// EngineConfig: the sizes and choices of one engine. Names are vLLM's flags in snake case where the meaning is the
// same.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/status.h"
#include "core/speculative_config.h"
#include "core/step_limits.h"

namespace spate {

// Where the drafts of a decode row come from.
enum class DraftSource : uint8_t {
  kRepeat,    // the newest token that the host knows, again and again: the plainest proposer, to test the machinery
  kExecutor,  // the executor proposes them behind each token that it samples
  kProposer,  // EngineConfig::speculative says who proposes them
};

struct EngineConfig {
  StepLimits limits;
  int num_kv_blocks = 0;              // of every layer; computed from the model and --kv-cache-memory

  bool enable_prefix_caching = true;
  bool enable_chunked_prefill =
      true;  // off: a prompt runs whole in one step, limits.max_num_batched_tokens >= limits.max_model_len
  bool async_scheduling = true;        // schedule step i+1 while step i runs; off: the plain loop
  // A prompt takes at most so many tokens of a step while others wait for a share; 0 = a quarter of the token budget.
  int long_prefill_token_threshold = 0;
  // While sequences decode, a step takes prompt tokens for about this long at most; 0 = as many as fit the budget.
  int max_prefill_stall_ms = 0;

  // Draft tokens of a decode row in each step, at most kMaxDrafts; fewer where budget, blocks or the length leave no
  // room.
  int num_drafts = 0;
  DraftSource draft_source = DraftSource::kRepeat;
  SpeculativeConfig speculative;  // with kProposer; its num_speculative_tokens counts, not num_drafts

  int max_num_waiting = 1024;  // prompts submitted and not yet scheduled; beyond, requests are refused (429)

  // Tokens the KV cache holds, and the most a sequence may have: a lone sequence of this length always fits.
  int64_t kv_cache_tokens() const { return int64_t{num_kv_blocks} * limits.kv_block_size; }
  int max_seq_len() const { return static_cast<int>(std::min<int64_t>(kv_cache_tokens(), limits.max_model_len)); }
};

// What can be said before a model is loaded: a max_model_len of 0 is not known yet.
Status validate_step_limits(const StepLimits& limits, bool enable_chunked_prefill);

// Names the flag, its value and one that works.
Status validate_engine_config(const EngineConfig& config);

}  // namespace spate
