// Goal    The mock answers what its script says through the real engine: chunked prompts, preemption, drafts, limits,
//         faults, and every request ends exactly once.
// Method  Letters are tokens (a = 1 ... z = 26, 0 ends); the engine is stepped by hand.
#include "mock/mock_executor.h"

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "batch/plan_builder.h"
#include "engine/engine.h"
#include "engine/recording_sink.h"

#include "base/test.h"

namespace spate {
namespace {

constexpr int kVocabSize = 32;

std::vector<int32_t> encode(std::string_view text) {
  std::vector<int32_t> token_ids;
  for (const char c : text) token_ids.push_back(c - 'a' + 1);
  return token_ids;
}

std::string decode(std::span<const int32_t> token_ids) {
  std::string text;
  for (const int32_t id : token_ids) text += id == 0 ? '.' : static_cast<char>('a' + id - 1);
  return text;
}

// An engine over a mock, and what its requests got.
struct Rig {
  explicit Rig(MockScript script, EngineConfig config = small_config())
      : executor({.script = std::move(script),
                  .encode = encode,
                  .decode = decode,
                  .eos_token_ids = {0},
                  .max_num_seqs = config.limits.max_num_seqs,
                  .vocab_size = kVocabSize,
                  .hidden_size = 4,
                  .time_limit_s = 0.05}),
        engine(std::move(Engine::create(config, executor)).value()) {}

  static EngineConfig small_config() {
    return {.limits = {.max_model_len = 64, .max_num_seqs = 4, .max_num_batched_tokens = 16, .kv_block_size = 4},
            .num_kv_blocks = 64};
  }

  RequestId submit(std::string_view prompt, SamplingParams sampling = {.max_tokens = 40}) {
    Request request;
    request.id = ++last_id;
    request.prompt_token_ids = encode(prompt);
    request.sampling = std::move(sampling);
    request.sampling.seed = 1;
    request.eos_token_ids = {0};
    request.sink = sink;
    const Status status = engine->submit(std::move(request));
    REQUIRE_MESSAGE(status.ok(), status.to_string());
    return last_id;
  }
  RecordingSink::Answer run(std::string_view prompt, SamplingParams sampling = {.max_tokens = 40}) {
    const RequestId id = submit(prompt, std::move(sampling));
    finish();
    return sink->answer(id);
  }
  void finish() {
    while (engine->step()) engine->check_integrity();
    CHECK(engine->stats().num_kv_blocks_used == 0);
  }

