// DraftController: how many drafts each sequence runs in the next step, so that the step gives the most tokens a second.
//
// It knows the measured time of a step of n tokens (StepTimes) and, for each sequence, how often drafts were what the
// model chose (Acceptance). Drafts that did not run count too: they are compared with the tokens that came. So nothing is
// spent to find out whether drafts are right. What steps of other sizes cost must be tried: that may lose kMaxLoss of the
// time.
//
// Drafts that a model computes have a price of their own. Then the controller adds the measured time of the drafting steps,
// and keeps an account: what drafts won or lost against steps without them. Empty, it allows none; it fills by kMaxLoss of
// the time. So the loss is bounded whatever the predictions are worth. After kProbeTurns without drafts a few rows draft, to
// see whether texts or times have changed. Engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "speculative/proposer.h"

namespace spate {

// The time of a step in which sequences decode, by its number of tokens.
class StepTimes {
 public:
  void record(int num_tokens, double seconds);
  // A size that was not seen lately is taken to be as cheap as can be, given those that were; 0: nothing was recorded.
  double hopeful_seconds(int num_tokens) const;
  // By all that was ever seen, on straight lines between and beyond it.
  double likely_seconds(int num_tokens) const;
  bool is_known(int num_tokens) const;  // seen lately, and more than once

 private:
  struct Point {
    int num_tokens;
    double seconds;
    int count;
    uint64_t last_record;
  };
  static constexpr uint64_t kForgetAfter = 512;  // records
  bool is_fresh(const Point& point) const { return num_records_ - point.last_record <= kForgetAfter; }
  std::vector<Point> points_;  // by num_tokens
  uint64_t num_records_ = 0;
};

// The probability that a draft is accepted when those before it were, by the proposer's class.
struct Acceptance {
  struct Counts {
    double num_tried = 0, num_accepted = 0;
    void add(int tried, int accepted, double memory) {
      num_tried = memory * num_tried + tried;
      num_accepted = memory * num_accepted + accepted;
    }
  };
  std::array<Counts, Proposer::kNumConfidences> counts;
};

class DraftController {
 public:
  static constexpr double kMaxLoss = 0.005;

  explicit DraftController(bool adaptive, bool pays_for_drafts = false)
      : adaptive_(adaptive), pays_for_drafts_(pays_for_drafts) {}

  // A collected step of decoding sequences alone.
  void record_step(int num_tokens, double seconds);
  // A step of the model that drafts.
  void record_drafting(int num_tokens, double seconds) { drafting_times_.record(num_tokens, seconds); }
  // What a collected step took, its drafting included, and gave.
  struct Outcome {
    int num_rows = 0;    // that decode
    int num_drafts = 0;
    int num_tokens = 0;  // that came, of these rows
    double step_seconds = 0;
    double drafting_seconds = 0;
    bool decodes_only = true;
  };
  void settle(const Outcome& outcome);
  // Seconds that a step costs beyond its own time when the host must know the tokens before it.
  void record_gap(double seconds) { gap_seconds_ += 0.05 * (seconds - gap_seconds_); }
  // Of the drafts of a class, so many were compared with tokens, and the first num_accepted were equal.
  void record_drafts(Acceptance& sequence, int confidence, int num_accepted, bool all_accepted);

  struct Candidate {
    const Acceptance* acceptance = nullptr;
    int confidence = 0;
    int num_proposed = 0;
    int num_drafts = 0;  // out
  };
  // Chooses num_drafts of each candidate. num_tokens: of the step without drafts, at least a token a candidate.
  struct Choice {
    double gain = 1;             // tokens a second relative to a step without drafts; 1: none are chosen
    double expected_tokens = 0;  // of the step, where drafts are chosen
  };
  Choice choose(std::span<Candidate> candidates, int num_tokens, int max_drafts);

  double probability(const Acceptance& sequence, int confidence) const;

 private:
  double drafting_seconds(int place, int num_rows) const;
  bool in_credit() const { return !pays_for_drafts_ || credit_seconds_ > 0; }
  Choice probe(std::span<Candidate> candidates, int num_tokens, int max_drafts) const;
  struct Gain {
    double probability;  // that this draft is accepted: all before it are too
    size_t candidate;
  };
  const bool adaptive_, pays_for_drafts_;
  StepTimes times_, drafting_times_;
  double credit_seconds_ = 1;  // more than any start needs; at most kCreditSteps steps once their time is known
  int num_idle_turns_ = 0;     // choices without a draft
  double gap_seconds_ = 0;
  // Of choices whose step's time was not known: what they lost against steps without drafts. Old times fade.
  double lost_seconds_ = 0, total_seconds_ = 0;
  int tried_num_tokens_ = 0;         // of the step to come, if it is such a choice
  double tried_worth_seconds_ = 0;   // that its tokens would take without drafts
  Acceptance all_;
  std::vector<Gain> heap_;
  std::vector<size_t> order_;
  std::vector<int> num_rows_at_;  // by place among a row's drafts: rows that draft so many at least
};

}  // namespace spate
