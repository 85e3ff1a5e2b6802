#include "speculative/speculator.h"

#include <algorithm>

#include "base/check.h"

namespace spate {
namespace {

constexpr int kWaitingTurns = 8;  // turns without a draft until steps are planned ahead again

}  // namespace

Speculator::Speculator(const SpeculativeConfig& config)
    : config_(config), proposer_(make_proposer(config)), controller_(config.adaptive) {
  CHECK(proposer_ != nullptr, "speculation without a method");
}

void Speculator::propose(std::span<Row> rows, int num_tokens, int max_drafts) {
  draft_rows_.clear();
  candidates_.clear();
  bool know_all = true;
  for (Row& row : rows) {
    SequenceSpeculation& speculation = *row.speculation;
    row.num_drafts = 0;
    know_all &= row.knows_all;
    if (speculation.state == nullptr) speculation.state = proposer_->start(*row.request, row.seed);
    learn(row);
    speculation.num_known = row.token_ids.size();
    speculation.proposed.clear();
    draft_rows_.push_back({.state = speculation.state.get(),
                           .token_ids = row.token_ids,
                           .max_drafts = std::max(0, std::min(row.max_drafts, config_.num_speculative_tokens)),
                           .drafts = &speculation.proposed});
  }
  proposer_->propose(draft_rows_);
  for (size_t i = 0; i < rows.size(); ++i) {
    SequenceSpeculation& speculation = *rows[i].speculation;
    speculation.confidence = draft_rows_[i].confidence;
    candidates_.push_back({.acceptance = &speculation.acceptance,
                           .confidence = speculation.confidence,
                           .num_proposed = static_cast<int>(speculation.proposed.size())});
  }
  const DraftController::Choice choice = controller_.choose(candidates_, num_tokens, max_drafts);
  num_waiting_turns_ = choice.gain > 1 ? kWaitingTurns : std::max(0, num_waiting_turns_ - 1);
  if (choice.gain <= 1 || !know_all) return;
  num_tokens_expected_ += choice.expected_tokens;
  for (size_t i = 0; i < rows.size(); ++i) rows[i].num_drafts = candidates_[i].num_drafts;
}

// Compares the latest proposal with the tokens that have come since.
void Speculator::learn(Row& row) {
  SequenceSpeculation& speculation = *row.speculation;
  const std::span<const int32_t> come = row.token_ids.subspan(std::min(speculation.num_known, row.token_ids.size()));
  const size_t num_compared = std::min(come.size(), speculation.proposed.size());
  if (num_compared == 0) return;
  size_t num_equal = 0;
  while (num_equal < num_compared && come[num_equal] == speculation.proposed[num_equal]) ++num_equal;
  controller_.record_drafts(speculation.acceptance, speculation.confidence, static_cast<int>(num_equal),
                            num_equal == num_compared);
}

}  // namespace spate
