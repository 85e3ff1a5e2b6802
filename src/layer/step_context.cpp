#include "layer/step_context.h"

#include <algorithm>

namespace spate {

LongPrompts long_prompts_of(std::span<const SeqStep> seqs, int min_query_len) {
  LongPrompts prompts;
  if (min_query_len == 0) return prompts;
  for (; !seqs.empty(); seqs = seqs.first(seqs.size() - 1)) {
    const SeqStep& seq = seqs.back();
    const int seq_len = seq.num_computed_tokens + seq.query_len;
    if (seq.phase != SeqPhase::kPrefill || seq.query_len < min_query_len) break;
    if (seq_len > kMaxLongKeys - prompts.num_keys) break;
    ++prompts.num_seqs;
    prompts.num_tokens += seq.query_len;
    prompts.num_keys += seq_len;
  }
  if (prompts.num_seqs == 0) return prompts;
  prompts.first_seq = static_cast<int>(seqs.size());
  for (const SeqStep& seq : seqs) {
    prompts.first_token += seq.query_len;
    prompts.max_query_len_before = std::max(prompts.max_query_len_before, seq.query_len);
  }
  return prompts;
}

StepBatch step_batch(const StepInputs& inputs, const RowState& state, const StepKey& key) {
  return {
      .inputs = inputs,
      .block_table = state.block_table,
      .max_query_len = key.max_query_len,
      .max_seq_len = key.max_seq_len,
      .long_prompts = key.long_prompts,
      .output_rows = key.outputs == StepOutputs::kAllTokens ? Tensor() : inputs.sample_token_idxs,
      .outputs_all_seqs = key.outputs == StepOutputs::kSampledAllSeqs,
      .arange = {},
      .decodes_only = key.decodes_only,
  };
}

}  // namespace spate
