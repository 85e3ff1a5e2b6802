// Goal    Relaxed acceptance changes the reasoning of an answer and nothing else, and there only to tokens that the
// model
//         nearly chose.
// Method  The bundled model with batch-invariant kernels. Drafts are the reasoning about other numbers, of which the
// model
//         agrees with some. The answers' own log-probabilities tell rank and distance of each token; the part behind
//         the reasoning must be what an engine without drafts says to the same beginning.
#include <algorithm>

#include "base/test.h"
#include "base/test_support.h"
#include "llm/loaded_model.h"
#include "llm/offline.h"

namespace spate {
namespace {

constexpr int kTopK = 12;
constexpr float kDelta = 1;  // the model is nearly certain of every token: what it nearly chose is far behind

// Allows every token; `relaxes` stands in for a limit on the reasoning, without it for a grammar.
class AnyToken final : public TokenConstraint {
 public:
  AnyToken(int64_t vocab_size, bool relaxes)
      : mask_(static_cast<size_t>(mask_words_of(vocab_size)), ~0u), relaxes_(relaxes) {
    CHECK(vocab_size % 32 == 0);
  }
  std::unique_ptr<ConstraintCursor> start() override { return std::make_unique<Cursor>(*this); }

 private:
  class Cursor final : public ConstraintCursor {
   public:
    explicit Cursor(const AnyToken& all) : all_(all) {}
    Status append(int32_t) override { return ok_status(); }
    Status prepare_mask() override { return ok_status(); }
    std::span<const uint32_t> mask() const override { return all_.mask_; }
    bool may_relax() const override { return all_.relaxes_; }
    bool may_end() const override { return true; }
    bool must_end() const override { return false; }
    std::unique_ptr<ConstraintCursor> clone() const override { return std::make_unique<Cursor>(all_); }

   private:
    const AnyToken& all_;
  };
  const std::vector<uint32_t> mask_;
  const bool relaxes_;
};

class RelaxedAcceptanceTest {
 public:
  RelaxedAcceptanceTest() {
    drafting_.emplace(load({.method = SpeculativeMethod::kReference, .num_speculative_tokens = 6, .adaptive = false}));
    plain_.emplace(load({}));
    relaxed_ = {.top_k = kTopK, .delta = kDelta, .begin_id = token("<think>"), .end_id = token("</think>")};
  }

  LoadedModel& drafting() { return **drafting_; }
  LoadedModel& plain() { return **plain_; }
  const RelaxedAcceptance& relaxed() const { return relaxed_; }
  int32_t token(const char* text) { return drafting().tokenizer->encode(text, {.add_special_tokens = false}).at(0); }

  OfflineRequest ask(const std::string& question, bool thinks, SamplingParams sampling) {
    OfflineRequest request;
    request.prompt_token_ids =
        drafting().tokenizer->encode("<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n" +
                                     (thinks ? "" : "<think>\n\n</think>\n\n"));
    request.sampling = std::move(sampling);
    request.sampling.seed = 7;
    return request;
  }

  struct Run {
    std::vector<OfflineResult> results;
    uint64_t num_drafts, num_accepted, num_relaxed;
  };
  static Run run(LoadedModel& model, OfflineRequest request) {
    const EngineStats before = model.engine->stats();
    std::vector<OfflineRequest> requests;
    requests.push_back(std::move(request));
    auto results = run_offline(*model.engine, model.eos_token_ids, std::move(requests));
    REQUIRE_MESSAGE(results.ok(), results.status().message());
    // The stats follow the step that ended the request.
    EngineStats after = model.engine->stats();
    while (after.num_running > 0) after = model.engine->stats();
    return {std::move((*results)[0]), after.num_drafts - before.num_drafts,
            after.num_drafts_accepted - before.num_drafts_accepted,
            after.num_drafts_relaxed - before.num_drafts_relaxed};
  }

  // The reasoning about other numbers, as drafts.
  std::vector<int32_t> other_reasoning() {
    return run(plain(), ask("What is 4831 + 2974?", true, {.temperature = 0, .max_tokens = 200})).results[0].token_ids;
  }

