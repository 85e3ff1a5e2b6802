#include "core/speculative_config.h"

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

}  // namespace
}  // namespace spate
