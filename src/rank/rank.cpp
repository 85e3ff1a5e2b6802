#include "rank/rank.h"

#include <algorithm>

#include "rank/host_logprobs.h"

namespace spate {

namespace {

constexpr int kMaxPlanGenerations = 1 << 20;  // of one rank: plans double in size from one to the next
constexpr int kMaxRanksOfDevice = 1 << 4;

}  // namespace

Result<std::unique_ptr<Rank>> Rank::create(std::shared_ptr<Device> device, Communicators communicators,
                                           const ModelConfig& config, const ModelOptions& options,
                                           const StepLimits& limits, int rank_of_device) {
  std::unique_ptr<Rank> rank(new Rank());
  rank->device_ = std::move(device);
  rank->stream_ = rank->device_->create_stream();
  rank->communicators_ = std::move(communicators);
  rank->communicator_ = rank->communicators_.tp.get();
  rank->bound_ = bind_ops(rank->device_->ops());
  rank->limits_ = limits;
  rank->min_expanded_query_len_ = options.min_expanded_query_len;
  rank->plan_generation_ = rank_of_device * kMaxPlanGenerations;
  const TensorParallel tp{.rank = rank->communicator_->rank(), .size = rank->communicator_->size()};
  ASSIGN_OR_RETURN(rank->whole_model_, Model::create(config, *rank->device_, tp, options));
  rank->model_ = rank->whole_model_.get();
  RETURN_IF_ERROR(rank->allocate());
  return rank;
}

Result<std::unique_ptr<Rank>> Rank::create_beside(const Rank& other, StepModel& model, Communicators communicators,
                                                  int rank_of_device) {
  std::unique_ptr<Rank> rank(new Rank());
  rank->device_ = other.device_;
  rank->stream_ = other.stream_;
  rank->communicators_ = std::move(communicators);
  rank->communicator_ = rank->communicators_.tp.get();
  rank->bound_ = other.bound_;
  rank->limits_ = other.limits_;
  rank->min_expanded_query_len_ = other.min_expanded_query_len_;
  rank->plan_generation_ = rank_of_device * kMaxPlanGenerations;
  rank->model_ = &model;
  RETURN_IF_ERROR(rank->allocate());
  return rank;
}

Rank::~Rank() {
  if (stream_ != nullptr) device_->synchronize(*stream_);  // steps that nobody finished use what is freed now
}

Status Rank::allocate() {
  ASSIGN_OR_RETURN(state_, RunningState::create(*device_, *stream_, limits_));
  mask_stream_ = device_->create_stream();
  masks_copied_ = device_->create_event();
  for (StepInFlight& step : steps_) {
    ASSIGN_OR_RETURN(step, StepInFlight::create(*device_, limits_, max_top_logprobs()));
  }
  row_updates_.resize(static_cast<size_t>(limits_.max_num_seqs));
  return ok_status();
}

int Rank::max_top_logprobs() const {
  return static_cast<int>(std::min<int64_t>(kMaxLogprobs, model_->config().vocab_size));
}

Status Rank::allocate_kv_cache(int64_t num_blocks) {
  ASSIGN_OR_RETURN(kv_cache_, KvStorage::create(*device_, model_->kv_layers(), num_blocks));
  return ok_status();
}

void Rank::launch(std::span<const std::byte> plan, const DraftStep& draft_step, const WaitForMasks& wait_for_masks) {
  draft_step_ = draft_step;
  StepInFlight& step = steps_[num_launched_++ % kMaxInFlight];
  step.done->host_wait();  // returns at once on rank 0, whose steps are finished in time
  step.started->record(*stream_);
  // Behind a lost peer the device's state is unspecified: nothing more is computed from it.
  if (!communicators_.error().ok()) return step.done->record(*stream_);
  copy_plan(plan, step);
  const StepKey key = step_key(step);
  apply(step);
  run_step(key, step, wait_for_masks);
  read(key, step);
  static_cast<void>(communicators_.error());  // the end of one group reaches the rank's other groups now
  step.done->record(*stream_);
}

Status Rank::finish(StepResult& result) {
  StepInFlight& step = steps_[num_finished_++ % kMaxInFlight];
  step.done->host_wait();
  RETURN_IF_ERROR(communicators_.error());
  step.read_result(result);
  result.device_seconds = step.done->seconds_since(*step.started);
  return ok_status();
}

void Rank::copy_plan(std::span<const std::byte> plan, StepInFlight& step) {
  CHECK(plan.size() >= sizeof(StepPlanHeader), "a plan of {} bytes", plan.size());
  const auto& header = *reinterpret_cast<const StepPlanHeader*>(plan.data());
  CHECK(header.magic == kStepPlanMagic && header.version == kStepPlanVersion && header.total_bytes == plan.size(),
        "step plan: magic {:x} version {} bytes {} of {}", header.magic, header.version, header.total_bytes,
        plan.size());
  const auto* updates = plan_array<RowUpdate>(plan.data(), header.row_updates_offset);
  for (int i = 0; i < header.num_row_updates; ++i) row_updates_[static_cast<size_t>(updates[i].row)] = updates[i];
  step.take_plan(*device_, plan, row_updates_);

  const size_t bytes = plan.size() + late_mask_bytes(header);
  if (plan_device_.bytes() < bytes) {
    Result<Buffer> larger = device_->allocate(std::max<size_t>(2 * bytes, 1 << 16), MemoryKind::kDevice);
    CHECK(larger.ok(), "no memory for a step plan: {}", larger.status().message());
    if (plan_device_.data() != nullptr) device_->synchronize(*stream_);
    plan_device_ = std::move(larger).value();
    ++plan_generation_;
  }
  device_->copy_to_device(*stream_, plan_device_.data(), step.plan(), plan.size());
}

StepKey Rank::step_key(const StepInFlight& step) const {
  const StepPlanHeader& plan = step.header();
  StepKey exact{.num_seqs = plan.num_seqs,
                .num_tokens = plan.num_tokens,
                .num_logits = plan.num_logits,
                .max_query_len = plan.max_query_len,
                .max_seq_len = plan.max_seq_len,
                .num_top_logprobs = step.num_top_logprobs(),
                // A step of one layer is never replayed for another.
                .plan_generation = plan_generation_ + draft_step_.layer_idx * kMaxRanksOfDevice * kMaxPlanGenerations,
                .long_prompts = long_prompts_of(step.seqs(), min_expanded_query_len_)};
  if (plan.num_prompt_logprobs == 0 && step.pooled().empty() && step.wide_rows().empty()) {
    const bool one_of_each = plan.num_sampled == plan.num_seqs && plan.num_logits == plan.num_seqs;
    exact.outputs = one_of_each ? StepOutputs::kSampledAllSeqs : StepOutputs::kSampledTokens;
  }
  if ((follower_ != nullptr && follower_->needs_all_tokens()) || draft_step_.needs_all_tokens) {
    exact.outputs = StepOutputs::kAllTokens;
  }
  if (model_->reads_next_tokens()) {
    exact.decodes_only = std::ranges::all_of(step.seqs(), [](const SeqStep& seq) { return seq.phase == SeqPhase::kDecode; });
  }
  const StepKey largest = largest_step(limits_);
  StepKey key = device_->padded_step(exact, largest);
  if (key.outputs == StepOutputs::kSampledAllSeqs) key.num_logits = key.num_seqs;
  if (2 * key.num_logits > key.num_tokens) key.outputs = StepOutputs::kAllTokens;
  key.num_top_logprobs = std::min(key.num_top_logprobs, max_top_logprobs());
  const auto check = [](const char* name, int count, int padded, int limit) {
    CHECK(count <= padded && padded <= limit, "a step of {} {} is padded to {}, at most {}", name, count, padded,
          limit);
  };
  check("num_seqs", exact.num_seqs, key.num_seqs, largest.num_seqs);
  check("num_tokens", exact.num_tokens, key.num_tokens, largest.num_tokens);
  check("num_logits", exact.num_logits, key.num_logits, largest.num_logits);
  check("max_query_len", exact.max_query_len, key.max_query_len, largest.max_query_len);
  check("max_seq_len", exact.max_seq_len, key.max_seq_len, largest.max_seq_len);
  return key;
}

void Rank::apply(const StepInFlight& step) {
  const StepPlanHeader& plan = step.header();
  if (plan.num_block_copies > 0) {
    const Tensor src_dst(static_cast<char*>(plan_device_.data()) + plan.block_copies_offset, DType::kI32,
                         {plan.num_block_copies, 2});
    for (const KvView& kv : kv_cache_.views()) bound_.ops.kv_copy_blocks(*stream_, {.kv = kv, .src_dst = src_dst});
    if (follower_ != nullptr) follower_->copy_blocks(*stream_, bound_.ops, src_dst);
  }
  bound_.ops.apply_updates(*stream_, {.plan_host = &plan, .plan = plan_device_.data(), .state = state_.rows()});
}

StepBatch Rank::batch(const StepKey& key) const {
  StepBatch batch = step_batch(state_.inputs(key), state_.rows(), key);
  batch.arange = state_.arange();
  return batch;
}

// Shifted where the model wants the tokens behind those of the step: a row's tokens are one array.
RowState Rank::read_rows() const {
  RowState rows = state_.rows();
  if (model_->reads_next_tokens()) {
    rows.token_ids = rows.token_ids.columns(1 + draft_step_.layer_idx, rows.token_ids.dim(1));
  }
  return rows;
}

// Late masks come behind the forward pass: the token that they follow from is known about when the pass begins.
void Rank::run_step(StepKey key, StepInFlight& step, const WaitForMasks& wait_for_masks) {
  if (step.header().masks_are_late == 0) {
    return device_->run_step(*stream_, key, [this, key] { sample_and_finish(key, forward(key)); });
  }
  key.part = StepPart::kForward;
  device_->run_step(*stream_, key, [this, key] { forward(key); });
  if (communicator_->rank() == 0) {
    CHECK(wait_for_masks != nullptr, "step {} has late masks, which nobody supplies", step.header().step_id);
    copy_late_masks(step, wait_for_masks());
  }
  key.part = StepPart::kSample;
  device_->run_step(*stream_, key, [this, key] { sample_and_finish(key, model_->hidden_states(batch(key))); });
}

// Masks come when the step before has been collected, so nothing reads their place any more and they are copied beside
// the forward pass.
void Rank::copy_late_masks(StepInFlight& step, std::span<const uint32_t> masks) {
  const std::span<uint32_t> place = step.late_masks();
  char* const dst = static_cast<char*>(plan_device_.data()) + step.header().masks_offset;
  if (masks.empty()) {
    std::ranges::fill(place, ~uint32_t{0});
    return device_->copy_to_device(*stream_, dst, place.data(), place.size_bytes());
  }
  CHECK(masks.size() == place.size(), "{} words of masks for {}", masks.size(), place.size());
  std::ranges::copy(masks, place.begin());
  device_->copy_to_device(*mask_stream_, dst, place.data(), place.size_bytes());
  masks_copied_->record(*mask_stream_);
  masks_copied_->stream_wait(*stream_);
}

// Nothing here may depend on the plan: a device may replay it for another one of the same key.
Tensor Rank::forward(const StepKey& key) {
  const OpTable& ops = bound_.ops;
  const void* plan = plan_device_.data();
  ops.begin_step(
      *stream_,
      {.plan = plan, .state = read_rows(), .inputs = state_.inputs(key), .kv_block_size = limits_.kv_block_size});
  const StepBatch step_batch = batch(key);
  const StepContext ctx{
      .stream = *stream_, .ops = ops, .communicators = communicators_, .batch = step_batch, .kv = kv_cache_.views()};
  const Tensor hidden_states = model_->forward(ctx);
  if (follower_ != nullptr) follower_->follow(ctx, hidden_states);
  return hidden_states;
}

// As forward().
void Rank::sample_and_finish(const StepKey& key, const Tensor& hidden_states) {
  const OpTable& ops = bound_.ops;
  const StepBatch step_batch = batch(key);
  const StepContext ctx{
      .stream = *stream_, .ops = ops, .communicators = communicators_, .batch = step_batch, .kv = kv_cache_.views()};
  if (key.num_logits > 0) sample(ctx, hidden_states, key);
  ops.finish_step(*stream_, {.plan = plan_device_.data(),
                             .state = state_.rows(),
                             .num_seqs = key.num_seqs,
                             .next_token_ids = state_.outputs().next_token_ids.rows(0, key.num_logits),
                             .num_accepted = state_.outputs().num_accepted});
}

// Log-probabilities are computed here and not in read(), because the logits of a piece live until the next one.
void Rank::sample(const StepContext& ctx, const Tensor& hidden_states, const StepKey& key) {
  const StepInputs inputs = state_.inputs(key);
  const Tensor& rows = key.outputs == StepOutputs::kAllTokens ? inputs.sample_token_idxs : state_.arange();
  for (int begin = 0; begin < key.num_logits; begin += limits_.max_num_logits) {
    const int end = std::min(key.num_logits, begin + limits_.max_num_logits);
    const Tensor logits = model_->compute_logits(ctx, hidden_states, rows.rows(begin, end));
    if (communicator_->rank() != 0) continue;
    const Tensor next_token_ids = state_.outputs().next_token_ids.rows(begin, end);
    ctx.ops.sample(*stream_, {.logits = logits,
                              .sample_state_rows = inputs.sample_state_rows.rows(begin, end),
                              .sample_offsets = inputs.sample_offsets.rows(begin, end),
                              .sample_masks = inputs.sample_masks.rows(begin, end),
                              .sample_drafts = inputs.sample_drafts.rows(begin, end),
                              .plan = plan_device_.data(),
                              .state = state_.rows(),
                              .next_token_ids = next_token_ids,
                              .is_relaxed = state_.outputs().is_relaxed.rows(begin, end)});
    if (key.num_top_logprobs >= 0) compute_logprobs(logits, next_token_ids, begin, key.num_top_logprobs);
  }
  static_cast<void>(communicator_->broadcast(*stream_, state_.outputs().next_token_ids.rows(0, key.num_logits)));
}

void Rank::read(const StepKey& key, StepInFlight& step) {
  if (!step.prompts().empty() || !step.pooled().empty() || !step.wide_rows().empty()) {
    const StepBatch step_batch = batch(key);
    const StepContext ctx{.stream = *stream_,
                          .ops = bound_.ops,
                          .communicators = communicators_,
                          .batch = step_batch,
                          .kv = kv_cache_.views()};
    if (!step.prompts().empty()) read_prompt_logprobs(ctx, step);
    if (!step.wide_rows().empty()) read_wide_logprobs(ctx, key, step);
    if (communicator_->rank() == 0) read_hidden_states(ctx, step);
  }
  if (communicator_->rank() != 0) return;
  const StepPlanHeader& plan = step.header();
  copy_rows(step.outputs.next_token_ids, state_.outputs().next_token_ids, 0, plan.num_logits);
  if (step.has_drafts()) copy_rows(step.outputs.num_accepted, state_.outputs().num_accepted, 0, plan.num_seqs);
  if (step.has_relaxed()) copy_rows(step.outputs.is_relaxed, state_.outputs().is_relaxed, 0, plan.num_logits);
  if (key.num_top_logprobs >= 0) copy_logprobs(step, 0, plan.num_logits, key.num_top_logprobs > 0);
}

void Rank::read_prompt_logprobs(const StepContext& ctx, StepInFlight& step) {
  const Tensor hidden_states = model_->hidden_states(ctx.batch);
  int num_rows = 0, most_top = 0;
  for (const StepInFlight::PromptLogprobs& prompt : step.prompts()) {
    const SeqStep& seq = step.seqs()[static_cast<size_t>(prompt.seq_idx)];
    const Tensor prompt_ids = state_.rows().token_ids.rows(seq.row, seq.row + 1);
    for (int begin = 0; begin < prompt.count; begin += limits_.max_num_logits) {
      const int end = std::min(prompt.count, begin + limits_.max_num_logits);
      const Tensor row_ids = state_.arange().rows(prompt.first_token + begin, prompt.first_token + end);
      const Tensor logits = model_->compute_logits(ctx, hidden_states, row_ids);
      if (communicator_->rank() != 0) continue;
      const int first_target = seq.num_computed_tokens + 1 + begin, count = end - begin;
      const Tensor targets = prompt_ids.columns(first_target, first_target + count).reshaped({count});
      const bool is_wide = step.is_wide(prompt.num_top);
      if (is_wide) wait_for_logprobs(logits, targets, prompt.num_top, step.wide_prompt_logprobs);
      if (!is_wide) compute_logprobs(logits, targets, limits_.max_sampled_rows() + num_rows, prompt.num_top);
      device_->copy_to_host(*stream_, step.prompt_target_ids.rows(num_rows, num_rows + count).raw(), targets.raw(),
                            static_cast<size_t>(targets.num_bytes()));
      num_rows += count;
      if (!is_wide) most_top = std::max(most_top, prompt.num_top);
    }
  }
  if (communicator_->rank() == 0) copy_logprobs(step, limits_.max_sampled_rows(), num_rows, most_top > 0);
}

// The logits are computed again: those of the step may be gone, and a replayed step copies nothing to the host.
void Rank::read_wide_logprobs(const StepContext& ctx, const StepKey& key, StepInFlight& step) {
  const Tensor hidden_states = model_->hidden_states(ctx.batch);
  const StepInputs inputs = state_.inputs(key);
  for (const StepInFlight::WideRows& wide : step.wide_rows()) {
    for (int begin = wide.first_row; begin < wide.first_row + wide.count; begin += limits_.max_num_logits) {
      const int end = std::min(wide.first_row + wide.count, begin + limits_.max_num_logits);
      const Tensor logits = model_->compute_logits(ctx, hidden_states, inputs.sample_token_idxs.rows(begin, end));
      if (communicator_->rank() != 0) continue;
      wait_for_logprobs(logits, state_.outputs().next_token_ids.rows(begin, end), wide.num_top, step.wide_logprobs);
    }
  }
}

// The device stands still meanwhile. Only requests for more than kMaxLogprobs cost that, and the memory of some rows.
void Rank::wait_for_logprobs(const Tensor& logits, const Tensor& target_ids, int num_top,
                             std::vector<TokenLogprobs>& out) {
  constexpr int64_t kRowsAtOnce = 8;
  const int64_t vocab_size = model_->config().vocab_size, stride = logits.stride(0);
  const size_t ids_offset = static_cast<size_t>(kRowsAtOnce * stride) * sizeof(float);
  if (wide_logits_.bytes() == 0) {
    Result<Buffer> buffer = device_->allocate(ids_offset + kRowsAtOnce * sizeof(int32_t), MemoryKind::kPinnedHost);
    CHECK(buffer.ok(), "no memory for {} rows of logits: {}", kRowsAtOnce, buffer.status().message());
    wide_logits_ = std::move(buffer).value();
  }
  auto* const rows = static_cast<float*>(wide_logits_.data());
  auto* const ids = reinterpret_cast<int32_t*>(static_cast<char*>(wide_logits_.data()) + ids_offset);
  for (int64_t begin = 0; begin < logits.dim(0); begin += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, logits.dim(0) - begin);
    device_->copy_to_host(*stream_, rows, logits.rows(begin, begin + count).raw(),
                          static_cast<size_t>((count - 1) * stride + vocab_size) * sizeof(float));
    device_->copy_to_host(*stream_, ids, target_ids.rows(begin, begin + count).raw(),
                          static_cast<size_t>(count) * sizeof(int32_t));
    device_->synchronize(*stream_);
    for (int64_t i = 0; i < count; ++i) {
      const std::span row(rows + i * stride, static_cast<size_t>(vocab_size));
      out.push_back(logprobs_of_logits(row, ids[i], num_top));
    }
  }
}

