// model_cost_test.cpp
//
// Goal     The limits that benches compare with count what a step reads: of experts those that are used.
// Method   With all experts in use, every config of bench/configs against the weights that Model itself counts; with
// few
//          tokens, against numbers worked out by hand; used experts against random choices that are counted.
#include "cli/model_cost.h"

#include <set>

#include "base/rng.h"
#include "base/test_support.h"
#include "model/model.h"

#include "base/test.h"

namespace spate {
namespace {

const std::filesystem::path kConfigs = repo_root() / "bench" / "configs";

TEST_CASE("with all experts in use a step reads the weights of the model") {
  int num_configs = 0, num_with_experts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs)) {
    CAPTURE(entry.path().string());
    ++num_configs;
    for (const char* format : {"none", "int8", "int4"}) {
      CAPTURE(format);
      const ModelConfig config = load_model_config(entry.path()).value();
      const Quantization quantization = parse_quantization(format).value();
      const ModelOptions options{.act_dtype = DType::kBf16,
                                 .kv_dtype = DType::kBf16,
                                 .quantization = quantization,
                                 .limits = {.max_model_len = 64, .max_num_batched_tokens = 64, .max_num_logits = 1}};
      const auto counted = static_cast<double>(Model::memory(config, {}, options)->weight_bytes);
      const ModelCost cost = model_cost(config, DType::kBf16, DType::kBf16, quantization);
      const WeightSpec table = quantization.enabled() ? quantization.vocabulary : WeightSpec{.codes = Codes::kBf16};
      const double embedding = config.tie_word_embeddings
                                   ? 0
                                   : static_cast<double>(weight_bytes(table, config.vocab_size, config.hidden_size));
      // Norms and the rope table are not counted.
      CHECK(step_weight_bytes(cost, 1 << 20) + embedding == doctest::Approx(counted).epsilon(2e-3));
      num_with_experts += cost.num_experts > 0 && format == std::string("none");
    }
  }
  CHECK(num_configs > 7);
  CHECK(num_with_experts > 3);
}

TEST_CASE("one token reads the experts that it uses, and pays their products") {
  const ModelConfig config = load_model_config(kConfigs / "moe-small").value();
  const ModelCost cost = model_cost(config, DType::kBf16, DType::kBf16, {});
  const double hidden = 1024, layers = 24, expert = 3 * hidden * 512;
  const double attention = hidden * (16 + 2 * 8) * 64 + hidden * hidden, router = 32 * hidden, lm_head = hidden * 32000;
  CHECK(cost.expert_bytes == 2 * layers * expert);
  CHECK(cost.weight_bytes == 2 * (layers * (attention + router) + lm_head));
  CHECK(step_weight_bytes(cost, 1) == doctest::Approx(cost.weight_bytes + 4 * cost.expert_bytes));
  CHECK(cost.linear_flops_per_token == 2 * layers * (attention + router + 4 * expert));
  CHECK(decode_step_bytes(cost, 1, 100) - step_weight_bytes(cost, 1) == doctest::Approx(100 * layers * 2 * 8 * 64 * 2));
}

TEST_CASE("tokens that choose at random use as many experts as the model says") {
  Rng rng(test_seed());
  const ModelCost cost{.expert_bytes = 1, .num_experts = 32, .num_experts_per_tok = 4};
  for (const int num_tokens : {1, 4, 16}) {
    constexpr int kRounds = 2000;
    double used = 0;
    for (int round = 0; round < kRounds; ++round) {
      std::set<uint64_t> seen;
      for (int t = 0; t < num_tokens; ++t) {
        std::set<uint64_t> chosen;
        while (chosen.size() < 4) chosen.insert(rng.below(32));
        seen.insert(chosen.begin(), chosen.end());
      }
      used += static_cast<double>(seen.size());
    }
    CHECK(step_weight_bytes(cost, num_tokens) == doctest::Approx(used / kRounds).epsilon(0.02));
  }
}

}  // namespace
}  // namespace spate
