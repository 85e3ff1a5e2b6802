#include "layer/attention.h"

#include <cmath>

namespace spate {

Result<Attention> Attention::create(ParameterFactory& factory, const AttentionSpec& spec) {
  const Range heads = even_share(spec.num_heads, factory.tp());
  const Range kv_heads = kv_head_share(spec.num_kv_heads, factory.tp());
  const auto part = [&](const char* name, int64_t total_heads, Range share) {
    return LinearPart{.name = spec.name + name,
                      .out_features = total_heads * spec.head_dim,
                      .rows = {share.begin * spec.head_dim, share.count * spec.head_dim}};
  };
  const LinearPart parts[] = {part(".q_proj", spec.num_heads, heads), part(".k_proj", spec.num_kv_heads, kv_heads),
                              part(".v_proj", spec.num_kv_heads, kv_heads)};
  ASSIGN_OR_RETURN(Linear qkv_proj, Linear::column_parallel(factory, parts, spec.hidden_size, spec.qkv_bias));
  ASSIGN_OR_RETURN(Linear o_proj, Linear::row_parallel(factory, spec.name + ".o_proj", spec.hidden_size,
                                                       spec.num_heads * spec.head_dim, spec.o_bias));
  Attention attention(std::move(qkv_proj), std::move(o_proj));
  if (spec.qk_norm) {
    ASSIGN_OR_RETURN(attention.q_norm_,
                     RmsNorm::create(factory, spec.name + ".q_norm", spec.head_dim, spec.rms_norm_eps));
    ASSIGN_OR_RETURN(attention.k_norm_,
                     RmsNorm::create(factory, spec.name + ".k_norm", spec.head_dim, spec.rms_norm_eps));
  }
  attention.num_heads_ = heads.count;
  attention.num_kv_heads_ = kv_heads.count;
  attention.head_dim_ = spec.head_dim;
  attention.window_ = static_cast<int>(spec.window);
  attention.softmax_scale_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  return attention;
}

void Attention::forward(const StepContext& ctx, const RotaryEmbedding& rotary, const KvView& kv, const Tensor& x,
                        const Tensor& qkv, const Tensor& heads, const Tensor& out) const {
  project_qkv(ctx, rotary, kv, x, qkv);
  attend(ctx, kv, q_of(qkv), ctx.batch.cu_seqlens_q, ctx.batch.max_query_len, heads);
  project_out(ctx, heads, out);
}

void Attention::project_qkv(const StepContext& ctx, const RotaryEmbedding& rotary, const KvView& kv, const Tensor& x,
                            const Tensor& qkv) const {
  const int64_t q_width = num_heads_ * head_dim_, kv_width = num_kv_heads_ * head_dim_;
  qkv_proj_.forward(ctx, x, qkv);
  const Tensor k = qkv.columns(q_width, q_width + kv_width).split_last(num_kv_heads_, head_dim_);
  const Tensor v = qkv.columns(q_width + kv_width, q_width + 2 * kv_width).split_last(num_kv_heads_, head_dim_);
  ctx.ops.qk_norm_rope_kv_write(ctx.stream, {.q = q_of(qkv).split_last(num_heads_, head_dim_),
                                             .k = k,
                                             .v = v,
                                             .q_norm = q_norm_ ? q_norm_->weight() : Tensor(),
                                             .k_norm = k_norm_ ? k_norm_->weight() : Tensor(),
                                             .eps = q_norm_ ? q_norm_->eps() : 0.0f,
                                             .positions = ctx.batch.positions,
                                             .cos_sin = rotary.cos_sin(),
                                             .interleaved = rotary.interleaved(),
                                             .slot_mapping = ctx.batch.slot_mapping,
                                             .kv = kv});
}

void Attention::attend(const StepContext& ctx, const KvView& kv, const Tensor& q, const Tensor& cu_seqlens_q, int max_query_len,
                       const Tensor& out) const {
  const StepBatch& batch = ctx.batch;
  ctx.ops.attention_paged(ctx.stream, {.q = q.split_last(num_heads_, head_dim_),
                                       .kv = kv,
                                       .block_table = batch.block_table,
                                       .seq_rows = batch.seq_rows,
                                       .cu_seqlens_q = cu_seqlens_q,
                                       .seq_lens = batch.seq_lens,
                                       .max_query_len = max_query_len,
                                       .max_seq_len = batch.max_seq_len,
                                       .softmax_scale = softmax_scale_,
                                       .window = window_,
                                       .out = out.split_last(num_heads_, head_dim_)});
}

}  // namespace spate
