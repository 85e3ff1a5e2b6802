#include "server/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace spate {

struct BeamSearch::Candidate {
  size_t beam, place;  // candidates[beam][place]
  double sum_logprob;
};

BeamSearch::BeamSearch(Options options) : options_(std::move(options)) {
  Beam empty;
  if (options_.text) empty.text = std::make_shared<const TextStream>(*options_.text);
  running_.push_back(std::move(empty));
}

std::vector<int32_t> BeamSearch::token_ids(int beam) const {
  std::vector<int32_t> ids;
  for (int node = running_[static_cast<size_t>(beam)].node; node >= 0;
       node = nodes_[static_cast<size_t>(node)].parent) {
    ids.push_back(nodes_[static_cast<size_t>(node)].token.token_id);
  }
  std::ranges::reverse(ids);
  return ids;
}

std::vector<BeamSearch::Candidate> BeamSearch::sorted(
    std::span<const std::vector<TokenLogprobs::Top>> candidates) const {
  std::vector<Candidate> all;
  for (size_t beam = 0; beam < candidates.size(); ++beam) {
    const size_t count = std::min(candidates[beam].size(), static_cast<size_t>(num_candidates()));
    for (size_t place = 0; place < count; ++place) {
      all.push_back({beam, place, running_[beam].sum_logprob + double{candidates[beam][place].logprob}});
    }
  }
  std::ranges::stable_sort(all, std::greater(), &Candidate::sum_logprob);
  return all;
}

BeamSearch::Beam BeamSearch::extended(const Candidate& candidate,
                                      std::span<const std::vector<TokenLogprobs::Top>> candidates) {
  const std::vector<TokenLogprobs::Top>& tops = candidates[candidate.beam];
  const TokenLogprobs::Top& chosen = tops[candidate.place];
  const size_t num_told = std::min(tops.size(), static_cast<size_t>(options_.num_told_logprobs));
  nodes_.push_back({.parent = running_[candidate.beam].node,
                    .token = {.token_id = chosen.token_id,
                              .logprob = chosen.logprob,
                              .rank = static_cast<int32_t>(candidate.place) + 1,
                              .top = {tops.begin(), tops.begin() + static_cast<std::ptrdiff_t>(num_told)}}});
  Beam beam;
  beam.node = static_cast<int>(nodes_.size()) - 1;
  beam.num_tokens = running_[candidate.beam].num_tokens + 1;
  beam.sum_logprob = candidate.sum_logprob;
  return beam;
}

void BeamSearch::step(std::span<const std::vector<TokenLogprobs::Top>> candidates) {
  CHECK(candidates.size() == running_.size(), "{} lists of candidates for {} beams", candidates.size(),
        running_.size());
  std::vector<Beam> next;
  for (const Candidate& candidate : sorted(candidates)) {
    const Beam& before = running_[candidate.beam];
    const int32_t token_id = candidates[candidate.beam][candidate.place].token_id;
    if (std::ranges::find(options_.end_ids, token_id) != options_.end_ids.end()) {
      if (before.num_tokens < options_.min_tokens) continue;
      complete(extended(candidate, candidates), FinishReason::kStop, before.num_tokens);
      continue;
    }
    if (next.size() == static_cast<size_t>(options_.params.width)) continue;
    Beam beam = extended(candidate, candidates);
    bool goes_on = true;
    if (before.text) {
      auto text = std::make_shared<TextStream>(*before.text);
      std::string unused;
      goes_on = text->append(token_id, unused);
      beam.text = std::move(text);
    }
    if (goes_on) {
      next.push_back(std::move(beam));
    } else {
      complete(std::move(beam), FinishReason::kStop, before.num_tokens + 1);
    }
  }
  running_ = std::move(next);
  const bool is_full = !running_.empty() && running_.front().num_tokens == options_.max_tokens;
  if (is_full) {
    for (Beam& beam : std::exchange(running_, {})) {
      const int num_tokens = beam.num_tokens;
      complete(std::move(beam), FinishReason::kLength, num_tokens);
    }
  }
  is_done_ = running_.empty() || can_stop();
}

void BeamSearch::complete(Beam beam, FinishReason reason, int num_counted_tokens) {
  beam.finish_reason = reason;
  beam.score = score(beam.sum_logprob, num_counted_tokens);
  beam.text = nullptr;
  const auto place = std::ranges::upper_bound(completed_, beam.score, std::greater(), &Beam::score);
  completed_.insert(place, std::move(beam));
  // What is behind the first `width` is never told.
  if (completed_.size() > static_cast<size_t>(options_.params.width)) completed_.pop_back();
}

double BeamSearch::score(double sum_logprob, int num_tokens) const {
  return sum_logprob / std::pow(options_.num_prompt_tokens + num_tokens, double{options_.params.length_penalty});
}

