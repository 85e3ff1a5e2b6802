// What the device must know of a request to sample for it: the same for the model that answers and for one that drafts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/request.h"
#include "core/step_plan.h"

namespace spate {

// num_bias and num_stop_ids are left to the plan builder.
RowSampling row_sampling(const Request& request, uint64_t seed);

// eos (unless ignored) and stop_token_ids without repetitions: what ends a sequence, and what is masked until
// min_tokens.
std::vector<int32_t> all_stop_ids(const Request& request);

// The ids that a constraint allows beside those of its mask where its text is complete.
std::span<const int32_t> end_ids_at(const Request& request, const ConstraintCursor& cursor);

}  // namespace spate
