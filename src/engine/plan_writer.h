// Writes a ScheduledStep as the flat image that the executor takes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "batch/plan_builder.h"
#include "batch/request_row.h"
#include "scheduler/scheduler.h"

namespace spate {

// The image is valid until the builder's next begin().
std::span<const std::byte> write_plan(const ScheduledStep& step, DraftSource draft_source, StepPlanBuilder& builder);

// The masks of a step whose plan has late ones, when the tokens of the step before it are known. What a sequence
// chooses that has ended meanwhile, or has left its constraint behind, is free.
void write_late_masks(const ScheduledStep& step, std::vector<uint32_t>& masks);

}  // namespace spate