// Log-probabilities are at most 0, so a sum only falls: what a beam can still reach is its sum as it is now over the
// length that makes most of it.
bool BeamSearch::can_stop() const {
  const auto num_wanted = static_cast<size_t>(options_.num_best);
  const bool is_full = completed_.size() == static_cast<size_t>(options_.params.width);
  if (options_.params.early_stopping == EarlyStopping::kAtOnce) return is_full;
  const bool is_heuristic = options_.params.early_stopping == EarlyStopping::kHeuristic;
  if (completed_.size() < num_wanted || (is_heuristic && !is_full)) return false;
  const Beam& best = running_.front();
  const bool is_longest_best = !is_heuristic && options_.params.length_penalty > 0;
  const double attainable = score(best.sum_logprob, is_longest_best ? options_.max_tokens : best.num_tokens);
  return completed_[is_heuristic ? completed_.size() - 1 : num_wanted - 1].score >= attainable;
}

std::vector<BeamSearch::Answer> BeamSearch::best() const {
  std::vector<Answer> answers;
  for (size_t i = 0; i < completed_.size() && i < static_cast<size_t>(options_.num_best); ++i) {
    Answer answer{.score = completed_[i].score, .finish_reason = completed_[i].finish_reason};
    for (int node = completed_[i].node; node >= 0; node = nodes_[static_cast<size_t>(node)].parent) {
      answer.token_ids.push_back(nodes_[static_cast<size_t>(node)].token.token_id);
      answer.logprobs.push_back(nodes_[static_cast<size_t>(node)].token);
    }
    std::ranges::reverse(answer.token_ids);
    std::ranges::reverse(answer.logprobs);
    answers.push_back(std::move(answer));
  }
  return answers;
}

// The search of one prompt. Its steps are taken one behind the other: each on the pool, when the engine has answered
// for all beams.
class BeamRun::Search : public OutputSink, public std::enable_shared_from_this<Search> {
 public:
  Search(Context context, const BeamSearchParams& params, Request request)
      : context_(std::move(context)), request_(std::move(request)), sink_(request_.sink) {
    const SamplingParams& sampling = request_.sampling;
    request_.sink = nullptr;
    if (!sampling.stop.empty()) {
      text_.emplace(
          context_.tokenizer,
          TextStreamOptions{.decode = {.skip_special_tokens = sampling.skip_special_tokens,
                                       .spaces_between_special_tokens = sampling.spaces_between_special_tokens},
                            .stop = sampling.stop,
                            .include_stop_str_in_output = sampling.include_stop_str_in_output,
                            .min_tokens = sampling.min_tokens},
          request_.prompt_token_ids);
    }
    std::vector<int32_t> end_ids = sampling.stop_token_ids;
    if (!sampling.ignore_eos)
      end_ids.insert(end_ids.end(), request_.eos_token_ids.begin(), request_.eos_token_ids.end());
    search_.emplace(BeamSearch::Options{.params = params,
                                        .num_best = sampling.n,
                                        .max_tokens = sampling.max_tokens,
                                        .min_tokens = sampling.min_tokens,
                                        .num_prompt_tokens = static_cast<int>(request_.prompt_token_ids.size()),
                                        .num_told_logprobs = sampling.logprobs.value_or(0),
                                        .end_ids = std::move(end_ids),
                                        .text = text_ ? &*text_ : nullptr});
  }

  // What the engine is to do for the next step.
  std::vector<Request> next_requests() {
    const std::lock_guard lock(mutex_);
    const int num_beams = search_->num_running();
    first_id_ = context_.next_id.fetch_add(static_cast<RequestId>(num_beams));
    results_.assign(static_cast<size_t>(num_beams), {});
    num_awaited_ = num_beams;
    std::vector<Request> requests;
    for (int i = 0; i < num_beams; ++i) {
      Request request{.id = first_id_ + static_cast<RequestId>(i),
                      .prompt_token_ids = request_.prompt_token_ids,
                      .sampling = {.temperature = 0, .max_tokens = 1, .ignore_eos = true},
                      .priority = request_.priority,
                      .reuse_scope = request_.reuse_scope,
                      .speculate = false,
                      .is_continued = num_steps_ > 0,
                      .sink = shared_from_this()};
      const std::vector<int32_t> token_ids = search_->token_ids(i);
      request.prompt_token_ids.insert(request.prompt_token_ids.end(), token_ids.begin(), token_ids.end());
      const int num_told = request_.sampling.logprobs.value_or(0);
      request.sampling.logprobs = std::min(context_.vocab_size, std::max(num_told, search_->num_candidates()));
      if (num_steps_ == 0) request.sampling.prompt_logprobs = request_.sampling.prompt_logprobs;
      requests.push_back(std::move(request));
    }
    ++num_steps_;
    return requests;
  }

