// SpeculativeConfig: who proposes drafts and how many. Names and meanings are those of vLLM's --speculative-config.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace spate {

enum class SpeculativeMethod : uint8_t {
  kNone,
  kNgram,       // the longest suffix of the row's tokens that occurs earlier in the row
  kReference,   // the longest suffix that occurs in texts that come with the request, or in its prompt
};
std::string_view speculative_method_name(SpeculativeMethod method);  // "ngram"

struct SpeculativeConfig {
  SpeculativeMethod method = SpeculativeMethod::kNone;
  int num_speculative_tokens = 8;  // the most drafts of a row in a step, 1 .. kMaxDrafts; a controller chooses how many
  int prompt_lookup_min = 2;       // ngram, reference: tokens that must match before a text is followed
  int prompt_lookup_max = 16;      // the most that are compared: longer matches count as so long
  bool adaptive = true;            // false: always as many drafts as are proposed, for tests and measurements
};

// Names the field, its value and the bound.
Status validate_speculative_config(const SpeculativeConfig& config);

}  // namespace spate
