// Offline use of an engine: a batch of requests in, all their tokens out. eval, generate and the offline benches run on it.
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "core/request.h"
#include "engine/engine.h"

namespace spate {

struct OfflineResult {
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  int num_cached_tokens = 0;
};

struct OfflineRequest {
  std::vector<int32_t> prompt_token_ids;
  SamplingParams sampling;
  std::shared_ptr<TokenConstraint> constraint;  // this and the following as in Request
  bool speculate = true;
  std::vector<std::vector<int32_t>> speculative_reference;
  RelaxedAcceptance relaxed;
};

// Runs the requests on a started engine, at most max_in_flight at once (0: all), in order of submission. Result i belongs to
// request i and holds its n sequences. on_output, if any, hears of every Output as it comes (request index first), on the
// engine's thread. The first error ends the batch.
Result<std::vector<std::vector<OfflineResult>>> run_offline(
    Engine& engine, const std::vector<int32_t>& eos_token_ids, std::vector<OfflineRequest> requests, int max_in_flight = 0,
    const std::function<void(size_t, const Output&)>& on_output = {});

}  // namespace spate
