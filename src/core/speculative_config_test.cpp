#include "core/speculative_config.h"

#include <limits>
#include <string>

#include "base/test.h"
#include "core/step_plan.h"

namespace spate {
namespace {

TEST_CASE("a speculative config out of range names the field and the bound") {
  const auto message = [](const SpeculativeConfig& config) {
    return std::string(validate_speculative_config(config).message());
  };
  const auto ngram = SpeculativeMethod::kNgram;
  CHECK(validate_speculative_config({}).ok());
  CHECK(validate_speculative_config({.method = ngram}).ok());
  CHECK(validate_speculative_config({.method = ngram, .num_speculative_tokens = kMaxDrafts}).ok());
  CHECK(message({.method = ngram, .num_speculative_tokens = 0}) ==
        "--speculative-config: num_speculative_tokens must be in [1, 16], got 0");
  CHECK(message({.method = ngram, .num_speculative_tokens = 100}) ==
        "--speculative-config: num_speculative_tokens must be in [1, 16], got 100");
  CHECK(message({.method = ngram, .prompt_lookup_min = 5, .prompt_lookup_max = 4}) ==
        "--speculative-config: prompt_lookup_min must be in [1, 4], got 5");
  CHECK(message({.method = ngram, .prompt_lookup_min = 0}) ==
        "--speculative-config: prompt_lookup_min must be in [1, 16], got 0");
  CHECK(message({.method = ngram, .prompt_lookup_max = 65}) ==
        "--speculative-config: prompt_lookup_max must be in [1, 64], got 65");
}

TEST_CASE("relaxed acceptance is off, has bounds, and its numbers count with its switch alone") {
  const auto message = [](SpeculativeConfig config) {
    config.method = SpeculativeMethod::kNgram;
    return std::string(validate_speculative_config(config).message());
  };
  CHECK_FALSE(SpeculativeConfig().use_relaxed_acceptance_for_thinking);
  const auto on = [](int topk, float delta) {
    return SpeculativeConfig{.use_relaxed_acceptance_for_thinking = true, .relaxed_topk = topk, .relaxed_delta = delta};
  };
  CHECK(message(on(2, 1)).empty());
  CHECK(message(on(64, 0.01f)).empty());
  for (const int topk : {-1, 0, 1, 65}) {
    CHECK(message(on(topk, 0.5f)) ==
          "--speculative-config: relaxed_topk must be in [2, 64], got " + std::to_string(topk));
  }
  CHECK(message(on(10, 0)) == "--speculative-config: relaxed_delta must be above 0 and at most 1, got 0");
  CHECK(message(on(10, 1.5f)) == "--speculative-config: relaxed_delta must be above 0 and at most 1, got 1.5");
  CHECK(message(on(10, -1)) == "--speculative-config: relaxed_delta must be above 0 and at most 1, got -1");
  CHECK(message(on(10, std::numeric_limits<float>::quiet_NaN())).find("relaxed_delta must be above 0") !=
        std::string::npos);
  const std::string unused =
      "--speculative-config: relaxed_topk, relaxed_delta and relaxed_by_default count only with "
      "\"use_relaxed_acceptance_for_thinking\": true, which changes answers; add it or leave them out";
  CHECK(message({.relaxed_topk = 10}) == unused);
  CHECK(message({.relaxed_delta = 0.6f}) == unused);
  CHECK(message({.relaxed_by_default = false}) == unused);
}

}  // namespace
}  // namespace spate
