// The paged KV cache and attention over it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/check_params.h"
#include "backend/reference/element.h"
#include "backend/reference/reference_ops.h"

namespace spate::reference {
namespace {

enum KvPart { kKey = 0, kValue = 1 };

// Element offset, inside its block, of (part, token, head, 0).
int64_t element_in_block(const KvLayerDesc& desc, KvPart part, int64_t token_in_block, int64_t head) {
  return ((part * desc.kv_block_size + token_in_block) * desc.num_kv_heads + head) * desc.head_dim;
}

// Scale of (part, token, head) of a kI8 cache: after all codes of the block.
float* scale_in_block(const KvLayerDesc& desc, void* block, KvPart part, int64_t token_in_block, int64_t head) {
  char* scales = static_cast<char*>(block) + 2 * desc.kv_block_size * desc.num_kv_heads * desc.head_dim;
  return reinterpret_cast<float*>(scales) + (part * desc.kv_block_size + token_in_block) * desc.num_kv_heads + head;
}

void write_quantized(const KvLayerDesc& desc, void* block, KvPart part, int64_t token_in_block, int64_t head,
                     const Tensor& x, int64_t token) {
  std::vector<float> values(static_cast<size_t>(desc.head_dim));
  for (int64_t d = 0; d < desc.head_dim; ++d)
    values[static_cast<size_t>(d)] = static_cast<float>(load(x, token, head, d));
  quantize_activations(values.data(), desc.head_dim, desc.head_dim,
                       static_cast<int8_t*>(block) + element_in_block(desc, part, token_in_block, head),
                       scale_in_block(desc, block, part, token_in_block, head));
}

// One query row of one head over keys [begin, end) of a sequence's blocks.
void attend(const AttentionPagedParams& p, int64_t token, int64_t head, const int32_t* blocks, int64_t begin,
            int64_t end) {
  const KvLayerDesc& desc = p.kv.desc;
  const int64_t kv_head = head / (p.q.dim(1) / desc.num_kv_heads);
  const auto kv_at = [&](KvPart part, int64_t position, int64_t d) {
    const int64_t in_block = element_in_block(desc, part, position % desc.kv_block_size, kv_head);
    void* block = block_data(p.kv, blocks[position / desc.kv_block_size]);
    if (desc.dtype != DType::kI8) return load(block, desc.dtype, in_block + d);
    return *scale_in_block(desc, block, part, position % desc.kv_block_size, kv_head) *
           static_cast<double>(static_cast<const int8_t*>(block)[in_block + d]);
  };
  std::vector<double> scores(static_cast<size_t>(end - begin));
  double max_score = -INFINITY;
  for (int64_t position = begin; position < end; ++position) {
    double dot = 0;
    for (int64_t d = 0; d < desc.head_dim; ++d) dot += load(p.q, token, head, d) * kv_at(kKey, position, d);
    const double score = dot * p.softmax_scale;
    scores[static_cast<size_t>(position - begin)] = score;
    max_score = std::max(max_score, score);
  }
  double denominator = 0;
  for (double& score : scores) denominator += score = std::exp(score - max_score);
  for (int64_t d = 0; d < desc.head_dim; ++d) {
    double sum = 0;
    for (int64_t position = begin; position < end; ++position) {
      sum += scores[static_cast<size_t>(position - begin)] * kv_at(kValue, position, d);
    }
    store(p.out, token, head, d, sum / denominator);
  }
}

}  // namespace

void kv_write(Stream&, const KvWriteParams& p) {
  check_params(p);
  const KvLayerDesc& desc = p.kv.desc;
  for (int64_t i = 0; i < p.slot_mapping.dim(0); ++i) {
    const int64_t slot = p.slot_mapping.data<int32_t>()[i];
    if (slot == -1) continue;
    void* block = block_data(p.kv, slot / desc.kv_block_size);
    for (int64_t h = 0; h < desc.num_kv_heads; ++h) {
      if (desc.dtype == DType::kI8) {
        write_quantized(desc, block, kKey, slot % desc.kv_block_size, h, p.k, i);
        write_quantized(desc, block, kValue, slot % desc.kv_block_size, h, p.v, i);
        continue;
      }
      for (int64_t d = 0; d < desc.head_dim; ++d) {
        const int64_t in_block = slot % desc.kv_block_size;
        store(block, desc.dtype, element_in_block(desc, kKey, in_block, h) + d, load(p.k, i, h, d));
        store(block, desc.dtype, element_in_block(desc, kValue, in_block, h) + d, load(p.v, i, h, d));
      }
    }
  }
}

void attention_paged(Stream&, const AttentionPagedParams& p) {
  check_params(p);
  for (int64_t s = 0; s < p.seq_rows.dim(0); ++s) {
    const int64_t first = p.cu_seqlens_q.data<int32_t>()[s];
    const int64_t query_len = p.cu_seqlens_q.data<int32_t>()[s + 1] - first;
    const int64_t seq_len = p.seq_lens.data<int32_t>()[s];
    if (seq_len == 0) continue;
    const int32_t* blocks = p.block_table.data<int32_t>() + p.seq_rows.data<int32_t>()[s] * p.block_table.stride(0);
    for (int64_t i = 0; i < query_len; ++i) {
      const int64_t position = seq_len - query_len + i;
      const int64_t begin = p.window > 0 ? std::max<int64_t>(0, position - p.window + 1) : 0;
      for (int64_t h = 0; h < p.q.dim(1); ++h) attend(p, first + i, h, blocks, begin, position + 1);
    }
  }
}

void kv_copy_blocks(Stream&, const KvCopyBlocksParams& p) {
  check_params(p);
  for (int64_t i = 0; i < p.src_dst.dim(0); ++i) {
    const int32_t* ids = p.src_dst.data<int32_t>() + i * p.src_dst.stride(0);
    std::memcpy(block_data(p.kv, ids[1]), block_data(p.kv, ids[0]), static_cast<size_t>(p.kv.block_bytes));
  }
}

void qk_norm_rope_kv_write(Stream& stream, const QkNormRopeKvWriteParams& p) {
  check_params(p);
  if (p.q_norm.defined()) rms_norm(stream, {.x = p.q, .weight = p.q_norm, .eps = p.eps, .out = p.q});
  if (p.k_norm.defined()) rms_norm(stream, {.x = p.k, .weight = p.k_norm, .eps = p.eps, .out = p.k});
  rope(stream, {.positions = p.positions, .cos_sin = p.cos_sin, .x = p.q, .interleaved = p.interleaved});
  rope(stream, {.positions = p.positions, .cos_sin = p.cos_sin, .x = p.k, .interleaved = p.interleaved});
  kv_write(stream, {.k = p.k, .v = p.v, .slot_mapping = p.slot_mapping, .kv = p.kv});
}

}  // namespace spate::reference
