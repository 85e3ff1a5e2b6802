// Goal: streams do not stall and short prompts do not wait for long ones. Method: a cost model on a virtual clock (2 ms
// and 0.1 ms a token: a small GPU), arrivals at chosen steps; the assertions are about steps, the seconds are printed.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "engine/engine.h"
#include "engine/fake_executor.h"

#include "base/test.h"

namespace spate {
namespace {

// When each token of each request came: step and virtual time.
class TimingSink : public OutputSink {
 public:
  struct Token {
    uint64_t step_id;
    double seconds;
  };
  void push(std::vector<Output> outputs) override {
    for (const Output& output : outputs) tokens[output.request_id].push_back({step_id, now});
  }
  std::map<RequestId, std::vector<Token>> tokens;
  uint64_t step_id = 0;
  double now = 0;
};

class LatencyRun {
 public:
  explicit LatencyRun(const EngineConfig& config, double step_s = 0.002, double token_s = 0.0001)
      : executor_(config), sink(std::make_shared<TimingSink>()) {
    executor_.step_seconds = [this, step_s, token_s](const StepPlanHeader& header) {
      const double seconds = step_s + token_s * header.num_tokens;
      sink->now += seconds;
      sink->step_id = header.step_id;
      longest_step_seconds = std::max(longest_step_seconds, seconds);
      return seconds;
    };
    Result<std::unique_ptr<Engine>> created = Engine::create(config, executor_, [this] { return sink->now; });
    REQUIRE(created.ok());
    engine = std::move(created).value();
  }

  void add(RequestId id, int prompt_len, int max_tokens) {
    Request request;
    request.id = id;
    for (int i = 0; i < prompt_len; ++i)
      request.prompt_token_ids.push_back(static_cast<int32_t>((id * 7 + i * 3) % kFakeVocabSize));
    request.prompt_token_ids[0] = static_cast<int32_t>(id % kFakeVocabSize);
    request.sampling.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.sink = sink;
    submitted_at[id] = {sink->step_id, sink->now};
    REQUIRE(engine->submit(std::move(request)).ok());
  }
  void step(int count) {
    for (int i = 0; i < count; ++i) engine->step();
  }
  void finish() {
    while (engine->step()) {
    }
  }
  // Steps between two tokens of a stream, at worst; 1 = a token in every step.
  uint64_t longest_gap(RequestId id) const {
    uint64_t gap = 0;
    const auto& tokens = sink->tokens.at(id);
    for (size_t i = 1; i < tokens.size(); ++i) gap = std::max(gap, tokens[i].step_id - tokens[i - 1].step_id);
    return gap;
  }
  uint64_t steps_to_first_token(RequestId id) const {
    return sink->tokens.at(id)[0].step_id - submitted_at.at(id).step_id;
  }
  double seconds_to_first_token(RequestId id) const {
    return sink->tokens.at(id)[0].seconds - submitted_at.at(id).seconds;
  }

 private:
  FakeExecutor executor_;

 public:
  std::shared_ptr<TimingSink> sink;
  std::unique_ptr<Engine> engine;
  std::map<RequestId, TimingSink::Token> submitted_at;
  double longest_step_seconds = 0;
};

EngineConfig latency_config() {
  return {.limits = {.max_model_len = 4096, .max_num_seqs = 64, .max_num_batched_tokens = 512}, .num_kv_blocks = 1024};
}

TEST_CASE("16 requests of 128 in, 64 out at once") {
  LatencyRun run(latency_config());
  for (RequestId id = 1; id <= 16; ++id) run.add(id, 128, 64);
  run.finish();
  uint64_t longest_gap = 0, last_first = 0;
  for (RequestId id = 1; id <= 16; ++id) {
    longest_gap = std::max(longest_gap, run.longest_gap(id));
    last_first = std::max(last_first, run.steps_to_first_token(id));
  }
  fmt::print("16 x 128/64: {} steps, last first token after {} steps, longest stall of a stream {} step(s)\n",
             run.engine->stats().num_steps, last_first, longest_gap);
  CHECK(longest_gap == 1);
  CHECK(last_first <= 5);  // 2048 prompt tokens, 512 a step less the decodes
}

TEST_CASE("a 2048-token prompt and a short one behind it arrive amid 8 running streams") {
  LatencyRun run(latency_config());
  for (RequestId id = 1; id <= 8; ++id) run.add(id, 32, 100);
  run.step(20);
  run.add(100, 2048, 16);
  run.step(1);
  run.add(101, 100, 16);
  run.finish();
  uint64_t longest_gap = 0;
  for (RequestId id = 1; id <= 8; ++id) longest_gap = std::max(longest_gap, run.longest_gap(id));
  fmt::print(
      "2048 amid 8 streams: longest stall {} step(s), longest step {:.1f} ms; first token of the long prompt after {} "
      "steps "
      "({:.0f} ms), of the short one behind it after {} ({:.0f} ms)\n",
      longest_gap, run.longest_step_seconds * 1e3, run.steps_to_first_token(100), run.seconds_to_first_token(100) * 1e3,
      run.steps_to_first_token(101), run.seconds_to_first_token(101) * 1e3);
  CHECK(longest_gap == 1);
  CHECK(run.steps_to_first_token(101) <= 3);  // one step is in flight when it arrives, one is its own
  CHECK(run.steps_to_first_token(100) <= 7);  // 2048 / (512 - 8) = 4.06, its neighbour's 100, the step in flight
}

// A CPU: 30 ms to read the weights, 0.3 ms a token. A whole budget of prompt tokens would hold every stream for 180 ms.
TEST_CASE("a stall limit keeps steps short while streams run, and only then") {
  EngineConfig config = latency_config();
  config.max_prefill_stall_ms = 100;
  LatencyRun run(config, 0.030, 0.0003);
  for (RequestId id = 1; id <= 8; ++id) run.add(id, 32, 200);
  run.step(20);
  run.longest_step_seconds = 0;
  run.add(100, 2048, 16);
  run.finish();
  fmt::print("2048 amid 8 streams, 100 ms allowed: longest step {:.1f} ms, first token after {} steps\n",
             run.longest_step_seconds * 1e3, run.steps_to_first_token(100));
  CHECK(run.longest_step_seconds < 0.110);
  CHECK(run.steps_to_first_token(100) <= 2048 / 210 + 4);  // (100 - 32) ms / 0.3 ms a step, and learning it
}

TEST_CASE("short prompts keep coming: the long one still gets its share") {
  LatencyRun run(latency_config());
  run.add(1000, 3000, 1);
  for (RequestId id = 1; id <= 60; ++id) {
    for (RequestId k = 0; k < 5; ++k)
      run.add(id * 10 + k, 100, 2);  // 500 tokens a step: more than what the long one leaves
    run.step(1);
  }
  run.finish();
  fmt::print("3000 under a flood of short prompts: first token after {} steps\n", run.steps_to_first_token(1000));
  CHECK(run.steps_to_first_token(1000) <= 3000 / 128 + 3);  // the threshold is a quarter of 512
}

}  // namespace
}  // namespace spate
