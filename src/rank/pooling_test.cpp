// Goal    A request that pools gets what transformers computes from the same prompt: the hidden state after the final
//         norm of the last token, of the first one, or the mean of all.
// Method  The bundled model against test/goldens/pooling (tools/goldens/make_pooling_goldens.py): in one step and in
//         chunks, one rank and two, f32 and bf16, beside requests that generate and with prompts in the prefix cache;
//         what those generate must not change.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/registry/registry.h"
#include "base/test_support.h"
#include "rank/rank_group.h"
#include "rank/rank_rig.h"
#include "weights/safetensors.h"
#include "base/test.h"

namespace spate {
namespace {

struct PooledPrompt {
  std::vector<int32_t> token_ids;
  std::vector<float> last, mean, cls;

  const std::vector<float>& expected(Pooling pooling) const {
    return pooling == Pooling::kLast ? last : pooling == Pooling::kMean ? mean : cls;
  }
};

struct PoolingGolden {
  double bf16_error = 0;
  std::vector<PooledPrompt> prompts;
};

PoolingGolden read_pooling_golden() {
  const auto path = repo_root() / "test" / "goldens" / "pooling" / "mini-qwen3.json";
  std::ifstream in(path);
  REQUIRE_MESSAGE(in.good(), path.string());
  const auto json = nlohmann::json::parse(in);
  PoolingGolden golden{.bf16_error = json["bf16_error"], .prompts = {}};
  for (const auto& prompt : json["prompts"]) {
    golden.prompts.push_back({prompt["token_ids"], prompt["last"], prompt["mean"], prompt["cls"]});
  }
  REQUIRE(golden.prompts.size() == 5);
  return golden;
}

double relative_l2(const std::vector<float>& actual, const std::vector<float>& expected) {
  REQUIRE(actual.size() == expected.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += std::pow(double{actual[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / norm);
}

RankRig bundled_model(const WeightSource& weights) {
  return {.model_dir = repo_root() / "models" / "mini-qwen3",
          .weights = &weights,
          .back_end = find_back_end("cpu"),
          .engine = {.limits = {.max_model_len = 128, .max_num_seqs = 24, .max_num_batched_tokens = 96, .max_num_logits = 5},
                     .num_kv_blocks = 128}};
}

Request pooled_request(const PooledPrompt& prompt, Pooling pooling) {
  Request request;
  request.prompt_token_ids = prompt.token_ids;
  request.pooling = pooling;
  return request;
}

Request generating_request(std::vector<int32_t> prompt) {
  Request request;
  request.prompt_token_ids = std::move(prompt);
  request.sampling = {.temperature = 0, .max_tokens = 12, .logprobs = 1};
  return request;
}

constexpr Pooling kAllPoolings[] = {Pooling::kLast, Pooling::kMean, Pooling::kCls};

// Every prompt with every pooling; between them requests that generate from the same prompts.
void check_pooled(const RankRig& rig, double tolerance) {
  const PoolingGolden golden = read_pooling_golden();
  std::vector<Request> requests, generating;
  for (const PooledPrompt& prompt : golden.prompts) {
    generating.push_back(generating_request(prompt.token_ids));
    requests.push_back(generating.back());
    for (const Pooling pooling : kAllPoolings) requests.push_back(pooled_request(prompt, pooling));
  }
  const RankRun alone = run_requests(rig, std::move(generating));
  const RankRun run = run_requests(rig, std::move(requests));
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    CAPTURE(i);
    CHECK(run.answers[4 * i][0].token_ids == alone.answers[i][0].token_ids);
    CHECK(run.answers[4 * i][0].hidden_state.empty());
    for (size_t k = 0; k < 3; ++k) {
      CAPTURE(k);
      const RankAnswer& answer = run.answers[4 * i + 1 + k][0];
      CHECK(answer.finish_reason == FinishReason::kStop);
      CHECK(answer.token_ids.empty());
      CHECK(relative_l2(answer.hidden_state, golden.prompts[i].expected(kAllPoolings[k])) < tolerance);
    }
  }
}

TEST_CASE("pooled hidden states are those of transformers, f32") {
  const auto weights = Checkpoint::open(repo_root() / "models" / "mini-qwen3").value();
  RankRig rig = bundled_model(weights);
  SUBCASE("in one step") { rig.engine.limits.max_num_batched_tokens = 1024; }
  SUBCASE("in chunks") { rig.engine.limits.max_num_batched_tokens = 25; }
  SUBCASE("without the prefix cache") { rig.engine.enable_prefix_caching = false; }
  SUBCASE("on two ranks") { rig.tensor_parallel_size = 2; }
  SUBCASE("with the plain loop") { rig.engine.async_scheduling = false; }
  check_pooled(rig, 1e-5);
}

TEST_CASE("pooled hidden states are those of transformers, bf16") {
  const auto weights = Checkpoint::open(repo_root() / "models" / "mini-qwen3").value();
  RankRig rig = bundled_model(weights);
  rig.dtype = DType::kBf16;
  check_pooled(rig, 2 * read_pooling_golden().bf16_error);
}

TEST_CASE("NaN in a pooled hidden state ends its request with an error, and no other") {
  const auto good = Checkpoint::open(repo_root() / "models" / "mini-qwen3").value();
  const PoolingGolden golden = read_pooling_golden();
  const SpoiledWeights weights(good, "model.embed_tokens.weight", golden.prompts[0].token_ids[0]);
  std::vector<Request> requests;
  for (const Pooling pooling : kAllPoolings) requests.push_back(pooled_request(golden.prompts[0], pooling));
  requests.push_back(pooled_request(golden.prompts[1], Pooling::kLast));
  const RankRun run = run_requests(bundled_model(weights), std::move(requests));
  for (size_t i = 0; i < 3; ++i) {
    CHECK(run.answers[i][0].finish_reason == FinishReason::kError);
    CHECK(run.answers[i][0].hidden_state.empty());
  }
  CHECK(run.answers[3][0].finish_reason == FinishReason::kStop);
}

}  // namespace
}  // namespace spate
