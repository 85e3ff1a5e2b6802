#include "rank/mtp_drafter.h"

#include <utility>

#include "backend/kv_storage.h"

namespace spate {
namespace {

int64_t hidden_row_bytes(const ModelConfig& config, DType act_dtype) { return config.hidden_size * dtype_bytes(act_dtype); }

// Rows of hidden states: of a step's tokens, and of the running sequences.
int64_t num_buffer_rows(const StepLimits& limits) { return int64_t{limits.max_num_batched_tokens} + limits.max_num_seqs; }

}  // namespace

// The layer as what a rank runs.
class MtpDrafter::Layer final : public StepModel {
 public:
  Layer(Model& model, Device& device, const ModelOptions& options)
      : model_(model), device_(device), act_dtype_(options.act_dtype), limits_(options.limits) {}

  Status allocate() {
    const int64_t num_tokens = limits_.max_num_batched_tokens, num_seqs = limits_.max_num_seqs;
    const int64_t width = config().hidden_size, row_bytes = hidden_row_bytes(config(), act_dtype_);
    ASSIGN_OR_RETURN(buffer_, device_.allocate(static_cast<size_t>(num_buffer_rows(limits_) * row_bytes), MemoryKind::kDevice));
    const auto rows = [&](int64_t begin, int64_t count) {
      return buffer_.tensor(act_dtype_, {count, width}, static_cast<size_t>(begin * row_bytes));
    };
    known_ = rows(0, num_tokens);
    newest_of_row_ = rows(num_tokens, num_seqs);
    return ok_status();
  }

  Status allocate_store(int64_t num_blocks) {
    const int64_t num_slots = num_blocks * limits_.kv_block_size;
    const auto bytes = static_cast<size_t>(num_slots * hidden_row_bytes(config(), act_dtype_));
    ASSIGN_OR_RETURN(store_buffer_, device_.allocate(bytes, MemoryKind::kDevice));
    store_ = store_buffer_.tensor(act_dtype_, {num_slots, config().hidden_size});
    return ok_status();
  }

  int64_t store_block_bytes() const { return limits_.kv_block_size * hidden_row_bytes(config(), act_dtype_); }

  void keep(const StepContext& ctx, const Tensor& hidden_states) const {
    ctx.ops.scatter_rows(ctx.stream, {.x = hidden_states, .row_ids = ctx.batch.inputs.slot_mapping, .out = store_});
  }

  void copy_blocks(Stream& stream, const OpTable& ops, const Tensor& src_dst) const {
    const KvLayerDesc desc{.kind = KvKind::kLatent,
                           .kv_lora_rank = config().hidden_size,
                           .kv_block_size = limits_.kv_block_size,
                           .dtype = act_dtype_};
    const int64_t block_bytes = store_block_bytes();
    ops.kv_copy_blocks(stream, {.kv = {.desc = desc,
                                       .data = store_.raw(),
                                       .block_bytes = block_bytes,
                                       .num_blocks = store_.dim(0) / limits_.kv_block_size},
                                .src_dst = src_dst});
  }

  const std::vector<KvLayerDesc>& kv_layers() const override { return model_.mtp_kv_layers(); }
  const ModelConfig& config() const override { return model_.config(); }
  bool reads_next_tokens() const override { return true; }

  Tensor forward(const StepContext& ctx) override {
    const StepInputs& inputs = ctx.batch.inputs;
    const Tensor known = known_.rows(0, ctx.batch.num_tokens());
    if (ctx.batch.decodes_only) {
      CHECK(ctx.batch.num_seqs() == ctx.batch.num_tokens(), "{} sequences draft {} tokens", ctx.batch.num_seqs(),
            ctx.batch.num_tokens());
      ctx.ops.gather_rows(ctx.stream, {.x = newest_of_row_, .row_ids = inputs.seq_rows, .out = known});
    } else {
      ctx.ops.gather_rows(ctx.stream, {.x = store_, .row_ids = inputs.slot_mapping, .out = known});
    }
    const Tensor out =
        model_.mtp_forward(ctx, {.hidden_states = known, .source_idx = ctx.batch.decodes_only ? 0 : -1});
    keep_newest(ctx, out);
    return out;
  }

