#include "layer/step_context.h"

namespace spate {

StepBatch step_batch(const StepInputs& inputs, const RowState& state, const StepKey& key) {
  return {
      .inputs = inputs,
      .block_table = state.block_table,
      .max_query_len = key.max_query_len,
      .max_seq_len = key.max_seq_len,
      .output_rows = key.outputs == StepOutputs::kAllTokens ? Tensor() : inputs.sample_token_idxs,
      .outputs_all_seqs = key.outputs == StepOutputs::kSampledAllSeqs,
  };
}

}  // namespace spate
