// A running state and step plans for it, for the cases of begin_step, finish_step and sample.
#pragma once

#include <vector>

#include "backend/conformance/rig.h"
#include "core/step_plan.h"

namespace spate::conformance {

struct StateSizes {
  int64_t max_num_seqs = 4, max_model_len = 64, max_blocks_per_seq = 8;
};

// A state on a device, all poison at first.
struct DeviceState {
  RowState state;
  Outputs read(Side& side) const;  // every array of it; must be equal bit for bit
};
DeviceState put_state(Side& side, const StateSizes& sizes);
// The same from host arrays.
struct HostState {
  HostTensor token_ids, num_tokens, num_computed_tokens, block_table, sampling, bias_ids, bias_values, stop_ids;
};
HostState poisoned_state(const StateSizes& sizes);
RowState put_state(Side& side, const HostState& host);

// Counts that a step is launched with.
struct LaunchCounts {
  int64_t num_tokens = 0, num_seqs = 0, num_logits = 0;
};
// Inputs of such a step, all poison at first.
StepInputs put_inputs(Side& side, const LaunchCounts& counts);

// Collects the parts of a plan and lays them out as core/step_plan.h says.
struct PlanParts {
  std::vector<RowUpdate> row_updates;
  std::vector<BlockUpdate> block_updates;
  std::vector<SeqStep> seqs;
  std::vector<int32_t> data;
  std::vector<uint32_t> masks;
  int32_t mask_words = 0;

  uint32_t add_data(const std::vector<int32_t>& values);
  std::vector<uint64_t> image() const;
};

}  // namespace spate::conformance
