#include "rank/hidden_state_drafter.h"

#include <utility>

#include "backend/kv_storage.h"

namespace spate {
namespace {

// Rows of the running sequences: what the head gave for their newest tokens.
int64_t known_bytes(int64_t known_width, const ModelOptions& options) {
  return options.limits.max_num_batched_tokens * known_width * dtype_bytes(options.act_dtype);
}
int64_t newest_bytes(int64_t hidden_size, const ModelOptions& options) {
  return options.limits.max_num_seqs * hidden_size * dtype_bytes(options.act_dtype);
}
int64_t handed_on_bytes(int64_t hidden_size, const ModelOptions& options, int num_layers) {
  return num_layers > 1 ? options.limits.max_num_batched_tokens * hidden_size * dtype_bytes(options.act_dtype) : 0;
}

}  // namespace

// The layer as what a rank runs.
class HiddenStateDrafter::Layer final : public StepModel {
 public:
  Layer(HiddenStateHead& head, Device& device, const ModelOptions& options)
      : head_(head), device_(device), options_(options), limits_(options.limits) {}

  Status allocate() {
    const DType dtype = options_.act_dtype;
    const int64_t known_size = known_bytes(head_.known_width(), options_);
    const int64_t newest_size = newest_bytes(config().hidden_size, options_);
    const int64_t num_bytes =
        known_size + newest_size + handed_on_bytes(config().hidden_size, options_, head_.num_layers());
    ASSIGN_OR_RETURN(buffer_, device_.allocate(static_cast<size_t>(num_bytes), MemoryKind::kDevice));
    known_ = buffer_.tensor(dtype, {limits_.max_num_batched_tokens, head_.known_width()});
    own_ = buffer_.tensor(dtype, {limits_.max_num_batched_tokens, config().hidden_size});
    newest_of_row_ =
        buffer_.tensor(dtype, {limits_.max_num_seqs, config().hidden_size}, static_cast<size_t>(known_size));
    if (num_layers() == 1) return ok_status();
    handed_on_ = buffer_.tensor(dtype, {limits_.max_num_batched_tokens, config().hidden_size},
                                static_cast<size_t>(known_size + newest_size));
    return ok_status();
  }

  int num_layers() const { return head_.num_layers(); }
  void select_layer(int layer_idx) { layer_idx_ = layer_idx; }  // of the next step
  bool is_last_layer() const { return layer_idx_ + 1 == num_layers(); }

  Status allocate_store(int64_t num_blocks) {
    ASSIGN_OR_RETURN(store_buffer_,
                     device_.allocate(static_cast<size_t>(num_blocks * store_block_bytes()), MemoryKind::kDevice));
    store_ = store_buffer_.tensor(options_.act_dtype, {num_blocks * limits_.kv_block_size, head_.known_width()});
    return ok_status();
  }

  int64_t store_block_bytes() const {
    return limits_.kv_block_size * head_.known_width() * dtype_bytes(options_.act_dtype);
  }

  void keep(const StepContext& ctx, const Tensor& columns, int64_t first_column) const {
    ctx.ops.scatter_rows(ctx.stream, {.x = columns,
                                      .row_ids = ctx.batch.inputs.slot_mapping,
                                      .out = store_.columns(first_column, first_column + columns.dim(1))});
  }

  void copy_blocks(Stream& stream, const OpTable& ops, const Tensor& src_dst) const {
    const KvLayerDesc desc{.kind = KvKind::kLatent,
                           .kv_lora_rank = head_.known_width(),
                           .kv_block_size = limits_.kv_block_size,
                           .dtype = options_.act_dtype};
    ops.kv_copy_blocks(stream, {.kv = {.desc = desc,
                                       .data = store_.raw(),
                                       .block_bytes = store_block_bytes(),
                                       .num_blocks = store_.dim(0) / limits_.kv_block_size},
                                .src_dst = src_dst});
  }

  const std::vector<KvLayerDesc>& kv_layers() const override { return head_.kv_layers(); }
  const ModelConfig& config() const override { return head_.config(); }
  bool reads_next_tokens() const override { return true; }

  Tensor forward(const StepContext& ctx) override {
    const Tensor out = head_.forward(ctx, next_run(ctx));
    keep_newest(ctx, out);
    if (!is_last_layer()) {
      const Tensor all = handed_on_.rows(0, ctx.batch.num_tokens());
      ctx.ops.gather_rows(ctx.stream, {.x = out, .row_ids = ctx.batch.arange.rows(0, all.dim(0)), .out = all});
    }
    return out;
  }

  Tensor hidden_states(const StepBatch& batch) const override { return head_.hidden_states(batch); }

  Tensor compute_logits(const StepContext& ctx, const Tensor& hidden_states, const Tensor& row_ids) override {
    return head_.compute_logits(ctx, layer_idx_, hidden_states, row_ids);
  }

