// Checks a plan whose bytes come from another process before anything acts on them; and prints plans for people.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "core/step_limits.h"
#include "core/step_plan.h"

namespace spate {

// The sizes of the state that a plan may touch.
struct StepPlanLimits {
  StepLimits step;
  int num_kv_blocks = 0;
  int vocab_size = 0;
};

// data_loss with the place and the values, or ok: then every offset, index, row, block and token id of the plan is
// inside its bounds, its counts agree with each other, and no row is updated or run twice. Any bytes may be passed
// (8-byte aligned). The running state itself is not known here: nobody checks num_computed_tokens against the
// device's.
Status validate_plan(std::span<const std::byte> plan, const StepPlanLimits& limits);

// Several lines: the header, then a line for each row, block update, copy and sequence. The plan must be valid.
std::string format_plan(std::span<const std::byte> plan);

}  // namespace spate
