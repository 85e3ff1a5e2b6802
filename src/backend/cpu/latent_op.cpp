// The latent cache, attention over it, and products with a matrix for each head.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "backend/check_params.h"
#include "backend/cpu/cpu_context.h"

namespace spate::cpu {
namespace {

int64_t token_bytes_of(const KvLayerDesc& desc) { return latent_token_bytes(elem_of(desc.dtype), desc.latent_width()); }

char* block_data(const KvView& kv, int64_t block_id) {
  CHECK(block_id >= 0 && block_id < kv.num_blocks, "block {} of {}", block_id, kv.num_blocks);
  return static_cast<char*>(kv.data) + block_id * kv.block_bytes;
}

// Of all query tokens: the sequence, and how many keys it sees; -1 for those of dummies.
struct QueryToken {
  int64_t seq = -1;
  int64_t num_keys = 0;
};

QueryToken query_token(const AttentionLatentParams& p, int64_t token) {
  const int32_t* cu_seqlens = p.cu_seqlens_q.data<int32_t>();
  const int32_t* end = cu_seqlens + p.cu_seqlens_q.dim(0);
  const int64_t seq = std::upper_bound(cu_seqlens, end, static_cast<int32_t>(token)) - cu_seqlens - 1;
  if (seq < 0 || seq >= p.seq_lens.dim(0) || p.seq_lens.data<int32_t>()[seq] == 0) return {};
  return {seq, p.seq_lens.data<int32_t>()[seq] - (cu_seqlens[seq + 1] - 1 - token)};
}

}  // namespace

void latent_write(Stream& stream, const LatentWriteParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const KvLayerDesc& desc = p.kv.desc;
  const int64_t width = desc.latent_width(), token_bytes = token_bytes_of(desc);
  const int64_t scales_offset = kv_layout_of(desc).k_scales_offset;
  for_rows(context, p.slot_mapping.dim(0), width, [&](int64_t i) {
    const int64_t slot = p.slot_mapping.data<int32_t>()[i];
    if (slot == -1) return;
    char* block = block_data(p.kv, slot / desc.kv_block_size);
    const int64_t token = slot % desc.kv_block_size;
    context.kernels.latent_row({.x = address(p.latent, i * p.latent.stride(0)),
                                .act = elem_of(p.latent.dtype()),
                                .out = block + token * token_bytes,
                                .scales = reinterpret_cast<float*>(block + scales_offset) + 2 * token,
                                .elem = elem_of(desc.dtype),
                                .rank = desc.kv_lora_rank,
                                .rope_dim = desc.qk_rope_head_dim});
  });
}

void attention_latent(Stream& stream, const AttentionLatentParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const KvLayerDesc& desc = p.kv.desc;
  const int64_t num_tokens = p.q_latent.dim(0), num_heads = p.q_latent.dim(1);
  // Heads that share a key; fewer where there would be too few items for the threads.
  int64_t heads = std::min(kMaxLatentHeads, num_heads);
  while (heads > 1 && num_tokens * ceil_div(num_heads, heads) < context.pool.num_threads())
    heads = ceil_div(heads, 2);
  const int64_t groups = ceil_div(num_heads, heads);
  context.reserve_thread_scratch(latent_scratch_bytes(desc.kv_lora_rank, desc.qk_rope_head_dim));
  context.pool.parallel_for(num_tokens * groups, [&](int thread_idx, int64_t i) {
    const int64_t token = i / groups, head = i % groups * heads;
    const QueryToken query = query_token(p, token);
    if (query.seq < 0) return;
    const int32_t row = p.seq_rows.data<int32_t>()[query.seq];
    context.kernels.attention_latent(
        {.q_latent = address(p.q_latent, token * p.q_latent.stride(0) + head * p.q_latent.stride(1)),
         .q_rope = address(p.q_rope, token * p.q_rope.stride(0) + head * p.q_rope.stride(1)),
         .out = address(p.out, token * p.out.stride(0) + head * p.out.stride(1)),
         .q_latent_stride = p.q_latent.stride(1),
         .q_rope_stride = p.q_rope.stride(1),
         .out_stride = p.out.stride(1),
         .act = elem_of(p.q_latent.dtype()),
         .num_heads = std::min(heads, num_heads - head),
         .num_keys = query.num_keys,
         .scale_log2e = p.softmax_scale * std::numbers::log2e_v<float>,
         .rank = desc.kv_lora_rank,
         .rope_dim = desc.qk_rope_head_dim,
         .block_table = p.block_table.data<int32_t>() + row * p.block_table.stride(0),
         .kv = static_cast<const char*>(p.kv.data),
         .block_bytes = p.kv.block_bytes,
         .token_bytes = token_bytes_of(desc),
         .kv_block_size = desc.kv_block_size,
         .elem = elem_of(desc.dtype),
         .scales_offset = kv_layout_of(desc).k_scales_offset},
        context.scratch_of(thread_idx));
  });
}

void linear_heads(Stream& stream, const LinearHeadsParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  if (p.x.dim(0) == 0) return;
  const auto head_of = [](const Tensor& all, int64_t h) {
    const Tensor head(static_cast<char*>(all.raw()) + h * all.stride(1) * dtype_bytes(all.dtype()), all.dtype(),
                      {all.dim(0), all.stride(0)});
    return head.columns(0, all.dim(2));
  };
  std::vector<GemmParams>& gemms = context.expert_gemms;
  gemms.clear();
  for (int64_t h = 0; h < p.x.dim(1); ++h)
    gemms.push_back(gemm_of_rows(head_of(p.x, h), *p.weight, h, head_of(p.out, h)));
  run_gemms(context, gemms);
}

}  // namespace spate::cpu
