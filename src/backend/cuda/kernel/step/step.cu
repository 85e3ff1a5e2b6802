// WHAT       copy_words brings a plan here and what a step sampled to the host: the copy engine would leave the GPU idle
//            for longer. apply_updates puts the plan's rows and block ids into the running state. begin_step writes the
//            flat arrays of the step. finish_step moves the state on by what the step computed and sampled.
// SHAPES     core/step_plan.h and backend/ops.h (RowState, StepInputs).
// LAYOUT     The plan is the same image on the host and here. Its header is read here, so that begin_step and
//            finish_step can be replayed for another plan; inputs beyond the plan's counts become dummies (backend/ops.h).
// NUMERICS   Integers.
// WORK       apply_updates: a CTA an update (rows first, then blocks). begin_step, finish_step: a CTA a sequence,
//            which adds up what the sequences before it hold: num_seqs^2 / 2 additions in all, 32,768 at 256 sequences.
// ROOFLINE   Latency: three launches of some 3 us.
// LIMITS     finish_step drops a token that does not fit into max_model_len: the row of a sequence that the host has
//            already ended (one wasted row, blueprint decision 3).
// TESTS      spate-conformance --backend cuda --filter apply_updates
#include "backend/cuda/kernel/step/step.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

template <typename T>
__device__ inline const T* array_at(const char* plan, uint32_t offset) {
  return reinterpret_cast<const T*>(plan + offset);
}

__device__ inline void copy_ints(int32_t* dst, const int32_t* src, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) dst[i] = src[i];
}

__device__ inline const StepPlanHeader& header_of(const char* plan) {
  return *reinterpret_cast<const StepPlanHeader*>(plan);
}

// num_logits_of() of core/step_plan.h, for the device.
__device__ inline int logits_rows_of(const SeqStep& seq) {
  return (seq.flags & kSample) != 0 ? 1 + seq.num_drafts : 0;
}

__device__ inline void apply_row_update(const ApplyUpdatesKernelParams& p, const RowUpdate& update,
                                        const int32_t* data) {
  const int64_t row = update.row;
  const RowSampling& sampling = update.sampling;
  copy_ints(p.state_token_ids + row * p.token_ids_stride, data + update.tokens_begin, update.num_tokens);
  copy_ints(p.bias_ids + row * p.bias_ids_stride, data + update.bias_ids_begin, sampling.num_bias);
  copy_ints(p.bias_values + row * p.bias_values_stride, data + update.bias_values_begin, sampling.num_bias);
  copy_ints(p.stop_ids + row * p.stop_ids_stride, data + update.stop_ids_begin, sampling.num_stop_ids);
  copy_ints(reinterpret_cast<int32_t*>(p.sampling + row * p.sampling_stride),
            reinterpret_cast<const int32_t*>(&sampling), sizeof(RowSampling) / sizeof(int32_t));
  if (threadIdx.x == 0) {
    p.num_tokens[row] = update.num_tokens;
    p.num_computed_tokens[row] = update.num_computed_tokens;
  }
}

extern "C" __global__ void copy_words(const __grid_constant__ CopyWordsKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  // The host has written other words to this place before.
  if (i < p.num_words) p.to[i] = *const_cast<const volatile uint32_t*>(p.from + i);
}

extern "C" __global__ void apply_updates(const __grid_constant__ ApplyUpdatesKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const StepPlanHeader& plan = header_of(p.plan);
  const int32_t* data = array_at<int32_t>(p.plan, plan.data_offset);
  const int update_idx = blockIdx.x;
  if (update_idx < plan.num_row_updates) {
    apply_row_update(p, array_at<RowUpdate>(p.plan, plan.row_updates_offset)[update_idx], data);
    return;
  }
  const BlockUpdate& update =
      array_at<BlockUpdate>(p.plan, plan.block_updates_offset)[update_idx - plan.num_row_updates];
  copy_ints(p.block_table + update.row * p.block_table_stride + update.first_block_idx, data + update.blocks_begin,
            update.num_blocks);
}

// The CTAs share the dummies behind the plan's own inputs. cu_seqlens_q and seq_lens of a dummy sequence are its own
// CTA's.
__device__ inline void fill_dummies(const BeginStepKernelParams& p, const StepPlanHeader& plan) {
  const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  for (int i = plan.num_tokens + first; i < p.num_tokens; i += step) {
    p.token_ids[i] = 0;
    p.positions[i] = 0;
    p.slot_mapping[i] = -1;
  }
  for (int i = plan.num_logits + first; i < p.num_logits; i += step) {
    p.sample_token_idxs[i] = 0;
    p.sample_state_rows[i] = -1;
    p.sample_offsets[i] = 0;
    p.sample_masks[i] = -1;
    p.sample_drafts[i] = -1;
  }
}

