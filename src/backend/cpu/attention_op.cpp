// The paged cache and attention over it: divides attention into items of one kv head and a run of query tokens.
#include <algorithm>
#include <cmath>

#include "backend/check_params.h"
#include "backend/cpu/cpu_context.h"

namespace spate::cpu {
namespace {

constexpr int64_t kInlineAttentionKeys = 64;  // a step that reads fewer keys of all heads together is not worth a fork

char* kv_head(const KvView& kv, const KvLayout& layout, int64_t block_id, int64_t head) {
  CHECK(block_id >= 0 && block_id < kv.num_blocks, "block {} of {}", block_id, kv.num_blocks);
  return static_cast<char*>(kv.data) + block_id * kv.block_bytes + head * layout.head_bytes;
}

void write_token(const KernelTable& kernels, const KvView& kv, const KvLayout& layout, const Tensor& k, const Tensor& v,
                 int64_t token, int64_t slot) {
  if (slot < 0) return;
  for (int64_t h = 0; h < layout.num_kv_heads; ++h) {
    kernels.kv_write_head(address(k, token * k.stride(0) + h * k.stride(1)),
                          address(v, token * v.stride(0) + h * v.stride(1)), elem_of(k.dtype()), layout,
                          kv_head(kv, layout, slot / layout.kv_block_size, h), slot % layout.kv_block_size);
  }
}

// A sequence's run of query tokens; each kv head makes one item of it.
struct QueryRun {
  int32_t seq, first_query, num_queries;
};

}  // namespace

void kv_write(Stream& stream, const KvWriteParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const KvLayout layout = kv_layout_of(p.kv.desc);
  for_rows(context, p.slot_mapping.dim(0), p.k.dim(1) * p.k.dim(2) * 4, [&](int64_t i) {
    write_token(context.kernels, p.kv, layout, p.k, p.v, i, p.slot_mapping.data<int32_t>()[i]);
  });
}

void qk_norm_rope_kv_write(Stream& stream, const QkNormRopeKvWriteParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const KernelTable& kernels = context.kernels;
  const KvLayout layout = kv_layout_of(p.kv.desc);
  const Elem act = elem_of(p.q.dtype());
  const auto norm_and_rope = [&](const Tensor& x, const Tensor& weight, int64_t token, const float* cos_sin) {
    for (int64_t h = 0; h < x.dim(1); ++h) {
      char* row = address(x, token * x.stride(0) + h * x.stride(1));
      if (weight.defined()) {
        kernels.rms_norm_row({.x = row, .residual = nullptr, .weight = weight.raw(), .out = row, .width = x.dim(2), .eps = p.eps}, act);
      }
      kernels.rope_row(row, cos_sin, p.cos_sin.dim(1), p.interleaved, act);
    }
  };
  for_rows(context, p.q.dim(0), (p.q.dim(1) + 4 * p.k.dim(1)) * p.q.dim(2), [&](int64_t i) {
    const int64_t position = p.positions.data<int32_t>()[i];
    CHECK(position >= 0 && position < p.cos_sin.dim(0), "rope: position {} of {}", position, p.cos_sin.dim(0));
    const float* cos_sin = p.cos_sin.data<float>() + position * p.cos_sin.stride(0);
    norm_and_rope(p.q, p.q_norm, i, cos_sin);
    norm_and_rope(p.k, p.k_norm, i, cos_sin);
    write_token(kernels, p.kv, layout, p.k, p.v, i, p.slot_mapping.data<int32_t>()[i]);
  });
}

void attention_paged(Stream& stream, const AttentionPagedParams& p) {
  check_params(p);
  CpuContext& context = context_of(stream);
  const KvLayout layout = kv_layout_of(p.kv.desc);
  CHECK(layout.head_dim <= 256, "attention_paged: head_dim {} is above 256", layout.head_dim);
  CHECK(p.softmax_scale > 0, "attention_paged: softmax_scale {}", p.softmax_scale);
  const int64_t num_seqs = p.seq_rows.dim(0), group_size = p.q.dim(1) / layout.num_kv_heads;
  const int64_t queries_per_run = std::max<int64_t>(1, context.kernels.max_attention_rows / group_size);
  const int32_t* cu_seqlens = p.cu_seqlens_q.data<int32_t>();

  int64_t num_runs = 0, num_keys = 0;
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t query_len = cu_seqlens[s + 1] - cu_seqlens[s];
    num_runs += ceil_div(query_len, queries_per_run);
    num_keys += p.seq_lens.data<int32_t>()[s];
  }
  auto* runs = reinterpret_cast<QueryRun*>(
      context.shared_scratch.reserve(std::max<int64_t>(1, num_runs) * static_cast<int64_t>(sizeof(QueryRun))));
  int64_t run = 0;
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t query_len = cu_seqlens[s + 1] - cu_seqlens[s];
    for (int64_t first = 0; first < query_len; first += queries_per_run) {
      runs[run++] = {static_cast<int32_t>(s), static_cast<int32_t>(first),
                     static_cast<int32_t>(std::min(queries_per_run, query_len - first))};
    }
  }

  context.reserve_thread_scratch(
      context.kernels.attention_scratch_bytes(queries_per_run * group_size, layout.head_dim));
  // Items run head by head, so that a thread's runs of a prompt find the head's keys in its cache.
  const auto run_item = [&](int thread_idx, int64_t item) {
    const int64_t head = item / num_runs;
    const QueryRun& r = runs[item % num_runs];
    const int64_t token = cu_seqlens[r.seq] + r.first_query, seq_len = p.seq_lens.data<int32_t>()[r.seq];
    const int64_t query_len = cu_seqlens[r.seq + 1] - cu_seqlens[r.seq];
    const AttentionItem attention{
        .q = address(p.q, token * p.q.stride(0) + head * group_size * p.q.stride(1)),
        .q_token_stride = p.q.stride(0),
        .q_head_stride = p.q.stride(1),
        .out = address(p.out, token * p.out.stride(0) + head * group_size * p.out.stride(1)),
        .out_token_stride = p.out.stride(0),
        .out_head_stride = p.out.stride(1),
        .act = elem_of(p.q.dtype()),
        .num_queries = r.num_queries,
        .group_size = group_size,
        .first_position = seq_len - query_len + r.first_query,
        .seq_len = seq_len,
        .window = p.window,
        .scale_log2e = p.softmax_scale * static_cast<float>(M_LOG2E),
        .block_table = p.block_table.data<int32_t>() + p.seq_rows.data<int32_t>()[r.seq] * p.block_table.stride(0),
        .kv = static_cast<const char*>(p.kv.data) + head * layout.head_bytes,
        .block_bytes = p.kv.block_bytes,
        .layout = layout};
    context.kernels.attention(attention, context.scratch_of(thread_idx));
  };
  const int64_t num_items = num_runs * layout.num_kv_heads;
  if (num_keys * layout.num_kv_heads <= kInlineAttentionKeys) {
    for (int64_t item = 0; item < num_items; ++item) run_item(0, item);
  } else {
    context.pool.parallel_for(num_items, run_item);
  }
}

}  // namespace spate::cpu
