#include "core/sampling_params.h"

#include <fmt/format.h>
#include <cmath>

#include <span>
#include <string>

#include "core/step_plan.h"

namespace spate {
namespace {

constexpr int kMaxPatternSize = 1024, kMaxPatternCount = 1024;
constexpr float kMinRepetitionPenalty = 1e-4f, kMaxRepetitionPenalty = 1e4f;

Status in_range(const char* field, double value, double low, double high) {
  if (std::isfinite(value) && value >= low && value <= high) return ok_status();
  return invalid_argument("{} must be in [{:g}, {:g}], got {:g}", field, low, high, value);
}

// Of several bad items all are named, up to kMaxNamed.
class BadItems {
 public:
  void add(std::string item) {
    if (++num_ <= kMaxNamed) text_ += (text_.empty() ? "" : ", ") + item;
  }
  int num() const { return num_; }
  std::string text() const { return num_ > kMaxNamed ? fmt::format("{} and {} more", text_, num_ - kMaxNamed) : text_; }

 private:
  static constexpr int kMaxNamed = 8;
  int num_ = 0;
  std::string text_;
};

Status validate_ids(const char* field, std::span<const int32_t> ids, int vocab_size) {
  BadItems bad;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size) bad.add(std::to_string(id));
  }
  if (bad.num() == 0) return ok_status();
  return invalid_argument("{} contains token id{} {}, the vocabulary has ids 0 to {}", field, bad.num() > 1 ? "s" : "",
                          bad.text(), vocab_size - 1);
}

Status validate_logit_bias(std::span<const std::pair<int32_t, float>> biases, int vocab_size) {
  if (biases.size() > kMaxLogitBias) {
    return invalid_argument("logit_bias has {} entries, at most {} are taken", biases.size(), kMaxLogitBias);
  }
  std::vector<int32_t> ids;
  BadItems bad;
  for (const auto& [id, bias] : biases) {
    ids.push_back(id);
    if (!in_range("logit_bias", bias, -100, 100).ok()) bad.add(fmt::format("{:g} for {}", bias, id));
  }
  RETURN_IF_ERROR(validate_ids("logit_bias", ids, vocab_size));
  if (bad.num() == 0) return ok_status();
  return invalid_argument("logit_bias must be in [-100, 100], got {}", bad.text());
}

}  // namespace

Status validate_sampling_params(const SamplingParams& params, int vocab_size, int max_logprobs) {
  RETURN_IF_ERROR(in_range("n", params.n, 1, 128));
  RETURN_IF_ERROR(in_range("temperature", params.temperature, 0, 2));
  RETURN_IF_ERROR(in_range("top_p", params.top_p, 0, 1));
  RETURN_IF_ERROR(in_range("min_p", params.min_p, 0, 1));
  RETURN_IF_ERROR(in_range("presence_penalty", params.presence_penalty, -2, 2));
  RETURN_IF_ERROR(in_range("frequency_penalty", params.frequency_penalty, -2, 2));
  RETURN_IF_ERROR(
      in_range("repetition_penalty", params.repetition_penalty, kMinRepetitionPenalty, kMaxRepetitionPenalty));
  if (params.sampling_top_k < -1) {
    return invalid_argument("top_k must be -1 or 0 (off), or at least 1, got {}", params.sampling_top_k);
  }
  if (params.n > 1 && params.temperature < kMinTemperature) {
    return invalid_argument("n must be 1 when using greedy sampling, got {}: set temperature above 0", params.n);
  }
  if (params.max_tokens < 1) return invalid_argument("max_tokens must be at least 1, got {}", params.max_tokens);
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) {
    return invalid_argument("min_tokens must be in [0, max_tokens = {}], got {}", params.max_tokens, params.min_tokens);
  }
  for (const auto* field : {&params.logprobs, &params.prompt_logprobs}) {
    const char* name = field == &params.logprobs ? "logprobs" : "prompt_logprobs";
    if (field->has_value()) RETURN_IF_ERROR(in_range(name, **field, 0, max_logprobs));
  }
  if (params.logprob_token_ids.size() > kMaxLogprobTokenIds) {
    return invalid_argument("logprob_token_ids has {} entries, at most {} are taken", params.logprob_token_ids.size(),
                            kMaxLogprobTokenIds);
  }
  RETURN_IF_ERROR(validate_ids("logprob_token_ids", params.logprob_token_ids, vocab_size));
  RETURN_IF_ERROR(validate_logit_bias(params.logit_bias, vocab_size));
  if (params.stop_token_ids.size() > kMaxStopIds / 2) {
    return invalid_argument("stop_token_ids has {} entries, at most {} are taken", params.stop_token_ids.size(),
                            kMaxStopIds / 2);
  }
  RETURN_IF_ERROR(validate_ids("stop_token_ids", params.stop_token_ids, vocab_size));
  const RepetitionDetection& repetition = params.repetition_detection;
  RETURN_IF_ERROR(in_range("repetition_detection.max_pattern_size", repetition.max_pattern_size, 0, kMaxPatternSize));
  if (repetition.max_pattern_size > 0) {
    RETURN_IF_ERROR(
        in_range("repetition_detection.min_pattern_size", repetition.min_pattern_size, 1, repetition.max_pattern_size));
    RETURN_IF_ERROR(in_range("repetition_detection.min_count", repetition.min_count, 2, kMaxPatternCount));
  }
  for (const std::string& stop : params.stop) {
    if (stop.empty()) return invalid_argument("stop cannot contain an empty string");
  }
  return ok_status();
}

}  // namespace spate