extern "C" __global__ void begin_step(const __grid_constant__ BeginStepKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const StepPlanHeader& plan = header_of(p.plan);
  const SeqStep* seqs = array_at<SeqStep>(p.plan, plan.seqs_offset);
  const int seq_idx = blockIdx.x;
  fill_dummies(p, plan);
  if (seq_idx == 0 && threadIdx.x == 0) p.cu_seqlens_q[0] = 0;
  if (seq_idx >= plan.num_seqs) {
    if (seq_idx < p.num_seqs && threadIdx.x == 0) {
      p.cu_seqlens_q[seq_idx + 1] = plan.num_tokens;
      p.seq_rows[seq_idx] = 0;
      p.seq_lens[seq_idx] = 0;
    }
    return;
  }
  int tokens_before = 0, logits_before = 0;
  for (int i = threadIdx.x; i < seq_idx; i += blockDim.x) {
    tokens_before += seqs[i].query_len;
    logits_before += logits_rows_of(seqs[i]);
  }
  tokens_before = block_reduce(tokens_before, Sum());
  logits_before = block_reduce(logits_before, Sum());

  const SeqStep seq = seqs[seq_idx];
  const int64_t row = seq.row;
  const int num_computed_tokens = p.num_computed_tokens[row];
  int32_t* row_token_ids = p.state_token_ids + row * p.token_ids_stride;
  const int32_t* blocks = p.block_table + row * p.block_table_stride;
  const bool has_drafts = seq.num_drafts > 0 && (seq.flags & kDraftsInRow) == 0;
  const int32_t* drafts = array_at<int32_t>(p.plan, plan.data_offset) + seq.drafts_begin;
  const int num_tokens = p.num_tokens_of_row[row];
  for (int i = threadIdx.x; i < seq.query_len; i += blockDim.x) {
    const int position = num_computed_tokens + i;
    if (has_drafts && position >= num_tokens) row_token_ids[position] = drafts[position - num_tokens];
    p.token_ids[tokens_before + i] = max(row_token_ids[position], 0);
    p.positions[tokens_before + i] = position;
    p.slot_mapping[tokens_before + i] =
        blocks[position / p.kv_block_size] * p.kv_block_size + position % p.kv_block_size;
  }
  const int num_logits = logits_rows_of(seq);
  for (int i = threadIdx.x; i < num_logits; i += blockDim.x) {
    p.sample_token_idxs[logits_before + i] = tokens_before + seq.query_len - num_logits + i;
    p.sample_state_rows[logits_before + i] = seq.row;
    p.sample_offsets[logits_before + i] = i;
    p.sample_masks[logits_before + i] = seq.first_mask < 0 ? -1 : seq.first_mask + i;
    p.sample_drafts[logits_before + i] = i < seq.num_relaxed ? drafts[i] : -1;
  }
  if (threadIdx.x != 0) return;
  p.cu_seqlens_q[seq_idx + 1] = tokens_before + seq.query_len;
  p.seq_rows[seq_idx] = seq.row;
  p.seq_lens[seq_idx] = num_computed_tokens + seq.query_len;
}

extern "C" __global__ void finish_step(const __grid_constant__ FinishStepKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const StepPlanHeader& plan = header_of(p.plan);
  const SeqStep* seqs = array_at<SeqStep>(p.plan, plan.seqs_offset);
  const int seq_idx = blockIdx.x;
  if (seq_idx >= plan.num_seqs) return;
  int logits_before = 0;
  for (int i = threadIdx.x; i < seq_idx; i += blockDim.x) logits_before += logits_rows_of(seqs[i]);
  logits_before = block_reduce(logits_before, Sum());
  if (threadIdx.x != 0) return;
  const SeqStep seq = seqs[seq_idx];
  const int num_tokens = p.num_tokens[seq.row];
  const int32_t* next = p.next_token_ids + logits_before;
  int32_t* drafts = p.token_ids + seq.row * p.token_ids_stride + num_tokens;
  int num_accepted = 0;
  while (num_accepted < seq.num_drafts && drafts[num_accepted] >= 0 && drafts[num_accepted] == next[num_accepted]) {
    ++num_accepted;
  }
  if (p.num_accepted != nullptr) p.num_accepted[seq_idx] = num_accepted;
  p.num_computed_tokens[seq.row] += seq.query_len - seq.num_drafts + num_accepted;
  if (!(seq.flags & kSample)) return;
  if (num_tokens + num_accepted < p.max_model_len) drafts[num_accepted] = next[num_accepted];
  p.num_tokens[seq.row] = min(num_tokens + num_accepted + 1, p.max_model_len);
}

}  // namespace spate::cuda
