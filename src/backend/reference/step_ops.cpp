// The plan against the running state: its updates, the first and the last op of a step.
#include <algorithm>
#include <cstring>

#include "backend/check_params.h"
#include "backend/reference/reference_ops.h"

namespace spate::reference {
namespace {

int32_t* row_of(const Tensor& matrix, int64_t row) {
  CHECK(row >= 0 && row < matrix.dim(0), "row {} of the running state, which has {}", row, matrix.dim(0));
  return matrix.data<int32_t>() + row * matrix.stride(0);
}

void copy_ints(void* dst, const int32_t* src, int64_t count) {
  std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(int32_t));
}

void apply_row_update(const RowState& state, const RowUpdate& update, const int32_t* data) {
  const RowSampling& sampling = update.sampling;
  CHECK(update.num_tokens <= state.token_ids.dim(1) && sampling.num_bias <= kMaxLogitBias &&
            sampling.num_stop_ids <= kMaxStopIds,
        "apply_updates: a row of {} tokens, {} biases, {} stop ids", update.num_tokens, sampling.num_bias,
        sampling.num_stop_ids);
  copy_ints(row_of(state.token_ids, update.row), data + update.tokens_begin, update.num_tokens);
  state.num_tokens.data<int32_t>()[update.row] = update.num_tokens;
  state.num_computed_tokens.data<int32_t>()[update.row] = update.num_computed_tokens;
  std::memcpy(state.sampling.data<uint8_t>() + update.row * state.sampling.stride(0), &sampling, sizeof sampling);
  copy_ints(row_of(state.bias_ids, update.row), data + update.bias_ids_begin, sampling.num_bias);
  copy_ints(state.bias_values.data<float>() + update.row * state.bias_values.stride(0), data + update.bias_values_begin,
            sampling.num_bias);
  copy_ints(row_of(state.stop_ids, update.row), data + update.stop_ids_begin, sampling.num_stop_ids);
}

// Fills what a tensor has beyond its first `count` entries.
void fill_rest(const Tensor& tensor, int64_t count, int32_t value) {
  std::fill(tensor.data<int32_t>() + count, tensor.data<int32_t>() + tensor.dim(0), value);
}

const StepPlanHeader& header_of(const void* plan) { return *static_cast<const StepPlanHeader*>(plan); }

}  // namespace

void apply_updates(Stream&, const ApplyUpdatesParams& p) {
  check_params(p);
  const StepPlanHeader& plan = header_of(p.plan);
  const auto* data = plan_array<int32_t>(p.plan, plan.data_offset);
  const auto* row_updates = plan_array<RowUpdate>(p.plan, plan.row_updates_offset);
  for (int i = 0; i < plan.num_row_updates; ++i) apply_row_update(p.state, row_updates[i], data);
  const auto* block_updates = plan_array<BlockUpdate>(p.plan, plan.block_updates_offset);
  for (int i = 0; i < plan.num_block_updates; ++i) {
    const BlockUpdate& update = block_updates[i];
    CHECK(update.first_block_idx + update.num_blocks <= p.state.block_table.dim(1),
          "apply_updates: block {} of a row of {}", update.first_block_idx + update.num_blocks,
          p.state.block_table.dim(1));
    copy_ints(row_of(p.state.block_table, update.row) + update.first_block_idx, data + update.blocks_begin,
              update.num_blocks);
  }
}

