#include <fmt/format.h>

#include <bit>
#include <iterator>

#include "batch/plan_validate.h"

namespace spate {
namespace {

constexpr int kMaxShown = 8;  // ids of a list

template <typename Out>
void write_ids(Out out, const int32_t* ids, int count) {
  fmt::format_to(out, "[{}{}]", fmt::join(ids, ids + std::min(count, kMaxShown), " "), count > kMaxShown ? " ..." : "");
}

// How many tokens each of the sequence's masks allows.
template <typename Out>
void write_masks(Out out, const void* plan, const StepPlanHeader& header, const SeqStep& seq) {
  if (header.masks_are_late != 0) {
    fmt::format_to(out, " masks come later");
    return;
  }
  const uint32_t* masks = plan_array<uint32_t>(plan, header.masks_offset);
  for (int i = 0; i < num_logits_of(seq); ++i) {
    const uint32_t* mask = masks + static_cast<size_t>(seq.first_mask + i) * header.mask_words;
    int num_allowed = 0;
    for (int word = 0; word < header.mask_words; ++word) num_allowed += std::popcount(mask[word]);
    fmt::format_to(out, "{}{}", i == 0 ? " masks allow " : " ", num_allowed);
  }
}

}  // namespace

std::string format_plan(std::span<const std::byte> plan) {
  const auto& header = *reinterpret_cast<const StepPlanHeader*>(plan.data());
  const int32_t* data = plan_array<int32_t>(plan.data(), header.data_offset);
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "step {}: {} sequences, {} tokens, {} sampled, max_query_len {}, max_seq_len {}, {} bytes\n",
                 header.step_id, header.num_seqs, header.num_tokens, header.num_sampled, header.max_query_len,
                 header.max_seq_len, header.total_bytes);
  for (int i = 0; i < header.num_row_updates; ++i) {
    const RowUpdate& row = plan_array<RowUpdate>(plan.data(), header.row_updates_offset)[i];
    fmt::format_to(out, "  row {} <- {} tokens, {} computed, prompt {}, temperature {:g}, seed {}: ", row.row,
                   row.num_tokens, row.num_computed_tokens, row.sampling.prompt_len, row.sampling.temperature,
                   row.sampling.seed);
    write_ids(out, data + row.tokens_begin, row.num_tokens);
    text += '\n';
  }
  for (int i = 0; i < header.num_block_updates; ++i) {
    const BlockUpdate& update = plan_array<BlockUpdate>(plan.data(), header.block_updates_offset)[i];
    fmt::format_to(out, "  row {} blocks {}.. <- ", update.row, update.first_block_idx);
    write_ids(out, data + update.blocks_begin, update.num_blocks);
    text += '\n';
  }
  for (int i = 0; i < header.num_block_copies; ++i) {
    const BlockCopy& copy = plan_array<BlockCopy>(plan.data(), header.block_copies_offset)[i];
    fmt::format_to(out, "  block {} -> block {}\n", copy.src_block_id, copy.dst_block_id);
  }
  for (int i = 0; i < header.num_seqs; ++i) {
    const SeqStep& seq = plan_array<SeqStep>(plan.data(), header.seqs_offset)[i];
    const bool decodes = seq.phase == SeqPhase::kDecode;
    fmt::format_to(out, "  run row {}: {} {}{} + {}{}{}{}", seq.row, decodes ? "decode" : "prefill",
                   decodes ? "at most " : "", seq.num_computed_tokens, seq.query_len,
                   (seq.flags & kSample) != 0 ? " sample" : "",
                   (seq.flags & kPromptLogprobs) != 0 ? " prompt_logprobs" : "",
                   (seq.flags & kPoolFlags) != 0 ? " hidden_state" : "");
    if ((seq.flags & kDraftsInRow) != 0) {
      fmt::format_to(out, " {} drafts in the row", seq.num_drafts);
    } else if (seq.num_drafts > 0) {
      text += " drafts ";
      write_ids(out, data + seq.drafts_begin, seq.num_drafts);
    }
    if (seq.first_mask >= 0) write_masks(out, plan.data(), header, seq);
    text += '\n';
  }
  return text;
}

}  // namespace spate
