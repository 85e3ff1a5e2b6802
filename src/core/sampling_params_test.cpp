// Goal    Every limit of the API is refused with a message that names the field, the value and the limit.
// Method  One request a limit, just inside and just outside.
#include "core/sampling_params.h"

#include <functional>

#include "base/test.h"

namespace spate {
namespace {
std::string refusal(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  return validate_sampling_params(params, 100, 20).message();
}
}  // namespace

TEST_CASE("sampling params: the defaults and the edges are accepted") {
  CHECK(refusal([](auto&) {}).empty());
  CHECK(refusal([](auto& p) { p.temperature = 2; }).empty());
  CHECK(refusal([](auto& p) { p.top_p = 0; }).empty());
  CHECK(refusal([](auto& p) { p.temperature = 1e-40f; }).empty());
  CHECK(refusal([](auto& p) { p.repetition_penalty = 1e-4f; }).empty());
  CHECK(refusal([](auto& p) { p.sampling_top_k = -1; }).empty());
  CHECK(refusal([](auto& p) { p.logit_bias = {{99, -100}}; }).empty());
}

TEST_CASE("sampling params: beyond a limit, the message names field, value and limit") {
  CHECK(refusal([](auto& p) { p.temperature = 2.5f; }) == "temperature must be in [0, 2], got 2.5");
  CHECK(refusal([](auto& p) { p.temperature = -0.1f; }).find("temperature") == 0);
  CHECK(refusal([](auto& p) { p.top_p = 1.01f; }).find("top_p") == 0);
  CHECK(refusal([](auto& p) { p.min_p = -1; }).find("min_p") == 0);
  CHECK(refusal([](auto& p) { p.repetition_penalty = 0; }).find("repetition_penalty") == 0);
  CHECK(refusal([](auto& p) { p.repetition_penalty = 1e-5f; }).find("repetition_penalty must be in [0.0001, 10000]") ==
        0);
  CHECK(refusal([](auto& p) { p.repetition_penalty = 1e38f; }).find("repetition_penalty") == 0);
  CHECK(refusal([](auto& p) { p.presence_penalty = 3; }).find("presence_penalty") == 0);
  CHECK(refusal([](auto& p) { p.sampling_top_k = -2; }).find("top_k") == 0);
  CHECK(refusal([](auto& p) { p.n = 0; }).find("n must") == 0);
  CHECK(refusal([](auto& p) { p.n = 2, p.temperature = 0; }).find("greedy") != std::string::npos);
  CHECK(refusal([](auto& p) { p.n = 2, p.temperature = 1e-6f; }).find("greedy") != std::string::npos);
  CHECK(refusal([](auto& p) { p.max_tokens = 0; }).find("max_tokens") == 0);
  CHECK(refusal([](auto& p) { p.min_tokens = 17; }).find("min_tokens") == 0);
  CHECK(refusal([](auto& p) { p.logprobs = 21; }) == "logprobs must be in [0, 20], got 21");
  CHECK(refusal([](auto& p) { p.prompt_logprobs = -1; }).find("prompt_logprobs") == 0);
  CHECK(refusal([](auto& p) { p.logit_bias = {{100, 0}}; }).find("ids 0 to 99") != std::string::npos);
  CHECK(refusal([](auto& p) { p.logit_bias = {{1, 101}}; }).find("logit_bias") == 0);
  CHECK(refusal([](auto& p) { p.stop_token_ids = {-1}; }).find("stop_token_ids") == 0);
  CHECK(refusal([](auto& p) { p.stop = {""}; }).find("empty") != std::string::npos);
}

}  // namespace spate
