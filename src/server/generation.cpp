#include "server/generation.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace spate {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Generation::Generation(Context context, GenerationRequest request, RequestId first_id,
                       std::shared_ptr<GenerationListener> listener)
    : context_(context), request_(std::move(request)), first_id_(first_id), listener_(std::move(listener)) {
  choices_.resize(request_.prompts.size() * static_cast<size_t>(n()));
  num_unfinished_ = static_cast<int>(choices_.size());
  for (const auto& prompt : request_.prompts) usage_.num_prompt_tokens += static_cast<int64_t>(prompt.size());
}

Status Generation::submit() {
  std::vector<Request> requests;
  for (size_t i = 0; i < request_.prompts.size(); ++i) {
    Request request{.id = first_id_ + i,
                    .prompt_token_ids = request_.prompts[i],
                    .sampling = request_.sampling,
                    .eos_token_ids = request_.eos_token_ids,
                    .priority = request_.priority,
                    .reuse_scope = request_.reuse_scope,
                    .constraint = request_.constraint,
                    .speculate = request_.speculate,
                    .speculative_reference = request_.speculative_reference,
                    .relaxed = request_.relaxed,
                    .sink = shared_from_this()};
    request.sampling.max_tokens = request_.max_tokens[i];
    requests.push_back(std::move(request));
  }
  if (request_.beams.width > 0) {
    const BeamRun::Context context{context_.engine, context_.tokenizer, context_.output_pool, context_.next_id,
                                   context_.vocab_size};
    beam_run_ = std::make_shared<BeamRun>(context, request_.beams, std::move(requests));
    const Status status = beam_run_->submit();
    if (!status.ok()) return beam_run_ = nullptr, status;  // its sink is this
  } else {
    RETURN_IF_ERROR(context_.engine->submit_all(std::move(requests)));
  }
  listener_->on_admitted(request_);
  const std::lock_guard lock(mutex_);
  is_open_ = true;
  if (!inbox_.empty()) schedule_drain();
  return ok_status();
}

void Generation::cancel() {
  if (beam_run_) return beam_run_->cancel();
  for (size_t i = 0; i < request_.prompts.size(); ++i) context_.engine->cancel(first_id_ + i);
}

void Generation::push(std::vector<Output> outputs) {
  const TimePoint now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  inbox_.push_back({now, std::move(outputs)});
  if (is_open_ && !scheduled_) schedule_drain();
}

// The caller holds the mutex. The task is a bare pointer, which std::function holds without memory of its own.
void Generation::schedule_drain() {
  scheduled_ = shared_from_this();
  context_.output_pool.post([this] { drain(); });
}

void Generation::drain() {
  std::shared_ptr<Generation> self;  // until the end of this call
  {
    const std::lock_guard lock(mutex_);
    self = std::move(scheduled_);
    taken_.swap(inbox_);
  }
  for (Batch& batch : taken_) {
    for (Output& output : batch.outputs) take(std::move(output), batch.time);
  }
  taken_.clear();
}

void Generation::take(Output output, TimePoint time) {
  const int prompt_idx = static_cast<int>(output.request_id - first_id_);
  const int choice_idx = prompt_idx * n() + output.index;
  Choice& choice = choices_[static_cast<size_t>(choice_idx)];
  if (choice.is_finished) return;  // a stop string ended it; the engine did not know yet
  if (!choice.text) {
    TextStreamOptions options{
        .decode = {.skip_special_tokens = request_.sampling.skip_special_tokens,
                   .spaces_between_special_tokens = request_.sampling.spaces_between_special_tokens},
        .stop = request_.sampling.stop,
        .include_stop_str_in_output = request_.sampling.include_stop_str_in_output,
        .min_tokens = request_.sampling.min_tokens};
    choice.text = std::make_unique<TextStream>(context_.tokenizer, std::move(options),
                                               request_.prompts[static_cast<size_t>(prompt_idx)]);
    choice.queue_seconds = output.queue_seconds;
    choice.num_cached_tokens = output.num_cached_tokens;
    if (output.index == 0) usage_.num_cached_tokens += output.num_cached_tokens;
  }
  choice.num_preemptions = output.num_preemptions;
  if (!output.prompt_logprobs.empty()) listener_->on_prompt_logprobs(prompt_idx, std::move(output.prompt_logprobs));
  observe_tokens(choice, output, time);
  ChoiceDelta delta{.choice = choice_idx};
  take_tokens(choice, output, delta);
  if (choice.text->is_stopped()) {
    delta.stop_string = choice.text->stop_string();
    if (output.finish_reason == FinishReason::kNone) {
      context_.engine->cancel(output.request_id, output.index, FinishReason::kStop);
    }
    delta.finish_reason = FinishReason::kStop;
    finish_choice(choice, std::move(delta), time);
  } else if (output.finish_reason != FinishReason::kNone) {
    choice.text->finish(delta.text);
    if (choice.text->is_stopped()) {
      delta.stop_string = choice.text->stop_string();
    } else {
      delta.stop_token_id = output.stop_token_id;
      delta.error = std::move(output.error);
    }
    delta.finish_reason = output.finish_reason;
    finish_choice(choice, std::move(delta), time);
  } else if (!delta.token_ids.empty()) {
    tell(choice, std::move(delta));
  }
}

