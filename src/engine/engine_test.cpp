// Goal: the promises of engine.h: every accepted sequence ends exactly once and with the right answer, whichever way
// the engine is configured, and whatever fails. Method: FakeExecutor, whose answers an oracle knows; first stepped by
// hand, then with the engine on its own thread and several threads submitting and cancelling (under TSan this is the
// proof).
#include "engine/engine.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/test_support.h"
#include "engine/fake_executor.h"
#include "engine/recording_sink.h"
#include "engine/request_life.h"
#include "grammar/regex.h"
#include "grammar/token_grammar.h"

#include "base/test.h"

namespace spate {
namespace {

EngineConfig test_config() {
  return {.limits = {.max_model_len = 128, .max_num_seqs = 16, .max_num_batched_tokens = 48, .kv_block_size = 4},
          .num_kv_blocks = 128,
          .max_num_waiting = 256};
}

std::unique_ptr<Engine> create_engine(const EngineConfig& config, StepExecutor& executor) {
  Result<std::unique_ptr<Engine>> engine = Engine::create(config, executor);
  REQUIRE_MESSAGE(engine.ok(), engine.status().to_string());
  return std::move(engine).value();
}

Request make_request(RequestId id, std::vector<int32_t> prompt, int max_tokens, std::shared_ptr<OutputSink> sink) {
  Request request;
  request.id = id;
  request.prompt_token_ids = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  request.sampling.seed = id * 1000;
  request.eos_token_ids = {0};
  request.sink = std::move(sink);
  return request;
}

std::vector<int32_t> random_prompt(Rng& rng, int min_len, int max_len) {
  std::vector<int32_t> prompt(min_len + rng.below(max_len - min_len + 1));
  for (int32_t& token_id : prompt) token_id = static_cast<int32_t>(rng.below(kFakeVocabSize));
  return prompt;
}

void run_until_idle(Engine& engine) {
  while (engine.step()) engine.check_integrity();
}

void check_answer(const RecordingSink::Answer& answer, const FakeAnswer& expected) {
  CHECK(answer.num_ends == 1);
  CHECK(answer.token_ids == expected.token_ids);
  CHECK(answer.finish_reason == expected.finish_reason);
  CHECK(answer.stop_token_id == expected.stop_token_id);
}

constexpr std::string_view kWords = "([a-m]{2,6} ?){1,6}";

// Letters and pairs of letters as tokens, 0 for the end.
std::shared_ptr<TokenConstraint> make_constraint(std::string_view regex = kWords) {
  std::vector<std::string> texts{""};
  for (char c = 'a'; c <= 'z'; ++c) texts.emplace_back(1, c);
  for (char c = 'a'; c <= 'z'; ++c) texts.push_back({c, 'e'});
  texts.insert(texts.end(), {" ", "e ", " a", "zz", "?"});
  texts.resize(kFakeVocabSize);
  GrammarBuilder builder;
  builder.define_rule(builder.declare_rule("root"), *parse_regex(regex, RegexMatch::kWhole));
  CompileBudget budget;
  const auto grammar = std::make_shared<const Grammar>(*builder.finish(0, budget));
  return *TokenGrammar::create(grammar, std::make_shared<const TokenTrie>(texts, kFakeVocabSize));
}

// 64 requests, half of them with a common start; n = 2 for some, a constraint for every fourth.
std::vector<Request> mixed_requests(Rng& rng, const std::shared_ptr<RecordingSink>& sink) {
  const std::vector<int32_t> common = random_prompt(rng, 30, 30);
  const std::shared_ptr<TokenConstraint> constraint = make_constraint();
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 64; ++id) {
    std::vector<int32_t> prompt = random_prompt(rng, 1, 60);
    if (id % 2 == 0) prompt.insert(prompt.begin(), common.begin(), common.end());
    Request request = make_request(id, std::move(prompt), 1 + static_cast<int>(rng.below(30)), sink);
    request.sampling.n = id % 8 == 0 ? 2 : 1;
    request.sampling.ignore_eos = id % 3 == 0;
    request.sampling.min_tokens = id % 5 == 0 ? request.sampling.max_tokens / 2 : 0;
    if (id % 7 == 0) request.sampling.stop_token_ids = {1, 2, 3};
    if (id % 4 == 0) request.constraint = constraint;
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST_CASE("the same answers with any loop, chunks on or off, prefix cache on or off, batch 1 or 64") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  for (const bool async_scheduling : {false, true}) {
    for (const bool enable_chunked_prefill : {false, true}) {
      for (const bool enable_prefix_caching : {false, true}) {
        for (const int max_num_seqs : {1, 64}) {
          for (const int num_kv_blocks : {32, 2000}) {  // 32: exactly one longest sequence
            EngineConfig config = test_config();
            config.async_scheduling = async_scheduling;
            config.enable_chunked_prefill = enable_chunked_prefill;
            config.enable_prefix_caching = enable_prefix_caching;
            config.limits.max_num_seqs = max_num_seqs;
            config.limits.max_num_batched_tokens = enable_chunked_prefill ? 64 : 128;
            config.num_kv_blocks = num_kv_blocks;
            FakeExecutor executor(config);
            const std::unique_ptr<Engine> engine = create_engine(config, executor);
            const auto sink = std::make_shared<RecordingSink>();
            Rng rng(seed);
            const std::vector<Request> requests = mixed_requests(rng, sink);
            for (const Request& request : requests) REQUIRE(engine->submit(request).ok());
            run_until_idle(*engine);
            for (const Request& request : requests) {
              for (int index = 0; index < request.sampling.n; ++index) {
                check_answer(sink->answer(request.id, index), fake_generate(request, index, config));
              }
            }
            const EngineStats stats = engine->stats();
            CHECK(stats.num_kv_blocks_used == 0);
            if (!enable_prefix_caching) CHECK(stats.prefix_cache_hits == 0);
            if (enable_prefix_caching && num_kv_blocks > 32) CHECK(stats.prefix_cache_hits > 500);
            if (!async_scheduling) CHECK(stats.num_wasted_rows == 0);
          }
        }
      }
    }
  }
}

// The definition, for one pattern size after the other.
bool repeats(const std::vector<int32_t>& output, const RepetitionDetection& detection) {
  for (int size = detection.min_pattern_size; size <= detection.max_pattern_size; ++size) {
    const int count = size * detection.min_count, len = static_cast<int>(output.size());
    bool equal = len >= count;
    for (int i = len - count; equal && i + size < len; ++i)
      equal = output[static_cast<size_t>(i)] == output[static_cast<size_t>(i + size)];
    if (equal) return true;
  }
  return false;
}

TEST_CASE("an answer that repeats itself ends where the definition says") {
  Rng rng(test_seed());
  int num_found = 0;
  for (int round = 0; round < 3000; ++round) {
    SequenceGroup group;
    RepetitionDetection& detection = group.request.sampling.repetition_detection;
    detection.max_pattern_size = static_cast<int>(rng.below(6));
    detection.min_pattern_size = 1 + static_cast<int>(rng.below(3));
    detection.min_count = 2 + static_cast<int>(rng.below(3));
    group.request.sampling.min_tokens = static_cast<int>(rng.below(6));
    Sequence seq;
    seq.group = &group;
    seq.has_started = true;
    seq.max_len = 1000;
    seq.prompt_len = static_cast<int>(rng.below(20));
    for (int i = 0; i < seq.prompt_len; ++i) seq.token_ids.push_back(5);  // the prompt does not count
    std::vector<int32_t> output;
    for (int i = 0; i < 24; ++i) {
      const auto period = 1 + rng.below(4);
      const bool copies = output.size() >= period && rng.below(8) != 0;
      output.push_back(copies ? output[output.size() - period] : static_cast<int32_t>(1 + rng.below(3)));
      seq.token_ids.push_back(output.back());
      const bool expected =
          static_cast<int>(output.size()) > group.request.sampling.min_tokens && repeats(output, detection);
      CHECK((check_end(seq).reason == FinishReason::kRepetition) == expected);
      num_found += expected;
    }
  }
  CHECK(num_found > 1000);
}

TEST_CASE("a sequence without a constraint gets a token every step, whoever runs beside it") {
  for (const bool async_scheduling : {false, true}) {
    uint64_t num_steps[2];
    for (const bool with_others : {false, true}) {
      EngineConfig config = test_config();
      config.async_scheduling = async_scheduling;
      FakeExecutor executor(config);
      const std::unique_ptr<Engine> engine = create_engine(config, executor);
      const auto sink = std::make_shared<RecordingSink>();
      Request plain = make_request(1, {5, 6, 7}, 60, sink);
      plain.sampling.ignore_eos = true;
      REQUIRE(engine->submit(plain).ok());
      for (RequestId id = 2; with_others && id < 10; ++id) {
        Request constrained = make_request(id, {static_cast<int32_t>(id)}, 20, sink);
        constrained.constraint = make_constraint();
        REQUIRE(engine->submit(constrained).ok());
      }
      while (sink->answer(1, 0).num_ends == 0) REQUIRE(engine->step());
      num_steps[with_others] = engine->stats().num_steps;
      run_until_idle(*engine);
    }
    CHECK(num_steps[1] == num_steps[0]);
  }
}

class AheadCounter final : public FakeExecutor {
 public:
  using FakeExecutor::FakeExecutor;
  void submit(std::span<const std::byte> plan) override {
    num_ahead += num_in_flight() > 0;
    num_late += reinterpret_cast<const StepPlanHeader*>(plan.data())->masks_are_late;
    FakeExecutor::submit(plan);
  }
  uint64_t num_ahead = 0;  // steps submitted while another was in flight
  uint64_t num_late = 0;   // steps with late masks
};

TEST_CASE("a sequence with a constraint gets a token every step, and every step is planned while another runs") {
  for (const int num_plain : {0, 8}) {
    const EngineConfig config = test_config();
    AheadCounter executor(config);
    const std::unique_ptr<Engine> engine = create_engine(config, executor);
    const auto sink = std::make_shared<RecordingSink>();
    for (int i = 0; i < num_plain; ++i) {
      Request plain = make_request(static_cast<RequestId>(2 + i), {5, 6, 7}, 60, sink);
      plain.sampling.ignore_eos = true;
      REQUIRE(engine->submit(plain).ok());
    }
    Request constrained = make_request(1, {5}, 20, sink);
    constrained.constraint = make_constraint("[a-m]{60}");
    REQUIRE(engine->submit(constrained).ok());
    while (sink->answer(1, 0).num_ends == 0) REQUIRE(engine->step());
    const uint64_t num_steps = engine->stats().num_steps;
    CHECK(sink->answer(1, 0).token_ids.size() == 20);
    CHECK(num_steps <= 22);
    CHECK(executor.num_ahead + 1 >= num_steps);
    CHECK(executor.num_late >= 19);
    run_until_idle(*engine);
  }
}

// The form of "(abcdefgh[xy]){4}" leaves 8 of 9 tokens no choice. Who has none does not wait for the tokens of the
// other, so that only those are drafted behind which a forced one is in flight.
TEST_CASE("forced tokens are drafted, and who has no form does not wait for them") {
  for (const bool with_plain : {false, true}) {
    EngineConfig config = test_config();
    config.draft_source = DraftSource::kProposer;
    AheadCounter executor(config);
    executor.step_seconds = [](const StepPlanHeader&) { return 1.0; };
    double now = 0;
    const std::unique_ptr<Engine> engine = *Engine::create(config, executor, [&] { return now += 0.5; });
    const auto sink = std::make_shared<RecordingSink>();
    Request constrained = make_request(1, {5}, 60, sink);
    constrained.constraint = make_constraint("(abcdefgh[xy]){4}");
    Request plain = make_request(2, {5, 6, 7}, 100, sink);
    plain.sampling.ignore_eos = true;
    if (with_plain) REQUIRE(engine->submit(plain).ok());
    REQUIRE(engine->submit(constrained).ok());
    while (sink->answer(1, 0).num_ends == 0) REQUIRE(engine->step());
    const EngineStats stats = engine->stats();
    CHECK(sink->answer(1, 0).finish_reason == FinishReason::kStop);
    CHECK(stats.num_drafts_accepted > (with_plain ? 12 : 20));
    if (with_plain) CHECK(executor.num_ahead + 1 >= stats.num_steps);
    run_until_idle(*engine);
  }
}

TEST_CASE("logprobs and prompt_logprobs come with their tokens, cut to what was asked") {
  const EngineConfig config = test_config();
  FakeExecutor executor(config);
  const std::unique_ptr<Engine> engine = create_engine(config, executor);
  const auto sink = std::make_shared<RecordingSink>();
  Rng rng(test_seed());
  const std::vector<int32_t> prompt = random_prompt(rng, 100, 100);  // three chunks of 48
  Request asks = make_request(1, prompt, 4, sink);
  asks.sampling.ignore_eos = true;
  asks.sampling.logprobs = 2;
  asks.sampling.prompt_logprobs = 1;
  Request silent = make_request(2, {1, 2, 3}, 4, sink);
  silent.sampling.ignore_eos = true;
  REQUIRE(engine->submit(silent).ok());
  run_until_idle(*engine);
  REQUIRE(engine->submit(asks).ok());
  run_until_idle(*engine);
  const RecordingSink::Answer answer = sink->answer(1);
  REQUIRE(answer.logprobs.size() == 4);
  std::vector<int32_t> context = prompt;
  for (size_t i = 0; i < 4; ++i) {
    CHECK(answer.logprobs[i].token_id == answer.token_ids[i]);
    CHECK(answer.logprobs[i].logprob == fake_logprob(context, answer.token_ids[i]));
    CHECK(answer.logprobs[i].top.size() == 2);
    context.push_back(answer.token_ids[i]);
  }
  REQUIRE(answer.prompt_logprobs.size() == prompt.size() - 1);
  for (size_t i = 1; i < prompt.size(); ++i) {
    CHECK(answer.prompt_logprobs[i - 1].token_id == prompt[i]);
    CHECK(answer.prompt_logprobs[i - 1].logprob == fake_logprob(std::span(prompt).first(i), prompt[i]));
    CHECK(answer.prompt_logprobs[i - 1].top.size() == 1);
  }
  CHECK(sink->answer(2).logprobs.empty());
}

TEST_CASE("what cannot run is refused with the reason, and its sink never hears of it") {
  EngineConfig config = test_config();
  config.num_kv_blocks = 20;  // 80 tokens, less than max_model_len
  config.max_num_waiting = 2;
  FakeExecutor executor(config);
  const std::unique_ptr<Engine> engine = create_engine(config, executor);
  const auto sink = std::make_shared<RecordingSink>();
  const auto refused = [&](const Request& request, StatusCode code, const char* text) {
    const Status status = engine->submit(request);
    CHECK(status.code() == code);
    CHECK_MESSAGE(status.message().find(text) != std::string::npos, status.message());
  };
  refused(make_request(1, {}, 4, sink), StatusCode::kInvalidArgument, "at least one token");
  refused(make_request(1, {1}, 4, nullptr), StatusCode::kInvalidArgument, "sink");
  refused(make_request(1, {1}, 0, sink), StatusCode::kInvalidArgument, "max_tokens");
  refused(make_request(1, std::vector<int32_t>(128, 1), 4, sink), StatusCode::kOutOfRange, "128 tokens");
  refused(make_request(1, std::vector<int32_t>(80, 1), 4, sink), StatusCode::kOutOfRange, "--kv-cache-memory");
  Request many_stops = make_request(1, {1}, 4, sink);
  for (int32_t id = 1; id <= 64; ++id) many_stops.sampling.stop_token_ids.push_back(id);
  refused(many_stops, StatusCode::kInvalidArgument, "65 ids");
  CHECK(engine->submit(make_request(1, std::vector<int32_t>(79, 1), 40, sink)).ok());  // ends at the cache's length
  refused(make_request(1, {1}, 4, sink), StatusCode::kInvalidArgument, "id 1");
  CHECK(engine->submit(make_request(2, {1}, 4, sink)).ok());
  refused(make_request(3, {1}, 4, sink), StatusCode::kResourceExhausted, "--max-num-waiting 2");
  CHECK(engine->stats().num_refused == 1);
  CHECK(engine->stats().num_waiting == 2);
  run_until_idle(*engine);
  CHECK(sink->answer(1).finish_reason == FinishReason::kLength);
  CHECK(sink->answer(1).token_ids.size() == 1);
  CHECK(sink->answer(3).num_outputs == 0);
  CHECK(engine->submit(make_request(3, {1}, 4, sink)).ok());  // there is room again
  run_until_idle(*engine);
  CHECK(sink->answer(3).num_ends == 1);
}

TEST_CASE("submit_all takes all requests or none, also more than may wait") {
  EngineConfig config = test_config();
  config.max_num_waiting = 2;
  FakeExecutor executor(config);
  const std::unique_ptr<Engine> engine = create_engine(config, executor);
  const auto sink = std::make_shared<RecordingSink>();
  const auto batch = [&](RequestId first, RequestId last) {
    std::vector<Request> requests;
    for (RequestId id = first; id <= last; ++id) requests.push_back(make_request(id, {1}, 2, sink));
    return requests;
  };
  std::vector<Request> bad = batch(1, 3);
  bad[2].prompt_token_ids.clear();
  CHECK(engine->submit_all(std::move(bad)).code() == StatusCode::kInvalidArgument);
  CHECK(engine->submit(make_request(9, {1}, 2, sink)).ok());
  CHECK(engine->submit_all(batch(7, 9)).code() == StatusCode::kInvalidArgument);  // 9 runs
  CHECK(engine->stats().num_waiting == 1);
  CHECK(engine->submit_all(batch(1, 8)).ok());  // 7 and 8 were not kept
  CHECK(engine->submit_all(batch(10, 11)).code() == StatusCode::kResourceExhausted);
  CHECK(engine->stats().num_waiting == 9);
  run_until_idle(*engine);
  for (RequestId id = 1; id <= 9; ++id) CHECK(sink->answer(id).num_ends == 1);
  CHECK(sink->answer(10).num_outputs == 0);
  CHECK(engine->stats().num_waiting == 0);
}

TEST_CASE("a bad configuration is refused with a value that works") {
  EngineConfig config = test_config();
  FakeExecutor executor(config);
  const auto refused = [&](const EngineConfig& bad, const char* text) {
    const Result<std::unique_ptr<Engine>> engine = Engine::create(bad, executor);
    REQUIRE_FALSE(engine.ok());
    CHECK_MESSAGE(engine.status().message().find(text) != std::string::npos, engine.status().message());
  };
  config.limits.max_num_batched_tokens = 8;
  refused(config, "--max-num-batched-tokens 16 or --max-num-seqs 8");
  config = test_config();
  config.enable_chunked_prefill = false;
  refused(config, "--max-num-batched-tokens 128");
  config = test_config();
  config.num_kv_blocks = 0;
  refused(config, "KV blocks");
}

TEST_CASE("a cancel ends a sequence wherever it is, with the given reason") {
  EngineConfig config = test_config();
  config.limits.max_num_seqs = 2;
  for (const bool async_scheduling : {false, true}) {
    config.async_scheduling = async_scheduling;
    FakeExecutor executor(config);
    const std::unique_ptr<Engine> engine = create_engine(config, executor);
    const auto sink = std::make_shared<RecordingSink>();
    for (RequestId id = 1; id <= 4; ++id) {
      Request request = make_request(id, {1, 2, 3}, 50, sink);
      request.sampling.ignore_eos = true;
      request.sampling.n = id == 2 ? 3 : 1;
      REQUIRE(engine->submit(request).ok());
    }
    engine->cancel(4);  // in the inbox
    for (int i = 0; i < 5; ++i) engine->step();
    engine->cancel(1, 0, FinishReason::kStop);  // running
    engine->cancel(2, 2);                       // waiting: there are two rows
    engine->cancel(99);
    for (int i = 0; i < 5; ++i) engine->step();
    engine->cancel(1);  // has ended
    run_until_idle(*engine);
    CHECK(sink->answer(1).finish_reason == FinishReason::kStop);
    CHECK(sink->answer(1).num_ends == 1);
    CHECK(sink->answer(1).token_ids.size() >= 3);
    CHECK(sink->answer(2, 0).token_ids.size() == 50);
    CHECK(sink->answer(2, 1).token_ids.size() == 50);
    CHECK(sink->answer(2, 2).finish_reason == FinishReason::kAbort);
    CHECK(sink->answer(2, 2).token_ids.empty());
    CHECK(sink->answer(3).token_ids.size() == 50);
    CHECK(sink->answer(4).finish_reason == FinishReason::kAbort);
    const EngineStats stats = engine->stats();
    CHECK(stats.finished[static_cast<size_t>(FinishReason::kAbort)] == 2);
    CHECK(stats.finished[static_cast<size_t>(FinishReason::kLength)] == 3);
    CHECK(stats.num_kv_blocks_used == 0);
  }
}

TEST_CASE("when the executor fails every request ends with its message, and none is taken any more") {
  for (const bool async_scheduling : {false, true}) {
    EngineConfig config = test_config();
    config.async_scheduling = async_scheduling;
    config.limits.max_num_seqs = 2;
    FakeExecutor executor(config);
    executor.fail_at_step = 4;
    const std::unique_ptr<Engine> engine = create_engine(config, executor);
    const auto sink = std::make_shared<RecordingSink>();
    for (RequestId id = 1; id <= 4; ++id) {
      Request request = make_request(id, {1, 2, 3}, 50, sink);
      request.sampling.ignore_eos = true;
      request.sampling.n = id == 1 ? 3 : 1;
      REQUIRE(engine->submit(request).ok());
    }
    run_until_idle(*engine);
    for (RequestId id = 1; id <= 4; ++id) {
      CHECK(sink->answer(id).finish_reason == FinishReason::kError);
      CHECK(sink->answer(id).num_ends == 1);
      CHECK(sink->answer(id).error.message() == "the device is lost at step 4");
    }
    CHECK(sink->answer(1, 2).num_ends == 1);
    CHECK(sink->answer(1).token_ids.size() == 3);
    CHECK(engine->health().code() == StatusCode::kInternal);
    CHECK(engine->submit(make_request(5, {1}, 4, sink)).message() == "the device is lost at step 4");
    CHECK(engine->stats().num_kv_blocks_used == 0);
    CHECK(engine->drain(std::chrono::seconds(10)));
  }
}

TEST_CASE("after logits that are not finite the request's prefix is computed again, also by requests that share it") {
  EngineConfig config = test_config();
  FakeExecutor executor(config);
  executor.is_nonfinite = [](const RowSampling& sampling, int num_tokens) {
    return sampling.seed == 1000 && num_tokens >= 14;  // request 1: its third token
  };
  const std::unique_ptr<Engine> engine = create_engine(config, executor);
  const auto sink = std::make_shared<RecordingSink>();
  const LogLevel level = log_level();
  set_log_level(LogLevel::kOff);
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (RequestId id = 1; id <= 3; ++id) {
    Request request = make_request(id, prompt, 6, sink);
    request.sampling.ignore_eos = true;
    REQUIRE(engine->submit(std::move(request)).ok());
    run_until_idle(*engine);
    CHECK(sink->answer(id).finish_reason == (id == 1 ? FinishReason::kError : FinishReason::kLength));
    CHECK(sink->answer(id).num_cached_tokens == (id == 3 ? 8 : 0));
  }
  set_log_level(level);
}

// Opens a transfer with the first output, as a connector would that moves a prompt's keys and values elsewhere.
class TransferringSink final : public OutputSink {
 public:
  explicit TransferringSink(RecordingSink& inner) : inner_(inner) {}
  void push(std::vector<Output> outputs) override {
    if (!transfer) transfer = engine->open_transfer(outputs[0].request_id, 0);
    inner_.push(std::move(outputs));
  }
  Engine* engine = nullptr;
  std::optional<BlockTransfer> transfer;

