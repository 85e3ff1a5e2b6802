#include "batch/request_row.h"

#include <algorithm>

#include "core/step_executor.h"

namespace spate {

RowSampling row_sampling(const Request& request, uint64_t seed) {
  const SamplingParams& params = request.sampling;
  const auto prompt_len = static_cast<int32_t>(request.prompt_token_ids.size());
  return {.seed = seed,
          .temperature = params.temperature < kMinTemperature ? 0 : params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .repetition_penalty = params.repetition_penalty,
          .presence_penalty = params.presence_penalty,
          .frequency_penalty = params.frequency_penalty,
          .sampling_top_k = std::max(0, params.sampling_top_k),
          .prompt_len = prompt_len,
          .min_tokens_until = params.min_tokens > 0 ? prompt_len + params.min_tokens : 0,
          .num_logprobs =
              params.logprob_token_ids.empty() || !params.logprobs ? params.logprobs.value_or(-1) : kLogprobsById,
          .relaxed_top_k = request.relaxed.top_k,
          .relaxed_delta = request.relaxed.delta,
          .relaxed_end_id = request.relaxed.end_id};
}

std::vector<int32_t> all_stop_ids(const Request& request) {
  std::vector<int32_t> ids = request.sampling.stop_token_ids;
  if (!request.sampling.ignore_eos) ids.insert(ids.end(), request.eos_token_ids.begin(), request.eos_token_ids.end());
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::span<const int32_t> end_ids_at(const Request& request, const ConstraintCursor& cursor) {
  if (!cursor.may_end() || request.sampling.ignore_eos) return {};
  return request.eos_token_ids;
}

}  // namespace spate
