#include "speculative/speculator.h"

#include <algorithm>
#include <utility>

namespace spate {
namespace {

constexpr int kWaitingTurns = 8;  // turns without a draft until steps are planned ahead again

}  // namespace

Speculator::Speculator(const SpeculativeConfig& config, std::unique_ptr<Proposer> proposer)
    : config_(config), proposer_(std::move(proposer)), controller_(config.adaptive, runs_a_model()) {}

Status Speculator::propose(std::span<Row> rows, int num_tokens, int max_drafts, bool steps_in_flight,
                           bool all_constrained) {
  draft_rows_.clear();
  candidates_.clear();
  for (Row& row : rows) {
    SequenceSpeculation& speculation = *row.speculation;
    row.num_drafts = 0;
    if (proposer_ != nullptr && speculation.state == nullptr)
      speculation.state = proposer_->start(*row.request, row.seed);
    learn(row);
    speculation.num_known = row.token_ids.size();
    speculation.proposed.clear();
  }
  return runs_a_model() ? propose_by_model(rows, num_tokens, max_drafts, steps_in_flight)
                        : propose_by_look_up(rows, num_tokens, max_drafts, all_constrained);
}

DraftRow Speculator::draft_row(const Row& row, int max_drafts) const {
  SequenceSpeculation& speculation = *row.speculation;
  return {.request = row.request,
          .row = row.device_row,
          .block_ids = row.block_ids,
          .cursor = row.cursor,
          .state = speculation.state.get(),
          .token_ids = row.token_ids,
          .max_drafts = std::max(0, std::min(max_drafts, config_.num_speculative_tokens)),
          .drafts = &speculation.proposed};
}

// All rows propose, and some of what they propose runs.
Status Speculator::propose_by_look_up(std::span<Row> rows, int num_tokens, int max_drafts, bool all_constrained) {
  for (const Row& row : rows) draft_rows_.push_back(draft_row(row, row.max_drafts));
  if (proposer_ != nullptr) RETURN_IF_ERROR(proposer_->propose(draft_rows_));
  // Sequences without a constraint do not wait for what the constraints of others force.
  const bool may_wait = proposer_ != nullptr || all_constrained;
  for (size_t i = 0; i < rows.size(); ++i) {
    SequenceSpeculation& speculation = *rows[i].speculation;
    speculation.confidence = draft_rows_[i].confidence;
    if (config_.jump_forward && rows[i].cursor != nullptr) propose_forced_tokens(rows[i]);
    const int num_proposed = static_cast<int>(speculation.proposed.size());
    candidates_.push_back({.acceptance = &speculation.acceptance,
                           .confidence = speculation.confidence,
                           .num_proposed = may_wait ? num_proposed : std::max(0, num_proposed - rows[i].num_pending)});
  }
  const DraftController::Choice choice = controller_.choose(candidates_, num_tokens, max_drafts);
  num_waiting_turns_ = may_wait && choice.gain > 1 ? kWaitingTurns : std::max(0, num_waiting_turns_ - 1);
  if (choice.gain <= 1) return ok_status();
  for (size_t i = 0; may_wait && i < rows.size(); ++i) {
    if (candidates_[i].num_drafts > 0 && rows[i].num_pending > 0) return ok_status();
  }
  num_tokens_expected_ += choice.expected_tokens;
  for (size_t i = 0; i < rows.size(); ++i) rows[i].num_drafts = candidates_[i].num_drafts;
  return ok_status();
}

// Tokens that the form of the text leaves no choice about. There may be several ways to divide the text into tokens:
// the model decides, as with any draft.
void Speculator::propose_forced_tokens(const Row& row) const {
  int32_t token_id = row.cursor->forced_token();
  if (token_id < 0) return;
  SequenceSpeculation& speculation = *row.speculation;
  speculation.confidence = Proposer::kForced;
  speculation.proposed.clear();
  const std::unique_ptr<ConstraintCursor> cursor = row.cursor->clone();
  while (token_id >= 0 && static_cast<int>(speculation.proposed.size()) < row.num_pending + row.max_drafts) {
    speculation.proposed.push_back(token_id);
    if (!cursor->append(token_id).ok()) break;
    token_id = cursor->forced_token();
  }
}

// How many drafts are worth it is decided before they are computed; all that are computed run.
Status Speculator::propose_by_model(std::span<Row> rows, int num_tokens, int max_drafts, bool steps_in_flight) {
  for (const Row& row : rows) {
    candidates_.push_back({.acceptance = &row.speculation->acceptance, .num_proposed = draft_row(row, row.max_drafts).max_drafts});
  }
  const DraftController::Choice choice = controller_.choose(candidates_, num_tokens, max_drafts);
  num_waiting_turns_ = choice.gain > 1 ? kWaitingTurns : std::max(0, num_waiting_turns_ - 1);
  const auto knows_all = [](const Row& row) { return row.num_pending == 0; };
  if (choice.gain <= 1 || steps_in_flight || !std::ranges::all_of(rows, knows_all)) return ok_status();
  for (size_t i = 0; i < rows.size(); ++i) draft_rows_.push_back(draft_row(rows[i], candidates_[i].num_drafts));
  RETURN_IF_ERROR(proposer_->propose(draft_rows_));
  for (const Proposer::StepTime& step : proposer_->step_times()) {
    controller_.record_drafting(step.num_tokens, step.seconds);
    drafting_seconds_ += step.seconds;
  }
  // Fewer than were chosen where a draft ends the text.
  num_tokens_expected_ += num_tokens;
  for (Row& row : rows) {
    row.num_drafts = static_cast<int>(row.speculation->proposed.size());
    double all_accepted = 1;
    for (int i = 0; i < row.num_drafts; ++i) {
      all_accepted *= controller_.probability(row.speculation->acceptance, row.speculation->confidence);
      num_tokens_expected_ += all_accepted;
    }
  }
  return ok_status();
}

void Speculator::settle(DraftController::Outcome outcome) {
  outcome.drafting_seconds = std::exchange(drafting_seconds_, 0);
  controller_.settle(outcome);
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
