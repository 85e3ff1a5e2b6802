// SamplingParams: how a request's tokens are chosen and when it ends. Names, meanings and defaults are vLLM's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace spate {

// Ends an answer that repeats itself: its last tokens are one pattern of min_pattern_size to max_pattern_size tokens,
// min_count times in a row. vLLM's names.
struct RepetitionDetection {
  int max_pattern_size = 0;  // 0: off
  int min_pattern_size = 1;
  int min_count = 2;  // at least 2
};

// Lower temperatures are greedy: logits over them would leave the range of float. vLLM's bound.
constexpr float kMinTemperature = 1e-5f;

struct SamplingParams {
  int n = 1;
  float temperature = 1.0f;  // 0 and all below kMinTemperature = greedy
  float top_p = 1.0f;
  float min_p = 0.0f;
  int sampling_top_k = 0;  // the API's top_k; 0 or -1 = all
  float repetition_penalty = 1.0f;  // in [1e-4, 1e4]: logits times or over it stay finite
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::optional<uint64_t> seed;
  std::vector<std::pair<int32_t, float>> logit_bias;  // at most kMaxLogitBias

  int max_tokens = 16;
  int min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;  // besides the model's eos ids; together at most kMaxStopIds
  RepetitionDetection repetition_detection;
  std::optional<int> logprobs;          // 0 = the sampled token's only
  std::optional<int> prompt_logprobs;
  std::vector<int32_t> logprob_token_ids;  // with logprobs: these instead of the most probable ones

  // Text matters, decided in the front-end, which then cancels the sequence.
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
};

constexpr size_t kMaxLogprobTokenIds = 1024;

// Ranges of api.md 1.3; the message names field, value and limit. vocab_size bounds ids; max_logprobs is --max-logprobs.
Status validate_sampling_params(const SamplingParams& params, int vocab_size, int max_logprobs);

}  // namespace spate
