// Writes a ScheduledStep as the flat image that the executor takes.
#pragma once

#include <cstddef>
#include <span>

#include "batch/plan_builder.h"
#include "scheduler/scheduler.h"

namespace spate {

// The image is valid until the builder's next begin().
std::span<const std::byte> write_plan(const ScheduledStep& step, DraftSource draft_source, StepPlanBuilder& builder);

// eos (unless ignored) and stop_token_ids without repetitions: what ends a sequence, and what is masked until
// min_tokens.
std::vector<int32_t> all_stop_ids(const Request& request);

}  // namespace spate