// Passes a delta on when stream_interval tokens are together, or at the end.
void Generation::tell(Choice& choice, ChoiceDelta delta) {
  if (choice.held.token_ids.empty()) {
    choice.held = std::move(delta);
  } else {
    for (size_t& end : delta.text_ends) end += choice.held.text.size();
    delta.text_ends.insert(delta.text_ends.begin(), choice.held.text_ends.begin(), choice.held.text_ends.end());
    delta.text.insert(0, choice.held.text);
    delta.token_ids.insert(delta.token_ids.begin(), choice.held.token_ids.begin(), choice.held.token_ids.end());
    delta.logprobs.insert(delta.logprobs.begin(), std::make_move_iterator(choice.held.logprobs.begin()),
                          std::make_move_iterator(choice.held.logprobs.end()));
    choice.held = std::move(delta);
  }
  const bool is_due = choice.num_told_tokens == 0 || choice.held.finish_reason != FinishReason::kNone ||
                      choice.num_tokens - choice.num_told_tokens >= request_.stream_interval;
  if (!is_due) return;
  choice.num_told_tokens = choice.num_tokens;
  listener_->on_delta(std::exchange(choice.held, {}), usage_);
}

void Generation::take_tokens(Choice& choice, Output& output, ChoiceDelta& delta) {
  size_t i = 0;
  for (; i < output.token_ids.size() && !choice.text->is_stopped(); ++i) {
    if (i < output.logprobs.size()) delta.logprobs.push_back(std::move(output.logprobs[i]));
    ++choice.num_tokens;
    ++usage_.num_completion_tokens;
    // The token that ended the sequence is counted; its text is shown like a stop string's, on demand.
    // That of a text to which a constraint lets nothing be added is part of it.
    const bool is_eos = std::ranges::find(request_.eos_token_ids, output.token_ids[i]) != request_.eos_token_ids.end();
    const bool is_stopper = output.finish_reason == FinishReason::kStop && i + 1 == output.token_ids.size() &&
                            (output.stop_token_id >= 0 || is_eos);
    if (is_stopper && output.stop_token_id < 0) delta.eos_token_id = output.token_ids[i];
    const bool is_shown = !is_stopper || (request_.sampling.include_stop_str_in_output && output.stop_token_id >= 0);
    if (is_shown) choice.text->append(output.token_ids[i], delta.text);
    delta.text_ends.push_back(delta.text.size());
  }
  output.token_ids.resize(i);
  delta.token_ids = std::move(output.token_ids);
  if (context_.metrics) context_.metrics->count_told_tokens(delta.token_ids.size());
}

void Generation::finish_choice(Choice& choice, ChoiceDelta delta, TimePoint time) {
  const int choice_idx = delta.choice;
  const FinishReason reason = delta.finish_reason;
  choice.is_finished = true;
  choice.text.reset();
  if (choice_idx == 0) finish_reason_ = reason;
  if (error_.empty() && !delta.error.ok()) error_ = delta.error.message();
  tell(choice, std::move(delta));
  if (context_.metrics) {
    const int prompt_idx = choice_idx / n();
    context_.metrics->observe_finished(
        {.queue_seconds = choice.queue_seconds,
         .first_token_seconds = choice.num_tokens > 0 ? seconds_between(request_.arrival, choice.first_token) : 0,
         .e2e_seconds = seconds_between(request_.arrival, time),
         .num_prompt_tokens = static_cast<int>(request_.prompts[static_cast<size_t>(prompt_idx)].size()),
         .num_cached_tokens = choice.num_cached_tokens,
         .num_generation_tokens = choice.num_tokens,
         .num_preemptions = choice.num_preemptions,
         .max_tokens = request_.max_tokens[static_cast<size_t>(prompt_idx)],
         .n = n(),
         .is_first_choice = choice_idx % n() == 0,
         .finish_reason = reason});
  }
  if (--num_unfinished_ > 0) return;
  has_ended_ = true;
  sum_times();
  listener_->on_done(usage_);
  listener_.reset();
  if (context_.tracer) record_trace();
}

