#include "quantizer/layer_runner.h"

#include <algorithm>

namespace spate {
namespace {

constexpr int kKvBlockSize = 16;

// Ops are plain functions: the runner whose step runs on this thread.
thread_local LayerRunner* running = nullptr;

}  // namespace

Result<std::unique_ptr<LayerRunner>> LayerRunner::create(Device& device, const ModelConfig& config,
                                                         const LayerSource& source, int64_t max_tokens,
                                                         int64_t max_seq_len) {
  ModelConfig one_token = config;
  one_token.vocab_size = 1;
  one_token.tie_word_embeddings = true;
  std::unique_ptr<LayerRunner> runner(new LayerRunner(device, one_token));
  runner->ops_ = bind_ops(device.ops()).ops;
  const ModelOptions options{.act_dtype = DType::kF32,
                             .kv_dtype = DType::kF32,
                             .limits = {.max_model_len = static_cast<int>(max_seq_len),
                                        .max_num_batched_tokens = static_cast<int>(max_tokens),
                                        .max_num_logits = 1,
                                        .kv_block_size = kKvBlockSize},
                             .layers = {source.layer_idx(), 1}};
  ASSIGN_OR_RETURN(runner->model_, Model::create(one_token, device, {}, options));
  RETURN_IF_ERROR(runner->model_->load(source));
  runner->products_ = runner->model_->outline().layers.front().products;
  RETURN_IF_ERROR(runner->allocate(max_tokens, max_seq_len));
  return runner;
}

Status LayerRunner::allocate(int64_t max_tokens, int64_t max_seq_len) {
  max_blocks_per_seq_ = (max_seq_len + kKvBlockSize - 1) / kKvBlockSize;
  const int64_t num_blocks = max_tokens / kKvBlockSize + kMaxSeqs;  // the last block of a sequence is part-filled
  ASSIGN_OR_RETURN(kv_, KvStorage::create(device_, model_->kv_layers(), num_blocks));
  const auto ids = static_cast<size_t>(std::max(max_tokens, kMaxSeqs + 1) * 4);
  for (Buffer* buffer : {&token_ids_, &positions_, &slots_, &seq_rows_, &cu_seqlens_, &seq_lens_}) {
    ASSIGN_OR_RETURN(*buffer, device_.allocate(ids, MemoryKind::kDevice));
  }
  ASSIGN_OR_RETURN(block_table_,
                   device_.allocate(static_cast<size_t>(kMaxSeqs * max_blocks_per_seq_ * 4), MemoryKind::kDevice));
  return ok_status();
}

Tensor LayerRunner::upload(Buffer& buffer, const std::vector<int32_t>& values) {
  device_.copy_to_device(*stream_, buffer.data(), values.data(), values.size() * 4);
  device_.synchronize(*stream_);
  return buffer.tensor(DType::kI32, {static_cast<int64_t>(values.size())});
}

// [n, columns] of four bytes each.
HostTensor LayerRunner::download(const Tensor& rows) {
  HostTensor host(rows.dtype(), {rows.dim(0), rows.dim(1)});
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    device_.copy_to_host(*stream_, host.view().rows(i, i + 1).raw(), rows.rows(i, i + 1).raw(),
                         static_cast<size_t>(rows.dim(1) * 4));
  }
  device_.synchronize(*stream_);
  return host;
}

// Products that no layer lists stay floats: routers, those of latent attention.
void LayerRunner::show(const PackedWeight* weight, const Tensor& x) {
  if (!*tap_) return;
  const auto product =
      std::find_if(products_.begin(), products_.end(), [weight](const Product& one) { return one.weight == weight; });
  if (product != products_.end()) (*tap_)(static_cast<size_t>(product - products_.begin()), download(x));
}

void LayerRunner::show_experts(const ExpertMlpParams& p) {
  if (*expert_tap_) (*expert_tap_)(download(p.x), download(p.expert_ids));
}

