// Speculator: a proposer and the controller of how many of its drafts run. The engine asks it before each step. What a
// row's grammar forces goes before what a look-up finds.
// Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/request.h"
#include "speculative/draft_controller.h"
#include "speculative/proposer.h"

namespace spate {

// What speculation keeps of one sequence.
struct SequenceSpeculation {
  std::unique_ptr<ProposerState> state;
  Acceptance acceptance;
  std::vector<int32_t> proposed;  // the tokens behind the first num_known ones, by the latest proposal
  int confidence = 0;
  size_t num_known = 0;  // tokens that the latest proposal knew
};

class Speculator {
 public:
  Speculator(const SpeculativeConfig& config, std::unique_ptr<Proposer> proposer);

  // A sequence that decodes.
  struct Row {
    SequenceSpeculation* speculation = nullptr;
    const Request* request = nullptr;
    uint64_t seed = 0;
    int32_t device_row = -1;
    const ConstraintCursor* cursor = nullptr;  // behind the newest token that the host knows
    std::span<const int32_t> block_ids;
    std::span<const int32_t> token_ids;  // that the host knows
    int num_pending = 0;                 // tokens in flight, at most: what is proposed begins with them
    int max_drafts = 0;                  // that there is room for behind those
    int num_drafts = 0;                  // out: so many of speculation->proposed behind the pending ones are to run
  };
  // num_tokens: of the next step without drafts; max_drafts: of all rows together; steps_in_flight: of the target;
  // all_constrained: no sequence runs that has no constraint. An error is final. Drafts run behind tokens that
  // are known; where nobody waits for those, also behind forced ones in flight.
  Status propose(std::span<Row> rows, int num_tokens, int max_drafts, bool steps_in_flight, bool all_constrained);
  bool runs_a_model() const { return proposer_ != nullptr && !proposer_->is_cheap(); }
  // Drafts have paid lately: to know all tokens before a step is worth more than to plan it while one runs.
  bool waits_for_tokens() const { return num_waiting_turns_ > 0; }

  // A collected step in which sequences decoded, and nothing else.
  void record_step(int num_tokens, double seconds) { controller_.record_step(num_tokens, seconds); }
  // What it took and gave: of every collected step in which sequences decoded.
  void settle(DraftController::Outcome outcome);
  // Of the proposals since the last settle().
  double drafting_seconds() const { return drafting_seconds_; }
  void record_gap(double seconds) { controller_.record_gap(seconds); }

  // Of the steps with drafts: the tokens that the controller expected them to give.
  double num_tokens_expected() const { return num_tokens_expected_; }

 private:
  void learn(Row& row);
  Status propose_by_look_up(std::span<Row> rows, int num_tokens, int max_drafts, bool all_constrained);
  Status propose_by_model(std::span<Row> rows, int num_tokens, int max_drafts, bool steps_in_flight);
  DraftRow draft_row(const Row& row, int max_drafts) const;
  void propose_forced_tokens(const Row& row) const;

  const SpeculativeConfig config_;
  const std::unique_ptr<Proposer> proposer_;  // null: with kNone
  DraftController controller_;
  int num_waiting_turns_ = 0;
  double num_tokens_expected_ = 0;
  double drafting_seconds_ = 0;
  std::vector<DraftRow> draft_rows_;
  std::vector<DraftController::Candidate> candidates_;
};

}  // namespace spate
