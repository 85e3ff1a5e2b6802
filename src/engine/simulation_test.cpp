// Goal: no sequence of arrivals, cancels, preemptions and prefix hits breaks an invariant, leaks a block or changes an
// answer. Method: random simulations over FakeExecutor, check_integrity() after every step, every answer against the
// oracle. The configurations cross the choices that must not change an answer; memory is tight in all of them (a few
// sequences of the longest length fit), so preemption and eviction are the normal case.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "base/test_support.h"
#include "core/step_plan.h"
#include "engine/simulation.h"

#include "base/test.h"

namespace spate {
namespace {

// Sanitizer builds are 10 to 20 times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
constexpr int64_t kNumEvents = 10000;
#else
constexpr int64_t kNumEvents = 1000000;
#endif

EngineConfig small_config() {
  return {.limits = {.max_model_len = 64, .max_num_seqs = 8, .max_num_batched_tokens = 24, .kv_block_size = 4},
          .num_kv_blocks = 32,
          .enable_prefix_caching = true,
          .enable_chunked_prefill = true,
          .async_scheduling = true,
          .long_prefill_token_threshold = 0,
          .max_num_waiting = 64};
}

SimulationReport simulate(const SimulationOptions& options) {
  std::printf("seed %llu: ", static_cast<unsigned long long>(options.seed));
  std::fflush(stdout);  // a CHECK stops the program: the seed must be out
  const LogLevel level = log_level();
  set_log_level(LogLevel::kOff);  // a line for each request whose logits are not finite
  const SimulationReport report = run_simulation(options);
  set_log_level(level);
  fmt::print("{}\n", report.to_string());
  return report;
}

SimulationReport simulate(uint64_t seed, int64_t num_events, const EngineConfig& config, double nonfinite_share = 0) {
  SimulationOptions options;
  options.seed = seed;
  options.num_events = num_events;
  options.config = config;
  options.nonfinite_share = nonfinite_share;
  return simulate(options);
}

TEST_CASE("a million events of the default loop") {
  const SimulationReport report = simulate(test_seed(), kNumEvents, small_config());
  CHECK(report.num_events() >= kNumEvents);
  // The simulation exercises what it claims to.
  CHECK(report.num_cancels > kNumEvents / 50);
  CHECK(report.num_preemptions > kNumEvents / 100);
  CHECK(report.num_prefix_hits > kNumEvents / 50);
  CHECK(report.num_forks > kNumEvents / 200);
  CHECK(report.num_blocks_copied > kNumEvents / 1000);
  CHECK(report.num_wasted_rows > 0);
  CHECK(report.num_transfers > kNumEvents / 200);
}

TEST_CASE("requests wait for transfers that hold most blocks") {
  SimulationOptions options;
  options.seed = test_seed() + 3000;
  options.num_events = 10000;
  options.config = small_config();
  options.config.num_kv_blocks = options.config.limits.max_blocks_per_seq() + 2;
  options.transfers_per_step = 1;
  const SimulationReport report = simulate(options);
  CHECK(report.num_transfers > options.num_events / 50);
  CHECK(report.num_turns_blocked > options.num_events / 100);
}

TEST_CASE("every combination of loop, chunks and prefix cache") {
  uint64_t seed = test_seed();
  for (const bool async_scheduling : {false, true}) {
    for (const bool enable_chunked_prefill : {false, true}) {
      for (const bool enable_prefix_caching : {false, true}) {
        EngineConfig config = small_config();
        config.async_scheduling = async_scheduling;
        config.enable_chunked_prefill = enable_chunked_prefill;
        config.enable_prefix_caching = enable_prefix_caching;
        if (!enable_chunked_prefill) config.limits.max_num_batched_tokens = config.limits.max_model_len;
        const SimulationReport report = simulate(++seed, kNumEvents / 50, config);
        CHECK((report.num_prefix_hits > 0) == enable_prefix_caching);
        CHECK((report.num_wasted_rows > 0) == async_scheduling);
        CHECK(report.num_preemptions > 0);
      }
    }
  }
}

// Drafts proposed by the executor, right in 7 of 10 cases, and requests whose logits stop being finite.
TEST_CASE("a million events with drafts") {
  EngineConfig config = small_config();
  config.num_drafts = 3;
  config.draft_source = DraftSource::kExecutor;
  const SimulationReport report = simulate(test_seed() + 1000, kNumEvents, config, 0.05);
  CHECK(report.num_events() >= kNumEvents);
  CHECK(report.num_preemptions > kNumEvents / 100);
  CHECK(report.num_drafts > kNumEvents / 10);
  CHECK(report.num_drafts_accepted > report.num_drafts / 4);
  CHECK(report.num_drafts_accepted < report.num_drafts * 3 / 4);
  CHECK(report.num_nonfinite > kNumEvents / 200);
}

// A draft model beside the target, or a layer of it that drafts: its cache is checked slot by slot as the target's is.
void simulate_drafting(const SpeculativeConfig& speculative, uint64_t seed, int num_layers = 1) {
  EngineConfig config = small_config();
  config.draft_source = DraftSource::kProposer;
  config.speculative = speculative;
  SimulationOptions options;
  options.seed = seed;
  options.num_events = num_layers > 1 ? kNumEvents / 10 : kNumEvents;
  options.config = config;
  options.nonfinite_share = 0.05;
  options.num_draft_layers = num_layers;
  const SimulationReport report = simulate(options);
  CHECK(report.num_events() >= options.num_events);
  CHECK(report.num_preemptions > options.num_events / 500);
  CHECK(report.num_prefix_hits > options.num_events / 50);
  CHECK(report.num_forks > options.num_events / 200);
  CHECK(report.num_drafts > options.num_events / 10);
  CHECK(report.num_drafts_accepted > report.num_drafts / 4);
  CHECK(report.num_drafts_accepted < report.num_drafts * 9 / 10);
}

TEST_CASE("a million events with a draft model") {
  simulate_drafting({.method = SpeculativeMethod::kDraftModel, .num_speculative_tokens = 5, .model = "fake"},
                    test_seed() + 1500);
}

TEST_CASE("a million events with a layer that drafts") {
  simulate_drafting({.method = SpeculativeMethod::kMtp, .num_speculative_tokens = 3}, test_seed() + 1700);
}

TEST_CASE("layers that draft one after the other") {
  simulate_drafting({.method = SpeculativeMethod::kMtp, .num_speculative_tokens = 3}, test_seed() + 1800, 2);
  simulate_drafting({.method = SpeculativeMethod::kMtp, .num_speculative_tokens = 3}, test_seed() + 1801, 3);
  simulate_drafting({.method = SpeculativeMethod::kMtp, .num_speculative_tokens = 6, .adaptive = false},
                    test_seed() + 1802, 4);
}

TEST_CASE("every combination of what drafts, its drafts, loop, chunks and prefix cache") {
  constexpr int64_t kEnoughForDrafts = 1000;  // an adaptive controller may need some hundred events to draft
  uint64_t seed = test_seed() + 2500;
  for (const SpeculativeMethod method : {SpeculativeMethod::kDraftModel, SpeculativeMethod::kMtp}) {
    for (const int num_drafts : {1, 4, kMaxDrafts}) {
      for (const bool adaptive : {false, true}) {
        for (const bool async_scheduling : {false, true}) {
          for (const int choice : {0, 1, 2}) {
            EngineConfig config = small_config();
            config.draft_source = DraftSource::kProposer;
            config.speculative = {.method = method,
                                  .num_speculative_tokens = num_drafts,
                                  .model = method == SpeculativeMethod::kMtp ? "" : "fake",
                                  .adaptive = adaptive};
            config.async_scheduling = async_scheduling;
            config.enable_chunked_prefill = choice != 1;
            config.enable_prefix_caching = choice != 2;
            if (choice == 1) config.limits.max_num_batched_tokens = config.limits.max_model_len;
            const int64_t num_events = std::max(kNumEvents / 200, kEnoughForDrafts);
            CHECK(simulate(++seed, num_events, config, 0.02).num_drafts > 0);
          }
        }
      }
    }
  }
}

TEST_CASE("every combination of drafts, loop, chunks and prefix cache") {
  uint64_t seed = test_seed() + 2000;
  for (const int num_drafts : {1, 4, kMaxDrafts}) {
    for (const DraftSource source : {DraftSource::kRepeat, DraftSource::kExecutor, DraftSource::kProposer}) {
      for (const bool async_scheduling : {false, true}) {
        for (const int choice : {0, 1, 2}) {
          EngineConfig config = small_config();
          config.num_drafts = num_drafts;
          config.draft_source = source;
          config.speculative = {.method = choice == 0 ? SpeculativeMethod::kReference : SpeculativeMethod::kNgram,
                                .num_speculative_tokens = num_drafts,
                                .prompt_lookup_min = 1,
                                .adaptive = false};
          config.async_scheduling = async_scheduling;
          config.enable_chunked_prefill = choice != 1;
          config.enable_prefix_caching = choice != 2;
          if (choice == 1) config.limits.max_num_batched_tokens = config.limits.max_model_len;
          CHECK(simulate(++seed, kNumEvents / 200, config, 0.02).num_drafts > 0);
        }
      }
    }
  }
}

TEST_CASE("prompts that wait for running streams") {
  for (const int max_prefill_stall_ms : {1, 20}) {
    EngineConfig config = small_config();
    config.max_prefill_stall_ms = max_prefill_stall_ms;
    CHECK(simulate(test_seed() + 50, kNumEvents / 50, config).num_preemptions > 0);
  }
}

// Sizes at the edges: one row, one token a step, blocks of one token, a cache that holds exactly one longest sequence,
// a cache smaller than the model's length, room for everything.
TEST_CASE("odd sizes") {
  struct Sizes {
    int max_num_seqs, max_num_batched_tokens, kv_block_size, num_kv_blocks, threshold;
  };
  uint64_t seed = test_seed() + 100;
  for (const Sizes& sizes :
       {Sizes{1, 1, 4, 16, 0}, Sizes{4, 4, 1, 64, 0}, Sizes{8, 64, 16, 4, 3}, Sizes{8, 9, 4, 12, 2},
        Sizes{3, 7, 5, 13, 0}, Sizes{32, 256, 4, 4096, 0}, Sizes{32, 40, 64, 9, 8}}) {
    for (const int num_drafts : {0, 0, 5, 5}) {
      EngineConfig config = small_config();
      config.async_scheduling = seed % 2 != 0;
      config.num_drafts = num_drafts;
      config.draft_source = DraftSource::kExecutor;
      config.limits.max_num_seqs = sizes.max_num_seqs;
      config.limits.max_num_batched_tokens = sizes.max_num_batched_tokens;
      config.limits.kv_block_size = sizes.kv_block_size;
      config.num_kv_blocks = sizes.num_kv_blocks;
      config.long_prefill_token_threshold = sizes.threshold;
      CHECK(simulate(++seed, kNumEvents / 200, config).num_requests > 0);
    }
  }
}

}  // namespace
}  // namespace spate
