#include "engine/plan_writer.h"

#include <algorithm>
#include <array>

namespace spate {
namespace {

// The masks of a step that are known. Sequences at the same place of the same constraint share one.
class MaskWriter {
 public:
  explicit MaskWriter(StepPlanBuilder& builder) : builder_(builder) {}

  // Of the sequence's next token and of those behind its drafts. The device wants them one behind the other, so with
  // drafts nothing is shared.
  int32_t add(const Sequence& seq, int num_drafts) {
    if (num_drafts == 0) return add_one(seq.group->request, *seq.cursor, true);
    const int32_t first = add_one(seq.group->request, *seq.cursor, false);
    for (int i = 0; i < num_drafts; ++i) {
      add_one(seq.group->request, *seq.draft_cursors[static_cast<size_t>(i)], false);
    }
    return first;
  }

 private:
  int32_t add_one(const Request& request, const ConstraintCursor& cursor, bool may_share) {
    const std::span<const uint32_t> words = cursor.mask();
    const std::span<const int32_t> end_ids = end_ids_at(request, cursor);
    for (const Entry& entry : entries_) {
      if (!may_share) break;
      if (entry.words == words.data() && std::ranges::equal(entry.end_ids, end_ids)) return entry.mask_idx;
    }
    const int32_t mask_idx = builder_.add_mask(words, end_ids);
    entries_.push_back({words.data(), end_ids, mask_idx});
    return mask_idx;
  }

  struct Entry {
    const uint32_t* words;
    std::span<const int32_t> end_ids;
    int32_t mask_idx;
  };
  StepPlanBuilder& builder_;
  std::vector<Entry> entries_;
};

SeqStep seq_step(const ScheduledSeq& scheduled, DraftSource draft_source, StepPlanBuilder& builder) {
  SeqStep seq{.row = scheduled.seq->row,
              .query_len = scheduled.query_len,
              .phase = scheduled.phase,
              .flags = (scheduled.sample ? uint32_t{kSample} : 0u) |
                       (scheduled.prompt_logprobs ? uint32_t{kPromptLogprobs} : 0u) | scheduled.pool_flag,
              .num_computed_tokens = scheduled.num_computed_tokens,
              .num_drafts = scheduled.num_drafts};
  if (seq.num_drafts > 0 && draft_source == DraftSource::kExecutor) {
    seq.flags |= kDraftsInRow;
  } else if (seq.num_drafts > 0) {
    std::array<int32_t, kMaxDrafts> drafts;
    if (draft_source == DraftSource::kProposer) {
      std::copy_n(scheduled.seq->drafts.begin(), seq.num_drafts, drafts.begin());
    } else {
      drafts.fill(scheduled.seq->tokens().back());
    }
    seq.drafts_begin = builder.add_drafts(std::span(drafts).first(seq.num_drafts));
    if (draft_source == DraftSource::kProposer) {
      seq.num_relaxed = std::min(scheduled.seq->num_relaxed_drafts, scheduled.num_drafts);
    }
  }
  return seq;
}

}  // namespace

std::span<const std::byte> write_plan(const ScheduledStep& step, DraftSource draft_source, StepPlanBuilder& builder) {
  builder.begin(step.step_id);
  MaskWriter masks(builder);
  for (const ScheduledSeq& entered : step.new_rows) {
    const Sequence& seq = *entered.seq;
    const SamplingParams& params = seq.group->request.sampling;
    builder.add_row({.row = seq.row,
                     .num_computed_tokens = entered.num_computed_tokens,
                     .num_prompt_logprobs = seq.needs_prompt_logprobs ? params.prompt_logprobs.value_or(-1) : -1,
                     .sampling = row_sampling(seq.group->request, seq.seed),
                     .token_ids = seq.tokens(),
                     .logit_bias = params.logit_bias,
                     .stop_ids = seq.group->stop_ids});
  }
  for (const BlockUpdate& update : step.block_updates) {
    const std::span<int32_t> ids = builder.add_blocks(update.row, update.first_block_idx, update.num_blocks);
    std::ranges::copy(std::span(step.block_ids).subspan(update.blocks_begin, update.num_blocks), ids.begin());
  }
  for (const BlockCopy& copy : step.block_copies) builder.add_block_copy(copy.src_block_id, copy.dst_block_id);
  for (const ScheduledSeq& scheduled : step.seqs) {
    SeqStep seq = seq_step(scheduled, draft_source, builder);
    if (scheduled.is_constrained && step.masks_are_late) {
      seq.first_mask = builder.expect_masks(1 + scheduled.num_drafts, step.num_mask_words);
    } else if (scheduled.is_constrained) {
      seq.first_mask = masks.add(*scheduled.seq, scheduled.num_drafts);
    }
    builder.add_seq(seq);
  }
  return builder.finish();
}

// Drafts were proposed when the newest token was not known yet: behind the first that its constraint does not allow no
// mask matters.
void write_late_masks(const ScheduledStep& step, std::vector<uint32_t>& masks) {
  const auto num_words = static_cast<size_t>(step.num_mask_words);
  masks.clear();
  for (const ScheduledSeq& scheduled : step.seqs) {
    if (!scheduled.is_constrained) continue;
    const Sequence& seq = *scheduled.seq;
    size_t begin = masks.size();
    masks.resize(begin + static_cast<size_t>(1 + scheduled.num_drafts) * num_words, ~uint32_t{0});
    if (seq.state == SequenceState::kFinished || seq.cursor == nullptr) continue;
    const auto put = [&](const ConstraintCursor& cursor) {
      write_mask(cursor.mask(), end_ids_at(seq.group->request, cursor), &masks[begin]);
      begin += num_words;
    };
    put(*seq.cursor);
    std::unique_ptr<ConstraintCursor> behind_draft = scheduled.num_drafts > 0 ? seq.cursor->clone() : nullptr;
    for (int i = 0; i < scheduled.num_drafts; ++i) {
      const int32_t draft = seq.drafts.at(static_cast<size_t>(i));
      if (!mask_allows(behind_draft->mask().data(), draft) || !behind_draft->append(draft).ok() ||
          behind_draft->must_end() || !behind_draft->prepare_mask().ok()) {
        break;
      }
      put(*behind_draft);
    }
  }
}

}  // namespace spate
