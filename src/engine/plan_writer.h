// Writes a ScheduledStep as the flat image that the executor takes.
#pragma once

#include <cstddef>
#include <span>

#include "batch/plan_builder.h"
#include "batch/request_row.h"
#include "scheduler/scheduler.h"

namespace spate {

// The image is valid until the builder's next begin().
std::span<const std::byte> write_plan(const ScheduledStep& step, DraftSource draft_source, StepPlanBuilder& builder);

}  // namespace spate