void begin_step(Stream&, const BeginStepParams& p) {
  check_params(p);
  const StepPlanHeader& plan = header_of(p.plan);
  const StepInputs& in = p.inputs;
  CHECK(plan.num_tokens <= in.token_ids.dim(0) && plan.num_seqs <= in.seq_rows.dim(0) &&
            plan.num_logits <= in.sample_state_rows.dim(0),
        "begin_step: the plan has {} tokens, {} sequences, {} sampled; the inputs have {}, {}, {}", plan.num_tokens,
        plan.num_seqs, plan.num_logits, in.token_ids.dim(0), in.seq_rows.dim(0), in.sample_state_rows.dim(0));
  const auto* seqs = plan_array<SeqStep>(p.plan, plan.seqs_offset);
  int32_t token = 0, sampled = 0;
  in.cu_seqlens_q.data<int32_t>()[0] = 0;
  for (int32_t s = 0; s < plan.num_seqs; ++s) {
    const SeqStep& seq = seqs[s];
    int32_t* token_ids = row_of(p.state.token_ids, seq.row);
    const int32_t* blocks = row_of(p.state.block_table, seq.row);
    const int32_t num_computed_tokens = p.state.num_computed_tokens.data<int32_t>()[seq.row];
    const auto kv_block_size = static_cast<int32_t>(p.kv_block_size);
    if (seq.num_drafts > 0 && (seq.flags & kDraftsInRow) == 0) {
      const int32_t num_tokens = p.state.num_tokens.data<int32_t>()[seq.row];
      copy_ints(token_ids + num_tokens, plan_array<int32_t>(p.plan, plan.data_offset) + seq.drafts_begin,
                seq.num_drafts);
    }
    for (int32_t i = 0; i < seq.query_len; ++i, ++token) {
      const int32_t position = num_computed_tokens + i;
      in.token_ids.data<int32_t>()[token] = std::max(token_ids[position], 0);
      in.positions.data<int32_t>()[token] = position;
      in.slot_mapping.data<int32_t>()[token] =
          blocks[position / kv_block_size] * kv_block_size + position % kv_block_size;
    }
    in.seq_rows.data<int32_t>()[s] = seq.row;
    in.cu_seqlens_q.data<int32_t>()[s + 1] = token;
    in.seq_lens.data<int32_t>()[s] = num_computed_tokens + seq.query_len;
    for (int32_t offset = 0; offset < num_logits_of(seq); ++offset, ++sampled) {
      in.sample_token_idxs.data<int32_t>()[sampled] = token - num_logits_of(seq) + offset;
      in.sample_state_rows.data<int32_t>()[sampled] = seq.row;
      in.sample_offsets.data<int32_t>()[sampled] = offset;
      in.sample_masks.data<int32_t>()[sampled] = seq.first_mask < 0 ? -1 : seq.first_mask + offset;
      const int32_t num_tokens = p.state.num_tokens.data<int32_t>()[seq.row];
      in.sample_drafts.data<int32_t>()[sampled] = offset < seq.num_relaxed ? token_ids[num_tokens + offset] : -1;
    }
  }
  CHECK(token == plan.num_tokens && sampled == plan.num_logits,
        "begin_step: the plan says {} tokens, {} sampled; its sequences have {} and {}", plan.num_tokens,
        plan.num_logits, token, sampled);
  fill_rest(in.token_ids, token, 0);
  fill_rest(in.positions, token, 0);
  fill_rest(in.slot_mapping, token, -1);
  fill_rest(in.seq_rows, plan.num_seqs, 0);
  fill_rest(in.cu_seqlens_q, plan.num_seqs + 1, token);
  fill_rest(in.seq_lens, plan.num_seqs, 0);
  fill_rest(in.sample_token_idxs, sampled, 0);
  fill_rest(in.sample_state_rows, sampled, -1);
  fill_rest(in.sample_offsets, sampled, 0);
  fill_rest(in.sample_masks, sampled, -1);
  fill_rest(in.sample_drafts, sampled, -1);
}

void finish_step(Stream&, const FinishStepParams& p) {
  check_params(p);
  const StepPlanHeader& plan = header_of(p.plan);
  CHECK(plan.num_seqs <= p.num_seqs, "finish_step: {} sequences, launched for {}", plan.num_seqs, p.num_seqs);
  const auto* seqs = plan_array<SeqStep>(p.plan, plan.seqs_offset);
  const int32_t* next_token_ids = p.next_token_ids.defined() ? p.next_token_ids.data<int32_t>() : nullptr;
  const auto max_model_len = static_cast<int32_t>(p.state.token_ids.dim(1));
  for (int32_t s = 0; s < plan.num_seqs; next_token_ids += num_logits_of(seqs[s++])) {
    const SeqStep& seq = seqs[s];
    int32_t& num_tokens = p.state.num_tokens.data<int32_t>()[seq.row];
    int32_t* new_tokens = row_of(p.state.token_ids, seq.row) + num_tokens;  // the drafts
    int32_t num_accepted = 0;
    while (num_accepted < seq.num_drafts && new_tokens[num_accepted] >= 0 &&
           new_tokens[num_accepted] == next_token_ids[num_accepted]) {
      ++num_accepted;
    }
    if (p.num_accepted.defined()) p.num_accepted.data<int32_t>()[s] = num_accepted;
    p.state.num_computed_tokens.data<int32_t>()[seq.row] += seq.query_len - seq.num_drafts + num_accepted;
    if (!(seq.flags & kSample)) continue;
    if (num_tokens + num_accepted < max_model_len) new_tokens[num_accepted] = next_token_ids[num_accepted];
    num_tokens = std::min(num_tokens + num_accepted + 1, max_model_len);
  }
}

}  // namespace spate::reference
