#include "rank/step_in_flight.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace spate {

Result<StepInFlight> StepInFlight::create(Device& device, const StepLimits& limits, int max_top_logprobs) {
  StepInFlight step;
  step.max_top_logprobs_ = max_top_logprobs;
  step.started = device.create_event();
  step.done = device.create_event();
  const size_t output_bytes = StepOutputArrays::num_bytes(limits);
  const size_t target_bytes = static_cast<size_t>(limits.max_num_batched_tokens) * sizeof(int32_t);
  ASSIGN_OR_RETURN(step.storage_, device.allocate(output_bytes + target_bytes, MemoryKind::kPinnedHost));
  step.outputs = StepOutputArrays::over(step.storage_, limits);
  step.prompt_target_ids = step.storage_.tensor(DType::kI32, {limits.max_num_batched_tokens}, output_bytes);
  return step;
}

void StepInFlight::take_plan(Device& device, std::span<const std::byte> plan, std::span<const RowUpdate> rows) {
  const size_t bytes = plan.size() + late_mask_bytes(*reinterpret_cast<const StepPlanHeader*>(plan.data()));
  if (plan_.bytes() < bytes) {
    Result<Buffer> larger = device.allocate(std::max<size_t>(2 * bytes, 1 << 16), MemoryKind::kPinnedHost);
    CHECK(larger.ok(), "no memory for a step plan: {}", larger.status().message());
    plan_ = std::move(larger).value();
  }
  std::memcpy(plan_.data(), plan.data(), plan.size());
  note_sampled(rows);
  note_prompts(rows);
  note_pooled();
}

void StepInFlight::reserve_pooled_rows(Device& device, int64_t num_rows, DType dtype, int64_t hidden_size) {
  const size_t bytes = static_cast<size_t>(num_rows * hidden_size * dtype_bytes(dtype));
  if (pooled_storage_.bytes() < bytes) {
    Result<Buffer> larger = device.allocate(bytes, MemoryKind::kPinnedHost);
    CHECK(larger.ok(), "no memory for {} hidden states: {}", num_rows, larger.status().message());
    pooled_storage_ = std::move(larger).value();
  }
  pooled_rows = pooled_storage_.tensor(dtype, {num_rows, hidden_size});
}

std::span<const SeqStep> StepInFlight::seqs() const {
  return {plan_array<SeqStep>(plan(), header().seqs_offset), static_cast<size_t>(header().num_seqs)};
}

void StepInFlight::note_sampled(std::span<const RowUpdate> rows) {
  sampled_num_top_.clear();
  num_top_logprobs_ = -1;
  has_relaxed_ = false;
  wide_rows_.clear();
  wide_logprobs.clear();
  int first_row = 0;
  for (const SeqStep& seq : seqs()) {
    has_relaxed_ |= seq.num_relaxed > 0;
    if ((seq.flags & kSample) == 0) continue;
    const RowSampling& sampling = rows[static_cast<size_t>(seq.row)].sampling;
    const bool wide = is_wide(sampling.num_logprobs);
    sampled_num_top_.push_back(wide ? sampling.num_logprobs : std::min(sampling.num_logprobs, max_top_logprobs_));
    num_top_logprobs_ = std::max(num_top_logprobs_, wide ? 0 : sampled_num_top_.back());
    const int num_rows = num_logits_of(seq);
    if (wide) wide_rows_.push_back({.first_row = first_row, .count = num_rows, .num_top = sampling.num_logprobs});
    first_row += num_rows;
  }
}

// Query token j of a sequence stands at position c + j; its logits speak of the prompt token at c + j + 1.
void StepInFlight::note_prompts(std::span<const RowUpdate> rows) {
  prompts_.clear();
  wide_prompt_logprobs.clear();
  int first_token = 0;
  for (int i = 0; i < header().num_seqs; ++i) {
    const SeqStep& seq = seqs()[static_cast<size_t>(i)];
    if (seq.flags & kPromptLogprobs) {
      const RowUpdate& row = rows[static_cast<size_t>(seq.row)];
      const int num_followed = std::min(seq.query_len, row.sampling.prompt_len - 1 - seq.num_computed_tokens);
      prompts_.push_back({.seq_idx = i,
                          .first_token = first_token,
                          .count = std::max(num_followed, 0),
                          .num_top = is_wide(row.num_prompt_logprobs)
                                         ? row.num_prompt_logprobs
                                         : std::clamp(row.num_prompt_logprobs, 0, max_top_logprobs_)});
    }
    first_token += seq.query_len;
  }
}

