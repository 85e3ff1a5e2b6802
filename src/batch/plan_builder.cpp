#include "batch/plan_builder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace spate {
namespace {

constexpr size_t round_up_8(size_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

void StepPlanBuilder::begin(uint64_t step_id) {
  header_ = StepPlanHeader{};
  header_.step_id = step_id;
  row_updates_.clear();
  block_updates_.clear();
  block_copies_.clear();
  seqs_.clear();
  data_.clear();
  masks_.clear();
}

uint32_t StepPlanBuilder::append_data(std::span<const int32_t> values) {
  const size_t begin = data_.size();
  data_.insert(data_.end(), values.begin(), values.end());
  return static_cast<uint32_t>(begin);
}

void StepPlanBuilder::add_row(const RowEntry& entry) {
  RowUpdate update;
  update.row = entry.row;
  update.num_tokens = static_cast<int32_t>(entry.token_ids.size());
  update.num_computed_tokens = entry.num_computed_tokens;
  update.num_prompt_logprobs = entry.num_prompt_logprobs;
  update.sampling = entry.sampling;
  update.sampling.num_bias = static_cast<int32_t>(entry.logit_bias.size());
  update.sampling.num_stop_ids = static_cast<int32_t>(entry.stop_ids.size());
  update.tokens_begin = append_data(entry.token_ids);
  update.bias_ids_begin = static_cast<uint32_t>(data_.size());
  for (const auto& [id, bias] : entry.logit_bias) data_.push_back(id);
  update.bias_values_begin = static_cast<uint32_t>(data_.size());
  for (const auto& [id, bias] : entry.logit_bias) data_.push_back(std::bit_cast<int32_t>(bias));
  update.stop_ids_begin = append_data(entry.stop_ids);
  row_updates_.push_back(update);
}

std::span<int32_t> StepPlanBuilder::add_blocks(int32_t row, int32_t first_block_idx, int32_t num_blocks) {
  const size_t begin = data_.size();
  block_updates_.push_back({.row = row,
                            .first_block_idx = first_block_idx,
                            .num_blocks = num_blocks,
                            .blocks_begin = static_cast<uint32_t>(begin)});
  data_.resize(begin + num_blocks);
  return std::span(data_).subspan(begin);
}

void StepPlanBuilder::add_block_copy(int32_t src_block_id, int32_t dst_block_id) {
  block_copies_.push_back({src_block_id, dst_block_id});
}

void write_mask(std::span<const uint32_t> words, std::span<const int32_t> more_ids, uint32_t* out) {
  std::ranges::copy(words, out);
  for (const int32_t id : more_ids) {
    if (id >= 0 && static_cast<size_t>(id) / 32 < words.size()) out[id / 32] |= 1u << (id % 32);
  }
}

int32_t StepPlanBuilder::add_mask(std::span<const uint32_t> words, std::span<const int32_t> more_ids) {
  CHECK(header_.masks_are_late == 0);
  take_mask_words(words.size());
  masks_.push_back({words, more_ids});
  return header_.num_masks++;
}

int32_t StepPlanBuilder::expect_masks(int num_masks, int32_t mask_words) {
  CHECK(masks_.empty());
  header_.masks_are_late = 1;
  take_mask_words(static_cast<size_t>(mask_words));
  return std::exchange(header_.num_masks, header_.num_masks + num_masks);
}

void StepPlanBuilder::take_mask_words(size_t mask_words) {
  CHECK(header_.num_masks == 0 || header_.mask_words == static_cast<int32_t>(mask_words),
        "masks of {} and {} words in one step", header_.mask_words, mask_words);
  header_.mask_words = static_cast<int32_t>(mask_words);
}

void StepPlanBuilder::add_seq(const SeqStep& seq) {
  seqs_.push_back(seq);
  header_.num_tokens += seq.query_len;
  header_.num_sampled += (seq.flags & kSample) != 0;
  header_.num_logits += num_logits_of(seq);
  header_.num_prompt_logprobs += (seq.flags & kPromptLogprobs) != 0;
  header_.max_query_len = std::max(header_.max_query_len, seq.query_len);
  header_.max_seq_len = std::max(header_.max_seq_len, seq.num_computed_tokens + seq.query_len);
}

std::span<const std::byte> StepPlanBuilder::finish() {
  header_.num_row_updates = static_cast<int32_t>(row_updates_.size());
  header_.num_block_updates = static_cast<int32_t>(block_updates_.size());
  header_.num_block_copies = static_cast<int32_t>(block_copies_.size());
  header_.num_seqs = static_cast<int32_t>(seqs_.size());
  header_.num_data = static_cast<uint32_t>(data_.size());
  size_t end = sizeof(StepPlanHeader);
  const auto place = [&end](size_t bytes) {
    const size_t offset = end;
    end += round_up_8(bytes);
    return static_cast<uint32_t>(offset);
  };
  header_.row_updates_offset = place(row_updates_.size() * sizeof(RowUpdate));
  header_.block_updates_offset = place(block_updates_.size() * sizeof(BlockUpdate));
  header_.block_copies_offset = place(block_copies_.size() * sizeof(BlockCopy));
  header_.seqs_offset = place(seqs_.size() * sizeof(SeqStep));
  header_.data_offset = place(data_.size() * sizeof(int32_t));
  header_.masks_offset = place(masks_.size() * static_cast<size_t>(header_.mask_words) * sizeof(uint32_t));
  CHECK(end <= UINT32_MAX, "a step plan of {} bytes", end);
  header_.total_bytes = static_cast<uint32_t>(end);

  image_.resize(end / 8);
  // The padding after an odd number of values.
  image_[(header_.masks_offset - 1) / 8] = 0;
  image_.back() = 0;
  char* image = reinterpret_cast<char*>(image_.data());
  const auto put = [image](uint32_t offset, const auto& values) {
    if (!values.empty()) std::memcpy(image + offset, values.data(), values.size() * sizeof(values[0]));
  };
  std::memcpy(image, &header_, sizeof(header_));
  put(header_.row_updates_offset, row_updates_);
  put(header_.block_updates_offset, block_updates_);
  put(header_.block_copies_offset, block_copies_);
  put(header_.seqs_offset, seqs_);
  put(header_.data_offset, data_);
  auto* words = reinterpret_cast<uint32_t*>(image + header_.masks_offset);
  for (const Mask& mask : masks_) {
    write_mask(mask.words, mask.more_ids, words);
    words += header_.mask_words;
  }
  return {reinterpret_cast<const std::byte*>(image), end};
}

}  // namespace spate