 private:
  static std::unique_ptr<LoadedModel> load(SpeculativeConfig speculative) {
    LlmConfig llm;
    llm.model = (repo_root() / "models" / "mini-qwen3").string();
    llm.device = host_back_end().name;
    llm.device_options.deterministic = true;
    llm.max_model_len = 512;
    llm.kv_cache_bytes = int64_t{64} << 20;
    llm.speculative = std::move(speculative);
    auto model = load_model(llm);
    REQUIRE_MESSAGE(model.ok(), model.status().message());
    (*model)->engine->start();
    return std::move(model).value();
  }

  std::optional<std::unique_ptr<LoadedModel>> drafting_, plain_;
  RelaxedAcceptance relaxed_;
};

constexpr const char* kQuestion = "What is 5846 + 3718?";

void check_equal(const OfflineResult& actual, const OfflineResult& expected) {
  CHECK(actual.token_ids == expected.token_ids);
  CHECK(actual.finish_reason == expected.finish_reason);
  REQUIRE(actual.logprobs.size() == expected.logprobs.size());
  for (size_t i = 0; i < actual.logprobs.size(); ++i) {
    CHECK(actual.logprobs[i].token_id == expected.logprobs[i].token_id);
    CHECK(actual.logprobs[i].logprob == expected.logprobs[i].logprob);
    CHECK(actual.logprobs[i].rank == expected.logprobs[i].rank);
  }
}

TEST_CASE_FIXTURE(RelaxedAcceptanceTest, "relaxed acceptance keeps what the model nearly chose, while it reasons") {
  OfflineRequest request = ask(kQuestion, true, {.temperature = 0, .max_tokens = 300, .logprobs = 20});
  request.speculative_reference = {other_reasoning()};
  OfflineRequest off = request;
  const Run exact = run(drafting(), off);
  CHECK(exact.num_relaxed == 0);
  off.speculate = false;
  check_equal(exact.results[0], run(drafting(), off).results[0]);

  request.relaxed = relaxed();
  const Run relaxed_run = run(drafting(), request);
  const OfflineResult& answer = relaxed_run.results[0];
  CHECK(relaxed_run.num_relaxed >= 3);
  CHECK(relaxed_run.num_relaxed < relaxed_run.num_accepted);
  CHECK(static_cast<double>(relaxed_run.num_accepted) / static_cast<double>(relaxed_run.num_drafts) >
        static_cast<double>(exact.num_accepted) / static_cast<double>(exact.num_drafts));
  CHECK(answer.token_ids != exact.results[0].token_ids);
  check_equal(run(drafting(), request).results[0], answer);  // the same drafts, the same answer

  const auto end = std::ranges::find(answer.token_ids, relaxed().end_id);
  REQUIRE(end != answer.token_ids.end());
  const auto num_reasoning = static_cast<size_t>(end - answer.token_ids.begin());
  uint64_t num_relaxed = 0;
  for (size_t i = 0; i < answer.logprobs.size(); ++i) {
    const TokenLogprobs& entry = answer.logprobs[i];
    CHECK(entry.token_id == answer.token_ids[i]);  // the log-probability of the token that stands
    if (i >= num_reasoning) CHECK(entry.rank == 1);
    if (entry.rank == 1) continue;
    ++num_relaxed;
    CHECK(entry.rank <= kTopK);
    CHECK(entry.top[0].token_id != relaxed().end_id);
  }
  CHECK(num_relaxed == relaxed_run.num_relaxed);

  // Behind the reasoning stands what the model says to it.
  OfflineRequest rest = ask(kQuestion, true, {.temperature = 0, .max_tokens = 300, .logprobs = 20});
  rest.prompt_token_ids.insert(rest.prompt_token_ids.end(), answer.token_ids.begin(), end + 1);
  const OfflineResult expected = run(plain(), rest).results[0];
  CHECK(std::ranges::equal(std::span(answer.token_ids).subspan(num_reasoning + 1), expected.token_ids));
  CHECK(answer.finish_reason == expected.finish_reason);

  // A narrower rule keeps fewer.
  request.relaxed.delta = 0.95f;
  CHECK(run(drafting(), request).num_relaxed < relaxed_run.num_relaxed);
  request.relaxed = relaxed();
  request.speculate = false;
  check_equal(run(drafting(), request).results[0], exact.results[0]);
}

TEST_CASE_FIXTURE(RelaxedAcceptanceTest,
                  "relaxed acceptance beside sampling, penalties, n, and limits on the reasoning") {
  const auto reference = other_reasoning();
  for (const SamplingParams& sampling :
       {SamplingParams{.n = 3, .temperature = 0.9f, .max_tokens = 120},
        SamplingParams{.temperature = 0.7f, .sampling_top_k = 4, .max_tokens = 120, .logprobs = 20},
        SamplingParams{.temperature = 0, .repetition_penalty = 1.05f, .presence_penalty = 0.1f, .max_tokens = 120}}) {
    OfflineRequest request = ask(kQuestion, true, sampling);
    request.speculative_reference = {reference};
    request.relaxed = relaxed();
    const Run first = run(drafting(), request), second = run(drafting(), request);
    CHECK(first.num_relaxed > 0);
    for (size_t i = 0; i < first.results.size(); ++i) check_equal(first.results[i], second.results[i]);
    for (const TokenLogprobs& entry : first.results[0].logprobs) CHECK(entry.rank <= 4);  // top_k holds for drafts too
    OfflineRequest limited = request;
    limited.constraint = std::make_shared<AnyToken>(drafting().config.vocab_size, true);
    CHECK(run(drafting(), limited).num_relaxed > 0);
  }
}

TEST_CASE_FIXTURE(RelaxedAcceptanceTest,
                  "relaxed acceptance changes nothing outside of the reasoning, nor under a grammar") {
  const auto reference = other_reasoning();
  const auto same_as_without = [&](OfflineRequest request) {
    OfflineRequest off = request;
    off.speculate = false;
    const Run expected = run(drafting(), off);
    request.relaxed.top_k = kMaxRelaxedTopk;
    request.relaxed.delta = 1;
    const Run actual = run(drafting(), request);
    CHECK(actual.num_drafts > 0);
    CHECK(actual.num_relaxed == 0);
    for (size_t i = 0; i < actual.results.size(); ++i) check_equal(actual.results[i], expected.results[i]);
  };
  for (const float temperature : {0.0f, 0.9f}) {
    // The prompt has ended the reasoning, though its text and the drafts name the markers.
    OfflineRequest answers_at_once = ask("Copy this exactly: <think> 1 2 3 1 2 3 4 1 2 3 4 5 1 2 3", false,
                                         {.temperature = temperature, .max_tokens = 60, .logprobs = 1});
    answers_at_once.relaxed = relaxed();
    same_as_without(answers_at_once);
    OfflineRequest constrained = ask(kQuestion, true, {.temperature = temperature, .max_tokens = 150, .logprobs = 1});
    constrained.constraint = std::make_shared<AnyToken>(drafting().config.vocab_size, false);
    constrained.relaxed = relaxed();
    constrained.speculative_reference = {reference};
    same_as_without(constrained);
  }
}

TEST_CASE("relaxed acceptance is refused where answers must not depend on load, and where no model runs") {
  LlmConfig llm;
  llm.model = (repo_root() / "models" / "mini-qwen3").string();
  llm.device = host_back_end().name;
  llm.speculative = {.method = SpeculativeMethod::kNgram,
                     .use_relaxed_acceptance_for_thinking = true,
                     .relaxed_topk = 10,
                     .relaxed_delta = 0.6f};
  llm.device_options.deterministic = true;
  CHECK(load_model(llm).status().message() ==
        "--speculative-config: use_relaxed_acceptance_for_thinking makes answers depend on load, which --deterministic "
        "forbids; leave one of them out");
  llm.device_options.deterministic = false;
  llm.device = kMockDevice;
  CHECK(std::string(load_model(llm).status().message())
            .starts_with("--speculative-config: use_relaxed_acceptance_for_thinking: --device mock"));
}

}  // namespace
}  // namespace spate
