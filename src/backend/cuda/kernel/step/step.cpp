#include "backend/cuda/kernel/step/step.h"

#include <algorithm>

#include "backend/check_params.h"
#include "backend/cuda/kernel/cuda_ops.h"
#include "backend/cuda/launch.h"

namespace spate::cuda {
namespace {

constexpr int kStepThreads = 128;

ApplyUpdatesKernelParams apply_updates_params(const ApplyUpdatesParams& p) {
  const RowState& state = p.state;
  return {.plan = static_cast<const char*>(p.plan),
          .state_token_ids = state.token_ids.data<int32_t>(),
          .num_tokens = state.num_tokens.data<int32_t>(),
          .num_computed_tokens = state.num_computed_tokens.data<int32_t>(),
          .block_table = state.block_table.data<int32_t>(),
          .sampling = static_cast<char*>(state.sampling.raw()),
          .bias_ids = state.bias_ids.data<int32_t>(),
          .bias_values = static_cast<int32_t*>(state.bias_values.raw()),
          .stop_ids = state.stop_ids.data<int32_t>(),
          .token_ids_stride = state.token_ids.stride(0),
          .block_table_stride = state.block_table.stride(0),
          .sampling_stride = state.sampling.stride(0),
          .bias_ids_stride = state.bias_ids.stride(0),
          .bias_values_stride = state.bias_values.stride(0),
          .stop_ids_stride = state.stop_ids.stride(0)};
}

BeginStepKernelParams begin_step_params(const BeginStepParams& p) {
  const RowState& state = p.state;
  const StepInputs& in = p.inputs;
  return {.plan = static_cast<const char*>(p.plan),
          .state_token_ids = state.token_ids.data<int32_t>(),
          .num_tokens_of_row = state.num_tokens.data<int32_t>(),
          .num_computed_tokens = state.num_computed_tokens.data<int32_t>(),
          .block_table = state.block_table.data<int32_t>(),
          .token_ids_stride = state.token_ids.stride(0),
          .block_table_stride = state.block_table.stride(0),
          .token_ids = in.token_ids.data<int32_t>(),
          .positions = in.positions.data<int32_t>(),
          .slot_mapping = in.slot_mapping.data<int32_t>(),
          .seq_rows = in.seq_rows.data<int32_t>(),
          .cu_seqlens_q = in.cu_seqlens_q.data<int32_t>(),
          .seq_lens = in.seq_lens.data<int32_t>(),
          .sample_token_idxs = in.sample_token_idxs.data<int32_t>(),
          .sample_state_rows = in.sample_state_rows.data<int32_t>(),
          .sample_offsets = in.sample_offsets.data<int32_t>(),
          .sample_masks = in.sample_masks.data<int32_t>(),
          .sample_drafts = in.sample_drafts.data<int32_t>(),
          .num_tokens = static_cast<int32_t>(in.token_ids.dim(0)),
          .num_seqs = static_cast<int32_t>(in.seq_rows.dim(0)),
          .num_logits = static_cast<int32_t>(in.sample_state_rows.dim(0)),
          .kv_block_size = static_cast<int32_t>(p.kv_block_size)};
}

}  // namespace

void apply_updates(Stream& stream, const ApplyUpdatesParams& p) {
  check_params(p);
  const StepPlanHeader& plan = *p.plan_host;
  const int64_t num_updates = int64_t{plan.num_row_updates} + plan.num_block_updates;
  if (num_updates == 0) return;
  launch(stream, kernel_id("apply_updates"), {.x = num_updates, .num_threads = kStepThreads}, apply_updates_params(p),
         {{"num_row_updates", plan.num_row_updates}, {"num_block_updates", plan.num_block_updates}});
}

void begin_step(Stream& stream, const BeginStepParams& p) {
  check_params(p);
  const BeginStepKernelParams params = begin_step_params(p);
  launch(stream, kernel_id("begin_step"), {.x = std::max(params.num_seqs, 1), .num_threads = kStepThreads}, params,
         {{"num_seqs", params.num_seqs}, {"num_tokens", params.num_tokens}});
}

void finish_step(Stream& stream, const FinishStepParams& p) {
  check_params(p);
  if (p.num_seqs == 0) return;
  const FinishStepKernelParams params{
      .plan = static_cast<const char*>(p.plan),
      .next_token_ids = p.next_token_ids.defined() ? p.next_token_ids.data<int32_t>() : nullptr,
      .num_accepted = p.num_accepted.defined() ? p.num_accepted.data<int32_t>() : nullptr,
      .token_ids = p.state.token_ids.data<int32_t>(),
      .num_tokens = p.state.num_tokens.data<int32_t>(),
      .num_computed_tokens = p.state.num_computed_tokens.data<int32_t>(),
      .token_ids_stride = p.state.token_ids.stride(0),
      .max_model_len = static_cast<int32_t>(p.state.token_ids.dim(1))};
  launch(stream, kernel_id("finish_step"), {.x = p.num_seqs, .num_threads = kStepThreads}, params,
         {{"num_seqs", p.num_seqs}});
}

}  // namespace spate::cuda
