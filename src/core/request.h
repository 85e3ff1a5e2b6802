// Request and Output: what goes into the engine and what comes out. Token ids only; no text, no socket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/pooling.h"
#include "core/sampling_params.h"
#include "core/step_executor.h"
#include "core/token_constraint.h"

namespace spate {

using RequestId = uint64_t;  // given by the front-end, unique while the engine lives

enum class FinishReason : uint8_t {
  kNone,        // still running
  kStop,        // eos, a stop id, or a stop string found by the front-end
  kLength,      // max_tokens or the model's length
  kAbort,       // cancelled
  kError,       // Output::error says why
  kRepetition,  // SamplingParams::repetition_detection
};
constexpr size_t kNumFinishReasons = 6;
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "abort", "error", "repetition"

// A part of one sequence's result. The engine sends one a step and sequence that has news, in order.
struct Output {
  RequestId request_id = 0;
  int index = 0;  // of the n sequences
  std::vector<int32_t> token_ids;       // new since the last Output; the eos or stop id that ended it included
  std::vector<TokenLogprobs> logprobs;  // of these tokens, when asked
  std::vector<TokenLogprobs> prompt_logprobs;  // with the first Output of index 0, for prompt tokens 1 .. n-1, when asked
  std::vector<float> hidden_state;  // [hidden_size], with the only Output of a request with a pooling
  FinishReason finish_reason = FinishReason::kNone;
  int32_t stop_token_id = -1;  // the stop_token_ids entry that ended it; -1 for eos and all else
  Status error;                // with kError
  int num_cached_tokens = 0;   // prompt tokens taken from the prefix cache
  double queue_seconds = 0;    // arrival to first scheduled, with the first Output
  int num_preemptions = 0;     // of this sequence so far
};

// Where a request's Outputs go. push() is called by the engine thread: it must not block, and may be called until the Output
// with a finish reason has been pushed for each index.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void push(std::vector<Output> outputs) = 0;  // one step's news for this sink
};

// Drafts that stand though the model chose another token (SampleParams in backend/ops.h), in the reasoning of an answer
// alone: from the prompt's end, or an answer's first token begin_id, to end_id. Never where a constraint counts.
struct RelaxedAcceptance {
  int top_k = 0;  // 0: none
  float delta = 0;
  int32_t begin_id = -1, end_id = -1;
  bool has_begun = false;  // the prompt ends inside the reasoning
};

struct Request {
  RequestId id = 0;
  std::vector<int32_t> prompt_token_ids;  // at least one
  SamplingParams sampling;
  std::vector<int32_t> eos_token_ids;     // of the model; ignored with ignore_eos
  int priority = 0;                       // smaller runs first
  std::string reuse_scope;                // prefix cache entries are shared inside one scope only (cache_salt)
  Pooling pooling = Pooling::kNone;  // else nothing is generated: of `sampling` only n = 1 counts
  std::shared_ptr<TokenConstraint> constraint;  // null: every token is allowed
  bool speculate = true;                        // false: no drafts, whatever the engine's proposer
  // Texts that the answer may repeat in part; where empty, a proposer that wants some takes the prompt.
  std::vector<std::vector<int32_t>> speculative_reference;
  RelaxedAcceptance relaxed;
  bool is_continued = false;  // a further part of one that was accepted: taken though the queue is full, or draining
  std::shared_ptr<OutputSink> sink;
};

}  // namespace spate
