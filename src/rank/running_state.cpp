#include "rank/running_state.h"

#include <numeric>
#include <vector>

namespace spate {
namespace {

// One array: where its tensor goes and its shape. rank-1 arrays have width 0.
struct ArraySpec {
  Tensor* tensor;
  DType dtype;
  int64_t rows;
  int64_t width;
};

int64_t padded_bytes(const ArraySpec& spec) {
  const int64_t elements = spec.rows * (spec.width > 0 ? spec.width : 1);
  return (elements * dtype_bytes(spec.dtype) + 255) / 256 * 256;
}

int64_t padded_bytes(const std::vector<ArraySpec>& specs) {
  int64_t total = 0;
  for (const ArraySpec& spec : specs) total += padded_bytes(spec);
  return total;
}

void lay_out(const std::vector<ArraySpec>& specs, const Buffer& storage) {
  size_t offset = 0;
  for (const ArraySpec& spec : specs) {
    *spec.tensor = spec.width > 0 ? storage.tensor(spec.dtype, {spec.rows, spec.width}, offset)
                                  : storage.tensor(spec.dtype, {spec.rows}, offset);
    offset += static_cast<size_t>(padded_bytes(spec));
  }
}

std::vector<ArraySpec> state_specs(const StepLimits& limits, RowState& rows, StepInputs& inputs, Tensor& arange) {
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
      {&inputs.sample_token_idxs, DType::kI32, limits.max_sampled_rows(), 0},
      {&inputs.sample_state_rows, DType::kI32, limits.max_sampled_rows(), 0},
      {&inputs.sample_offsets, DType::kI32, limits.max_sampled_rows(), 0},
      {&inputs.sample_masks, DType::kI32, limits.max_sampled_rows(), 0},
      {&inputs.sample_drafts, DType::kI32, limits.max_sampled_rows(), 0},
      {&arange, DType::kI32, tokens + 1, 0},
  };
}

std::vector<ArraySpec> output_specs(const StepLimits& limits, StepOutputArrays& outputs) {
  const int64_t rows = limits.max_logprobs_rows();
  return {
      {&outputs.next_token_ids, DType::kI32, limits.max_sampled_rows(), 0},
      {&outputs.is_relaxed, DType::kI32, limits.max_sampled_rows(), 0},
      {&outputs.num_accepted, DType::kI32, limits.max_num_seqs, 0},
      {&outputs.target_logprob, DType::kF32, rows, 0},
      {&outputs.target_rank, DType::kI32, rows, 0},
      {&outputs.top_ids, DType::kI32, rows, kMaxLogprobs},
      {&outputs.top_logprobs, DType::kF32, rows, kMaxLogprobs},
  };
}

int64_t state_bytes(const StepLimits& limits) {
  RowState rows;
  StepInputs inputs;
  Tensor arange;
  return padded_bytes(state_specs(limits, rows, inputs, arange));
}

}  // namespace

StepKey largest_step(const StepLimits& limits) {
  return {.num_seqs = limits.max_num_seqs,
          .num_tokens = limits.max_num_batched_tokens,
          .num_logits = limits.max_sampled_rows(),
          .max_query_len = limits.max_num_batched_tokens,
          .max_seq_len = limits.max_model_len,
          .num_top_logprobs = kMaxLogprobs};
}

size_t StepOutputArrays::num_bytes(const StepLimits& limits) {
  StepOutputArrays outputs;
  return static_cast<size_t>(padded_bytes(output_specs(limits, outputs)));
}

StepOutputArrays StepOutputArrays::over(const Buffer& storage, const StepLimits& limits) {
  StepOutputArrays outputs;
  lay_out(output_specs(limits, outputs), storage);
  return outputs;
}

int64_t RunningState::num_bytes(const StepLimits& limits) {
  return state_bytes(limits) + static_cast<int64_t>(StepOutputArrays::num_bytes(limits));
}

Result<RunningState> RunningState::create(Device& device, Stream& stream, const StepLimits& limits) {
  RunningState state;
  ASSIGN_OR_RETURN(state.storage_, device.allocate(static_cast<size_t>(state_bytes(limits)), MemoryKind::kDevice));
  ASSIGN_OR_RETURN(state.output_storage_, device.allocate(StepOutputArrays::num_bytes(limits), MemoryKind::kDevice));
  lay_out(state_specs(limits, state.rows_, state.inputs_, state.arange_), state.storage_);
  state.outputs_ = StepOutputArrays::over(state.output_storage_, limits);
  // Row lengths must start at zero; token_ids, by far the largest array, is left untouched.
  for (const Tensor& lengths : {state.rows_.num_tokens, state.rows_.num_computed_tokens}) {
    device.fill_bytes(stream, lengths.raw(), 0, static_cast<size_t>(lengths.num_bytes()));
  }
  std::vector<int32_t> iota(static_cast<size_t>(state.arange_.dim(0)));
  std::iota(iota.begin(), iota.end(), 0);
  device.copy_to_device(stream, state.arange_.raw(), iota.data(), iota.size() * 4);
  device.synchronize(stream);
  return state;
}

StepInputs RunningState::inputs(const StepKey& key) const {
  return {
      .token_ids = inputs_.token_ids.rows(0, key.num_tokens),
      .positions = inputs_.positions.rows(0, key.num_tokens),
      .slot_mapping = inputs_.slot_mapping.rows(0, key.num_tokens),
      .seq_rows = inputs_.seq_rows.rows(0, key.num_seqs),
      .cu_seqlens_q = inputs_.cu_seqlens_q.rows(0, key.num_seqs + 1),
      .seq_lens = inputs_.seq_lens.rows(0, key.num_seqs),
      .sample_token_idxs = inputs_.sample_token_idxs.rows(0, key.num_logits),
      .sample_state_rows = inputs_.sample_state_rows.rows(0, key.num_logits),
      .sample_offsets = inputs_.sample_offsets.rows(0, key.num_logits),
      .sample_masks = inputs_.sample_masks.rows(0, key.num_logits),
      .sample_drafts = inputs_.sample_drafts.rows(0, key.num_logits),
  };
}

}  // namespace spate