  std::shared_ptr<RecordingSink> sink = std::make_shared<RecordingSink>();
  MockExecutor executor;
  std::unique_ptr<Engine> engine;
  RequestId last_id = 0;
};

MockScript says(std::string text) { return {.answers = {{.text = std::move(text)}}}; }

TEST_CASE("mock: the prompt comes back, or the answer whose words it holds") {
  CHECK(decode(Rig({}).run("abcdefghijklmnopqrstuvwxyz").token_ids) == "abcdefghijklmnopqrstuvwxyz.");
  Rig rig({.answers = {{.when = "sun", .text = "warm"}, {.when = "back", .echoes = true}, {.text = "what"}}});
  CHECK(decode(rig.run("thesunshines").token_ids) == "warm.");
  CHECK(decode(rig.run("comeback").token_ids) == "comeback.");
  CHECK(decode(rig.run("rain").token_ids) == "what.");
  CHECK(rig.sink->answer(1).finish_reason == FinishReason::kStop);
}

TEST_CASE("mock: where nothing may end an answer it begins again") {
  Rig rig(says("abc"));
  const RecordingSink::Answer longer = rig.run("x", {.max_tokens = 8, .ignore_eos = true});
  CHECK(decode(longer.token_ids) == "abcabcab");
  CHECK(longer.finish_reason == FinishReason::kLength);
  CHECK(decode(rig.run("x", {.max_tokens = 20, .min_tokens = 5}).token_ids) == "abcab.");
}

TEST_CASE("mock: answers do not depend on what runs beside them, nor on preemption and drafts") {
  EngineConfig config = Rig::small_config();
  config.num_kv_blocks = 16;  // four sequences of 26 + 26 tokens need 52
  SUBCASE("plain") {}
  SUBCASE("drafts of the newest token again") { config.num_drafts = 3; }
  Rig rig({}, config);
  const std::string prompts[] = {"aaaaaaaaaaabbbbbbbbbbb", "zyxwvutsrqponmlkjihgfedcba", "mmmmmmmmmmmmmmmmmmm", "abababababab"};
  for (const std::string& prompt : prompts) rig.submit(prompt, {.max_tokens = 60});
  rig.finish();
  CHECK(rig.engine->stats().num_preemptions > 0);
  CHECK((config.num_drafts == 0 || rig.engine->stats().num_drafts_accepted > 0));
  for (RequestId id = 1; id <= 4; ++id) {
    CHECK(decode(rig.sink->answer(id).token_ids) == prompts[id - 1] + ".");
    CHECK(rig.sink->answer(id).num_ends == 1);
  }
}

TEST_CASE("mock: log-probabilities and hidden states have their shapes") {
  Rig rig(says("abc"));
  const RecordingSink::Answer answer = rig.run("xyz", {.max_tokens = 9, .logprobs = 2});
  REQUIRE(answer.logprobs.size() == answer.token_ids.size());
  CHECK(answer.logprobs[1].token_id == 2);
  CHECK(answer.logprobs[1].top.size() == 2);
}

TEST_CASE("mock: faults") {
  SUBCASE("a step that fails ends every request with its cause") {
    Rig rig({.faults = {{.step = 3, .kind = MockFault::Kind::kFail}}});
    rig.submit("abcdefgh");
    rig.submit("ijklmnop");
    rig.finish();
    for (RequestId id = 1; id <= 2; ++id) {
      CHECK(rig.sink->answer(id).finish_reason == FinishReason::kError);
      CHECK(rig.sink->answer(id).num_ends == 1);
      CHECK(rig.sink->answer(id).error.message().find("mock: the script lets step 3 fail") != std::string::npos);
    }
  }
  SUBCASE("a row that is not finite ends its own request alone") {
    Rig rig({.faults = {{.step = 3, .kind = MockFault::Kind::kNonfinite}}});
    rig.submit("abcdefgh");
    rig.submit("ijklmnop");
    rig.finish();
    CHECK(rig.sink->answer(1).finish_reason == FinishReason::kError);
    CHECK(decode(rig.sink->answer(2).token_ids) == "ijklmnop.");
    CHECK(rig.engine->stats().num_nonfinite_rows == 1);
  }
  SUBCASE("an answer that ends so, each time") {
    Rig rig({.answers = {{.when = "bad", .text = "ab", .ends_nonfinite = true}}});
    CHECK(rig.run("bad").finish_reason == FinishReason::kError);
    CHECK(rig.run("good").finish_reason == FinishReason::kStop);
  }
  SUBCASE("a hang delays; beyond the time limit it fails") {
    Rig late({.faults = {{.step = 2, .kind = MockFault::Kind::kHang, .seconds = 0.02}}});
    const double start_s = now_s();
    CHECK(late.run("abc").finish_reason == FinishReason::kStop);
    CHECK(now_s() - start_s >= 0.02);
    Rig lost({.faults = {{.step = 2, .kind = MockFault::Kind::kHang, .seconds = 5}}});
    const RecordingSink::Answer answer = lost.run("abc");
    CHECK(answer.finish_reason == FinishReason::kError);
    CHECK(answer.error.message().find("step 2 hung for 0.05 s") != std::string::npos);
  }
}

TEST_CASE("mock: masks that come while a step runs hold, and a step samples no sooner than they come") {
  MockExecutor executor({.script = {.answers = {{.text = "bbbb"}}, .step_seconds = 0.001},
                         .encode = encode,
                         .decode = decode,
                         .eos_token_ids = {0},
                         .max_num_seqs = 1,
                         .vocab_size = kVocabSize});
  StepPlanBuilder builder;
  builder.begin(1);
  const std::vector<int32_t> prompt = encode("ab");
  builder.add_row({.row = 0, .sampling = {.prompt_len = 2}, .token_ids = prompt, .logit_bias = {}, .stop_ids = {}});
  builder.add_seq({.row = 0, .query_len = 2, .flags = kSample, .first_mask = builder.expect_masks(1, 1)});
  executor.submit(builder.finish());
  const double begin_s = now_s();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const uint32_t only_x = 1u << encode("x")[0];
  executor.supply_masks(std::span(&only_x, 1));
  StepResult result;
  REQUIRE(executor.collect(result).ok());
  CHECK(now_s() - begin_s >= 0.01);
  CHECK(result.next_token_ids == encode("x"));
}

TEST_CASE("mock: steps take their time one behind the other") {
  Rig rig({.step_seconds = 0.004, .token_seconds = 0.0005});
  const double start_s = now_s();
  rig.run("abcdefgh");  // 8 prompt tokens, then 8 more steps of a token at least
  CHECK(now_s() - start_s >= 9 * 0.004 + 16 * 0.0005);
}

}  // namespace
}  // namespace spate