  Tensor hidden_states(const StepBatch& batch) const override { return model_.hidden_states(batch); }

  Tensor compute_logits(const StepContext& ctx, const Tensor& hidden_states, const Tensor& row_ids) override {
    return model_.compute_mtp_logits(ctx, 0, hidden_states, row_ids);
  }

 private:
  // Of the sampled tokens: the step that drafts the next one reads them.
  void keep_newest(const StepContext& ctx, const Tensor& hidden_states) const {
    const StepInputs& inputs = ctx.batch.inputs;
    const int64_t num_sampled = inputs.sample_state_rows.dim(0);
    if (num_sampled == 0) return;
    Tensor sampled = hidden_states;
    if (!ctx.batch.output_rows.defined()) {
      sampled = known_.rows(0, num_sampled);  // the layer has read it
      ctx.ops.gather_rows(ctx.stream, {.x = hidden_states, .row_ids = inputs.sample_token_idxs, .out = sampled});
    }
    ctx.ops.scatter_rows(ctx.stream, {.x = sampled, .row_ids = inputs.sample_state_rows, .out = newest_of_row_});
  }

  Model& model_;
  Device& device_;
  const DType act_dtype_;
  const StepLimits limits_;
  Buffer buffer_, store_buffer_;
  Tensor store_;          // [num_slots, hidden_size] act: of the model's tokens
  Tensor known_;          // [max_num_batched_tokens, hidden_size] act: what the layer reads in this step
  Tensor newest_of_row_;  // [max_num_seqs, hidden_size] act: what it gave for each row's newest token
};

MtpDrafter::Memory MtpDrafter::memory(const Device& device, const ModelConfig& config, const ModelMemory& model,
                                      const ModelOptions& options) {
  const StepLimits& limits = options.limits;
  const int64_t row_bytes = hidden_row_bytes(config, options.act_dtype);
  const int64_t layer_bytes = spate::kv_block_bytes(device, model.mtp_kv_layers);
  return {.workspace_bytes = RunningState::num_bytes(limits) + num_buffer_rows(limits) * row_bytes,
          .kv_block_bytes = layer_bytes + limits.kv_block_size * row_bytes,
          .scratch_block_bytes = layer_bytes};
}

Result<std::unique_ptr<MtpDrafter>> MtpDrafter::create(Rank& target, Communicators communicators,
                                                       const ModelOptions& options) {
  std::unique_ptr<MtpDrafter> drafter(new MtpDrafter());
  drafter->layer_ = std::make_unique<Layer>(target.model(), target.device(), options);
  RETURN_IF_ERROR(drafter->layer_->allocate());
  ASSIGN_OR_RETURN(drafter->rank_, Rank::create_beside(target, *drafter->layer_, std::move(communicators), 1));
  return drafter;
}

MtpDrafter::~MtpDrafter() = default;

int64_t MtpDrafter::kv_block_bytes() const { return rank_->kv_block_bytes() + layer_->store_block_bytes(); }

Status MtpDrafter::allocate_kv_cache(int64_t num_blocks, int64_t num_scratch) {
  RETURN_IF_ERROR(layer_->allocate_store(num_blocks));
  return rank_->allocate_kv_cache(num_blocks + num_scratch);
}

void MtpDrafter::follow(const StepContext& ctx, const Tensor& hidden_states) { layer_->keep(ctx, hidden_states); }

void MtpDrafter::copy_blocks(Stream& stream, const OpTable& ops, const Tensor& src_dst) {
  layer_->copy_blocks(stream, ops, src_dst);
}

}  // namespace spate
