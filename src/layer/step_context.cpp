#include "layer/step_context.h"

namespace spate {

StepBatch step_batch(const StepInputs& inputs, const RowState& state, const StepKey& key) {
  return {
      .token_ids = inputs.token_ids,
      .positions = inputs.positions,
      .slot_mapping = inputs.slot_mapping,
      .seq_rows = inputs.seq_rows,
      .cu_seqlens_q = inputs.cu_seqlens_q,
      .seq_lens = inputs.seq_lens,
      .block_table = state.block_table,
      .max_query_len = key.max_query_len,
      .max_seq_len = key.max_seq_len,
      .output_rows = key.outputs == StepOutputs::kAllTokens ? Tensor() : inputs.sample_rows,
      .outputs_all_seqs = key.outputs == StepOutputs::kSampledAllSeqs,
  };
}

}  // namespace spate
