#include "engine/request_life.h"

#include <algorithm>
#include <utility>

#include "core/step_plan.h"
#include "engine/plan_writer.h"

namespace spate {

Status validate_request(const Request& request, const EngineConfig& config) {
  if (request.sink == nullptr) return invalid_argument("the request has no sink for its outputs");
  if (request.prompt_token_ids.empty()) return invalid_argument("the prompt must have at least one token");
  const SamplingParams& params = request.sampling;
  if (params.n < 1) return invalid_argument("n must be at least 1, got {}", params.n);
  if (params.max_tokens < 1) return invalid_argument("max_tokens must be at least 1, got {}", params.max_tokens);
  if (const size_t num_stop_ids = all_stop_ids(request).size(); num_stop_ids > kMaxStopIds) {
    return invalid_argument("stop_token_ids and the model's eos ids are {} ids together, at most {} are taken",
                            num_stop_ids, kMaxStopIds);
  }
  const size_t prompt_len = request.prompt_token_ids.size();
  if (request.pooling != Pooling::kNone) {
    if (params.n != 1 || params.prompt_logprobs || request.constraint != nullptr) {
      return invalid_argument("a request with a pooling has n = 1, no constraint and no prompt_logprobs, got n = {}",
                              params.n);
    }
    if (prompt_len <= static_cast<size_t>(config.max_seq_len())) return ok_status();
    return out_of_range("the prompt has {} tokens, but at most {} are taken: shorten it, or raise --max-model-len or "
                        "--kv-cache-memory",
                        prompt_len, config.max_seq_len());
  }
  if (prompt_len >= static_cast<size_t>(config.limits.max_model_len)) {
    return out_of_range(
        "the prompt has {} tokens, but the model's context length is {} (--max-model-len) and at least one token of "
        "output "
        "must fit: shorten the prompt",
        prompt_len, config.limits.max_model_len);
  }
  if (prompt_len >= static_cast<size_t>(config.max_seq_len())) {
    return out_of_range(
        "the prompt has {} tokens, but the KV cache holds {} tokens in all and at least one token of output must fit: "
        "shorten "
        "the prompt or raise --kv-cache-memory",
        prompt_len, config.kv_cache_tokens());
  }
  return ok_status();
}

std::unique_ptr<SequenceGroup> create_group(Request request, const EngineConfig& config, uint64_t arrival,
                                            uint64_t seed) {
  auto group = std::make_unique<SequenceGroup>();
  const SamplingParams& params = request.sampling;
  const auto prompt_len = static_cast<int>(request.prompt_token_ids.size());
  const bool pools = request.pooling != Pooling::kNone;
  // One that pools never gets a token, so it may fill the context.
  const int max_output = pools ? 1 : std::min(params.max_tokens, config.max_seq_len() - prompt_len);
  for (int index = 0; index < params.n; ++index) {
    auto seq = std::make_unique<Sequence>();
    seq->group = group.get();
    seq->key = {.priority = request.priority, .arrival = arrival, .index = index};
    seq->seed = seed + static_cast<uint64_t>(index);
    seq->prompt_len = prompt_len;
    seq->max_len = prompt_len + max_output;
    if (request.constraint != nullptr) seq->cursor = request.constraint->start();
    seq->needs_prompt_logprobs = index == 0 && params.prompt_logprobs.has_value() && prompt_len > 1;
    group->seqs.push_back(std::move(seq));
  }
  group->num_unfinished = params.n;
  group->stop_ids = all_stop_ids(request);
  group->request = std::move(request);
  return group;
}

namespace {

// Whether the last tokens are one pattern, min_count times. A pattern of p tokens repeats where each token equals the
// one p before it.
bool repeats_itself(std::span<const int32_t> output, const RepetitionDetection& detection) {
  for (int size = detection.min_pattern_size; size <= detection.max_pattern_size; ++size) {
    const auto period = static_cast<size_t>(size);
    const size_t num_equal = period * static_cast<size_t>(detection.min_count - 1);
    if (output.size() < period + num_equal) return false;
    const auto last = output.last(num_equal), before = output.last(period + num_equal).first(num_equal);
    if (std::equal(last.rbegin(), last.rend(), before.rbegin())) return true;
  }
  return false;
}

}  // namespace

EndCheck check_end(const Sequence& seq) {
  const Request& request = seq.group->request;
  const int32_t token_id = seq.token_ids.back();
  if (seq.num_output_tokens() > request.sampling.min_tokens) {
    if (!request.sampling.ignore_eos &&
        std::ranges::find(request.eos_token_ids, token_id) != request.eos_token_ids.end()) {
      return {FinishReason::kStop, -1};
    }
    const std::vector<int32_t>& stop_ids = request.sampling.stop_token_ids;
    if (std::ranges::find(stop_ids, token_id) != stop_ids.end()) return {FinishReason::kStop, token_id};
  }
  const RepetitionDetection& detection = request.sampling.repetition_detection;
  if (detection.max_pattern_size > 0 && seq.num_output_tokens() > request.sampling.min_tokens &&
      repeats_itself(std::span(seq.token_ids).subspan(static_cast<size_t>(seq.prompt_len)), detection)) {
    return {FinishReason::kRepetition, -1};
  }
  if (static_cast<int>(seq.token_ids.size()) >= seq.max_len) return {FinishReason::kLength, -1};
  return {};
}

Status advance_constraint(Sequence& seq, EndCheck& end) {
  if (seq.cursor == nullptr || end.reason == FinishReason::kStop) return ok_status();
  Status status = seq.cursor->append(seq.token_ids.back());
  if (status.ok() && seq.cursor->must_end()) {
    end = {FinishReason::kStop, -1};
  } else if (status.ok() && end.reason == FinishReason::kNone) {
    status = seq.cursor->prepare_mask();
  }
  if (!status.ok()) end = {FinishReason::kError, -1};
  if (status.ok() && seq.cursor->is_done()) {  // so that it need not wait for its tokens any more
    seq.draft_cursors.clear();
    seq.cursor.reset();
  }
  return status;
}

Output make_output(Sequence& seq) {
  Output output;
  output.request_id = seq.group->request.id;
  output.index = seq.key.index;
  output.num_preemptions = seq.num_preemptions;
  if (!std::exchange(seq.has_reported, true)) {
    output.num_cached_tokens = seq.num_cached_tokens;
    output.queue_seconds = std::max(0.0, seq.queue_seconds);
    output.prompt_logprobs = std::move(seq.prompt_logprobs);
  }
  return output;
}

void pick_logprobs(const std::vector<int32_t>& token_ids, TokenLogprobs& logprobs) {
  if (token_ids.empty()) return;
  std::vector<TokenLogprobs::Top> picked;
  for (const int32_t id : token_ids) picked.push_back(logprobs.top.at(static_cast<size_t>(id)));
  logprobs.top = std::move(picked);
}

void collect_prompt_logprobs(Sequence& seq, int num_computed_tokens, std::vector<TokenLogprobs>& logprobs) {
  const auto max_top = static_cast<size_t>(seq.group->request.sampling.prompt_logprobs.value_or(0));
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const size_t position = static_cast<size_t>(num_computed_tokens) + i + 1;  // of the prompt token it is about
    if (position >= static_cast<size_t>(seq.prompt_len) || position != seq.prompt_logprobs.size() + 1) continue;
    if (logprobs[i].top.size() > max_top) logprobs[i].top.resize(max_top);
    seq.prompt_logprobs.push_back(std::move(logprobs[i]));
  }
  if (seq.prompt_logprobs.size() + 1 == static_cast<size_t>(seq.prompt_len)) seq.needs_prompt_logprobs = false;
}

bool collect_hidden_state(Sequence& seq, const ScheduledSeq& scheduled, std::vector<float>& hidden_state) {
  if (scheduled.pool_flag != kPoolSum) {
    seq.hidden_sum = std::move(hidden_state);
    return true;
  }
  if (scheduled.num_computed_tokens == 0) {  // after a preemption it starts again
    seq.hidden_sum = std::move(hidden_state);
  } else {
    for (size_t i = 0; i < hidden_state.size(); ++i) seq.hidden_sum[i] += hidden_state[i];
  }
  if (scheduled.num_computed_tokens + scheduled.query_len < seq.prompt_len) return false;
  for (float& value : seq.hidden_sum) value /= static_cast<float>(seq.prompt_len);
  return true;
}

void Outbox::add(OutputSink& sink, Output output) {
  const auto [it, is_new] = bundle_of_sink_.try_emplace(&sink, bundles_.size());
  if (is_new) bundles_.push_back({&sink, {}});
  bundles_[it->second].outputs.push_back(std::move(output));
}

void Outbox::flush() {
  for (Bundle& bundle : bundles_) bundle.sink->push(std::move(bundle.outputs));
  bundles_.clear();
  bundle_of_sink_.clear();
}

}  // namespace spate
