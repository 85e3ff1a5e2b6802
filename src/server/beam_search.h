// Beam search: the most probable answers to a prompt, not drawn ones.
//
// BeamSearch is the search itself, on numbers only. BeamRun runs it above the engine: each step asks for one token of
// every beam, whose beginning the prefix cache still has, and for the most probable tokens there. As vLLM does it:
//
//   - Of each beam the 2 x width most probable tokens are candidates. Those that end the answer complete a beam,
//     whatever their place; the `width` best of the others go on. A beam that a stop string ends counts as one that
//     ended where it would have gone on.
//   - A beam's score is the sum of its tokens' log-probabilities over (tokens of prompt and answer, without the end
//     token) ^ length_penalty.
//   - Nothing is drawn and nothing bends the model's distribution.
//
// The search ends as soon as no beam can become better than what is complete, where vLLM goes on to max_tokens: the
// answers are the same.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/beam_search_params.h"
#include "core/request.h"
#include "engine/engine.h"
#include "server/work_pool.h"
#include "text/text_stream.h"

namespace spate {

class BeamSearch {
 public:
  struct Options {
    BeamSearchParams params;
    int num_best = 1;  // answers that are wanted, at most params.width
    int max_tokens = 1;
    int min_tokens = 0;
    int num_prompt_tokens = 1;
    int num_told_logprobs = 0;         // alternatives kept of each token
    std::vector<int32_t> end_ids;      // eos and stop ids; empty with ignore_eos
    const TextStream* text = nullptr;  // at the answer's beginning; null: there are no stop strings
  };
  struct Answer {
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprobs> logprobs;  // of these
    double score = 0;
    FinishReason finish_reason = FinishReason::kNone;
  };

  explicit BeamSearch(Options options);

  int num_candidates() const { return 2 * options_.params.width; }  // wanted of each beam
  int num_running() const { return static_cast<int>(running_.size()); }
  std::vector<int32_t> token_ids(int beam) const;  // of a running beam, without the prompt
  // For each running beam the most probable tokens, best first, where the vocabulary has so many: num_candidates().
  void step(std::span<const std::vector<TokenLogprobs::Top>> candidates);
  bool is_done() const { return is_done_; }
  std::vector<Answer> best() const;  // num_best at most, best first

 private:
  // Beams share their beginnings: each is its last token, and the node before it.
  struct Node {
    int parent = -1;
    TokenLogprobs token;
  };
  struct Beam {
    int node = -1;  // of its last token; -1: no token yet
    int num_tokens = 0;
    double sum_logprob = 0;
    double score = 0;  // when it is complete
    FinishReason finish_reason = FinishReason::kNone;
    std::shared_ptr<const TextStream> text;  // null: there are no stop strings
  };
  struct Candidate;

  std::vector<Candidate> sorted(std::span<const std::vector<TokenLogprobs::Top>> candidates) const;
  Beam extended(const Candidate& candidate, std::span<const std::vector<TokenLogprobs::Top>> candidates);
  void complete(Beam beam, FinishReason reason, int num_counted_tokens);
  double score(double sum_logprob, int num_tokens) const;
  bool can_stop() const;

  const Options options_;
  std::vector<Node> nodes_;
  std::vector<Beam> running_, completed_;  // completed: best first, those of equal score in order of time
  bool is_done_ = false;
};

// The searches of one API request, one for each prompt. Its sink gets one Output for each prompt and answer, at the
// end.
class BeamRun {
 public:
  struct Context {
    std::shared_ptr<Engine> engine;
    const Tokenizer& tokenizer;       // outlives the run, as do the following
    WorkPool& pool;                   // the steps of the search are taken there
    std::atomic<RequestId>& next_id;  // of the engine's requests
    int vocab_size = 0;
  };
  // Each request is one prompt's, as it would go to the engine without a search, with the sink.
  BeamRun(Context context, BeamSearchParams params, std::vector<Request> requests);
  ~BeamRun();

  Status submit();  // all prompts or none; on an error the sink hears nothing
  void cancel();    // any thread

 private:
  class Search;

  const Context context_;
  const BeamSearchParams params_;
  std::vector<std::shared_ptr<Search>> searches_;
};

}  // namespace spate
