// StepPlanBuilder: writes the flat image of a step (core/step_plan.h) into buffers that it reuses: no allocation once
// they have grown to the largest step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/step_plan.h"

namespace spate {

// What a sequence brings when it enters a row.
struct RowEntry {
  int32_t row = 0;
  int32_t num_computed_tokens = 0;
  int32_t num_prompt_logprobs = -1;
  RowSampling sampling;  // num_bias and num_stop_ids are set by the builder
  std::span<const int32_t> token_ids;
  std::span<const std::pair<int32_t, float>> logit_bias;
  std::span<const int32_t> stop_ids;
};

// A mask and ids that it allows besides, to mask_words words at `out`.
void write_mask(std::span<const uint32_t> words, std::span<const int32_t> more_ids, uint32_t* out);

// Engine thread only. begin, any number of add_* in any order, finish.
class StepPlanBuilder {
 public:
  void begin(uint64_t step_id);
  void add_row(const RowEntry& entry);
  // Returns where the num_blocks ids go; valid until the next call.
  std::span<int32_t> add_blocks(int32_t row, int32_t first_block_idx, int32_t num_blocks);
  void add_block_copy(int32_t src_block_id, int32_t dst_block_id);
  // Where a row's drafts go; the result belongs into SeqStep::drafts_begin.
  uint32_t add_drafts(std::span<const int32_t> token_ids) { return append_data(token_ids); }
  // One mask of mask_words_of(vocab_size) words, the same number for all masks of a step, and ids that it allows
  // besides. Both are copied by finish() and must stay until then. Returns the mask's index.
  int32_t add_mask(std::span<const uint32_t> words, std::span<const int32_t> more_ids = {});
  // Of a step whose masks are late, instead of add_mask(): so many masks of mask_words words. Returns the first one's
  // index.
  int32_t expect_masks(int num_masks, int32_t mask_words);
  void add_seq(const SeqStep& seq);
  // The image; valid until the next begin(). 8-byte aligned.
  std::span<const std::byte> finish();

 private:
  uint32_t append_data(std::span<const int32_t> values);
  void take_mask_words(size_t mask_words);

  StepPlanHeader header_;
  std::vector<RowUpdate> row_updates_;
  std::vector<BlockUpdate> block_updates_;
  std::vector<BlockCopy> block_copies_;
  std::vector<SeqStep> seqs_;
  std::vector<int32_t> data_;
  struct Mask {
    std::span<const uint32_t> words;
    std::span<const int32_t> more_ids;
  };
  std::vector<Mask> masks_;
  std::vector<uint64_t> image_;  // of 8-byte words for the alignment
};

}  // namespace spate
