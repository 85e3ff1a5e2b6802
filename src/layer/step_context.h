// StepContext: what a model's forward sees of one step. Views only: the rank owns everything it names.
#pragma once

#include <span>

#include "backend/backend.h"
#include "backend/ops.h"

namespace spate {

struct Communicators;

// The inputs of a step and what layers need beside them. Index tensors are kI32, on the device.
struct StepBatch {
  StepInputs inputs;   // layers use those of tokens and sequences
  Tensor block_table;  // [max_num_seqs, max_blocks_per_seq]
  int max_query_len = 0;
  int max_seq_len = 0;
  LongPrompts long_prompts;
  // Tokens whose hidden states are wanted after the last layer, [num_outputs], half of all at most: the last ones of
  // some sequences, in their order. Undefined: all tokens.
  Tensor output_rows;
  bool outputs_all_seqs = false;  // output_rows has one token of every sequence
  Tensor arange;                  // [num_outputs + 1] at least: 0, 1, 2, ...; with output_rows
  bool decodes_only = false;      // every sequence decodes; said only where StepModel::reads_next_tokens()

  int64_t num_tokens() const { return inputs.token_ids.dim(0); }
  int64_t num_seqs() const { return inputs.seq_rows.dim(0); }
};

// The last sequences of a step, as far as all are prefills of min_query_len tokens or more; none if it is 0. The
// scheduler puts prefills with the most tokens last.
LongPrompts long_prompts_of(std::span<const SeqStep> seqs, int min_query_len);

// The inputs of a step launched under `key`, whose counts they have.
StepBatch step_batch(const StepInputs& inputs, const RowState& state, const StepKey& key);

// Layers ignore the Status of a collective. After an error its results are unspecified, later collectives return at
// once, and the rank ends the step with Communicators::error().
struct StepContext {
  Stream& stream;
  const OpTable& ops;                  // bound: every op is set
  const Communicators& communicators;  // the groups of the rank's Place: tp, ep, dp, pp
  const StepBatch& batch;
  std::span<const KvView> kv;  // one a layer, in the order of StepModel::kv_layers()
};

}  // namespace spate
