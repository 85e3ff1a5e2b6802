#include "backend/cuda/kernel/cuda_ops.h"

namespace spate::cuda {

OpTable cuda_ops() {
  OpTable ops;
  ops.embedding = embedding;
  ops.linear = linear;
  ops.rms_norm = rms_norm;
  ops.add = add;
  ops.silu_and_mul = silu_and_mul;
  ops.rope = rope;
  ops.kv_write = kv_write;
  ops.attention_paged = attention_paged;
  ops.gather_rows = gather_rows;
  ops.scatter_rows = scatter_rows;
  ops.apply_updates = apply_updates;
  ops.begin_step = begin_step;
  ops.sample = sample;
  ops.logprobs = logprobs;
  ops.finish_step = finish_step;
  ops.kv_copy_blocks = kv_copy_blocks;
  ops.route_experts = route_experts;
  ops.expert_mlp = expert_mlp;
  ops.latent_write = latent_write;
  ops.attention_latent = attention_latent;
  ops.linear_heads = linear_heads;
  ops.attention_latent_expanded = attention_latent_expanded;
  ops.add_rms_norm = add_rms_norm;
  ops.linear_silu_and_mul = linear_silu_and_mul;
  ops.qk_norm_rope_kv_write = qk_norm_rope_kv_write;
  ops.qk_norm_rope_attention = qk_norm_rope_attention;
  ops.expert_mlp_add_norm = expert_mlp_add_norm;
  ops.latent_norm_rope_write = latent_norm_rope_write;
  return ops;
}

KvLayout kv_layout(const KvView& kv) {
  return {.data = kv.data,
          .block_bytes = kv.block_bytes,
          .num_kv_heads = static_cast<int32_t>(kv.desc.num_kv_heads),
          .kv_block_size = static_cast<int32_t>(kv.desc.kv_block_size),
          .head_dim = static_cast<int32_t>(kv.desc.head_dim),
          .padded_head_dim = padded_head_dim(kv.desc.head_dim, kv.desc.dtype == DType::kI8)};
}

int32_t lanes_per_head(int64_t head_dim) {
  int32_t lanes = 8;
  while (lanes * 8 < head_dim) lanes *= 2;
  return lanes;
}

}  // namespace spate::cuda
