// Goal    The lines about an engine's speed say what happened between two readings of its counters, in vLLM's words.
// Method  Counters of two readings, and the lines they must give.
#include "server/engine_log.h"

#include "base/test.h"

namespace spate {
namespace {

EngineStats reading(uint64_t num_steps, uint64_t prompt_tokens, uint64_t generation_tokens) {
  EngineStats stats;
  stats.num_steps = num_steps;
  stats.prompt_tokens = prompt_tokens;
  stats.generation_tokens = generation_tokens;
  return stats;
}

TEST_CASE("engine log: rates are of the time between the readings") {
  EngineStats last = reading(10, 100, 50), stats = reading(15, 400, 90);
  stats.num_running = 3;
  stats.num_waiting = 1;
  stats.kv_cache_usage = 0.256;
  stats.prefix_cache_queries = 400;
  stats.prefix_cache_hits = 100;
  const std::vector<std::string> lines = describe_rates(stats, last, 2.0);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] ==
        "Avg prompt throughput: 150.0 tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 3 reqs, Waiting: 1 "
        "reqs, GPU KV cache usage: 25.6%, Prefix cache hit rate: 25.0%");
}

TEST_CASE("engine log: an idle engine says nothing and one whose requests wait does") {
  EngineStats stats = reading(10, 100, 50);
  CHECK(describe_rates(stats, stats, 1.0).empty());
  stats.num_waiting = 1;
  CHECK(describe_rates(stats, stats, 1.0).size() == 1);
}

TEST_CASE("engine log: drafts are told by their place") {
  const EngineStats last = reading(10, 100, 50);
  EngineStats stats = reading(20, 100, 80);
  stats.num_drafts = 20;
  stats.num_drafts_accepted = 12;
  stats.num_drafted_rows = 10;
  stats.num_accepted_at[0] = 8;
  stats.num_accepted_at[1] = 4;
  const std::vector<std::string> lines = describe_rates(stats, last, 2.0);
  REQUIRE(lines.size() == 2);
  CHECK(
      lines[1] ==
      "SpecDecoding metrics: Mean acceptance length: 2.20, Accepted throughput: 6.00 tokens/s, Drafted throughput: "
      "10.00 tokens/s, Accepted: 12 tokens, Drafted: 20 tokens, Per-position acceptance rate: 0.800, 0.400, Avg Draft "
      "acceptance rate: 60.0%");
}

}  // namespace
}  // namespace spate
