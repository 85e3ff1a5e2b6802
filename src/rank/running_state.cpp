#include "rank/running_state.h"

namespace spate {
namespace {

// One array of the state: where its tensor goes and its shape. rank-1 arrays have width 0.
struct ArraySpec {
  Tensor* tensor;
  DType dtype;
  int64_t rows;
  int64_t width;
};

std::vector<ArraySpec> array_specs(const StepLimits& limits, RowState& rows, StepInputs& inputs) {
  const int64_t seqs = limits.max_num_seqs, tokens = limits.max_num_batched_tokens;
  return {
      {&rows.token_ids, DType::kI32, seqs, limits.max_model_len},
      {&rows.num_tokens, DType::kI32, seqs, 0},
      {&rows.num_computed_tokens, DType::kI32, seqs, 0},
      {&rows.block_table, DType::kI32, seqs, limits.max_blocks_per_seq()},
      {&rows.sampling, DType::kU8, seqs, sizeof(RowSampling)},
      {&rows.bias_ids, DType::kI32, seqs, kMaxLogitBias},
      {&rows.bias_values, DType::kF32, seqs, kMaxLogitBias},
      {&rows.stop_ids, DType::kI32, seqs, kMaxStopIds},
      {&inputs.token_ids, DType::kI32, tokens, 0},
      {&inputs.positions, DType::kI32, tokens, 0},
      {&inputs.slot_mapping, DType::kI32, tokens, 0},
      {&inputs.seq_rows, DType::kI32, seqs, 0},
      {&inputs.cu_seqlens_q, DType::kI32, seqs + 1, 0},
      {&inputs.seq_lens, DType::kI32, seqs, 0},
      {&inputs.sample_rows, DType::kI32, seqs, 0},
      {&inputs.sample_seqs, DType::kI32, seqs, 0},
  };
}

int64_t padded_bytes(const ArraySpec& spec) {
  const int64_t elements = spec.rows * (spec.width > 0 ? spec.width : 1);
  return (elements * dtype_bytes(spec.dtype) + 255) / 256 * 256;
}

}  // namespace

int64_t RunningState::num_bytes(const StepLimits& limits) {
  RowState rows;
  StepInputs inputs;
  int64_t total = 0;
  for (const ArraySpec& spec : array_specs(limits, rows, inputs)) total += padded_bytes(spec);
  return total;
}

Result<RunningState> RunningState::create(Device& device, Stream& stream, const StepLimits& limits) {
  RunningState state;
  ASSIGN_OR_RETURN(state.storage_, device.allocate(static_cast<size_t>(num_bytes(limits)), MemoryKind::kDevice));
  size_t offset = 0;
  for (const ArraySpec& spec : array_specs(limits, state.rows_, state.inputs_)) {
    *spec.tensor = spec.width > 0 ? state.storage_.tensor(spec.dtype, {spec.rows, spec.width}, offset)
                                  : state.storage_.tensor(spec.dtype, {spec.rows}, offset);
    offset += static_cast<size_t>(padded_bytes(spec));
  }
  // Row lengths must start at zero; token_ids, by far the largest array, is left untouched.
  for (const Tensor& lengths : {state.rows_.num_tokens, state.rows_.num_computed_tokens}) {
    device.fill_bytes(stream, lengths.raw(), 0, static_cast<size_t>(lengths.num_bytes()));
  }
  return state;
}

StepInputs RunningState::inputs(int num_tokens, int num_seqs, int num_sampled) const {
  return {
      .token_ids = inputs_.token_ids.rows(0, num_tokens),
      .positions = inputs_.positions.rows(0, num_tokens),
      .slot_mapping = inputs_.slot_mapping.rows(0, num_tokens),
      .seq_rows = inputs_.seq_rows.rows(0, num_seqs),
      .cu_seqlens_q = inputs_.cu_seqlens_q.rows(0, num_seqs + 1),
      .seq_lens = inputs_.seq_lens.rows(0, num_seqs),
      .sample_rows = inputs_.sample_rows.rows(0, num_sampled),
      .sample_seqs = inputs_.sample_seqs.rows(0, num_sampled),
  };
}

}  // namespace spate
