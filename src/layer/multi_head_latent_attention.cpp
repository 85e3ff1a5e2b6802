#include "layer/multi_head_latent_attention.h"

#include <algorithm>
#include <utility>

#include "backend/layer_products.h"

namespace spate {
namespace {

constexpr double kLatentNormEps = 1e-6;  // of both norms inside, whatever rms_norm_eps is

// Where W_uk [qk_nope_head_dim, kv_lora_rank] and W_uv [v_head_dim, kv_lora_rank] of a head lie in the checkpoint: one
// below the other in kv_b_proj, or, as GGUF has them, each in a tensor of its own, W_uk transposed.
class KvUpTensors {
 public:
  KvUpTensors(const MultiHeadLatentAttentionSpec& spec, const ParameterFactory& factory)
      : spec_(spec), is_split_(factory.checkpoint_has(spec.name + ".k_b_proj.0.weight")) {}

  bool is_split() const { return is_split_; }
  WeightLoader::MatrixSlice k(int64_t head) const {
    if (!is_split_) return of_kv_b({head * rows_of_head(), spec_.qk_nope_head_dim});
    WeightLoader::MatrixSlice slice = whole("k_b_proj", head, spec_.kv_lora_rank, spec_.qk_nope_head_dim);
    slice.is_transposed = true;
    return slice;
  }
  WeightLoader::MatrixSlice v(int64_t head) const {
    if (is_split_) return whole("v_b_proj", head, spec_.v_head_dim, spec_.kv_lora_rank);
    return of_kv_b({head * rows_of_head() + spec_.qk_nope_head_dim, spec_.v_head_dim});
  }
  WeightLoader::MatrixSlice of_kv_b(Range rows) const {
    return {.name = spec_.name + ".kv_b_proj.weight",
            .full_rows = spec_.num_heads * rows_of_head(),
            .full_columns = spec_.kv_lora_rank,
            .rows = rows,
            .columns = {0, spec_.kv_lora_rank},
            .shares_tensor = true};
  }

 private:
  int64_t rows_of_head() const { return spec_.qk_nope_head_dim + spec_.v_head_dim; }
  WeightLoader::MatrixSlice whole(std::string_view module, int64_t head, int64_t rows, int64_t columns) const {
    return {.name = fmt::format("{}.{}.{}.weight", spec_.name, module, head),
            .full_rows = rows,
            .full_columns = columns,
            .rows = {0, rows},
            .columns = {0, columns},
            .shares_tensor = true};
  }

