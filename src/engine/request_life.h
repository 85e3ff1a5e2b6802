// The life of a request: from a Request to its sequences, from sampled tokens to Outputs and the end.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/engine_config.h"
#include "core/request.h"
#include "core/step_executor.h"
#include "engine/inspection.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

namespace spate {

// What submit() promises to refuse; see Engine.
Status validate_request(const Request& request, const EngineConfig& config);

// n sequences with seeds seed + index. `seed` is the request's or a random one; arrival orders requests of equal
// priority.
std::unique_ptr<SequenceGroup> create_group(Request request, const EngineConfig& config, uint64_t arrival,
                                            uint64_t seed);

// Whether the newest token of seq.token_ids ends it, and how.
struct EndCheck {
  FinishReason reason = FinishReason::kNone;
  int32_t stop_token_id = -1;
};
EndCheck check_end(const Sequence& seq);

// Tells the sequence's constraint of its newest token, after check_end(): a text to which nothing can be added ends with kStop,
// an error of the constraint with kError. Else its next mask is ready.
Status advance_constraint(Sequence& seq, EndCheck& end);

// The Output of a sequence with the facts that go with its first one.
Output make_output(Sequence& seq);

// Of all tokens, by id, those that the request wants to know of; no ids: `logprobs` stays.
void pick_logprobs(const std::vector<int32_t>& token_ids, TokenLogprobs& logprobs);

// Log-probabilities of prompt tokens that a step computed, for query tokens from position num_computed_tokens on. After
// a preemption some come twice: only the new ones are kept.
void collect_prompt_logprobs(Sequence& seq, int num_computed_tokens, std::vector<TokenLogprobs>& logprobs);

// A hidden state, or a sum of some, that a step gave. True: the request's vector is complete, in seq.hidden_sum.
bool collect_hidden_state(Sequence& seq, const ScheduledSeq& scheduled, std::vector<float>& hidden_state);

// Collects the Outputs of a step by sink and pushes each sink's together.
class Outbox {
 public:
  void add(OutputSink& sink, Output output);
  void flush();

 private:
  struct Bundle {
    OutputSink* sink;
    std::vector<Output> outputs;
  };
  std::vector<Bundle> bundles_;
  std::unordered_map<OutputSink*, size_t> bundle_of_sink_;
};

// For Engine::inspect(): the sequences and the owner of each block. `seqs` have not ended.
void inspect_sequences(std::vector<const Sequence*> seqs, const BlockPool& pool, double now, EngineInspection& out);
// Before its results are routed: a sequence that has ended by then was computed in vain.
StepRecord record_step(const ScheduledStep& step, const StepResult& result);

}  // namespace spate