// The host adds them up: it has the time, and the device needs no op for it.
void Rank::read_hidden_states(const StepContext& ctx, StepInFlight& step) {
  const Tensor hidden_states = model_->hidden_states(ctx.batch);
  int num_rows = 0;
  for (const StepInFlight::Pooled& pooled : step.pooled()) num_rows += pooled.count;
  if (num_rows > 0) step.reserve_pooled_rows(*device_, num_rows, hidden_states.dtype(), model_->config().hidden_size);
  num_rows = 0;
  for (const StepInFlight::Pooled& pooled : step.pooled()) {
    for (int begin = 0; begin < pooled.count; begin += limits_.max_num_logits) {
      const int end = std::min(pooled.count, begin + limits_.max_num_logits);
      const Tensor row_ids = state_.arange().rows(pooled.first_token + begin, pooled.first_token + end);
      const Tensor rows = whole_model_->compute_normed(ctx, hidden_states, row_ids);
      device_->copy_to_host(*stream_, step.pooled_rows.rows(num_rows, num_rows + end - begin).raw(), rows.raw(),
                            static_cast<size_t>(rows.num_bytes()));
      num_rows += end - begin;
    }
  }
}

void Rank::compute_logprobs(const Tensor& logits, const Tensor& target_ids, int64_t first_output_row, int num_top) {
  const StepOutputArrays& outputs = state_.outputs();
  const int64_t end = first_output_row + logits.dim(0);
  const auto top = [&](const Tensor& all) {
    return num_top > 0 ? all.rows(first_output_row, end).columns(0, num_top) : Tensor();
  };
  bound_.ops.logprobs(*stream_, {.logits = logits,
                                 .target_ids = target_ids,
                                 .target_logprob = outputs.target_logprob.rows(first_output_row, end),
                                 .target_rank = outputs.target_rank.rows(first_output_row, end),
                                 .top_ids = top(outputs.top_ids),
                                 .top_logprobs = top(outputs.top_logprobs)});
}

void Rank::copy_logprobs(StepInFlight& step, int64_t first_row, int64_t num_rows, bool with_top) {
  const StepOutputArrays& from = state_.outputs();
  copy_rows(step.outputs.target_logprob, from.target_logprob, first_row, num_rows);
  copy_rows(step.outputs.target_rank, from.target_rank, first_row, num_rows);
  if (!with_top) return;
  copy_rows(step.outputs.top_ids, from.top_ids, first_row, num_rows);
  copy_rows(step.outputs.top_logprobs, from.top_logprobs, first_row, num_rows);
}

void Rank::copy_rows(const Tensor& host, const Tensor& device, int64_t first_row, int64_t num_rows) {
  const Tensor rows = device.rows(first_row, first_row + num_rows);
  device_->copy_to_host(*stream_, host.rows(first_row, first_row + num_rows).raw(), rows.raw(),
                        static_cast<size_t>(rows.num_bytes()));
}

}  // namespace spate