OpTable LayerRunner::tapped_ops(const OpTable& ops) {
  OpTable tapped = ops;
  tapped.embedding = [](Stream& stream, const EmbeddingParams& p) {
    const Tensor& hidden = running->batch_->hidden_states;
    CHECK(p.out.num_bytes() == hidden.num_bytes() && p.out.is_contiguous(), "{} hidden states for {}",
          hidden.shape_string(), p.out.shape_string());
    running->device_.copy_to_device(stream, p.out.raw(), hidden.raw(), static_cast<size_t>(hidden.num_bytes()));
  };
  tapped.linear = [](Stream& stream, const LinearParams& p) {
    running->show(p.weight, p.x);
    running->ops_.linear(stream, p);
  };
  tapped.linear_silu_and_mul = [](Stream& stream, const LinearSiluAndMulParams& p) {
    running->show(p.weight, p.x);
    running->ops_.linear_silu_and_mul(stream, p);
  };
  tapped.expert_mlp = [](Stream& stream, const ExpertMlpParams& p) {
    running->show_experts(p);
    running->ops_.expert_mlp(stream, p);
  };
  tapped.expert_mlp_add_norm = [](Stream& stream, const ExpertMlpAddNormParams& p) {
    running->show_experts(p.experts);
    running->ops_.expert_mlp_add_norm(stream, p);
  };
  return tapped;
}

HostTensor LayerRunner::run(const HiddenBatch& batch, const Tap& tap, const ExpertTap& expert_tap) {
  const int64_t num_tokens = batch.hidden_states.view().dim(0), num_seqs = static_cast<int64_t>(batch.seq_lens.size());
  CHECK(num_seqs <= kMaxSeqs, "{} sequences", num_seqs);
  std::vector<int32_t> positions, slots, seq_rows, cu_seqlens{0}, seq_lens;
  std::vector<int32_t> block_table(static_cast<size_t>(num_seqs * max_blocks_per_seq_), 0);
  StepBatch step;
  int32_t num_blocks = 0;
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t len = batch.seq_lens[static_cast<size_t>(s)], first_block = num_blocks;
    for (int64_t p = 0; p < len; ++p) {
      if (p % kKvBlockSize == 0)
        block_table[static_cast<size_t>(s * max_blocks_per_seq_ + p / kKvBlockSize)] = num_blocks++;
      positions.push_back(static_cast<int32_t>(p));
      slots.push_back(static_cast<int32_t>(first_block * kKvBlockSize + p));
    }
    seq_rows.push_back(static_cast<int32_t>(s));
    cu_seqlens.push_back(static_cast<int32_t>(positions.size()));
    seq_lens.push_back(static_cast<int32_t>(len));
    step.max_query_len = step.max_seq_len = std::max(step.max_seq_len, static_cast<int>(len));
  }
  step.inputs.token_ids = upload(token_ids_, std::vector<int32_t>(static_cast<size_t>(num_tokens), 0));
  step.inputs.positions = upload(positions_, positions);
  step.inputs.slot_mapping = upload(slots_, slots);
  step.inputs.seq_rows = upload(seq_rows_, seq_rows);
  step.inputs.cu_seqlens_q = upload(cu_seqlens_, cu_seqlens);
  step.inputs.seq_lens = upload(seq_lens_, seq_lens);
  step.block_table = upload(block_table_, block_table).reshaped({num_seqs, max_blocks_per_seq_});

  const OpTable tapped = tapped_ops(ops_);
  const StepContext ctx{
      .stream = *stream_, .ops = tapped, .communicators = communicators_, .batch = step, .kv = kv_.views()};
  running = this;
  batch_ = &batch;
  tap_ = &tap;
  expert_tap_ = &expert_tap;
  const Tensor hidden = model_->forward(ctx);
  running = nullptr;
  HostTensor out(DType::kF32, {num_tokens, config_.hidden_size});
  device_.copy_to_host(*stream_, out.view().raw(), hidden.raw(), static_cast<size_t>(hidden.num_bytes()));
  device_.synchronize(*stream_);
  return out;
}

}  // namespace spate
