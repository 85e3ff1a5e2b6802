#include "batch/plan_validate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/step_executor.h"

namespace spate {
namespace {

// The arrays of a plan, once their bounds are known to be right.
struct PlanView {
  StepPlanHeader header;
  std::span<const RowUpdate> row_updates;
  std::span<const BlockUpdate> block_updates;
  std::span<const BlockCopy> block_copies;
  std::span<const SeqStep> seqs;
  std::span<const int32_t> data;
  std::span<const uint32_t> masks;
};

template <typename T>
Status read_array(std::span<const std::byte> plan, const char* name, uint32_t offset, int64_t count,
                  std::span<const T>& out) {
  if (count < 0 || offset % 8 != 0 || offset < sizeof(StepPlanHeader) || offset > plan.size() ||
      count > static_cast<int64_t>((plan.size() - offset) / sizeof(T))) {
    return data_loss("step plan: {} [{}] at byte {} does not fit in {} bytes", name, count, offset, plan.size());
  }
  out = {reinterpret_cast<const T*>(plan.data() + offset), static_cast<size_t>(count)};
  return ok_status();
}

Result<PlanView> read_plan(std::span<const std::byte> plan) {
  PlanView view;
  if (plan.size() < sizeof(StepPlanHeader)) return data_loss("step plan: {} bytes are no header", plan.size());
  std::memcpy(&view.header, plan.data(), sizeof(StepPlanHeader));
  const StepPlanHeader& header = view.header;
  if (header.magic != kStepPlanMagic || header.version != kStepPlanVersion) {
    return data_loss("step plan: magic {:#x} version {}, expected {:#x} version {}", header.magic, header.version,
                     kStepPlanMagic, kStepPlanVersion);
  }
  if (header.total_bytes != plan.size()) {
    return data_loss("step plan: header says {} bytes, got {}", header.total_bytes, plan.size());
  }
  RETURN_IF_ERROR(read_array(plan, "row_updates", header.row_updates_offset, header.num_row_updates, view.row_updates));
  RETURN_IF_ERROR(
      read_array(plan, "block_updates", header.block_updates_offset, header.num_block_updates, view.block_updates));
  RETURN_IF_ERROR(
      read_array(plan, "block_copies", header.block_copies_offset, header.num_block_copies, view.block_copies));
  RETURN_IF_ERROR(read_array(plan, "seqs", header.seqs_offset, header.num_seqs, view.seqs));
  RETURN_IF_ERROR(read_array(plan, "data", header.data_offset, header.num_data, view.data));
  const int64_t num_mask_words = int64_t{header.num_masks} * header.mask_words;
  if (header.num_masks < 0 || header.mask_words < 0) {
    return data_loss("step plan: {} masks of {} words", header.num_masks, header.mask_words);
  }
  if (header.masks_are_late == 0) {
    RETURN_IF_ERROR(read_array(plan, "masks", header.masks_offset, num_mask_words, view.masks));
  } else if (header.masks_are_late != 1 || header.masks_offset != header.total_bytes) {
    return data_loss("step plan: masks_are_late is {}, their place is byte {} behind an image of {}",
                     header.masks_are_late, header.masks_offset, header.total_bytes);
  }
  return view;
}

Status check_in(const char* what, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return ok_status();
  return data_loss("step plan: {} is {}, must be in [{}, {}]", what, value, low, high);
}

// data[begin .. + count), each value in [0, bound).
Status check_ids(const PlanView& view, const char* what, uint32_t begin, int32_t count, int bound) {
  if (begin > view.data.size() || static_cast<size_t>(count) > view.data.size() - begin) {
    return data_loss("step plan: {} are data[{} .. + {}) of {}", what, begin, count, view.data.size());
  }
  for (const int32_t id : view.data.subspan(begin, count)) RETURN_IF_ERROR(check_in(what, id, 0, int64_t{bound} - 1));
  return ok_status();
}

Status mark_once(const char* what, int32_t id, std::vector<char>& seen) {
  RETURN_IF_ERROR(check_in(what, id, 0, static_cast<int64_t>(seen.size()) - 1));
  if (seen[id] != 0) return data_loss("step plan: {} {} comes twice", what, id);
  seen[id] = 1;
  return ok_status();
}

Status check_sampling(const PlanView& view, const RowUpdate& update, const StepPlanLimits& limits) {
  const RowSampling& sampling = update.sampling;
  for (const float value : {sampling.temperature, sampling.top_p, sampling.min_p, sampling.repetition_penalty,
                            sampling.presence_penalty, sampling.frequency_penalty, sampling.relaxed_delta}) {
    if (!std::isfinite(value))
      return data_loss("step plan: row {} has a sampling parameter that is not finite", update.row);
  }
  RETURN_IF_ERROR(check_in("num_bias", sampling.num_bias, 0, kMaxLogitBias));
  RETURN_IF_ERROR(check_in("num_stop_ids", sampling.num_stop_ids, 0, kMaxStopIds));
  const int64_t max_logprobs = std::max<int64_t>(kMaxLogprobs, limits.vocab_size);
  if (sampling.num_logprobs != kLogprobsById) {
    RETURN_IF_ERROR(check_in("num_logprobs", sampling.num_logprobs, -1, max_logprobs));
  }
  RETURN_IF_ERROR(check_in("num_prompt_logprobs", update.num_prompt_logprobs, -1, max_logprobs));
  RETURN_IF_ERROR(check_in("prompt_len", sampling.prompt_len, 1, update.num_tokens));
  RETURN_IF_ERROR(check_ids(view, "bias ids", update.bias_ids_begin, sampling.num_bias, limits.vocab_size));
  RETURN_IF_ERROR(check_ids(view, "stop ids", update.stop_ids_begin, sampling.num_stop_ids, limits.vocab_size));
  if (update.bias_values_begin > view.data.size() ||
      static_cast<size_t>(sampling.num_bias) > view.data.size() - update.bias_values_begin) {
    return data_loss("step plan: bias values are data[{} .. + {}) of {}", update.bias_values_begin, sampling.num_bias,
                     view.data.size());
  }
  return ok_status();
}

Status check_row_updates(const PlanView& view, const StepPlanLimits& limits) {
  std::vector<char> seen(limits.step.max_num_seqs, 0);
  for (const RowUpdate& update : view.row_updates) {
    RETURN_IF_ERROR(mark_once("updated row", update.row, seen));
    RETURN_IF_ERROR(check_in("num_tokens of a row", update.num_tokens, 1, limits.step.max_model_len));
    RETURN_IF_ERROR(check_in("num_computed_tokens of a row", update.num_computed_tokens, 0, update.num_tokens - 1));
    RETURN_IF_ERROR(check_ids(view, "token ids", update.tokens_begin, update.num_tokens, limits.vocab_size));
    RETURN_IF_ERROR(check_sampling(view, update, limits));
  }
  return ok_status();
}

Status check_blocks(const PlanView& view, const StepPlanLimits& limits) {
  for (const BlockUpdate& update : view.block_updates) {
    RETURN_IF_ERROR(check_in("row of a block update", update.row, 0, limits.step.max_num_seqs - 1));
    RETURN_IF_ERROR(check_in("first_block_idx", update.first_block_idx, 0, limits.step.max_blocks_per_seq() - 1));
    RETURN_IF_ERROR(
        check_in("num_blocks", update.num_blocks, 0, limits.step.max_blocks_per_seq() - update.first_block_idx));
    RETURN_IF_ERROR(check_ids(view, "block ids", update.blocks_begin, update.num_blocks, limits.num_kv_blocks));
  }
  if (view.block_copies.empty()) return ok_status();
  std::vector<char> is_destination(limits.num_kv_blocks, 0);
  for (const BlockCopy& copy : view.block_copies) {
    RETURN_IF_ERROR(mark_once("destination of a block copy", copy.dst_block_id, is_destination));
  }
  for (const BlockCopy& copy : view.block_copies) {
    RETURN_IF_ERROR(check_in("source of a block copy", copy.src_block_id, 0, limits.num_kv_blocks - 1));
    if (is_destination[copy.src_block_id]) {
      return data_loss("step plan: block {} is source and destination of copies", copy.src_block_id);
    }
  }
  return ok_status();
}

Status check_drafts_and_masks(const PlanView& view, const SeqStep& seq, const StepPlanLimits& limits) {
  RETURN_IF_ERROR(check_in("num_drafts", seq.num_drafts, 0, seq.phase == SeqPhase::kDecode ? kMaxDrafts : 0));
  if (seq.phase == SeqPhase::kDecode) {
    RETURN_IF_ERROR(check_in("query_len of a decode row", seq.query_len, 1 + seq.num_drafts, 1 + seq.num_drafts));
  }
  if ((seq.flags & kDraftsInRow) == 0) {
    RETURN_IF_ERROR(check_ids(view, "drafts", seq.drafts_begin, seq.num_drafts, limits.vocab_size));
  }
  // Those of the row are unknown to whoever writes the plan.
  const bool may_relax = (seq.flags & kDraftsInRow) == 0;
  RETURN_IF_ERROR(check_in("num_relaxed", seq.num_relaxed, 0, may_relax ? seq.num_drafts : 0));
  if (seq.first_mask == -1) return ok_status();
  return check_in("first_mask", seq.first_mask, 0, int64_t{view.header.num_masks} - num_logits_of(seq));
}

// At most one of kPoolFlags, and then no sample.
bool pools_once(uint32_t flags) {
  const uint32_t pool = flags & kPoolFlags;
  return pool == 0 || (std::has_single_bit(pool) && (flags & kSample) == 0);
}

Status check_seqs(const PlanView& view, const StepPlanLimits& limits) {
  std::vector<char> seen(limits.step.max_num_seqs, 0);
  int64_t num_tokens = 0, num_sampled = 0, num_logits = 0, num_prompt_logprobs = 0, max_query_len = 0, max_seq_len = 0;
  for (const SeqStep& seq : view.seqs) {
    RETURN_IF_ERROR(mark_once("row of a sequence", seq.row, seen));
    RETURN_IF_ERROR(check_in("query_len", seq.query_len, 1, limits.step.max_num_batched_tokens));
    RETURN_IF_ERROR(check_in("num_computed_tokens", seq.num_computed_tokens, 0,
                             int64_t{limits.step.max_model_len} - seq.query_len));
    const bool decodes = seq.phase == SeqPhase::kDecode;
    RETURN_IF_ERROR(check_in("phase", static_cast<int32_t>(seq.phase), 0, 1));
    if (decodes ? (seq.flags | kDraftsInRow) != (kSample | kDraftsInRow)
                : (seq.flags & ~(kSample | kPromptLogprobs | kPoolFlags)) != 0 || !pools_once(seq.flags)) {
      return data_loss("step plan: flags {:#x} of a {} row", seq.flags, decodes ? "decode" : "prefill");
    }
    RETURN_IF_ERROR(check_drafts_and_masks(view, seq, limits));
    num_tokens += seq.query_len;
    num_sampled += (seq.flags & kSample) != 0;
    num_logits += num_logits_of(seq);
    num_prompt_logprobs += (seq.flags & kPromptLogprobs) != 0;
    max_query_len = std::max<int64_t>(max_query_len, seq.query_len);
    max_seq_len = std::max<int64_t>(max_seq_len, int64_t{seq.num_computed_tokens} + seq.query_len);
  }
  RETURN_IF_ERROR(check_in("num_tokens", num_tokens, 0, limits.step.max_num_batched_tokens));
  const StepPlanHeader& header = view.header;
  if (header.num_masks > 0) {
    RETURN_IF_ERROR(
        check_in("mask_words", header.mask_words, mask_words_of(limits.vocab_size), mask_words_of(limits.vocab_size)));
    if (header.masks_are_late != 0) RETURN_IF_ERROR(check_in("num_masks", header.num_masks, 1, num_logits));
  }
  if (header.num_tokens != num_tokens || header.num_sampled != num_sampled || header.num_logits != num_logits ||
      header.num_prompt_logprobs != num_prompt_logprobs || header.max_query_len != max_query_len ||
      header.max_seq_len != max_seq_len) {
    return data_loss(
        "step plan: header says num_tokens {}, num_sampled {}, num_logits {}, num_prompt_logprobs {}, max_query_len "
        "{}, max_seq_len {}, its sequences give {}, {}, {}, {}, {}, {}",
        header.num_tokens, header.num_sampled, header.num_logits, header.num_prompt_logprobs, header.max_query_len,
        header.max_seq_len, num_tokens, num_sampled, num_logits, num_prompt_logprobs, max_query_len, max_seq_len);
  }
  return ok_status();
}

}  // namespace

Status validate_plan(std::span<const std::byte> plan, const StepPlanLimits& limits) {
  ASSIGN_OR_RETURN(const PlanView view, read_plan(plan));
  RETURN_IF_ERROR(check_row_updates(view, limits));
  RETURN_IF_ERROR(check_blocks(view, limits));
  return check_seqs(view, limits);
}

}  // namespace spate
