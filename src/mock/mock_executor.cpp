#include "mock/mock_executor.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace spate {
namespace {

bool contains(std::span<const int32_t> ids, int32_t id) { return std::ranges::find(ids, id) != ids.end(); }

}  // namespace

MockExecutor::MockExecutor(MockExecutorConfig config)
    : config_(std::move(config)), rows_(static_cast<size_t>(config_.max_num_seqs)) {
  for (const MockAnswer& answer : config_.script.answers) {
    answers_.push_back(answer.echoes ? std::vector<int32_t>() : config_.encode(answer.text));
  }
}

// Everything is decided here, or where masks are late when they come; collect() waits until the step's time is over.
void MockExecutor::submit(std::span<const std::byte> plan) {
  CHECK(steps_.size() < 2, "{} steps are in flight already", steps_.size());
  const auto& header = *reinterpret_cast<const StepPlanHeader*>(plan.data());
  Step& step = steps_.emplace_back();
  step.result.step_id = header.step_id;
  double seconds = seconds_of(header);
  step.status = break_step(header, seconds, step.is_nonfinite);
  busy_until_s_ = std::max(busy_until_s_, now_s()) + seconds;
  step.ready_at_s = busy_until_s_;
  step.result.device_seconds = seconds;

  update_rows(plan.data());
  if (header.masks_are_late == 0) return run(plan.data(), step);
  step.plan.assign(plan.begin(), plan.end());
}

void MockExecutor::supply_masks(std::span<const uint32_t> masks) {
  CHECK(!steps_.empty() && !steps_.back().plan.empty(), "masks that no step waits for");
  Step& step = steps_.back();
  const auto words = std::as_bytes(masks);
  CHECK(words.size() == late_mask_bytes(*reinterpret_cast<const StepPlanHeader*>(step.plan.data())));
  step.plan.insert(step.plan.end(), words.begin(), words.end());
  run(step.plan.data(), step);
  step.plan.clear();
  busy_until_s_ = step.ready_at_s = std::max(step.ready_at_s, now_s());  // sampling comes last
}

void MockExecutor::run(const void* plan, Step& step) {
  const auto& header = *static_cast<const StepPlanHeader*>(plan);
  for (const SeqStep& seq : std::span(plan_array<SeqStep>(plan, header.seqs_offset), header.num_seqs)) {
    run_seq(plan, seq, step.is_nonfinite, step.result);
  }
  if (header.num_logits == header.num_sampled) step.result.num_accepted.clear();
}

Status MockExecutor::collect(StepResult& result) {
  CHECK(!steps_.empty(), "no step is in flight");
  Step step = std::move(steps_.front());
  steps_.pop_front();
  CHECK(step.plan.empty(), "step {} is collected before its masks have come", step.result.step_id);
  std::this_thread::sleep_for(std::chrono::duration<double>(std::max(0.0, step.ready_at_s - now_s())));
  result = std::move(step.result);
  return step.status;
}

double MockExecutor::seconds_of(const StepPlanHeader& header) const {
  return config_.script.step_seconds + config_.script.token_seconds * header.num_tokens;
}

Status MockExecutor::break_step(const StepPlanHeader& header, double& seconds, bool& is_nonfinite) const {
  Status status;
  for (const MockFault& fault : config_.script.faults) {
    if (fault.kind == MockFault::Kind::kFail && header.step_id >= fault.step) {
      status = internal_error("mock: the script lets step {} fail", fault.step);
    }
    if (fault.step != header.step_id) continue;
    if (fault.kind == MockFault::Kind::kNonfinite) is_nonfinite = true;
    if (fault.kind != MockFault::Kind::kHang) continue;
    seconds += std::min(fault.seconds, config_.time_limit_s);
    if (fault.seconds > config_.time_limit_s) {
      status = unavailable("mock: step {} hung for {:g} s (--distributed-timeout-seconds)", fault.step,
                                 config_.time_limit_s);
    }
  }
  return status;
}

void MockExecutor::update_rows(const void* plan) {
  const auto& header = *static_cast<const StepPlanHeader*>(plan);
  const int32_t* const data = plan_array<int32_t>(plan, header.data_offset);
  for (const RowUpdate& update :
       std::span(plan_array<RowUpdate>(plan, header.row_updates_offset), header.num_row_updates)) {
    const int32_t* const tokens = data + update.tokens_begin;
    const int32_t* const stop_ids = data + update.stop_ids_begin;
    Row& row = rows_[static_cast<size_t>(update.row)];
    row = {.token_ids = {tokens, tokens + update.num_tokens},
           .stop_ids = {stop_ids, stop_ids + update.sampling.num_stop_ids},
           .sampling = update.sampling,
           .num_prompt_logprobs = update.num_prompt_logprobs,
           .echo = {}};
    choose_answer(row);
  }
}

void MockExecutor::choose_answer(Row& row) const {
  const std::span<const int32_t> prompt = std::span(row.token_ids).first(static_cast<size_t>(row.sampling.prompt_len));
  const std::vector<MockAnswer>& answers = config_.script.answers;
  const bool needs_text = std::ranges::any_of(answers, [](const MockAnswer& answer) { return !answer.when.empty(); });
  const std::string text = needs_text ? config_.decode(prompt) : std::string();
  const auto found = std::ranges::find_if(
      answers, [&](const MockAnswer& answer) { return text.find(answer.when) != std::string::npos; });
  row.answer_idx = found == answers.end() ? -1 : static_cast<int>(found - answers.begin());
  if (row.answer_idx >= 0 && !found->echoes) return;
  // A chat prompt holds end tokens of earlier turns.
  std::ranges::copy_if(prompt, std::back_inserter(row.echo),
                       [&](int32_t id) { return !contains(config_.eos_token_ids, id); });
}

