#include "layer/grouped_query_attention.h"

#include <cmath>

namespace spate {

Result<std::unique_ptr<Attention>> GroupedQueryAttention::create(ParameterFactory& factory,
                                                                 const GroupedQueryAttentionSpec& spec) {
  const Range heads = even_share(spec.num_heads, factory.tp());
  const Range kv_heads = kv_head_share(spec.num_kv_heads, factory.tp());
  const auto part = [&](const char* name, int64_t total_heads, Range share) {
    return LinearPart{.name = spec.name + name,
                      .out_features = total_heads * spec.head_dim,
                      .rows = {share.begin * spec.head_dim, share.count * spec.head_dim}};
  };
  const LinearPart parts[] = {part(".q_proj", spec.num_heads, heads), part(".k_proj", spec.num_kv_heads, kv_heads),
                              part(".v_proj", spec.num_kv_heads, kv_heads)};
  const int64_t input_size = spec.input_size > 0 ? spec.input_size : spec.hidden_size;
  ASSIGN_OR_RETURN(Linear qkv_proj, Linear::column_parallel(factory, parts, input_size, spec.qkv_bias));
  ASSIGN_OR_RETURN(Linear o_proj, Linear::row_parallel(factory, spec.name + ".o_proj", spec.hidden_size,
                                                       spec.num_heads * spec.head_dim, spec.o_bias));
  std::unique_ptr<GroupedQueryAttention> attention(
      new GroupedQueryAttention(spec, std::move(qkv_proj), std::move(o_proj)));
  if (spec.qk_norm) {
    ASSIGN_OR_RETURN(attention->q_norm_,
                     RmsNorm::create(factory, spec.name + ".q_norm", spec.head_dim, spec.rms_norm_eps));
    ASSIGN_OR_RETURN(attention->k_norm_,
                     RmsNorm::create(factory, spec.name + ".k_norm", spec.head_dim, spec.rms_norm_eps));
  }
  attention->num_heads_ = heads.count;
  attention->num_kv_heads_ = kv_heads.count;
  return std::unique_ptr<Attention>(std::move(attention));
}

KvLayerDesc GroupedQueryAttention::kv_layer() const {
  return {.kind = spec_.window > 0 ? KvKind::kWindow : KvKind::kFull,
          .num_kv_heads = num_kv_heads_,
          .head_dim = spec_.head_dim};
}

void GroupedQueryAttention::take_workspace(Arena& arena) {
  qkv_ = arena.take_activations(q_width() + 2 * kv_width());
  heads_ = arena.take_activations(q_width());
}

void GroupedQueryAttention::list_products(const std::string& norm, std::vector<Product>& products) const {
  const std::string v_proj = spec_.name + ".v_proj";
  products.push_back({.matrices = {{spec_.name + ".q_proj", true}, {spec_.name + ".k_proj", true}, {v_proj}},
                      .weight = &qkv_proj_.weight(),
                      .source = norm,
                      .source_is_norm = true});
  // Query heads that share a kv head share its rows of v.
  std::vector<int64_t> channels(static_cast<size_t>(spec_.num_heads * spec_.head_dim));
  const int64_t heads_per_kv_head = spec_.num_heads / spec_.num_kv_heads;
  for (size_t j = 0; j < channels.size(); ++j) {
    const int64_t head = static_cast<int64_t>(j) / spec_.head_dim, d = static_cast<int64_t>(j) % spec_.head_dim;
    channels[j] = head / heads_per_kv_head * spec_.head_dim + d;
  }
  products.push_back({.matrices = {{spec_.name + ".o_proj"}},
                      .weight = &o_proj_.weight(),
                      .source = v_proj,
                      .source_channels = std::move(channels)});
}

void GroupedQueryAttention::forward(const StepContext& ctx, const KvView& kv, const Tensor& x,
                                    const Tensor& out) const {
  project(ctx, x);
  attend(ctx, kv);
  o_proj_.forward(ctx, heads_.rows(0, x.dim(0)), out);
}

void GroupedQueryAttention::project(const StepContext& ctx, const Tensor& x) const {
  qkv_proj_.forward(ctx, x, qkv_.rows(0, x.dim(0)));
}

void GroupedQueryAttention::attend(const StepContext& ctx, const KvView& kv) const {
  const int64_t num_tokens = ctx.batch.num_tokens();
  const Tensor qkv = qkv_.rows(0, num_tokens);
  ctx.ops.qk_norm_rope_attention(ctx.stream,
                                 {.write = write_params(ctx, kv, qkv),
                                  .attention = attention_params(ctx, kv, q_of(qkv), ctx.batch.inputs.cu_seqlens_q,
                                                                ctx.batch.max_query_len, heads_.rows(0, num_tokens))});
}

// Gathered rows lie behind or in place of rows that nobody needs any more.
void GroupedQueryAttention::forward_output_rows(const StepContext& ctx, const KvView& kv, const Tensor& x,
                                                const Tensor& out) const {
  const int64_t num_tokens = x.dim(0), n = out.dim(0);
  CHECK(2 * n <= num_tokens, "{} outputs of {} tokens", n, num_tokens);
  const Tensor qkv = qkv_.rows(0, num_tokens);
  project(ctx, x);
  ctx.ops.qk_norm_rope_kv_write(ctx.stream, write_params(ctx, kv, qkv));
  if (n == 0) return;
  const auto gather = [&](const Tensor& from, const Tensor& to) {
    ctx.ops.gather_rows(ctx.stream, {.x = from, .row_ids = ctx.batch.output_rows, .out = to});
    return to;
  };
  const auto attend = [&](const Tensor& q, const Tensor& cu_seqlens_q, int max_query_len, const Tensor& heads) {
    ctx.ops.attention_paged(ctx.stream, attention_params(ctx, kv, q, cu_seqlens_q, max_query_len, heads));
  };
  if (ctx.batch.outputs_all_seqs) {  // one query a sequence, its last token
    const Tensor q = gather(q_of(qkv), heads_.rows(n, 2 * n)), heads = heads_.rows(0, n);
    attend(q, ctx.batch.arange.rows(0, n + 1), 1, heads);
    o_proj_.forward(ctx, heads, out);
  } else {
    const Tensor all = heads_.rows(0, num_tokens);
    attend(q_of(qkv), ctx.batch.inputs.cu_seqlens_q, ctx.batch.max_query_len, all);
    o_proj_.forward(ctx, gather(all, q_of(qkv).rows(0, n)), out);
  }
}

QkNormRopeKvWriteParams GroupedQueryAttention::write_params(const StepContext& ctx, const KvView& kv,
                                                            const Tensor& qkv) const {
  const Tensor k = qkv.columns(q_width(), q_width() + kv_width()).split_last(num_kv_heads_, spec_.head_dim);
  const Tensor v =
      qkv.columns(q_width() + kv_width(), q_width() + 2 * kv_width()).split_last(num_kv_heads_, spec_.head_dim);
  return {.q = q_of(qkv).split_last(num_heads_, spec_.head_dim),
          .k = k,
          .v = v,
          .q_norm = q_norm_ ? q_norm_->weight() : Tensor(),
          .k_norm = k_norm_ ? k_norm_->weight() : Tensor(),
          .eps = q_norm_ ? q_norm_->eps() : 0.0f,
          .positions = ctx.batch.inputs.positions,
          .cos_sin = spec_.rotary->cos_sin(),
          .interleaved = spec_.rotary->interleaved(),
          .slot_mapping = ctx.batch.inputs.slot_mapping,
          .kv = kv};
}

AttentionPagedParams GroupedQueryAttention::attention_params(const StepContext& ctx, const KvView& kv, const Tensor& q,
                                                             const Tensor& cu_seqlens_q, int max_query_len,
                                                             const Tensor& out) const {
  const StepBatch& batch = ctx.batch;
  return {.q = q.split_last(num_heads_, spec_.head_dim),
          .kv = kv,
          .block_table = batch.block_table,
          .seq_rows = batch.inputs.seq_rows,
          .cu_seqlens_q = cu_seqlens_q,
          .seq_lens = batch.inputs.seq_lens,
          .max_query_len = max_query_len,
          .max_seq_len = batch.max_seq_len,
          .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec_.head_dim))),
          .window = static_cast<int>(spec_.window),
          .out = out.split_last(num_heads_, spec_.head_dim)};
}

}  // namespace spate