  void push(std::vector<Output> outputs) override {  // engine thread
    const std::lock_guard lock(mutex_);
    for (Output& output : outputs) {
      Output& result = results_[output.request_id - first_id_];
      if (!output.prompt_logprobs.empty()) prompt_logprobs_ = std::move(output.prompt_logprobs);
      for (TokenLogprobs& token : output.logprobs) result.logprobs.push_back(std::move(token));
      if (output.finish_reason == FinishReason::kNone) continue;
      if (num_steps_ == 1) {
        num_cached_tokens_ = output.num_cached_tokens;
        queue_seconds_ = output.queue_seconds;
      }
      result.finish_reason = output.finish_reason;
      result.error = std::move(output.error);
      num_preemptions_ += output.num_preemptions;
      --num_awaited_;
    }
    if (num_awaited_ > 0) return;
    context_.pool.post([self = shared_from_this()] { self->take_step(); });
  }

  void cancel() {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    for (size_t i = 0; i < results_.size(); ++i) context_.engine->cancel(first_id_ + i);
  }

 private:
  void take_step() {  // pool
    std::vector<std::vector<TokenLogprobs::Top>> candidates;
    Output problem;
    bool is_cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      is_cancelled = is_cancelled_;
      for (Output& result : results_) {
        const bool is_whole = result.finish_reason == FinishReason::kLength && result.logprobs.size() == 1;
        if (!is_whole && problem.finish_reason == FinishReason::kNone) problem = std::move(result);
        if (is_whole) candidates.push_back(std::move(result.logprobs.front().top));
      }
    }
    if (problem.finish_reason != FinishReason::kNone) return fail(problem.finish_reason, std::move(problem.error));
    if (is_cancelled) return fail(FinishReason::kAbort, ok_status());
    search_->step(candidates);
    if (search_->is_done()) return finish();
    const Status status = context_.engine->submit_all(next_requests());
    if (!status.ok()) return fail(FinishReason::kError, status);
    const std::lock_guard lock(mutex_);
    // A cancel() that came before the requests were in found nothing to cancel.
    for (size_t i = 0; is_cancelled_ && i < results_.size(); ++i) context_.engine->cancel(first_id_ + i);
  }

  Output output(int index) {
    Output output{.request_id = request_.id, .index = index, .num_cached_tokens = num_cached_tokens_};
    output.queue_seconds = queue_seconds_;
    output.num_preemptions = index == 0 ? num_preemptions_ : 0;
    if (index == 0) output.prompt_logprobs = std::move(prompt_logprobs_);
    return output;
  }

  void fail(FinishReason reason, const Status& error) {
    std::vector<Output> outputs;
    for (int i = 0; i < request_.sampling.n; ++i) {
      outputs.push_back(output(i));
      outputs.back().finish_reason = reason;
      outputs.back().error = error;
    }
    std::exchange(sink_, nullptr)->push(std::move(outputs));
  }

  void finish() {
    std::vector<BeamSearch::Answer> answers = search_->best();
    std::vector<Output> outputs;
    for (int i = 0; i < request_.sampling.n; ++i) {
      Output told = output(i);
      // A vocabulary of fewer tokens than beams may have fewer answers.
      told.finish_reason = FinishReason::kStop;
      if (static_cast<size_t>(i) < answers.size()) {
        BeamSearch::Answer& answer = answers[static_cast<size_t>(i)];
        told.finish_reason = answer.finish_reason;
        const std::vector<int32_t>& stop_ids = request_.sampling.stop_token_ids;
        const int32_t last = answer.token_ids.back();
        const bool is_stop_id = std::ranges::find(stop_ids, last) != stop_ids.end();
        if (answer.finish_reason == FinishReason::kStop && is_stop_id) told.stop_token_id = last;
        told.token_ids = std::move(answer.token_ids);
        if (request_.sampling.logprobs) told.logprobs = std::move(answer.logprobs);
      }
      outputs.push_back(std::move(told));
    }
    std::exchange(sink_, nullptr)->push(std::move(outputs));
  }

  const Context context_;
  Request request_;                   // the prompt's
  std::shared_ptr<OutputSink> sink_;  // dropped at the end
  std::optional<TextStream> text_;
  std::optional<BeamSearch> search_;  // one thread at a time: who submits, then the pool
  int num_steps_ = 0;

  std::mutex mutex_;  // guards what follows
  RequestId first_id_ = 0;
  std::vector<Output> results_;  // of the step's beams
  int num_awaited_ = 0;
  bool is_cancelled_ = false;
  std::vector<TokenLogprobs> prompt_logprobs_;
  int num_cached_tokens_ = 0;
  double queue_seconds_ = 0;
  int num_preemptions_ = 0;
};

BeamRun::BeamRun(Context context, BeamSearchParams params, std::vector<Request> requests)
    : context_(std::move(context)), params_(params) {
  for (Request& request : requests)
    searches_.push_back(std::make_shared<Search>(context_, params_, std::move(request)));
}

BeamRun::~BeamRun() = default;

Status BeamRun::submit() {
  std::vector<Request> requests;
  for (const auto& search : searches_) {
    for (Request& request : search->next_requests()) requests.push_back(std::move(request));
  }
  return context_.engine->submit_all(std::move(requests));
}

void BeamRun::cancel() {
  for (const auto& search : searches_) search->cancel();
}

}  // namespace spate
