#include "rank/rank.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

namespace spate {

Result<std::unique_ptr<Rank>> Rank::create(std::unique_ptr<Device> device, std::unique_ptr<Communicator> communicator,
                                           const ModelConfig& config, const ModelOptions& options,
                                           const StepLimits& limits) {
  std::unique_ptr<Rank> rank(new Rank());
  rank->device_ = std::move(device);
  rank->stream_ = rank->device_->create_stream();
  rank->communicator_ = std::move(communicator);
  rank->bound_ = bind_ops(rank->device_->ops());
  rank->limits_ = limits;
  const TensorParallel tp{.rank = rank->communicator_->rank(), .size = rank->communicator_->size()};
  ASSIGN_OR_RETURN(rank->model_, Model::create(config, *rank->device_, tp, options));
  RETURN_IF_ERROR(rank->allocate_arrays());
  return rank;
}

Status Rank::allocate_arrays() {
  ASSIGN_OR_RETURN(state_, RunningState::create(*device_, *stream_, limits_));
  const int64_t num_seqs = limits_.max_num_seqs, num_tokens = limits_.max_num_batched_tokens;
  ASSIGN_OR_RETURN(arrays_, device_->allocate(static_cast<size_t>(4 * (num_seqs + num_tokens + 1)), MemoryKind::kDevice));
  next_token_ids_ = arrays_.tensor(DType::kI32, {num_seqs});
  arange_ = arrays_.tensor(DType::kI32, {num_tokens + 1}, static_cast<size_t>(4 * num_seqs));
  std::vector<int32_t> iota(static_cast<size_t>(num_tokens + 1));
  std::iota(iota.begin(), iota.end(), 0);
  device_->copy_to_device(*stream_, arange_.raw(), iota.data(), iota.size() * 4);
  device_->synchronize(*stream_);

  LogprobsBuffer& buffer = logprobs_;
  const int64_t n = limits_.max_num_logits;
  const int64_t row_bytes = 4 * (2 + 2 * kMaxLogprobs);
  buffer.capacity = limits_.max_num_logits;
  ASSIGN_OR_RETURN(buffer.device, device_->allocate(static_cast<size_t>(n * row_bytes), MemoryKind::kDevice));
  buffer.host.resize(static_cast<size_t>(n * row_bytes));
  buffer.target_logprob = buffer.device.tensor(DType::kF32, {n});
  buffer.target_rank = buffer.device.tensor(DType::kI32, {n}, static_cast<size_t>(4 * n));
  buffer.top_ids = buffer.device.tensor(DType::kI32, {n, kMaxLogprobs}, static_cast<size_t>(8 * n));
  buffer.top_logprobs =
      buffer.device.tensor(DType::kF32, {n, kMaxLogprobs}, static_cast<size_t>((8 + 4 * kMaxLogprobs) * n));
  row_updates_.resize(static_cast<size_t>(num_seqs));
  return ok_status();
}

int64_t Rank::kv_block_bytes() const {
  int64_t bytes = 0;
  for (const KvGroupDesc& desc : model_->kv_groups()) bytes += device_->kv_block_bytes(desc);
  return bytes;
}

Status Rank::allocate_kv_cache(int64_t num_blocks) {
  ASSIGN_OR_RETURN(kv_cache_, device_->allocate(static_cast<size_t>(num_blocks * kv_block_bytes()), MemoryKind::kDevice));
  char* data = static_cast<char*>(kv_cache_.data());
  for (const KvGroupDesc& desc : model_->kv_groups()) {
    const int64_t block_bytes = device_->kv_block_bytes(desc);
    kv_views_.push_back({.desc = desc, .data = data, .block_bytes = block_bytes, .num_blocks = num_blocks});
    data += block_bytes * num_blocks;
  }
  return ok_status();
}

void Rank::run(std::span<const std::byte> plan, StepResult* result) {
  const auto start = std::chrono::steady_clock::now();
  CHECK(plan.size() >= sizeof(StepPlanHeader), "a plan of {} bytes", plan.size());
  StepPlanHeader header;
  std::memcpy(&header, plan.data(), sizeof header);
  CHECK(header.magic == kStepPlanMagic && header.version == kStepPlanVersion && header.total_bytes == plan.size(),
        "step plan: magic {:x} version {} bytes {} of {}", header.magic, header.version, header.total_bytes, plan.size());
  CHECK(header.num_logits == header.num_sampled && header.num_masks == 0, "step plan: drafts and masks do not run yet");
  plan_host_ = plan;
  remember_row_updates(header, plan.data());

  if (plan_device_.bytes() < plan.size()) {
    Result<Buffer> larger = device_->allocate(std::max<size_t>(2 * plan.size(), 1 << 16), MemoryKind::kDevice);
    CHECK(larger.ok(), "no memory for a step plan: {}", larger.status().message());
    device_->synchronize(*stream_);
    plan_device_ = std::move(larger).value();
  }
  device_->copy_to_device(*stream_, plan_device_.data(), plan.data(), plan.size());
  const StepKey key{.num_seqs = header.num_seqs, .num_tokens = header.num_tokens, .max_query_len = header.max_query_len};
  if (result != nullptr) {
    result->step_id = header.step_id;
    result->next_token_ids.clear();
    result->logprobs.clear();
    result->prompt_logprobs.clear();
  }
  device_->run_step(*stream_, key, [&] { run_on_device(header, plan_device_.data(), result); });
  device_->synchronize(*stream_);
  if (result != nullptr) {
    result->device_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

void Rank::remember_row_updates(const StepPlanHeader& plan, const void* bytes) {
  const RowUpdate* updates = plan_array<RowUpdate>(bytes, plan.row_updates_offset);
  for (int i = 0; i < plan.num_row_updates; ++i) row_updates_[static_cast<size_t>(updates[i].row)] = updates[i];
}

void Rank::run_on_device(const StepPlanHeader& plan, const void* plan_device, StepResult* result) {
  const OpTable& ops = bound_.ops;
  if (plan.num_block_copies > 0) {
    char* copies = static_cast<char*>(const_cast<void*>(plan_device)) + plan.block_copies_offset;
    const Tensor src_dst(copies, DType::kI32, {plan.num_block_copies, 2});
    for (const KvView& kv : kv_views_) ops.kv_copy_blocks(*stream_, {.kv = kv, .src_dst = src_dst});
  }
  const StepPlanHeader* header_host = reinterpret_cast<const StepPlanHeader*>(plan_host_.data());
  ops.begin_step(*stream_, {.plan_host = header_host,
                            .plan = plan_device,
                            .state = state_.rows(),
                            .inputs = state_.all_inputs(),
                            .kv_block_size = limits_.kv_block_size});
  const StepInputs inputs = state_.inputs(plan.num_tokens, plan.num_seqs, plan.num_sampled);
  StepBatch batch = step_batch(state_.all_inputs(), state_.rows(), plan);
  if (plan.num_prompt_logprobs == 0 && 2 * plan.num_sampled <= plan.num_tokens) {
    batch.output_rows = inputs.sample_rows;
    batch.arange = arange_;
  }
  const StepContext ctx{
      .stream = *stream_, .ops = ops, .communicator = *communicator_, .batch = batch, .kv = kv_views_};
  model_->forward(ctx);
  sample(ctx, plan, inputs, result);
  ops.finish_step(*stream_, {.plan_host = header_host,
                             .plan = plan_device,
                             .state = state_.rows(),
                             .next_token_ids = next_token_ids_.rows(0, plan.num_sampled)});
  if (plan.num_prompt_logprobs > 0) {
    StepResult unused;
    compute_prompt_logprobs(ctx, plan, plan_host_.data(), result != nullptr ? *result : unused);
  }
}

void Rank::sample(const StepContext& ctx, const StepPlanHeader& plan, const StepInputs& inputs, StepResult* result) {
  if (plan.num_sampled == 0) return;
  std::vector<int32_t> num_top;  // of each sampled sequence; empty when no one asked
  const SeqStep* seqs = plan_array<SeqStep>(plan_host_.data(), plan.seqs_offset);
  bool any_logprobs = false;
  for (int i = 0; i < plan.num_seqs; ++i) {
    if ((seqs[i].flags & kSample) == 0) continue;
    num_top.push_back(row_updates_[static_cast<size_t>(seqs[i].row)].sampling.num_logprobs);
    any_logprobs |= num_top.back() >= 0;
  }
  for (int begin = 0; begin < plan.num_sampled; begin += limits_.max_num_logits) {
    const int end = std::min(plan.num_sampled, begin + limits_.max_num_logits);
    const Tensor& rows = ctx.batch.output_rows.defined() ? arange_ : inputs.sample_rows;
    const Tensor logits = model_->compute_logits(ctx, rows.rows(begin, end));
    if (communicator_->rank() != 0) continue;
    const Tensor next_token_ids = next_token_ids_.rows(begin, end);
    ctx.ops.sample(*stream_, {.logits = logits,
                              .sample_seqs = inputs.sample_seqs.rows(begin, end),
                              .state = state_.rows(),
                              .next_token_ids = next_token_ids});
    if (any_logprobs) {
      compute_logprobs(logits, next_token_ids,
                       std::span<const int32_t>(num_top).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                       result->logprobs);
    }
  }
  static_cast<void>(communicator_->broadcast(*stream_, next_token_ids_.rows(0, plan.num_sampled)));
  if (communicator_->rank() == 0) {
    result->next_token_ids.resize(static_cast<size_t>(plan.num_sampled));
    device_->copy_to_host(*stream_, result->next_token_ids.data(), next_token_ids_.raw(),
                          static_cast<size_t>(4 * plan.num_sampled));
  }
}

void Rank::compute_prompt_logprobs(const StepContext& ctx, const StepPlanHeader& plan, const void* bytes,
                                   StepResult& result) {
  const SeqStep* seqs = plan_array<SeqStep>(bytes, plan.seqs_offset);
  int token_begin = 0;  // of the sequence in the step's tokens
  for (int i = 0; i < plan.num_seqs; token_begin += seqs[i++].query_len) {
    if ((seqs[i].flags & kPromptLogprobs) == 0) continue;
    std::vector<TokenLogprobs>& out = result.prompt_logprobs.emplace_back();
    // Query token j stands at position c + j; its logits speak of the prompt token at c + j + 1.
    const int c = seqs[i].num_computed_tokens;
    const RowUpdate& row = row_updates_[static_cast<size_t>(seqs[i].row)];
    const int count = std::min(seqs[i].query_len, row.sampling.prompt_len - 1 - c);
    const std::vector<int32_t> num_top(static_cast<size_t>(std::max(count, 0)), row.num_prompt_logprobs);
    for (int begin = 0; begin < count; begin += limits_.max_num_logits) {
      const int end = std::min(count, begin + limits_.max_num_logits);
      const Tensor logits = model_->compute_logits(ctx, arange_.rows(token_begin + begin, token_begin + end));
      if (communicator_->rank() != 0) continue;
      const Tensor targets = state_.rows()
                                 .token_ids.rows(seqs[i].row, seqs[i].row + 1)
                                 .columns(c + begin + 1, c + end + 1)
                                 .reshaped({end - begin});
      compute_logprobs(logits, targets, std::span<const int32_t>(num_top).subspan(0, static_cast<size_t>(end - begin)), out);
    }
  }
}

void Rank::compute_logprobs(const Tensor& logits, const Tensor& target_ids, std::span<const int32_t> num_top,
                            std::vector<TokenLogprobs>& out) {
  LogprobsBuffer& buffer = logprobs_;
  const int64_t n = logits.dim(0);
  const int64_t most_asked = *std::max_element(num_top.begin(), num_top.end());
  const int64_t max_top = std::min<int64_t>(std::max<int64_t>(most_asked, 0), logits.dim(1));
  Tensor top_ids, top_logprobs;  // undefined when no one asked for top ones
  if (max_top > 0) {
    top_ids = buffer.top_ids.rows(0, n).columns(0, max_top);
    top_logprobs = buffer.top_logprobs.rows(0, n).columns(0, max_top);
  }
  bound_.ops.logprobs(*stream_, {.logits = logits,
                                 .target_ids = target_ids,
                                 .target_logprob = buffer.target_logprob.rows(0, n),
                                 .target_rank = buffer.target_rank.rows(0, n),
                                 .top_ids = top_ids,
                                 .top_logprobs = top_logprobs});
  std::vector<int32_t> target_ids_host(static_cast<size_t>(n));
  device_->copy_to_host(*stream_, target_ids_host.data(), target_ids.raw(), target_ids_host.size() * 4);
  device_->copy_to_host(*stream_, buffer.host.data(), buffer.device.data(), buffer.host.size());
  device_->synchronize(*stream_);

  const int64_t capacity = buffer.capacity;
  const float* logprob = reinterpret_cast<const float*>(buffer.host.data());
  const int32_t* rank = reinterpret_cast<const int32_t*>(buffer.host.data()) + capacity;
  const int32_t* ids = rank + capacity;
  const float* values = reinterpret_cast<const float*>(ids + capacity * kMaxLogprobs);
  for (int64_t i = 0; i < n; ++i) {
    TokenLogprobs& entry = out.emplace_back();
    entry.token_id = target_ids_host[static_cast<size_t>(i)];
    entry.logprob = logprob[i];
    entry.rank = rank[i];
    const int64_t wanted = std::min<int64_t>(num_top[static_cast<size_t>(i)], max_top);
    for (int64_t j = 0; j < wanted; ++j) {
      entry.top.push_back({ids[i * kMaxLogprobs + j], values[i * kMaxLogprobs + j]});
    }
  }
}

}  // namespace spate
