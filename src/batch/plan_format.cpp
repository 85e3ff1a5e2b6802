#include <fmt/format.h>

#include <iterator>

#include "batch/plan_validate.h"

namespace spate {
namespace {

constexpr int kMaxShown = 8;  // ids of a list

template <typename Out>
void write_ids(Out out, const int32_t* ids, int count) {
  fmt::format_to(out, "[{}{}]", fmt::join(ids, ids + std::min(count, kMaxShown), " "), count > kMaxShown ? " ..." : "");
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
    fmt::format_to(out, "  run row {}: {} + {}{}{}\n", seq.row, seq.num_computed_tokens, seq.query_len,
                   (seq.flags & kSample) != 0 ? " sample" : "",
                   (seq.flags & kPromptLogprobs) != 0 ? " prompt_logprobs" : "");
  }
  return text;
}

}  // namespace spate