void StepInFlight::note_pooled() {
  pooled_.clear();
  int first_token = 0;
  for (const SeqStep& seq : seqs()) {
    if (seq.flags & kPoolFirst) pooled_.push_back({.first_token = first_token, .count = 1});
    if (seq.flags & kPoolLast) pooled_.push_back({.first_token = first_token + seq.query_len - 1, .count = 1});
    if (seq.flags & kPoolSum) pooled_.push_back({.first_token = first_token, .count = seq.query_len});
    first_token += seq.query_len;
  }
}

void StepInFlight::read_result(StepResult& result) const {
  result.step_id = header().step_id;
  read_sampled(result);
  read_pooled(result);
  result.prompt_logprobs.clear();
  int64_t prompt_row = 0;
  size_t wide_idx = 0;
  for (const PromptLogprobs& prompt : prompts_) {
    std::vector<TokenLogprobs>& out = result.prompt_logprobs.emplace_back();
    for (int i = 0; i < prompt.count; ++i, ++prompt_row) {
      if (is_wide(prompt.num_top)) {
        out.push_back(wide_prompt_logprobs[wide_idx++]);
        continue;
      }
      const int32_t token_id = prompt_target_ids.data<int32_t>()[prompt_row];
      out.push_back(logprobs_of(outputs.next_token_ids.dim(0) + prompt_row, token_id, prompt.num_top));
    }
  }
}

// Of the rows of logits of a sequence, those up to the first draft that was not accepted count.
void StepInFlight::read_sampled(StepResult& result) const {
  result.next_token_ids.clear();
  result.num_accepted.clear();
  result.num_relaxed.clear();
  result.logprobs.clear();
  const int32_t* next_token_ids = outputs.next_token_ids.data<int32_t>();
  int32_t first_row = 0;
  size_t sampled_idx = 0, wide_idx = 0;
  for (size_t s = 0; s < seqs().size(); first_row += num_logits_of(seqs()[s++])) {
    if ((seqs()[s].flags & kSample) == 0) continue;
    const int num_top = sampled_num_top_[sampled_idx++];
    const int32_t num_accepted = has_drafts() ? outputs.num_accepted.data<int32_t>()[s] : 0;
    if (has_drafts()) result.num_accepted.push_back(num_accepted);
    if (has_relaxed_) {
      const int32_t* const is_relaxed = outputs.is_relaxed.data<int32_t>() + first_row;
      result.num_relaxed.push_back(std::accumulate(is_relaxed, is_relaxed + num_accepted, 0));
    }
    for (int32_t row = first_row; row <= first_row + num_accepted; ++row) {
      result.next_token_ids.push_back(next_token_ids[row]);
      if (num_top_logprobs_ < 0) continue;
      const size_t offset = static_cast<size_t>(row - first_row);
      result.logprobs.push_back(is_wide(num_top) ? wide_logprobs[wide_idx + offset]
                                                 : logprobs_of(row, next_token_ids[row], num_top));
    }
    if (is_wide(num_top)) wide_idx += static_cast<size_t>(num_logits_of(seqs()[s]));
  }
}

void StepInFlight::read_pooled(StepResult& result) const {
  result.hidden_states.clear();
  int64_t row = 0;
  for (const Pooled& pooled : pooled_) {
    std::vector<float>& sum = result.hidden_states.emplace_back(static_cast<size_t>(pooled_rows.dim(1)), 0.0f);
    for (const int64_t end = row + pooled.count; row < end; ++row) {
      for (size_t i = 0; i < sum.size(); ++i) {
        const size_t at = static_cast<size_t>(row) * sum.size() + i;
        sum[i] += pooled_rows.dtype() == DType::kF32 ? pooled_rows.data<float>()[at]
                                                     : pooled_rows.data<Bf16>()[at].to_float();
      }
    }
  }
}

TokenLogprobs StepInFlight::logprobs_of(int64_t output_row, int32_t token_id, int num_top) const {
  TokenLogprobs entry{.token_id = token_id,
                      .logprob = outputs.target_logprob.data<float>()[output_row],
                      .rank = outputs.target_rank.data<int32_t>()[output_row],
                      .top = {}};
  const int32_t* ids = outputs.top_ids.data<int32_t>() + output_row * kMaxLogprobs;
  const float* values = outputs.top_logprobs.data<float>() + output_row * kMaxLogprobs;
  for (int i = 0; i < num_top; ++i) entry.top.push_back({ids[i], values[i]});
  return entry;
}

}  // namespace spate
