// The latent cache, attention over it, and products with a matrix for each head.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "backend/check_params.h"
#include "backend/cpu/cpu_context.h"

namespace spate::cpu {
namespace {

constexpr int64_t kMaxSpanBytes = 16 << 20;  // of what spans give

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

int64_t longest(const AttentionLatentParams& p) {
  const int32_t* seq_lens = p.seq_lens.data<int32_t>();
  return p.seq_lens.dim(0) == 0 ? 0 : *std::max_element(seq_lens, seq_lens + p.seq_lens.dim(0));
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
  const LatentPlan plan = context.kernels.latent_plan(elem_of(p.q_latent.dtype()), elem_of(desc.dtype),
                                                      desc.kv_lora_rank, desc.qk_rope_head_dim);
  // Heads that share a key. Where there would be too few items for the threads, each span of keys is one, and then an
  // item has fewer heads.
  const int threads = context.pool.num_threads();
  int64_t heads = std::min(plan.max_heads, num_heads), num_spans = 1;
  const auto num_items = [&] { return num_tokens * ceil_div(num_heads, heads) * num_spans; };
  if (plan.span_keys > 0 && num_items() < threads) {
    const int64_t most = ceil_div(longest(p), plan.span_keys);
    if (num_items() * most * plan.partial_floats * 4 <= kMaxSpanBytes) num_spans = std::max<int64_t>(1, most);
  }
  while (heads > 1 && num_items() < threads) heads = ceil_div(heads, 2);
  const int64_t groups = ceil_div(num_heads, heads);
  context.reserve_thread_scratch(plan.scratch_bytes);
  float* partials = nullptr;
  if (num_spans > 1) {
    partials = reinterpret_cast<float*>(context.shared_scratch.reserve(num_items() * plan.partial_floats * 4));
  }
  // Item i of the tokens and groups of heads; end_key is 0 for dummies.
  const auto item_of = [&](int64_t i) -> LatentItem {
    const int64_t token = i / groups, head = i % groups * heads;
    const QueryToken query = query_token(p, token);
    const int32_t row = query.seq < 0 ? 0 : p.seq_rows.data<int32_t>()[query.seq];
    return {.q_latent = address(p.q_latent, token * p.q_latent.stride(0) + head * p.q_latent.stride(1)),
            .q_rope = address(p.q_rope, token * p.q_rope.stride(0) + head * p.q_rope.stride(1)),
            .out = address(p.out, token * p.out.stride(0) + head * p.out.stride(1)),
            .q_latent_stride = p.q_latent.stride(1),
            .q_rope_stride = p.q_rope.stride(1),
            .out_stride = p.out.stride(1),
            .act = elem_of(p.q_latent.dtype()),
            .num_heads = std::min(heads, num_heads - head),
            .first_key = 0,
            .end_key = query.num_keys,
            .partial = nullptr,
            .scale_log2e = p.softmax_scale * std::numbers::log2e_v<float>,
            .rank = desc.kv_lora_rank,
            .rope_dim = desc.qk_rope_head_dim,
            .block_table = p.block_table.data<int32_t>() + row * p.block_table.stride(0),
            .kv = static_cast<const char*>(p.kv.data),
            .block_bytes = p.kv.block_bytes,
            .token_bytes = token_bytes_of(desc),
            .kv_block_size = desc.kv_block_size,
            .elem = elem_of(desc.dtype),
            .scales_offset = kv_layout_of(desc).k_scales_offset};
  };
  context.pool.parallel_for(num_items(), [&](int thread_idx, int64_t i) {
    LatentItem item = item_of(i / num_spans);
    if (num_spans > 1) {
      item.first_key = i % num_spans * plan.span_keys;
      item.end_key = std::min(item.end_key, item.first_key + plan.span_keys);
      item.partial = partials + i * plan.partial_floats;
    }
    if (item.first_key < item.end_key) context.kernels.attention_latent(item, context.scratch_of(thread_idx));
  });
  if (num_spans == 1) return;
  context.pool.parallel_for(num_tokens * groups, [&](int, int64_t i) {
    const LatentItem item = item_of(i);
    const int64_t spans = ceil_div(item.end_key, plan.span_keys);
    if (spans > 0) context.kernels.merge_latent(item, partials + i * num_spans * plan.partial_floats, spans);
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
