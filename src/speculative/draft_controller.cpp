#include "speculative/draft_controller.h"

#include <algorithm>

namespace spate {
namespace {

constexpr double kRowMemory = 0.9;     // of a sequence's counts, from proposal to proposal
constexpr double kAllMemory = 0.995;   // of the counts of all sequences
constexpr double kPriorWeight = 2;     // drafts that the experience of all sequences counts as, for one
constexpr double kFirstGuess = 0.5;    // before any experience, as two drafts
constexpr double kLeastGain = 1.03;    // of tokens a second: less is not worth the spread of the measurements
constexpr double kTimeMemory = 0.1;    // of a new time in the mean
constexpr int kMaxPoints = 512;
constexpr double kCreditSteps = 8;   // what drafts of a model may lose at once, in steps
constexpr int kProbeTurns = 256;     // choices without a draft after which some are tried
constexpr int kProbeRows = 4, kProbeDrafts = 2;

}  // namespace

void StepTimes::record(int num_tokens, double seconds) {
  if (seconds <= 0) return;
  ++num_records_;
  auto it = std::ranges::lower_bound(points_, num_tokens, {}, &Point::num_tokens);
  if (it == points_.end() || it->num_tokens != num_tokens) {
    if (points_.size() >= kMaxPoints) return;
    it = points_.insert(it, {.num_tokens = num_tokens, .seconds = seconds, .count = 0, .last_record = 0});
  }
  if (!is_fresh(*it)) it->count = 0;
  it->count += 1;
  // The first time of a size is often slow: memory is touched, caches are cold. It is forgotten with the second.
  const double share = it->count <= 2 ? 1.0 : std::max(kTimeMemory, 1.0 / (it->count - 1));
  it->seconds += share * (seconds - it->seconds);
  it->last_record = num_records_;
}

bool StepTimes::is_known(int num_tokens) const {
  const auto it = std::ranges::lower_bound(points_, num_tokens, {}, &Point::num_tokens);
  return it != points_.end() && it->num_tokens == num_tokens && is_fresh(*it) && it->count > 1;
}

double StepTimes::hopeful_seconds(int num_tokens) const {
  const Point *below = nullptr, *above = nullptr;
  auto it = std::ranges::lower_bound(points_, num_tokens, {}, &Point::num_tokens);
  for (auto up = it; up != points_.end() && above == nullptr; ++up) {
    if (is_fresh(*up) && up->count > 1) above = &*up;
  }
  if (above != nullptr && above->num_tokens == num_tokens) return above->seconds;
  while (it != points_.begin() && below == nullptr) {
    --it;
    if (is_fresh(*it)) below = &*it;
  }
  if (below == nullptr) return above != nullptr ? above->seconds : likely_seconds(num_tokens);
  if (above == nullptr) return below->seconds;
  const double share = static_cast<double>(num_tokens - below->num_tokens) / (above->num_tokens - below->num_tokens);
  return below->seconds + share * std::max(0.0, above->seconds - below->seconds);
}

double StepTimes::likely_seconds(int num_tokens) const {
  if (points_.empty()) return 0;
  const auto it = std::ranges::lower_bound(points_, num_tokens, {}, &Point::num_tokens);
  if (it != points_.end() && it->num_tokens == num_tokens) return it->seconds;
  const Point& first = points_.front();
  // With one size alone: as if each token cost the same.
  if (points_.size() == 1) return first.seconds * std::max(1.0, static_cast<double>(num_tokens) / first.num_tokens);
  if (it == points_.begin()) return first.seconds;
  const Point& below = it == points_.end() ? points_.front() : *(it - 1);
  const Point& above = it == points_.end() ? points_.back() : *it;
  const double slope = std::max(0.0, above.seconds - below.seconds) / (above.num_tokens - below.num_tokens);
  return below.seconds + slope * (num_tokens - below.num_tokens);
}

void DraftController::record_step(int num_tokens, double seconds) {
  times_.record(num_tokens, seconds);
  constexpr double kMemory = 0.9995;
  total_seconds_ = kMemory * total_seconds_ + seconds;
  lost_seconds_ *= kMemory;
  if (num_tokens == tried_num_tokens_) lost_seconds_ += std::max(0.0, seconds - tried_worth_seconds_);
  tried_num_tokens_ = 0;
}

void DraftController::record_drafts(Acceptance& sequence, int confidence, int num_accepted, bool all_accepted) {
  const int num_tried = num_accepted + (all_accepted ? 0 : 1);
  if (num_tried == 0) return;
  const auto i = static_cast<size_t>(confidence);
  sequence.counts[i].add(num_tried, num_accepted, kRowMemory);
  all_.counts[i].add(num_tried, num_accepted, kAllMemory);
}

double DraftController::probability(const Acceptance& sequence, int confidence) const {
  const auto i = static_cast<size_t>(confidence);
  const Acceptance::Counts &row = sequence.counts[i], &all = all_.counts[i];
  const double prior = (kPriorWeight * kFirstGuess + all.num_accepted) / (kPriorWeight + all.num_tried);
  return (kPriorWeight * prior + row.num_accepted) / (kPriorWeight + row.num_tried);
}

void DraftController::settle(const Outcome& outcome) {
  if (!pays_for_drafts_ || outcome.num_rows == 0) return;
  if (outcome.num_drafts > 0) num_idle_turns_ = 0;
  const double plain_seconds = times_.likely_seconds(outcome.num_rows);
  double won = 0;
  if (outcome.num_drafts > 0 || outcome.drafting_seconds > 0) {
    const int num_more = outcome.num_tokens - outcome.num_rows;
    // Of a step that also prefills only the drafting is known to cost.
    const double more_seconds = outcome.decodes_only ? outcome.step_seconds + gap_seconds_ - plain_seconds : 0;
    won = plain_seconds * num_more / outcome.num_rows - more_seconds - outcome.drafting_seconds;
  }
  credit_seconds_ = std::min(kCreditSteps * plain_seconds, credit_seconds_ + kMaxLoss * outcome.step_seconds + won);
}

// Of the step that computes the place-th draft of num_rows rows. The first one also computes what was accepted since.
double DraftController::drafting_seconds(int place, int num_rows) const {
  if (num_rows == 0) return 0;
  return drafting_times_.likely_seconds(place == 0 ? 2 * num_rows : num_rows);
}

DraftController::Choice DraftController::probe(std::span<Candidate> candidates, int num_tokens, int max_drafts) const {
  Choice choice{.gain = 1, .expected_tokens = static_cast<double>(num_tokens)};
  int num_rows = 0;
  for (Candidate& candidate : candidates) {
    const int num_drafts = std::min({candidate.num_proposed, max_drafts, kProbeDrafts});
    if (num_drafts == 0 || num_rows == kProbeRows) continue;
    ++num_rows;
    max_drafts -= num_drafts;
    candidate.num_drafts = num_drafts;
    choice.gain = kLeastGain;
    choice.expected_tokens += probability(*candidate.acceptance, candidate.confidence);
  }
  return choice;
}

// The drafts enter in the order of the probability that they count; the best of these prefixes is chosen.
DraftController::Choice DraftController::choose(std::span<Candidate> candidates, int num_tokens, int max_drafts) {
  heap_.clear();
  order_.clear();
  num_rows_at_.clear();
  int num_proposed = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i].num_drafts = 0;
    if (candidates[i].num_proposed == 0) continue;
    num_proposed += candidates[i].num_proposed;
    heap_.push_back({probability(*candidates[i].acceptance, candidates[i].confidence), i});
  }
  max_drafts = std::min(max_drafts, num_proposed);
  if (!adaptive_) {
    for (Candidate& candidate : candidates) {
      candidate.num_drafts = std::min(candidate.num_proposed, max_drafts);
      max_drafts -= candidate.num_drafts;
    }
    return num_proposed > 0 ? Choice{kLeastGain, 0} : Choice{};
  }
  const double plain_seconds = times_.likely_seconds(num_tokens);
  if (plain_seconds == 0 || !in_credit()) return {};  // nothing is known yet, the next steps tell; or too much is lost
  if (pays_for_drafts_ && num_idle_turns_ > kProbeTurns) return probe(candidates, num_tokens, max_drafts);
  const bool may_try = lost_seconds_ <= kMaxLoss * total_seconds_;
  tried_num_tokens_ = 0;
  const auto less = [](const Gain& a, const Gain& b) { return a.probability < b.probability; };
  std::ranges::make_heap(heap_, less);
  double sum = num_tokens, best_gain = kLeastGain, best_sum = num_tokens;
  size_t best_count = 0;
  double all_drafting_seconds = 0;
  while (std::ssize(order_) < max_drafts) {
    std::ranges::pop_heap(heap_, less);
    Gain& gain = heap_.back();
    Candidate& candidate = candidates[gain.candidate];
    sum += gain.probability;
    order_.push_back(gain.candidate);
    if (pays_for_drafts_) {
      const auto place = static_cast<size_t>(candidate.num_drafts);
      if (place == num_rows_at_.size()) num_rows_at_.push_back(0);
      const int num_rows = ++num_rows_at_[place];
      all_drafting_seconds +=
          drafting_seconds(candidate.num_drafts, num_rows) - drafting_seconds(candidate.num_drafts, num_rows - 1);
    }
    if (++candidate.num_drafts < candidate.num_proposed) {
      gain.probability *= probability(*candidate.acceptance, candidate.confidence);
      std::ranges::push_heap(heap_, less);
    } else {
      heap_.pop_back();
    }
    const int total = num_tokens + static_cast<int>(order_.size());
    const double step_seconds = may_try ? times_.hopeful_seconds(total) : times_.likely_seconds(total);
    const double tokens_gain = (sum / num_tokens) * (plain_seconds / (step_seconds + all_drafting_seconds + gap_seconds_));
    if (tokens_gain <= best_gain) continue;
    best_gain = tokens_gain;
    best_sum = sum;
    best_count = order_.size();
  }
  for (size_t i = best_count; i < order_.size(); ++i) --candidates[order_[i]].num_drafts;
  num_idle_turns_ = best_count == 0 ? num_idle_turns_ + 1 : 0;
  if (best_count == 0) return {};
  const int total = num_tokens + static_cast<int>(best_count);
  if (!times_.is_known(total)) {
    tried_num_tokens_ = total;
    tried_worth_seconds_ = plain_seconds * best_sum / num_tokens;
  }
  return {best_gain, best_sum};
}

}  // namespace spate
