#include "layer/step_context.h"

namespace spate {

StepBatch step_batch(const StepInputs& inputs, const RowState& state, const StepPlanHeader& plan) {
  return {
      .token_ids = inputs.token_ids.rows(0, plan.num_tokens),
      .positions = inputs.positions.rows(0, plan.num_tokens),
      .slot_mapping = inputs.slot_mapping.rows(0, plan.num_tokens),
      .seq_rows = inputs.seq_rows.rows(0, plan.num_seqs),
      .cu_seqlens_q = inputs.cu_seqlens_q.rows(0, plan.num_seqs + 1),
      .seq_lens = inputs.seq_lens.rows(0, plan.num_seqs),
      .block_table = state.block_table,
      .max_query_len = plan.max_query_len,
      .max_seq_len = plan.max_seq_len,
  };
}

}  // namespace spate
