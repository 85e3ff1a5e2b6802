// RunningState: the arrays of the running sequences and of one step, allocated once on the device of a rank.
#pragma once

#include "backend/backend.h"
#include "backend/ops.h"

namespace spate {

// Sizes that fix every array of a rank; the same on all ranks.
struct StepLimits {
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
  int max_model_len = 0;
  int max_num_logits = 0;  // rows of logits computed at once
  int64_t kv_block_size = 0;

  int64_t max_blocks_per_seq() const { return (max_model_len + kv_block_size - 1) / kv_block_size; }
};

class RunningState {
 public:
  // Allocates all arrays, zeroed. About 4 bytes a token of max_num_seqs * max_model_len, most of it untouched until used.
  static Result<RunningState> create(Device& device, Stream& stream, const StepLimits& limits);
  static int64_t num_bytes(const StepLimits& limits);

  const RowState& rows() const { return rows_; }
  // The inputs cut to the step's counts.
  StepInputs inputs(int num_tokens, int num_seqs, int num_sampled) const;
  const StepInputs& all_inputs() const { return inputs_; }

 private:
  Buffer storage_;
  RowState rows_;
  StepInputs inputs_;
};

}  // namespace spate
