#include "engine/drafting.h"

#include <algorithm>

#include "base/check.h"
#include "core/step_plan.h"
#include "engine/relaxed_drafts.h"
#include "speculative/model_proposer.h"

namespace spate {

namespace {

std::unique_ptr<Proposer> proposer_of(const EngineConfig& config, StepExecutor* draft_executor,
                                      const std::function<double()>& clock) {
  std::unique_ptr<Proposer> proposer;
  if (runs_a_model(config.speculative.method)) {
    CHECK(draft_executor != nullptr, "method {} without an executor of drafts",
          speculative_method_name(config.speculative.method));
    proposer = make_model_proposer({.config = config.speculative,
                                    .limits = config.limits,
                                    .num_kv_blocks = config.num_kv_blocks,
                                    .clock = clock},
                                   *draft_executor);
  } else {
    proposer = make_proposer(config.speculative);  // null with kNone
  }
  return proposer;
}

}  // namespace

Drafting::Drafting(const EngineConfig& config, StepExecutor* draft_executor, const std::function<double()>& clock)
    : limits_(config.limits),
      drafts_forced_tokens_only_(config.speculative.method == SpeculativeMethod::kNone),
      speculator_(config.speculative, proposer_of(config, draft_executor, clock)) {}

Status Drafting::propose(std::span<Sequence* const> running, bool steps_in_flight) {
  rows_.clear();
  seqs_.clear();
  const auto is_free = [](const Sequence* seq) { return seq->cursor == nullptr; };
  const bool all_constrained = std::ranges::none_of(running, is_free);
  if (drafts_forced_tokens_only_ && std::ranges::all_of(running, is_free)) {
    for (Sequence* seq : running) {
      seq->drafts.clear();
      seq->draft_cursors.clear();
      seq->num_relaxed_drafts = 0;
    }
    return speculator_.propose({}, 0, 0, steps_in_flight, all_constrained);
  }
  int num_tokens = 0;
  for (Sequence* seq : running) {
    seq->drafts.clear();
    seq->draft_cursors.clear();
    seq->num_relaxed_drafts = 0;
    const bool decodes = seq->num_output_tokens() > 0 && seq->num_tokens() - seq->num_computed_tokens <= 1;
    if (!decodes) continue;
    ++num_tokens;
    if (!seq->group->request.speculate || seq->num_tokens() >= seq->max_len) continue;
    rows_.push_back({.speculation = &seq->speculation,
                     .request = &seq->group->request,
                     .seed = seq->seed,
                     .device_row = seq->row,
                     .cursor = seq->cursor.get(),
                     .token_ids = seq->tokens(),
                     .num_pending = seq->max_pending_tokens,
                     .max_drafts = std::min(kMaxDrafts, seq->max_len - 1 - seq->num_tokens())});
    seqs_.push_back(seq);
  }
  if (speculator_.runs_a_model()) list_blocks();
  RETURN_IF_ERROR(speculator_.propose(rows_, num_tokens,
                                      limits_.max_num_batched_tokens - static_cast<int>(running.size()),
                                      steps_in_flight, all_constrained));
  for (size_t i = 0; i < rows_.size(); ++i) {
    Sequence& seq = *seqs_[i];
    if (rows_[i].num_drafts == 0) continue;
    const auto first = seq.speculation.proposed.begin() + rows_[i].num_pending;
    seq.drafts.assign(first, first + rows_[i].num_drafts);
    if (rows_[i].num_pending > 0) continue;  // their masks are late
    if (seq.cursor != nullptr) keep_allowed_drafts(seq);
    seq.num_relaxed_drafts = num_relaxable_drafts(seq);
  }
  return ok_status();
}

void Drafting::list_blocks() {
  block_ids_.resize(std::max(block_ids_.size(), rows_.size()));
  for (size_t i = 0; i < rows_.size(); ++i) {
    block_ids_[i].clear();
    for (const BlockLease& lease : seqs_[i]->blocks.leases) block_ids_[i].push_back(lease.block_id());
    rows_[i].block_ids = block_ids_[i];
  }
}

// Up to the first draft that the constraint does not allow, or behind which nothing may follow. draft_cursors[i] stands
// behind draft i.
void Drafting::keep_allowed_drafts(Sequence& seq) {
  const ConstraintCursor* cursor = seq.cursor.get();
  for (const int32_t draft : seq.drafts) {
    if (draft < 0 || static_cast<size_t>(draft) / 32 >= cursor->mask().size() || !cursor->may_draft(draft)) break;
    std::unique_ptr<ConstraintCursor> next = cursor->clone();
    if (!next->append(draft).ok() || next->must_end() || !next->prepare_mask().ok()) break;
    cursor = next.get();
    seq.draft_cursors.push_back(std::move(next));
  }
  seq.drafts.resize(seq.draft_cursors.size());
}

}  // namespace spate
