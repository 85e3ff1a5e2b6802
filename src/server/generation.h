// Generation: one API request while the engine works on it. Takes the engine's Outputs of all its prompts and choices,
// makes text of the tokens, finds stop strings (and then ends the sequence in the engine), and tells a listener.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/request.h"
#include "engine/engine.h"
#include "server/beam_search.h"
#include "server/serving_metrics.h"
#include "server/tracer.h"
#include "server/work_pool.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"

namespace spate {

// News of one choice: what one update of the engine brought. The text may be empty while it is held back (half a
// character, what may become a stop string) and then comes with a later delta; the tokens are told at once, so that
// clients see every step, and their counts and times are right.
struct ChoiceDelta {
  int choice = 0;  // prompt_idx * n + index
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<size_t> text_ends;  // of each token: so much of `text` was out behind it; the rest belongs to the last
  std::vector<TokenLogprobs> logprobs;               // of these tokens, when asked
  FinishReason finish_reason = FinishReason::kNone;  // else the last delta of this choice
  std::string stop_string;                           // that ended it
  int32_t stop_token_id = -1;                        // that ended it; -1 for eos and all else
  int32_t eos_token_id = -1;                         // that ended it
  Status error;                                      // with kError
};

struct GenerationUsage {
  int64_t num_prompt_tokens = 0;
  int64_t num_completion_tokens = 0;
  int64_t num_cached_tokens = 0;
  // At the end, of all choices together.
  double queue_seconds = 0;        // until the first was scheduled
  double first_token_seconds = 0;  // from the arrival
  double generation_seconds = 0;   // from the first token to the last
  int64_t num_intervals = 0;       // between tokens of a choice
  double interval_seconds = 0;     // their sum
};

struct GenerationRequest;

// Called by the front-end's output thread, one call at a time; on_admitted before, by the thread that called
// generate().
class GenerationListener {
 public:
  virtual ~GenerationListener() = default;
  virtual void on_admitted(const GenerationRequest&) {}  // the engine took all prompts: now errors come as deltas
  virtual void on_prompt_logprobs(int /*prompt_idx*/, std::vector<TokenLogprobs> /*logprobs*/) {}
  virtual void on_delta(ChoiceDelta delta, const GenerationUsage& usage_so_far) = 0;
  virtual void on_done(const GenerationUsage& usage) = 0;  // after the last delta of every choice; the last call
};

struct GenerationRequest {
  std::vector<std::vector<int32_t>> prompts;  // each not empty and short enough
  std::vector<int> max_tokens;                // of each prompt
  SamplingParams sampling;
  std::vector<int32_t> eos_token_ids;
  int priority = 0;
  std::string reuse_scope;
  int stream_interval = 1;  // tokens between deltas, after the first; the last comes whenever it comes
  std::shared_ptr<TokenConstraint> constraint;  // null: any text
  bool speculate = true;
  std::vector<std::vector<int32_t>> speculative_reference;
  RelaxedAcceptance relaxed;
  BeamSearchParams beams;  // width 0: answers are drawn; else there is no constraint
  std::chrono::steady_clock::time_point arrival = std::chrono::steady_clock::now();
  std::string request_id;  // for its trace, as the following
  std::optional<TraceContext> trace_parent;
};

class Generation final : public OutputSink, public std::enable_shared_from_this<Generation> {
 public:
  struct Context {
    std::shared_ptr<Engine> engine;  // also of a generation that has ended and is asked to cancel
    const Tokenizer& tokenizer;      // outlives the generation, as do the following
    WorkPool& output_pool;    // of one thread
    ServingMetrics* metrics;  // may be null
    std::shared_ptr<Tracer> tracer;  // the same
    std::string model_name;          // for the trace
    std::atomic<RequestId>& next_id;  // of the engine's requests, for the steps of a beam search
    int vocab_size = 0;
  };
  Generation(Context context, GenerationRequest request, RequestId first_id,
             std::shared_ptr<GenerationListener> listener);

  // Gives the prompts to the engine, all or none. On an error the listener is not called.
  Status submit();
  void cancel();  // any thread: what still runs is ended with kAbort, the listener hears of it
  bool has_ended() const { return has_ended_; }  // any thread

  const GenerationRequest& request() const { return request_; }
  void push(std::vector<Output> outputs) override;  // engine thread

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Choice {
    std::unique_ptr<TextStream> text;
    int num_tokens = 0;
    bool is_finished = false;
    TimePoint first_token, last_token;
    double queue_seconds = 0;
    int num_cached_tokens = 0;
    int num_preemptions = 0;
    ChoiceDelta held;  // by stream_interval
    int num_told_tokens = 0;
  };
  struct Batch {
    TimePoint time;
    std::vector<Output> outputs;
  };

  int n() const { return request_.sampling.n; }
  void schedule_drain();
  void drain();
  void take(Output output, TimePoint time);
  void take_tokens(Choice& choice, Output& output, ChoiceDelta& delta);
  void tell(Choice& choice, ChoiceDelta delta);
  void finish_choice(Choice& choice, ChoiceDelta delta, TimePoint time);
  void observe_tokens(Choice& choice, const Output& output, TimePoint time);
  void sum_times();
  void record_trace();

  const Context context_;
  const GenerationRequest request_;
  const RequestId first_id_;
  std::shared_ptr<GenerationListener> listener_;  // output thread; dropped at the end
  std::vector<Choice> choices_;
  std::shared_ptr<BeamRun> beam_run_;  // null without a beam search
  std::vector<Batch> taken_;           // from the inbox, whose room it gets back
  GenerationUsage usage_;
  int num_unfinished_ = 0;
  std::atomic<bool> has_ended_{false};
  std::string error_;  // of the first choice that had one
  FinishReason finish_reason_ = FinishReason::kNone;  // of the first choice

  std::mutex mutex_;  // guards what follows
  std::vector<Batch> inbox_;
  bool is_open_ = false;       // the listener knows of the admission: the inbox may be drained
  std::shared_ptr<Generation> scheduled_;  // this, while a drain is posted
};

// A listener for callers that wait: the whole text of every choice.
class CollectingListener final : public GenerationListener {
 public:
  struct Choice {
    std::string text;
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs;
    FinishReason finish_reason = FinishReason::kNone;
    std::string stop_string;
    Status error;
  };
  void on_delta(ChoiceDelta delta, const GenerationUsage& usage) override;
  void on_prompt_logprobs(int prompt_idx, std::vector<TokenLogprobs> logprobs) override;
  void on_done(const GenerationUsage& usage) override;

  void wait();  // until on_done; the fields below may be read afterwards
  std::vector<Choice> choices;
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs;  // by prompt
  GenerationUsage usage;

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
};

}  // namespace spate
