// Goal    The controller drafts where that gives more tokens a second, and nowhere else; and finds out when it changes.
// Method  Steps of known times, drafts of known acceptance, on a virtual clock.
#include "speculative/draft_controller.h"

#include <algorithm>
#include <functional>

#include "base/rng.h"
#include "base/test.h"
#include "base/test_support.h"

namespace spate {
namespace {

struct Machine {
  std::function<double(int)> seconds;      // of a step
  double acceptance = 0;
  int num_seqs = 1;
  double share_proposed = 1;  // of the turns in which a sequence has drafts
};

struct Rates {
  double tokens_per_s = 0, plain_tokens_per_s = 0;
};

// Runs steps as the engine does and gives the rates of the latter half.
Rates run(DraftController& controller, const Machine& machine, int num_steps, Rng& rng) {
  std::vector<Acceptance> seqs(static_cast<size_t>(machine.num_seqs));
  std::vector<DraftController::Candidate> candidates(seqs.size());
  double seconds = 0, tokens = 0;
  for (int step = 0; step < num_steps; ++step) {
    if (step == num_steps / 2) seconds = tokens = 0;
    for (size_t i = 0; i < seqs.size(); ++i) {
      const bool proposes = rng.uniform() < static_cast<float>(machine.share_proposed);
      candidates[i] = {.acceptance = &seqs[i], .confidence = 1, .num_proposed = proposes ? 8 : 0};
    }
    controller.choose(candidates, machine.num_seqs, 256);
    int num_tokens = machine.num_seqs;
    for (const auto& candidate : candidates) num_tokens += candidate.num_drafts;
    const double step_seconds = machine.seconds(num_tokens);
    controller.record_step(num_tokens, step_seconds);
    seconds += step_seconds;
    for (size_t i = 0; i < seqs.size(); ++i) {
      int num_right = 0;
      while (num_right < 8 && rng.uniform() < static_cast<float>(machine.acceptance)) ++num_right;
      const int num_accepted = std::min(num_right, candidates[i].num_drafts);
      tokens += 1 + num_accepted;
      if (candidates[i].num_proposed == 0) continue;
      const int num_compared = std::min(8, num_accepted + 1);  // with the tokens that came
      const int num_equal = std::min(num_right, num_compared);
      controller.record_drafts(seqs[i], 1, num_equal, num_equal == num_compared);
    }
  }
  return {tokens / seconds, machine.num_seqs / machine.seconds(machine.num_seqs)};
}

double bandwidth_bound(int) { return 0.02; }
double compute_bound(int num_tokens) { return 0.001 * num_tokens; }
double tiled(int num_tokens) { return 0.01 + 0.01 * ((num_tokens + 15) / 16); }

TEST_CASE("free drafts run all; drafts that cost what a token costs never do") {
  Rng rng(test_seed());
  DraftController bandwidth(true), compute(true);
  const Rates free = run(bandwidth, {.seconds = bandwidth_bound, .acceptance = 0.8}, 400, rng);
  CHECK(free.tokens_per_s > 4 * free.plain_tokens_per_s);  // 1 + 0.8 + ... + 0.8^8 = 4.3
  for (const int num_seqs : {1, 16}) {
    const Rates costly = run(compute, {.seconds = compute_bound, .acceptance = 0.8, .num_seqs = num_seqs}, 400, rng);
    CHECK(costly.tokens_per_s > 0.98 * costly.plain_tokens_per_s);
  }
}

TEST_CASE("never slower than 0.98 of none, whatever is accepted") {
  Rng rng(test_seed());
  for (const auto& seconds : {&bandwidth_bound, &compute_bound, &tiled}) {
    for (const double acceptance : {0.0, 0.05, 0.2, 0.5}) {
      for (const double share_proposed : {0.1, 1.0}) {
        for (const int num_seqs : {1, 4, 15, 16, 32}) {
          CAPTURE(acceptance);
          CAPTURE(num_seqs);
          DraftController controller(true);
          const Rates rates = run(
              controller,
              {.seconds = *seconds, .acceptance = acceptance, .num_seqs = num_seqs, .share_proposed = share_proposed},
              1000, rng);
          CHECK(rates.tokens_per_s > 0.98 * rates.plain_tokens_per_s);
        }
      }
    }
  }
}

TEST_CASE("a text that begins to repeat is noticed, although no draft ran before") {
  Rng rng(test_seed());
  DraftController controller(true);
  const Machine dull{.seconds = [](int n) { return 0.02 + 0.004 * n; }, .acceptance = 0.0};
  run(controller, dull, 300, rng);
  Machine lively = dull;
  lively.acceptance = 0.95;
  const Rates rates = run(controller, lively, 300, rng);
  CHECK(rates.tokens_per_s > 1.8 * rates.plain_tokens_per_s);
}

TEST_CASE("drafts go to the sequences that use them") {
  DraftController controller(true);
  for (int i = 0; i < 10; ++i) {
    for (const int num_tokens : {2, 4, 6, 10, 18}) controller.record_step(num_tokens, 0.01 + 0.002 * num_tokens);
  }
  Acceptance good, bad;
  for (int i = 0; i < 20; ++i) controller.record_drafts(good, 2, 4, true);
  for (int i = 0; i < 20; ++i) controller.record_drafts(bad, 2, 0, false);
  DraftController::Candidate candidates[] = {{.acceptance = &bad, .confidence = 2, .num_proposed = 8},
                                             {.acceptance = &good, .confidence = 2, .num_proposed = 8}};
  const DraftController::Choice choice = controller.choose(candidates, 2, 256);
  CHECK(candidates[0].num_drafts == 0);
  CHECK(candidates[1].num_drafts > 4);
  CHECK(choice.gain > 1.5);
  CHECK(choice.expected_tokens > 5);
}

TEST_CASE("a first slow step of a size is forgotten") {
  StepTimes times;
  CHECK(times.hopeful_seconds(1) == 0);
  times.record(1, 0.01);
  CHECK(times.hopeful_seconds(4) == 0.01);  // as cheap as can be
  CHECK(times.likely_seconds(4) == 0.04);   // as dear as can be
  times.record(4, 0.5);
  CHECK(times.hopeful_seconds(4) == 0.01);  // once is not enough to be believed
  CHECK(!times.is_known(4));
  times.record(4, 0.012);
  CHECK(times.is_known(4));
  CHECK(times.hopeful_seconds(4) == doctest::Approx(0.012));
  times.record(1, 0.01);
  CHECK(times.hopeful_seconds(2) == doctest::Approx(0.01 + 0.002 / 3));
  CHECK(times.likely_seconds(7) == doctest::Approx(0.014));
  for (int i = 0; i < 600; ++i) times.record(1, 0.01);
  CHECK(times.hopeful_seconds(4) == doctest::Approx(0.01));  // forgotten
  CHECK(times.likely_seconds(4) == doctest::Approx(0.012));
}

// Tokens a second with drafts of a model, as a share of the rate without. Its steps take draft_share of a target's.
double rate_by_model(const Machine& machine, double draft_share, int num_steps, Rng& rng) {
  DraftController controller(true, true);
  std::vector<Acceptance> seqs(static_cast<size_t>(machine.num_seqs));
  std::vector<DraftController::Candidate> candidates(seqs.size());
  double seconds = 0, tokens = 0;
  for (int step = 0; step < num_steps; ++step) {
    for (size_t i = 0; i < seqs.size(); ++i) candidates[i] = {.acceptance = &seqs[i], .num_proposed = 8};
    controller.choose(candidates, machine.num_seqs, 256);
    DraftController::Outcome outcome{.num_rows = machine.num_seqs};
    for (int place = 0; place < 8; ++place) {
      const auto drafts = [&](const auto& candidate) { return candidate.num_drafts > place; };
      const auto num_rows = static_cast<int>(std::ranges::count_if(candidates, drafts));
      if (num_rows == 0) break;
      const int num_tokens = place == 0 ? 2 * num_rows : num_rows;
      const double draft_seconds = draft_share * machine.seconds(num_tokens);
      controller.record_drafting(num_tokens, draft_seconds);
      outcome.drafting_seconds += draft_seconds;
      outcome.num_drafts += num_rows;
    }
    const int num_tokens = machine.num_seqs + outcome.num_drafts;
    outcome.step_seconds = machine.seconds(num_tokens);
    controller.record_step(num_tokens, outcome.step_seconds);
    for (size_t i = 0; i < seqs.size(); ++i) {
      int num_accepted = 0;
      while (num_accepted < candidates[i].num_drafts && rng.uniform() < static_cast<float>(machine.acceptance)) ++num_accepted;
      outcome.num_tokens += 1 + num_accepted;
      if (candidates[i].num_drafts == 0) continue;
      controller.record_drafts(seqs[i], 0, num_accepted, num_accepted == candidates[i].num_drafts);
    }
    controller.settle(outcome);
    seconds += outcome.step_seconds + outcome.drafting_seconds;
    tokens += outcome.num_tokens;
  }
  return (tokens / seconds) / (machine.num_seqs / machine.seconds(machine.num_seqs));
}

TEST_CASE("drafts of a model pay where they can and never lose 2 %, from the first step on") {
  Rng rng(test_seed());
  for (const auto& seconds : {bandwidth_bound, compute_bound, tiled}) {
    for (const int num_seqs : {1, 16, 32}) {
      for (const double acceptance : {0.0, 0.5, 0.95}) {
        for (const double draft_share : {0.05, 0.3, 1.0}) {
          INFO("sequences " << num_seqs << ", acceptance " << acceptance << ", a draft costs " << draft_share);
          const Machine machine{.seconds = seconds, .acceptance = acceptance, .num_seqs = num_seqs};
          CHECK(rate_by_model(machine, draft_share, 2000, rng) >= 0.98);
        }
      }
    }
  }
  CHECK(rate_by_model({.seconds = bandwidth_bound, .acceptance = 0.95}, 0.05, 2000, rng) > 3);
  CHECK(rate_by_model({.seconds = bandwidth_bound, .acceptance = 0.8}, 0.1, 2000, rng) > 1.8);
}

}  // namespace
}  // namespace spate
