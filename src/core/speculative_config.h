// SpeculativeConfig: who proposes drafts and how many. Names and meanings are those of vLLM's --speculative-config.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace spate {

enum class SpeculativeMethod : uint8_t {
  kNone,        // with jump_forward: what grammars force, and nothing else
  kNgram,       // the longest suffix of the row's tokens that occurs earlier in the row
  kReference,   // the longest suffix that occurs in texts that come with the request, or in its prompt
  kDraftModel,  // a smaller model of the same vocabulary
  kMtp,         // the model's own layer for multi-token prediction, run once a draft
  kEagle,       // an EAGLE-3 head: one layer on the hidden states of three of the model's
};
std::string_view speculative_method_name(SpeculativeMethod method);  // "ngram"

struct SpeculativeConfig {
  SpeculativeMethod method = SpeculativeMethod::kNone;
  int num_speculative_tokens = 8;  // the most drafts of a row in a step, 1 .. kMaxDrafts; a controller chooses how many
  int prompt_lookup_min = 2;       // ngram, reference: tokens that must match before a text is followed
  int prompt_lookup_max = 16;      // the most that are compared: longer matches count as so long
  std::string model;               // draft_model: its folder, or a *.gguf file; eagle: its folder
  bool jump_forward = true;        // also drafts what a grammar leaves no choice about
  bool adaptive = true;            // false: always as many drafts as are proposed, for tests and measurements
  // Relaxed acceptance: while an answer reasons, a draft stands also where it is only one of the relaxed_topk most
  // probable tokens, less probable than the first by relaxed_delta at most. It changes answers, and with the drafts
  // that run they depend on load. Names as of TensorRT-LLM.
  bool use_relaxed_acceptance_for_thinking = false;
  int relaxed_topk = 1;            // with it: 2 .. kMaxRelaxedTopk
  float relaxed_delta = 0;         // with it: above 0, at most 1
  bool relaxed_by_default = true;  // false: for requests alone that ask for it
};

constexpr int kMaxRelaxedTopk = 64;

// Drafts are computed before their places have blocks: a row of the draft model has so many blocks of its own for them.
constexpr int scratch_blocks_per_row(const SpeculativeConfig& config, int kv_block_size) {
  return (config.num_speculative_tokens + kv_block_size - 1) / kv_block_size;
}

// A layer that continues the model's hidden states: a place of its cache needs the token behind its own.
constexpr bool reads_next_tokens(SpeculativeMethod method) {
  return method == SpeculativeMethod::kMtp || method == SpeculativeMethod::kEagle;
}

// Proposals come from an executor of their own, not from the host's look-ups.
constexpr bool runs_a_model(SpeculativeMethod method) {
  return method == SpeculativeMethod::kDraftModel || reads_next_tokens(method);
}

// Names the field, its value and the bound.
Status validate_speculative_config(const SpeculativeConfig& config);

}  // namespace spate
