// A simulation of the whole engine over FakeExecutor: random arrivals, cancels at any moment, tight memory, shared
// prompts, n > 1, priorities, reuse scopes, drafts, logits that are not finite, transfers of blocks. One thread,
// virtual clock, one seed: a failure is repeated by its seed.
#pragma once

#include <cstdint>
#include <string>

#include "core/engine_config.h"

namespace spate {

struct SimulationOptions {
  uint64_t seed = 1;
  int64_t num_events = 10000;  // arrivals, cancels, preemptions and prefix hits together
  EngineConfig config;
  double arrivals_per_step = 0.8;
  double cancel_share = 0.15;  // of the requests
  double pooling_share = 0.1;  // of the requests: they want a hidden state and no tokens
  double nonfinite_share = 0;  // of the requests: their logits stop being finite somewhere
  double draft_hit_rate = 0.7;
  int num_draft_layers = 1;  // of a model whose own layers draft
  double transfers_per_step = 0.02;  // of the blocks of running sequences; each is open for some steps
  int max_prompt_len = 40;
  int max_tokens = 10;
};

// What happened. Every answer was compared with fake_generate and every invariant checked after each step, or the
// program has stopped.
struct SimulationReport {
  int64_t num_steps = 0;
  int64_t num_requests = 0;
  int64_t num_cancels = 0;
  int64_t num_preemptions = 0;
  int64_t num_prefix_hits = 0;  // sequences that started with cached tokens
  int64_t num_forks = 0;
  int64_t num_refused = 0;
  int64_t num_tokens_generated = 0;
  int64_t num_tokens_computed = 0;
  int64_t num_pooled = 0;  // requests that wanted a hidden state
  int64_t num_wasted_rows = 0;
  int64_t num_drafts = 0;
  int64_t num_drafts_accepted = 0;
  int64_t num_nonfinite = 0;
  int64_t num_blocks_copied = 0;
  int64_t num_transfers = 0;
  int64_t num_turns_blocked = 0;  // nothing could be scheduled before a transfer was complete
  int64_t num_events() const { return num_requests + num_cancels + num_preemptions + num_prefix_hits; }
  std::string to_string() const;
};

SimulationReport run_simulation(const SimulationOptions& options);

}  // namespace spate