 private:
  // Reads what is known of the step's tokens.
  HiddenStateHead::Run next_run(const StepContext& ctx) const {
    const StepInputs& inputs = ctx.batch.inputs;
    const int64_t num_tokens = ctx.batch.num_tokens();
    if (ctx.batch.decodes_only) {
      CHECK(ctx.batch.num_seqs() == num_tokens && is_last_layer(), "{} sequences draft {} tokens by layer {}",
            ctx.batch.num_seqs(), num_tokens, layer_idx_);
      const Tensor own = own_.rows(0, num_tokens);
      ctx.ops.gather_rows(ctx.stream, {.x = newest_of_row_, .row_ids = inputs.seq_rows, .out = own});
      return {.known = own, .source_idx = layer_idx_, .layer_idx = layer_idx_};
    }
    if (layer_idx_ > 0) {
      return {.known = handed_on_.rows(0, num_tokens), .source_idx = layer_idx_ - 1, .layer_idx = layer_idx_};
    }
    const Tensor known = known_.rows(0, num_tokens);
    ctx.ops.gather_rows(ctx.stream, {.x = store_, .row_ids = inputs.slot_mapping, .out = known});
    return {.known = known};
  }

  // Of the sampled tokens: the step that drafts the next one reads them.
  void keep_newest(const StepContext& ctx, const Tensor& hidden_states) const {
    const StepInputs& inputs = ctx.batch.inputs;
    const int64_t num_sampled = inputs.sample_state_rows.dim(0);
    if (num_sampled == 0) return;
    Tensor sampled = hidden_states;
    if (!ctx.batch.output_rows.defined()) {
      sampled = own_.rows(0, num_sampled);  // the head has read what lay there
      ctx.ops.gather_rows(ctx.stream, {.x = hidden_states, .row_ids = inputs.sample_token_idxs, .out = sampled});
    }
    ctx.ops.scatter_rows(ctx.stream, {.x = sampled, .row_ids = inputs.sample_state_rows, .out = newest_of_row_});
  }

  HiddenStateHead& head_;
  Device& device_;
  const ModelOptions options_;
  const StepLimits limits_;
  Buffer buffer_, store_buffer_;
  Tensor store_;  // [num_slots, known_width] act: of the model's tokens
  Tensor known_;  // [max_num_batched_tokens, known_width] act: what the head reads in this step
  Tensor own_;    // [max_num_batched_tokens, hidden_size] act: the same where it is the head's own, in the same memory
  Tensor newest_of_row_;  // [max_num_seqs, hidden_size] act: what it gave for each row's newest token
  Tensor handed_on_;      // [max_num_batched_tokens, hidden_size] act, with several layers: what the step before gave
  int layer_idx_ = 0;
};

HiddenStateDrafter::Memory HiddenStateDrafter::memory(const Device& device, int64_t known_width, int64_t hidden_size,
                                                      const std::vector<KvLayerDesc>& kv_layers,
                                                      const ModelOptions& options, int num_layers) {
  const int64_t layer_bytes = spate::kv_block_bytes(device, kv_layers);
  const int64_t store_bytes = options.limits.kv_block_size * known_width * dtype_bytes(options.act_dtype);
  return {.workspace_bytes = RunningState::num_bytes(options.limits) + known_bytes(known_width, options) +
                             newest_bytes(hidden_size, options) + handed_on_bytes(hidden_size, options, num_layers),
          .kv_block_bytes = layer_bytes + store_bytes,
          .scratch_block_bytes = layer_bytes};
}

HiddenStateDrafter::HiddenStateDrafter() = default;
HiddenStateDrafter::~HiddenStateDrafter() = default;

Status HiddenStateDrafter::start(Rank& target, HiddenStateHead& head, Communicators communicators,
                                 const ModelOptions& options) {
  layer_ = std::make_unique<Layer>(head, target.device(), options);
  RETURN_IF_ERROR(layer_->allocate());
  ASSIGN_OR_RETURN(rank_, Rank::create_beside(target, *layer_, std::move(communicators), 1));
  return ok_status();
}

int64_t HiddenStateDrafter::kv_block_bytes() const { return rank_->kv_block_bytes() + layer_->store_block_bytes(); }

Status HiddenStateDrafter::allocate_kv_cache(int64_t num_blocks, int64_t num_scratch) {
  RETURN_IF_ERROR(layer_->allocate_store(num_blocks));
  return rank_->allocate_kv_cache(num_blocks + num_scratch);
}

int HiddenStateDrafter::num_layers() const { return layer_->num_layers(); }

void HiddenStateDrafter::launch(std::span<const std::byte> plan, int layer_idx) {
  layer_->select_layer(layer_idx);
  rank_->launch(plan, {.layer_idx = layer_idx, .needs_all_tokens = !layer_->is_last_layer()});
}

void HiddenStateDrafter::keep(const StepContext& ctx, const Tensor& columns, int64_t first_column) const {
  layer_->keep(ctx, columns, first_column);
}

void HiddenStateDrafter::copy_blocks(Stream& stream, const OpTable& ops, const Tensor& src_dst) {
  layer_->copy_blocks(stream, ops, src_dst);
}

}  // namespace spate