 private:
  RecordingSink& inner_;
};

TEST_CASE("a request waits for blocks under a transfer, and the end of the transfer wakes the engine") {
  for (const bool async_scheduling : {false, true}) {
    EngineConfig config = test_config();
    config.async_scheduling = async_scheduling;
    config.num_kv_blocks = 6;
    FakeExecutor executor(config);
    const std::unique_ptr<Engine> engine = create_engine(config, executor);
    const auto recorder = std::make_shared<RecordingSink>();
    const auto sink = std::make_shared<TransferringSink>(*recorder);
    sink->engine = engine.get();
    engine->start();
    Request first = make_request(1, std::vector<int32_t>(14, 3), 3, sink);
    Request second = make_request(2, std::vector<int32_t>(16, 4), 3, recorder);
    first.sampling.ignore_eos = second.sampling.ignore_eos = true;
    REQUIRE(engine->submit(first).ok());
    REQUIRE(recorder->wait_for_ends(1));
    REQUIRE(sink->transfer.has_value());
    CHECK(sink->transfer->num_tokens == (async_scheduling ? 15 : 14));
    CHECK(sink->transfer->block_ids.size() == 4);
    REQUIRE(engine->submit(second).ok());
    for (int i = 0; i < 1000 && engine->stats().num_waiting == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK_FALSE(engine->drain(std::chrono::milliseconds(30)));
    CHECK(engine->stats().num_waiting == 1);
    CHECK(engine->stats().num_transfers == 1);
    CHECK(engine->stats().num_kv_blocks_used == 4);
    engine->complete_transfer(sink->transfer->ticket);
    CHECK(engine->drain(std::chrono::seconds(60)));
    check_answer(recorder->answer(2), fake_generate(second, 0, config));
    CHECK(engine->stats().num_transfers == 0);
    CHECK(engine->stats().num_kv_blocks_used == 0);
  }
}

TEST_CASE("one push a step and sink") {
  EngineConfig config = test_config();
  config.async_scheduling = false;
  FakeExecutor executor(config);
  const std::unique_ptr<Engine> engine = create_engine(config, executor);
  const auto sink = std::make_shared<RecordingSink>();
  for (RequestId id = 1; id <= 8; ++id) {
    Request request = make_request(id, {1, 2}, 5, sink);
    request.sampling.ignore_eos = true;
    REQUIRE(engine->submit(request).ok());
  }
  run_until_idle(*engine);
  CHECK(sink->num_pushes() == 5);
  const EngineStats stats = engine->stats();
  CHECK(stats.num_steps == 5);
  CHECK(stats.generation_tokens == 40);
  CHECK(stats.prompt_tokens == 16);
  CHECK(stats.iteration_tokens[1] == 4);  // 8 tokens
  CHECK(stats.iteration_tokens[2] == 1);  // 16
  CHECK(stats.iteration_tokens_sum == 48);
}

// --- with threads ---

TEST_CASE("threads submit and cancel while the engine runs; drain leaves nothing behind") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  constexpr int kNumThreads = 4, kNumRequests = 150;
  for (const bool async_scheduling : {false, true}) {
    EngineConfig config = test_config();
    config.async_scheduling = async_scheduling;
    config.num_kv_blocks = 64;
    config.max_num_waiting = kNumThreads * kNumRequests;
    FakeExecutor executor(config);
    const std::unique_ptr<Engine> engine = create_engine(config, executor);
    engine->start();
    std::atomic<int> num_wrong = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kNumThreads; ++t) {
      threads.emplace_back([&, t] {
        Rng rng(seed, t);
        const auto sink = std::make_shared<RecordingSink>();
        std::vector<Request> requests;
        std::vector<bool> cancelled;
        for (int i = 0; i < kNumRequests; ++i) {
          const RequestId id = static_cast<RequestId>(t) * 100000 + i + 1;
          requests.push_back(make_request(id, random_prompt(rng, 1, 40), 1 + static_cast<int>(rng.below(20)), sink));
          if (!engine->submit(requests.back()).ok()) ++num_wrong;
          cancelled.push_back(rng.below(4) == 0);
          if (rng.below(8) == 0) sink->wait_for_tokens(id, 2);
          if (cancelled.back()) engine->cancel(id);
          if (rng.below(16) == 0 && engine->stats().num_kv_blocks != 64) ++num_wrong;
        }
        if (!sink->wait_for_ends(kNumRequests)) ++num_wrong;
        for (int i = 0; i < kNumRequests; ++i) {
          const RecordingSink::Answer answer = sink->answer(requests[i].id);
          const FakeAnswer expected = fake_generate(requests[i], 0, config);
          const bool is_prefix =
              answer.token_ids.size() <= expected.token_ids.size() &&
              std::equal(answer.token_ids.begin(), answer.token_ids.end(), expected.token_ids.begin());
          const bool complete =
              answer.token_ids == expected.token_ids && answer.finish_reason == expected.finish_reason;
          if (answer.num_ends != 1 || !is_prefix || (!cancelled[i] && !complete)) ++num_wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(num_wrong == 0);
    CHECK(engine->drain(std::chrono::seconds(60)));
    CHECK(engine->submit(make_request(7, {1}, 4, std::make_shared<RecordingSink>())).code() ==
          StatusCode::kUnavailable);
    const EngineStats stats = engine->stats();
    CHECK(stats.num_kv_blocks_used == 0);
    CHECK(stats.num_running == 0);
    CHECK(stats.num_waiting == 0);
    engine->stop();
    engine->stop();  // does nothing
  }
}

TEST_CASE("stop ends what runs with an error, and what is submitted later is refused") {
  for (const bool async_scheduling : {false, true}) {
    EngineConfig config = test_config();
    config.async_scheduling = async_scheduling;
    config.limits.max_num_seqs = 4;
    FakeExecutor executor(config);
    executor.step_seconds = [](const StepPlanHeader&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return 0.001;
    };
    const std::unique_ptr<Engine> engine = create_engine(config, executor);
    engine->start();
    const auto sink = std::make_shared<RecordingSink>();
    int num_accepted = 0;
    std::thread submitter([&] {
      for (RequestId id = 1; id <= 100; ++id) {
        Request request = make_request(id, {1, 2, 3}, 120, sink);
        request.sampling.ignore_eos = true;
        num_accepted += engine->submit(request).ok();
      }
    });
    CHECK(sink->wait_for_tokens(1, 3));
    engine->stop();
    submitter.join();
    CHECK(sink->wait_for_ends(num_accepted));
    CHECK(sink->answer(1).finish_reason == FinishReason::kError);
    CHECK(sink->answer(1).error.code() == StatusCode::kUnavailable);
    CHECK(executor.num_in_flight() == 0);
    CHECK(engine->submit(make_request(500, {1}, 4, sink)).code() == StatusCode::kUnavailable);
    CHECK(engine->health().code() == StatusCode::kUnavailable);
    CHECK(engine->stats().num_kv_blocks_used == 0);
  }
}

TEST_CASE("inspect: sequences, steps and the owner of every block") {
  FakeExecutor executor(test_config());
  const auto engine = create_engine(test_config(), executor);
  const auto sink = std::make_shared<RecordingSink>();
  Rng rng(3);
  const std::vector<int32_t> prompt = random_prompt(rng, 40, 40);
  REQUIRE(engine->submit(make_request(7, prompt, 50, sink)).ok());
  REQUIRE(engine->submit(make_request(8, prompt, 50, sink)).ok());
  for (int i = 0; i < 6; ++i) engine->step();
  std::future<EngineInspection> future = engine->inspect();
  engine->step();
  const EngineInspection seen = future.get();
  const EngineStats stats = engine->stats();
  CHECK(seen.num_running + seen.num_waiting == static_cast<int>(seen.seqs.size()));
  CHECK(seen.block_owners.size() == 128);
  // Each sequence's blocks are found under its index or as shared ones.
  std::vector<int> owned(seen.seqs.size());
  int num_shared = 0, num_in_use = 0;
  for (const int32_t owner : seen.block_owners) {
    if (owner >= 0) ++owned[static_cast<size_t>(owner)];
    num_shared += owner == EngineInspection::kSharedBlock;
    num_in_use += owner >= 0 || owner == EngineInspection::kSharedBlock;
  }
  for (size_t i = 0; i < seen.seqs.size(); ++i) {
    CHECK(seen.seqs[i].prompt_len == 40);
    CHECK(seen.seqs[i].num_blocks >= owned[i]);
    CHECK(seen.seqs[i].num_blocks <= owned[i] + num_shared);
  }
  CHECK(num_in_use > 0);
  REQUIRE(!seen.steps.empty());
  CHECK(seen.steps.size() <= stats.num_steps);
  int num_prefill = 0, num_cached = 0;
  for (const StepRecord& step : seen.steps) num_prefill += step.num_prefill_tokens, num_cached += step.num_cached_tokens;
  CHECK(num_prefill + num_cached == 80);
  run_until_idle(*engine);
  future = engine->inspect();
  engine->step();
  CHECK(future.get().seqs.empty());
  engine->stop();
  CHECK(engine->inspect().get().block_owners.empty());  // nobody waits for an engine that has stopped
}

TEST_CASE("inspect: the drafts that ran and those accepted, of each step and each sequence") {
  EngineConfig config = test_config();
  config.num_drafts = 3;
  config.draft_source = DraftSource::kExecutor;
  FakeExecutor executor(config);
  executor.draft_hit_rate = 0.7;
  const auto engine = create_engine(config, executor);
  const auto sink = std::make_shared<RecordingSink>();
  for (RequestId id = 1; id <= 2; ++id) {
    Request request = make_request(id, {1, 2, 3}, 60, sink);
    request.sampling.ignore_eos = true;
    REQUIRE(engine->submit(std::move(request)).ok());
  }
  for (int i = 0; i < 10; ++i) engine->step();
  const EngineStats stats = engine->stats();
  std::future<EngineInspection> future = engine->inspect();
  engine->step();
  const EngineInspection seen = future.get();
  CHECK(stats.num_drafts_accepted > 0);
  CHECK(stats.num_drafts_accepted < stats.num_drafts);
  REQUIRE(seen.seqs.size() == 2);
  uint64_t of_steps = 0, of_seqs = 0, accepted_of_steps = 0, accepted_of_seqs = 0;
  for (const StepRecord& step : seen.steps) {
    of_steps += static_cast<uint64_t>(step.num_drafts);
    accepted_of_steps += static_cast<uint64_t>(step.num_drafts_accepted);
  }
  for (const SequenceInspection& seq : seen.seqs) {
    of_seqs += static_cast<uint64_t>(seq.num_drafts);
    accepted_of_seqs += static_cast<uint64_t>(seq.num_drafts_accepted);
  }
  CHECK(of_steps == stats.num_drafts);
  CHECK(of_seqs == stats.num_drafts);
  CHECK(accepted_of_steps == stats.num_drafts_accepted);
  CHECK(accepted_of_seqs == stats.num_drafts_accepted);
}

}  // namespace
}  // namespace spate