void Generation::sum_times() {
  std::optional<TimePoint> first, last;
  usage_.queue_seconds = choices_.front().queue_seconds;
  for (const Choice& choice : choices_) {
    usage_.queue_seconds = std::min(usage_.queue_seconds, choice.queue_seconds);
    if (choice.num_tokens == 0) continue;
    first = std::min(first.value_or(choice.first_token), choice.first_token);
    last = std::max(last.value_or(choice.last_token), choice.last_token);
    usage_.num_intervals += choice.num_tokens - 1;
    usage_.interval_seconds += seconds_between(choice.first_token, choice.last_token);
  }
  if (!first) return;
  usage_.first_token_seconds = seconds_between(request_.arrival, *first);
  usage_.generation_seconds = seconds_between(*first, *last);
}

// One trace of all choices: the queue ends with the first that was scheduled, the prefill with the first token of any.
void Generation::record_trace() {
  RequestTrace trace{.parent = request_.trace_parent,
                     .request_id = request_.request_id,
                     .model = context_.model_name,
                     .arrival = request_.arrival,
                     .end = std::chrono::steady_clock::now(),
                     .n = n(),
                     .max_tokens = request_.max_tokens.front(),
                     .temperature = request_.sampling.temperature,
                     .top_p = request_.sampling.top_p,
                     .num_prompt_tokens = usage_.num_prompt_tokens,
                     .num_cached_tokens = usage_.num_cached_tokens,
                     .num_completion_tokens = usage_.num_completion_tokens,
                     .finish_reason = std::string(finish_reason_name(finish_reason_)),
                     .error = error_};
  double queue_seconds = choices_.front().queue_seconds;
  for (const Choice& choice : choices_) {
    queue_seconds = std::min(queue_seconds, choice.queue_seconds);
    if (choice.num_tokens == 0) continue;
    trace.first_token = std::min(trace.first_token.value_or(choice.first_token), choice.first_token);
    trace.last_token = std::max(trace.last_token.value_or(choice.last_token), choice.last_token);
  }
  const auto queued = std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(queue_seconds));
  trace.scheduled = std::min(trace.arrival + queued, trace.first_token.value_or(trace.end));
  context_.tracer->record(std::move(trace));
}

void Generation::observe_tokens(Choice& choice, const Output& output, TimePoint time) {
  if (output.token_ids.empty()) return;
  const bool is_first = choice.num_tokens == 0;
  if (is_first) choice.first_token = time;
  if (context_.metrics && is_first) context_.metrics->observe_first_token(seconds_between(request_.arrival, time));
  if (context_.metrics && !is_first) context_.metrics->observe_inter_token(seconds_between(choice.last_token, time));
  choice.last_token = time;
}

void CollectingListener::on_delta(ChoiceDelta delta, const GenerationUsage&) {
  const auto idx = static_cast<size_t>(delta.choice);
  if (choices.size() <= idx) choices.resize(idx + 1);
  Choice& choice = choices[idx];
  choice.text += delta.text;
  choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(choice.logprobs));
  if (delta.finish_reason == FinishReason::kNone) return;
  choice.finish_reason = delta.finish_reason;
  choice.stop_string = std::move(delta.stop_string);
  choice.error = std::move(delta.error);
}

void CollectingListener::on_prompt_logprobs(int prompt_idx, std::vector<TokenLogprobs> logprobs) {
  const auto idx = static_cast<size_t>(prompt_idx);
  if (prompt_logprobs.size() <= idx) prompt_logprobs.resize(idx + 1);
  prompt_logprobs[idx] = std::move(logprobs);
}

void CollectingListener::on_done(const GenerationUsage& total) {
  usage = total;
  const std::lock_guard lock(mutex_);
  is_done_ = true;
  done_.notify_all();
}

void CollectingListener::wait() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return is_done_; });
}

}  // namespace spate
