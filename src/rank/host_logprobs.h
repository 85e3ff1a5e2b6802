// Log-probabilities of a whole row of logits, on the host: for requests that want more of them than the device finds.
#pragma once

#include <cstdint>
#include <span>

#include "core/step_executor.h"

namespace spate {

// As the op `logprobs` (LogprobsParams in backend/ops.h), with num_top up to the size of the vocabulary, or
// kLogprobsById. Of logits that are not finite only the token is told, with rank 0.
TokenLogprobs logprobs_of_logits(std::span<const float> logits, int32_t target_id, int num_top);

}  // namespace spate