void MockExecutor::run_seq(const void* plan, const SeqStep& seq, bool is_nonfinite, StepResult& result) {
  Row& row = rows_[static_cast<size_t>(seq.row)];
  if ((seq.flags & kPromptLogprobs) != 0) {
    std::vector<TokenLogprobs>& logprobs = result.prompt_logprobs.emplace_back();
    const int end = std::min(seq.num_computed_tokens + seq.query_len + 1, row.sampling.prompt_len);
    for (int position = seq.num_computed_tokens + 1; position < end; ++position) {
      logprobs.push_back(logprobs_of(row.token_ids[static_cast<size_t>(position)], row.num_prompt_logprobs));
    }
  }
  if ((seq.flags & kPoolFlags) != 0) result.hidden_states.push_back(hidden_state(row, seq));
  const bool is_first = result.next_token_ids.empty();
  if ((seq.flags & kSample) != 0) sample(plan, seq, is_nonfinite && is_first, row, result);
}

void MockExecutor::sample(const void* plan, const SeqStep& seq, bool is_nonfinite, Row& row, StepResult& result) const {
  const auto& header = *static_cast<const StepPlanHeader*>(plan);
  const int32_t* const drafts = plan_array<int32_t>(plan, header.data_offset) + seq.drafts_begin;
  const uint32_t* const masks = plan_array<uint32_t>(plan, header.masks_offset);
  int num_accepted = 0;
  while (true) {
    const uint32_t* const mask = seq.first_mask < 0 ? nullptr : masks + (seq.first_mask + num_accepted) * header.mask_words;
    const int32_t token_id = is_nonfinite ? kNoToken : next_token(row, mask);
    result.next_token_ids.push_back(token_id);
    if (row.sampling.num_logprobs >= 0) {
      result.logprobs.resize(result.next_token_ids.size());
      if (token_id != kNoToken) result.logprobs.back() = logprobs_of(token_id, row.sampling.num_logprobs);
    } else if (!result.logprobs.empty()) {
      result.logprobs.resize(result.next_token_ids.size());
    }
    row.token_ids.push_back(token_id);
    if (num_accepted == seq.num_drafts || drafts[num_accepted] != token_id) break;
    ++num_accepted;
  }
  result.num_accepted.push_back(num_accepted);
}

int32_t MockExecutor::next_token(const Row& row, const uint32_t* mask) const {
  const auto num_tokens = static_cast<int>(row.token_ids.size());
  const auto num_said = static_cast<size_t>(num_tokens - row.sampling.prompt_len);
  const bool must_go_on = num_tokens < row.sampling.min_tokens_until;
  const auto is_allowed = [&](int32_t id) {
    return (mask == nullptr || mask_allows(mask, id)) && !(must_go_on && contains(row.stop_ids, id));
  };
  const MockAnswer* const scripted =
      row.answer_idx < 0 ? nullptr : &config_.script.answers[static_cast<size_t>(row.answer_idx)];
  const std::vector<int32_t>& answer =
      scripted == nullptr || scripted->echoes ? row.echo : answers_[static_cast<size_t>(row.answer_idx)];
  if (num_said >= answer.size() && !must_go_on) {
    if (scripted != nullptr && scripted->ends_nonfinite) return kNoToken;
    for (const int32_t id : config_.eos_token_ids) {
      if (contains(row.stop_ids, id) && is_allowed(id)) return id;
    }
  }
  int32_t token_id = answer.empty() ? 0 : answer[num_said % answer.size()];
  if (is_allowed(token_id)) return token_id;
  for (token_id = 0; token_id + 1 < config_.vocab_size && !is_allowed(token_id);) ++token_id;
  return token_id;
}

TokenLogprobs MockExecutor::logprobs_of(int32_t token_id, int num_top) const {
  TokenLogprobs logprobs{.token_id = token_id, .logprob = 0, .rank = 1, .top = {}};
  for (int i = 0; i < std::min(num_top, config_.vocab_size); ++i) {
    logprobs.top.push_back({(token_id + i) % config_.vocab_size, i == 0 ? 0.0f : -20.0f - static_cast<float>(i)});
  }
  if (num_top == kLogprobsById) std::ranges::sort(logprobs.top, {}, &TokenLogprobs::Top::token_id);
  return logprobs;
}

// Of each token a value for each dimension, so that equal texts are equal and others are not.
std::vector<float> MockExecutor::hidden_state(const Row& row, const SeqStep& seq) const {
  const int first = seq.num_computed_tokens, end = first + seq.query_len;
  const int begin = (seq.flags & kPoolLast) != 0 ? end - 1 : first;
  std::vector<float> sum(static_cast<size_t>(config_.hidden_size));
  for (int position = begin; position < ((seq.flags & kPoolFirst) != 0 ? first + 1 : end); ++position) {
    uint32_t hash = static_cast<uint32_t>(row.token_ids[static_cast<size_t>(position)]) * 0x9e3779b9u + 1;
    for (float& value : sum) {
      hash = hash * 1664525u + 1013904223u;
      value += static_cast<float>(hash >> 16) / 65536.0f - 0.5f;
    }
  }
  return sum;
}

}  // namespace spate
