// What an engine is doing, in lines for the log: SIGUSR1 asks for it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/inspection.h"

namespace spate {

std::string_view phase_name(SequenceInspection::Phase phase);  // "waiting", "prefill", "decode"
std::string describe_step(const StepRecord& step);             // "step 7: 2 sequences, ..."

// The totals, the KV cache by what its blocks hold, the last steps, then a line a sequence. `seen` null: the engine did
// not answer in time, and only its counters are told.
std::vector<std::string> describe_state(const EngineStats& stats, const EngineInspection* seen);

}  // namespace spate