  const MultiHeadLatentAttentionSpec& spec_;
  const bool is_split_;
};

void declare(ParameterFactory& factory, WeightLoader::MatrixSlice slice, PackedWeight* weight, int64_t dst_row,
             int64_t dst_matrix) {
  slice.weight = weight;
  slice.dst_row = dst_row;
  slice.dst_matrix = dst_matrix;
  factory.declare(std::move(slice));
}

}  // namespace

Result<std::unique_ptr<Attention>> MultiHeadLatentAttention::create(ParameterFactory& factory,
                                                                    const MultiHeadLatentAttentionSpec& spec) {
  const Range heads = even_share(spec.num_heads, factory.tp());
  const bool has_lora = spec.q_lora_rank > 0;
  const LinearPart q{spec.name + (has_lora ? ".q_b_proj" : ".q_proj"),
                     spec.num_heads * spec.qk_head_dim(),
                     {heads.begin * spec.qk_head_dim(), heads.count * spec.qk_head_dim()}};
  const LinearPart q_a{spec.name + ".q_a_proj", spec.q_lora_rank, {0, spec.q_lora_rank}};
  const LinearPart kv_a{spec.name + ".kv_a_proj_with_mqa", spec.latent_width(), {0, spec.latent_width()}};
  const LinearPart parts[] = {has_lora ? q_a : q, kv_a};
  const bool is_joined = has_lora || !spec.has_bias;  // q_proj has no bias
  ASSIGN_OR_RETURN(Linear x_proj, Linear::column_parallel(factory, std::span(parts).first(is_joined ? 2 : 1),
                                                          spec.hidden_size, has_lora && spec.has_bias));
  ASSIGN_OR_RETURN(RmsNorm kv_a_norm,
                   RmsNorm::create(factory, spec.name + ".kv_a_layernorm", spec.kv_lora_rank, kLatentNormEps));
  ASSIGN_OR_RETURN(Linear o_proj, Linear::row_parallel(factory, spec.name + ".o_proj", spec.hidden_size,
                                                       spec.num_heads * spec.v_head_dim, spec.has_bias));
  std::unique_ptr<MultiHeadLatentAttention> part(
      new MultiHeadLatentAttention(spec, std::move(x_proj), std::move(kv_a_norm), std::move(o_proj)));
  part->num_heads_ = heads.count;
  if (!is_joined) {
    ASSIGN_OR_RETURN(Linear kv_a_proj,
                     Linear::whole(factory, kv_a.name, spec.latent_width(), spec.hidden_size, spec.has_bias));
    part->kv_a_proj_.emplace(std::move(kv_a_proj));
  }
  if (has_lora) {
    const LinearPart q_parts[] = {q};
    ASSIGN_OR_RETURN(Linear q_b_proj, Linear::column_parallel(factory, q_parts, spec.q_lora_rank, false));
    ASSIGN_OR_RETURN(RmsNorm q_a_norm,
                     RmsNorm::create(factory, spec.name + ".q_a_layernorm", spec.q_lora_rank, kLatentNormEps));
    part->q_b_proj_.emplace(std::move(q_b_proj));
    part->q_a_norm_.emplace(std::move(q_a_norm));
  }
  RETURN_IF_ERROR(part->make_kv_b(factory, heads));
  return std::unique_ptr<Attention>(std::move(part));
}

Status MultiHeadLatentAttention::make_kv_b(ParameterFactory& factory, Range heads) {
  const int64_t rank = spec_.kv_lora_rank, nope = spec_.qk_nope_head_dim, rows_of_head = nope + spec_.v_head_dim;
  const KvUpTensors tensors(spec_, factory);
  const std::string names[] = {tensors.k(heads.begin).name, tensors.v(heads.begin).name};
  constexpr auto kRole = ParameterFactory::Role::kFloats;
  ASSIGN_OR_RETURN(k_up_, factory.matrix(kRole, names, rank, nope, heads.count));
  ASSIGN_OR_RETURN(v_up_, factory.matrix(kRole, names, spec_.v_head_dim, rank, heads.count));
  for (int64_t h = 0; h < heads.count; ++h) {
    WeightLoader::MatrixSlice k = tensors.k(heads.begin + h);
    k.is_transposed = !k.is_transposed;  // k_up_ is W_uk^T
    declare(factory, std::move(k), k_up_.get(), 0, h);
    declare(factory, tensors.v(heads.begin + h), v_up_.get(), 0, h);
  }
  if (spec_.expands) {
    ASSIGN_OR_RETURN(kv_up_, factory.matrix(kRole, names, heads.count * rows_of_head, rank));
    if (!tensors.is_split()) {
      declare(factory, tensors.of_kv_b({heads.begin * rows_of_head, heads.count * rows_of_head}), kv_up_.get(), 0, 0);
    }
    for (int64_t h = 0; tensors.is_split() && h < heads.count; ++h) {
      declare(factory, tensors.k(heads.begin + h), kv_up_.get(), h * rows_of_head, 0);
      declare(factory, tensors.v(heads.begin + h), kv_up_.get(), h * rows_of_head + nope, 0);
    }
  }
  factory.count_parameters(spec_.num_heads * rows_of_head * rank);
  return ok_status();
}

KvLayerDesc MultiHeadLatentAttention::kv_layer() const {
  return {.kind = KvKind::kLatent, .kv_lora_rank = spec_.kv_lora_rank, .qk_rope_head_dim = spec_.qk_rope_head_dim};
}

void MultiHeadLatentAttention::take_workspace(Arena& arena) {
  const int64_t q_width = num_heads_ * spec_.qk_head_dim();
  x_out_ = arena.take_activations(x_width() + spec_.latent_width());
  if (q_b_proj_) q_ = arena.take_contiguous(q_width);
  rows_ = arena.take_contiguous(num_heads_ * std::max(spec_.qk_head_dim(), spec_.v_head_dim));
  q_latent_ = arena.take_contiguous(num_heads_ * spec_.kv_lora_rank);
  out_latent_ = arena.take_contiguous(num_heads_ * spec_.kv_lora_rank);
  heads_ = arena.take_activations(num_heads_ * spec_.v_head_dim);
}

void MultiHeadLatentAttention::list_products(const std::string&, std::vector<Product>&) const {}

void MultiHeadLatentAttention::project(const StepContext& ctx, const Tensor& x) const {
  const Tensor out = x_out_.rows(0, x.dim(0));
  if (!kv_a_proj_) return x_proj_.forward(ctx, x, out);
  x_proj_.forward(ctx, x, out.columns(0, x_width()));
  kv_a_proj_->forward(ctx, x, out.columns(x_width(), out.dim(1)));
}

Tensor MultiHeadLatentAttention::queries(const StepContext& ctx) const {
  const int64_t n = ctx.batch.num_tokens();
  const Tensor q = x_out_.rows(0, n).columns(0, x_width());
  if (!q_b_proj_) return q;
  q_a_norm_->forward(ctx, q, q);
  q_b_proj_->forward(ctx, q, q_.rows(0, n));
  return q_.rows(0, n);
}

LatentNormRopeWriteParams MultiHeadLatentAttention::write_params(const StepContext& ctx, const KvView& kv,
                                                                 const Tensor& q) const {
  const int64_t nope = spec_.qk_nope_head_dim;
  const Tensor out = x_out_.rows(0, q.dim(0)), latent = out.columns(x_width(), out.dim(1));
  return {.q_rope = q.split_last(num_heads_, spec_.qk_head_dim()).columns(nope, spec_.qk_head_dim()),
          .latent = latent,
          .norm = kv_a_norm_.weight(),
          .eps = kv_a_norm_.eps(),
          .positions = ctx.batch.inputs.positions,
          .cos_sin = spec_.rotary->cos_sin(),
          .interleaved = spec_.rotary->interleaved(),
          .slot_mapping = ctx.batch.inputs.slot_mapping,
          .kv = kv};
}

Tensor MultiHeadLatentAttention::write_kv(const StepContext& ctx, const KvView& kv) const {
  const Tensor q = queries(ctx);
  ctx.ops.latent_norm_rope_write(ctx.stream, write_params(ctx, kv, q));
  return q;
}

Tensor MultiHeadLatentAttention::attend(const StepContext& ctx, const KvView& kv, const Tensor& q) const {
  const StepBatch& batch = ctx.batch;
  const LongPrompts& prompts = batch.long_prompts;
  if (kv_up_ == nullptr || prompts.num_seqs == 0) {
    return attend_absorbed(ctx, kv, {q, batch.inputs.cu_seqlens_q, batch.max_query_len});
  }
  attend_long_prompts(ctx, kv, q);
  if (prompts.first_seq > 0) {
    attend_absorbed(ctx, kv,
                    {q.rows(0, prompts.first_token), batch.inputs.cu_seqlens_q.rows(0, prompts.first_seq + 1),
                     prompts.max_query_len_before});
  }
  return heads_.rows(0, q.dim(0));
}

void MultiHeadLatentAttention::attend(const StepContext& ctx, const KvView& kv) const {
  LayerProductsDevice* device = layer_products_device(ctx.stream.device());
  if (device == nullptr || (kv_up_ != nullptr && ctx.batch.long_prompts.num_seqs > 0)) {
    static_cast<void>(attend(ctx, kv, write_kv(ctx, kv)));
    return;
  }
  const Tensor q = queries(ctx), heads = heads_.rows(0, q.dim(0));
  device->latent_attention(
      ctx.stream, {.write = write_params(ctx, kv, q),
                   .q_nope = q.split_last(num_heads_, spec_.qk_head_dim()).columns(0, spec_.qk_nope_head_dim),
                   .k_up = k_up_.get(),
                   .attention = attention_params(ctx, kv, {q, ctx.batch.inputs.cu_seqlens_q, ctx.batch.max_query_len}),
                   .v_up = v_up_.get(),
                   .heads = heads.split_last(num_heads_, spec_.v_head_dim)});
}

void MultiHeadLatentAttention::attend_long_prompts(const StepContext& ctx, const KvView& kv, const Tensor& q) const {
  const StepInputs& inputs = ctx.batch.inputs;
  const LongPrompts& prompts = ctx.batch.long_prompts;
  const int64_t begin = prompts.first_seq, end = begin + prompts.num_seqs, n = q.dim(0);
  ctx.ops.attention_latent_expanded(ctx.stream, {.q = q.split_last(num_heads_, spec_.qk_head_dim()),
                                                 .kv_up = kv_up_.get(),
                                                 .kv = kv,
                                                 .block_table = ctx.batch.block_table,
                                                 .seq_rows = inputs.seq_rows.rows(begin, end),
                                                 .cu_seqlens_q = inputs.cu_seqlens_q.rows(begin, end + 1),
                                                 .seq_lens = inputs.seq_lens.rows(begin, end),
                                                 .num_keys = prompts.num_keys,
                                                 .softmax_scale = spec_.softmax_scale,
                                                 .out = heads_.rows(0, n).split_last(num_heads_, spec_.v_head_dim)});
}

AttentionLatentParams MultiHeadLatentAttention::attention_params(const StepContext& ctx, const KvView& kv,
                                                                 const Queries& queries) const {
  const int64_t n = queries.q.dim(0), num_seqs = queries.num_seqs();
  return {
      .q_latent = q_latent_.rows(0, n).split_last(num_heads_, spec_.kv_lora_rank),
      .q_rope =
          queries.q.split_last(num_heads_, spec_.qk_head_dim()).columns(spec_.qk_nope_head_dim, spec_.qk_head_dim()),
      .kv = kv,
      .block_table = ctx.batch.block_table,
      .seq_rows = ctx.batch.inputs.seq_rows.rows(0, num_seqs),
      .cu_seqlens_q = queries.cu_seqlens_q,
      .seq_lens = ctx.batch.inputs.seq_lens.rows(0, num_seqs),
      .max_query_len = queries.max_query_len,
      .max_seq_len = ctx.batch.max_seq_len,
      .softmax_scale = spec_.softmax_scale,
      .out = out_latent_.rows(0, n).split_last(num_heads_, spec_.kv_lora_rank)};
}

Tensor MultiHeadLatentAttention::attend_absorbed(const StepContext& ctx, const KvView& kv,
                                                 const Queries& queries) const {
  const Tensor by_head = queries.q.split_last(num_heads_, spec_.qk_head_dim());
  const Tensor heads = heads_.rows(0, queries.q.dim(0));
  const AttentionLatentParams attention = attention_params(ctx, kv, queries);
  ctx.ops.linear_heads(
      ctx.stream, {.x = by_head.columns(0, spec_.qk_nope_head_dim), .weight = k_up_.get(), .out = attention.q_latent});
  ctx.ops.attention_latent(ctx.stream, attention);
  ctx.ops.linear_heads(
      ctx.stream, {.x = attention.out, .weight = v_up_.get(), .out = heads.split_last(num_heads_, spec_.v_head_dim)});
  return heads;
}

void MultiHeadLatentAttention::forward(const StepContext& ctx, const KvView& kv, const Tensor& x,
                                       const Tensor& out) const {
  project(ctx, x);
  attend(ctx, kv);
  o_proj_.forward(ctx, heads_.rows(0, x.dim(0)), out);
}

void MultiHeadLatentAttention::forward_output_rows(const StepContext& ctx, const KvView& kv, const Tensor& x,
                                                   const Tensor& out) const {
  const int64_t n = out.dim(0);
  CHECK(2 * n <= x.dim(0), "{} outputs of {} tokens", n, x.dim(0));
  project(ctx, x);
  const Tensor q = write_kv(ctx, kv);
  if (n == 0) return;
  const auto gather = [&](const Tensor& from, const Tensor& to) {
    ctx.ops.gather_rows(ctx.stream, {.x = from, .row_ids = ctx.batch.output_rows, .out = to});
    return to;
  };
  if (ctx.batch.outputs_all_seqs) {  // one query a sequence, its last token
    const Tensor last = gather(q, Tensor(rows_.raw(), q.dtype(), {n, q.dim(1)}));
    o_proj_.forward(ctx, attend_absorbed(ctx, kv, {last, ctx.batch.arange.rows(0, n + 1), 1}), out);
    return;
  }
  const Tensor all = attend(ctx, kv, q);
  o_proj_.forward(ctx, gather(all, Tensor(rows_.raw(), all.dtype(), {n, all.dim(1)})), out);
}

}  // namespace spate
