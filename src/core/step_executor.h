// StepExecutor: runs StepPlans, in order, one behind the other. rank/ implements it over real devices; the scheduler's
// simulation implements it with a model that answers token 7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/step_plan.h"

namespace spate {

// RowSampling::num_logprobs, and num_prompt_logprobs of a RowUpdate, go up to kMaxLogprobs on the device. For more, up
// to the size of the vocabulary, the whole row of logits comes to the host. This one asks for every token, by id.
constexpr int32_t kLogprobsById = INT32_MAX;

// Log-probability of one token and of the most probable alternatives, from the model's raw distribution.
struct TokenLogprobs {
  int32_t token_id = 0;
  float logprob = 0;
  int32_t rank = 0;  // 1 = the most probable; 0 = the logits are not finite, nothing else is valid
  struct Top {
    int32_t token_id;
    float logprob;
  };
  std::vector<Top> top;  // descending, ties by id; with kLogprobsById top[id]
};

// What one step gave. Arrays are in the plan's order of the sequences that asked.
struct StepResult {
  uint64_t step_id = 0;
  // The tokens that each sampled sequence got, one sequence behind the other: its accepted drafts and one more.
  // kNoToken comes last, in place of a token whose logits are not finite.
  std::vector<int32_t> next_token_ids;
  std::vector<int32_t> num_accepted;    // [num_sampled] drafts; empty when no row of the step had any
  // [num_sampled] of these, kept by relaxed acceptance; empty when no draft of the step might be.
  std::vector<int32_t> num_relaxed;
  std::vector<TokenLogprobs> logprobs;  // as next_token_ids, or empty when no row of the step asked
  // For each sequence with kPromptLogprobs: query token i's entry is for the prompt token after it (query_len entries;
  // the one for the first token after the prompt is left out).
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs;
  // For each sequence with one of kPoolFlags: [hidden_size].
  std::vector<std::vector<float>> hidden_states;
  double device_seconds = 0;  // from the plan's copy to the ids
};

// Called by the engine thread only.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Takes a copy of the plan and starts it; returns at once unless two steps are in flight already.
  virtual void submit(std::span<const std::byte> plan) = 0;
  // The masks of the newest step, whose plan has late ones: num_masks of mask_words words, one behind the other. They
  // are copied. Once for each such step: when the step before has been collected, and before the next submit().
  virtual void supply_masks(std::span<const uint32_t> masks) = 0;
  // The result of the oldest step submitted and not collected; waits for it. Fills `result`, reusing its memory. An
  // error is final (a lost device, a dead peer): the engine ends every request with it and calls nothing but the
  // destructor any more.
  virtual Status collect(StepResult& result) = 0;
  virtual int num_in_flight() const = 0;
};

}  // namespace spate
