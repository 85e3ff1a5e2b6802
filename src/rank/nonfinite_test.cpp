// Goal    A NaN in the weights ends the requests that it reaches with an error that names the step; the others get the
//         answers that they get without it, and the engine goes on.
// Method  A tiny Qwen3 with a NaN in the final norm (every request) or in one token's embedding (requests with that
//         token), on the oracle and the host back-end, with everything that reads logits: greedy, top_k, top_p,
//         logprobs, prompt_logprobs.
#include <algorithm>

#include "backend/registry/registry.h"
#include "base/log.h"
#include "base/test.h"
#include "base/test_support.h"
#include "rank/rank_rig.h"
#include "weights/safetensors.h"

namespace spate {
namespace {

constexpr int32_t kSpoiledToken = 77;

Request request_with(std::vector<int32_t> prompt, SamplingParams sampling) {
  Request request;
  request.prompt_token_ids = std::move(prompt);
  request.sampling = std::move(sampling);
  request.sampling.seed = 11;
  request.sampling.ignore_eos = true;
  return request;
}

std::vector<SamplingParams> all_ways() {
  return {{.temperature = 0, .max_tokens = 5, .logprobs = 20},
          {.sampling_top_k = 20, .max_tokens = 5},
          {.top_p = 0.9f, .max_tokens = 5, .logprobs = 0},
          {.min_p = 0.1f, .repetition_penalty = 1.2f, .max_tokens = 5},
          {.n = 3, .max_tokens = 5},
          {.temperature = 0, .max_tokens = 5, .prompt_logprobs = 3}};
}

// Every second request holds the spoiled token.
std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  for (const SamplingParams& sampling : all_ways()) {
    requests.push_back(request_with({5, 6, 7, 8, 9, 10, 11, 12}, sampling));
    requests.push_back(request_with({5, 6, 7, kSpoiledToken, 9, 10}, sampling));
  }
  return requests;
}

void check_error(const RankAnswer& answer) {
  CHECK(answer.finish_reason == FinishReason::kError);
  CHECK(answer.error.message().find("not finite in step ") != std::string::npos);
  CHECK(answer.token_ids.empty());
}

TEST_CASE("a NaN in the final norm ends every request with an error") {
  const LogLevel level = log_level();
  set_log_level(LogLevel::kOff);
  const std::filesystem::path dir = repo_root() / "test" / "goldens" / "model" / "qwen3_yarn_one_kv_head";
  const Checkpoint good = Checkpoint::open(dir).value();
  const SpoiledWeights weights(good, "model.norm.weight", 3);
  for (const BackEnd* back_end : {&oracle_back_end(), &host_back_end()}) {
    RankRig rig{.model_dir = dir, .weights = &weights, .back_end = back_end};
    std::vector<Request> requests;
    for (const SamplingParams& sampling : all_ways()) {
      requests.push_back(request_with({5, 6, 7, 8, 9, 10, 11, 12}, sampling));
    }
    const RankRun run = run_requests(rig, requests);
    for (const auto& answers : run.answers) {
      for (const RankAnswer& answer : answers) check_error(answer);
    }
    CHECK(run.num_nonfinite_rows == requests.size());
  }
  set_log_level(level);
}

TEST_CASE("a request whose logits are not finite leaves the others alone") {
  const LogLevel level = log_level();
  set_log_level(LogLevel::kOff);
  const std::filesystem::path dir = repo_root() / "test" / "goldens" / "model" / "qwen3_yarn_one_kv_head";
  const Checkpoint good = Checkpoint::open(dir).value();
  const SpoiledWeights weights(good, "model.embed_tokens.weight", kSpoiledToken);
  for (const BackEnd* back_end : {&oracle_back_end(), &host_back_end()}) {
    RankRig rig{.model_dir = dir, .weights = &weights, .back_end = back_end};
    const std::vector<Request> requests = mixed_requests();
    const RankRun spoiled = run_requests(rig, requests);
    rig.weights = &good;
    const RankRun healthy = run_requests(rig, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      CAPTURE(i);
      for (size_t index = 0; index < spoiled.answers[i].size(); ++index) {
        const RankAnswer &actual = spoiled.answers[i][index], &expected = healthy.answers[i][index];
        CHECK(expected.finish_reason == FinishReason::kLength);
        if (i % 2 == 1) {
          check_error(actual);
          continue;
        }
        // A random text may meet the spoiled token by itself.
        if (std::ranges::find(expected.token_ids, kSpoiledToken) != expected.token_ids.end()) continue;
        CHECK(actual.finish_reason == FinishReason::kLength);
        CHECK(actual.token_ids == expected.token_ids);
      }
    }
  }
  set_log_level(level);
}

}  // namespace
}  // namespace spate
