// Goal    Drafts never change an answer: tokens, log-probabilities and finish reasons are the same with and without
// them. Method  The plainest proposer (DraftSource::kRepeat) over real ranks. A bias makes one token likely, so that
// repeated
//         tokens are drafts of which some are accepted and some are not. The bundled model on the host back-end with
//         batch-invariant kernels, and a tiny one on the oracle; greedy and every way to sample; both loops; memory so
//         tight that sequences are preempted.
#include "backend/registry/registry.h"
#include "base/test.h"
#include "base/test_support.h"
#include "rank/rank_rig.h"
#include "weights/safetensors.h"

namespace spate {
namespace {

constexpr int32_t kLikelyToken = 9;

Request request_of(std::vector<int32_t> prompt, SamplingParams sampling, float bias) {
  Request request;
  request.prompt_token_ids = std::move(prompt);
  request.sampling = std::move(sampling);
  request.sampling.seed = 11;
  if (bias != 0) request.sampling.logit_bias = {{kLikelyToken, bias}};
  request.eos_token_ids = {12};
  return request;
}

std::vector<Request> all_requests(float bias) {
  const SamplingParams ways[] = {
      {.temperature = 0, .max_tokens = 20},
      {.temperature = 0, .max_tokens = 21, .logprobs = 3},
      {.max_tokens = 20, .logprobs = 0},
      {.sampling_top_k = 5, .max_tokens = 20},
      {.top_p = 0.7f, .max_tokens = 20, .min_tokens = 9},
      {.temperature = 1.3f, .min_p = 0.02f, .max_tokens = 20},
      {.repetition_penalty = 1.1f,
       .presence_penalty = 0.3f,
       .frequency_penalty = 0.2f,
       .max_tokens = 20,
       .logprobs = 1},
      {.n = 3, .max_tokens = 17},
      {.temperature = 0, .max_tokens = 10, .min_tokens = 4, .stop_token_ids = {kLikelyToken}},
      {.temperature = 0, .max_tokens = 12, .prompt_logprobs = 2},
  };
  std::vector<Request> requests;
  for (const SamplingParams& sampling : ways) {
    std::vector<int32_t> prompt{5, 6, 7, 8, 9, 10, 11, 12};
    prompt.insert(prompt.end(), requests.size(), static_cast<int32_t>(20 + requests.size()));
    requests.push_back(request_of(std::move(prompt), sampling, requests.size() == 8 ? 0 : bias));
  }
  return requests;
}

void check_equal(const std::vector<TokenLogprobs>& actual, const std::vector<TokenLogprobs>& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    CHECK(actual[i].token_id == expected[i].token_id);
    CHECK(actual[i].logprob == expected[i].logprob);  // bit for bit
    CHECK(actual[i].rank == expected[i].rank);
    REQUIRE(actual[i].top.size() == expected[i].top.size());
    for (size_t k = 0; k < actual[i].top.size(); ++k) {
      CHECK(actual[i].top[k].token_id == expected[i].top[k].token_id);
      CHECK(actual[i].top[k].logprob == expected[i].top[k].logprob);
    }
  }
}

void check_equal(const RankRun& actual, const RankRun& expected) {
  for (size_t i = 0; i < expected.answers.size(); ++i) {
    for (size_t index = 0; index < expected.answers[i].size(); ++index) {
      CAPTURE(i);
      CAPTURE(index);
      const RankAnswer &a = actual.answers[i][index], &e = expected.answers[i][index];
      CHECK(a.token_ids == e.token_ids);
      CHECK(a.finish_reason == e.finish_reason);
      check_equal(a.logprobs, e.logprobs);
      check_equal(a.prompt_logprobs, e.prompt_logprobs);
    }
  }
}

void check_drafts(RankRig rig, float bias) {
  const std::vector<Request> requests = all_requests(bias);
  const RankRun expected = run_requests(rig, requests);
  CHECK(expected.num_drafts == 0);
  struct Variant {
    int num_drafts;
    bool async_scheduling;
    int num_kv_blocks;
  };
  for (const Variant& variant : {Variant{1, true, 64}, Variant{4, true, 64}, Variant{4, false, 64},
                                 Variant{kMaxDrafts, false, 64}, Variant{3, true, 12}}) {
    CAPTURE(variant.num_drafts);
    CAPTURE(variant.async_scheduling);
    rig.engine.num_drafts = variant.num_drafts;
    rig.engine.async_scheduling = variant.async_scheduling;
    rig.engine.num_kv_blocks = variant.num_kv_blocks;
    const RankRun run = run_requests(rig, requests);
    check_equal(run, expected);
    CHECK(run.num_drafts_accepted > 0);
    CHECK(run.num_drafts_accepted < run.num_drafts);
    CHECK((run.num_preemptions > 0) == (variant.num_kv_blocks < 64));
  }
}

TEST_CASE("drafts change no answer: a tiny model on the oracle") {
  const std::filesystem::path dir = repo_root() / "test" / "goldens" / "model" / "qwen3_yarn_one_kv_head";
  const Checkpoint weights = Checkpoint::open(dir).value();
  check_drafts({.model_dir = dir, .weights = &weights, .back_end = &oracle_back_end()}, 3.0f);
}

TEST_CASE("drafts change no answer: the bundled model on the host back-end") {
  const std::filesystem::path dir = repo_root() / "models" / "mini-qwen3";
  const Checkpoint weights = Checkpoint::open(dir).value();
  check_drafts({.model_dir = dir, .weights = &weights, .back_end = &host_back_end(), .dtype = DType::kBf16}, 8.0f);
}

}  // namespace
}  // namespace spate
