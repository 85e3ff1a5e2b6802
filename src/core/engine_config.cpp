#include "core/engine_config.h"

#include "core/step_plan.h"

namespace spate {
namespace {

Status at_least(const char* flag, int value, int minimum) {
  if (value >= minimum) return ok_status();
  return invalid_argument("{} must be at least {}, got {}", flag, minimum, value);
}

}  // namespace

Status validate_step_limits(const StepLimits& limits, bool enable_chunked_prefill) {
  if (limits.max_model_len != 0) RETURN_IF_ERROR(at_least("--max-model-len", limits.max_model_len, 2));
  if (limits.max_num_batched_tokens < limits.max_num_seqs) {
    return invalid_argument(
        "--max-num-batched-tokens is {}, but each of the --max-num-seqs {} sequences needs one token of a step: "
        "set --max-num-batched-tokens {} or --max-num-seqs {}",
        limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_num_seqs, limits.max_num_batched_tokens);
  }
  if (!enable_chunked_prefill && limits.max_num_batched_tokens < limits.max_model_len) {
    return invalid_argument(
        "--max-num-batched-tokens is {}, but without chunked prefill a whole prompt of up to --max-model-len {} tokens "
        "must fit into one step: set --max-num-batched-tokens {} or --enable-chunked-prefill",
        limits.max_num_batched_tokens, limits.max_model_len, limits.max_model_len);
  }
  return ok_status();
}

Status validate_engine_config(const EngineConfig& config) {
  RETURN_IF_ERROR(at_least("--max-model-len", config.limits.max_model_len, 2));
  RETURN_IF_ERROR(at_least("--max-num-seqs", config.limits.max_num_seqs, 1));
  RETURN_IF_ERROR(at_least("--block-size", config.limits.kv_block_size, 1));
  RETURN_IF_ERROR(at_least("number of KV blocks", config.num_kv_blocks, 1));
  RETURN_IF_ERROR(at_least("--max-num-waiting", config.max_num_waiting, 1));
  RETURN_IF_ERROR(at_least("--long-prefill-token-threshold", config.long_prefill_token_threshold, 0));
  RETURN_IF_ERROR(at_least("--max-prefill-stall-ms", config.max_prefill_stall_ms, 0));
  if (config.num_drafts < 0 || config.num_drafts > kMaxDrafts) {
    return invalid_argument("the number of draft tokens must be in [0, {}], got {}", kMaxDrafts, config.num_drafts);
  }
  RETURN_IF_ERROR(validate_speculative_config(config.speculative));
  RETURN_IF_ERROR(validate_step_limits(config.limits, config.enable_chunked_prefill));
  if (config.kv_cache_tokens() < 2) {
    return resource_exhausted("the KV cache holds {} tokens, at least 2 are needed: raise --kv-cache-memory",
                              config.kv_cache_tokens());
  }
  return ok_status();
}

}  // namespace spate
