// RunningState: the arrays of the running sequences and of one step, allocated once on the device of a rank.
#pragma once

#include "backend/backend.h"
#include "backend/ops.h"
#include "core/step_limits.h"

namespace spate {

// No step within the limits has larger counts.
StepKey largest_step(const StepLimits& limits);

// What a step leaves for the host: on the device in RunningState, in pinned host memory in StepInFlight. Rows of
// log-probabilities: sampled tokens from row 0, prompt tokens from row max_sampled_rows.
struct StepOutputArrays {
  Tensor next_token_ids;  // [max_sampled_rows] i32
  Tensor is_relaxed;      // [max_sampled_rows] i32: 1 where a draft stands in place of the chosen token
  Tensor num_accepted;    // [max_num_seqs] i32: drafts of each sequence of the plan
  Tensor target_logprob;  // [max_logprobs_rows] f32
  Tensor target_rank;     // [max_logprobs_rows] i32
  Tensor top_ids;         // [max_logprobs_rows, kMaxLogprobs] i32
  Tensor top_logprobs;    // [max_logprobs_rows, kMaxLogprobs] f32

  static size_t num_bytes(const StepLimits& limits);
  // Views of `storage`, which has num_bytes().
  static StepOutputArrays over(const Buffer& storage, const StepLimits& limits);
};

class RunningState {
 public:
  // Allocates all arrays. About 4 bytes a token of max_num_seqs * max_model_len, most of it untouched until used.
  static Result<RunningState> create(Device& device, Stream& stream, const StepLimits& limits);
  static int64_t num_bytes(const StepLimits& limits);

  const RowState& rows() const { return rows_; }
  // The inputs of a step launched under `key`: one memory for all steps.
  StepInputs inputs(const StepKey& key) const;
  const StepOutputArrays& outputs() const { return outputs_; }
  const Tensor& arange() const { return arange_; }  // [max_num_batched_tokens + 1]: 0, 1, 2 ...

 private:
  Buffer storage_, output_storage_;
  RowState rows_;
  StepInputs inputs_;
  StepOutputArrays outputs_;
  Tensor arange_;
};

}  // namespace spate
