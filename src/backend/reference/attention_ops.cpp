// The paged KV cache and attention over it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/check_params.h"
#include "backend/reference/element.h"
#include "backend/reference/interleaved_rows.h"
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

// Keys and values of one head, at the positions [begin, end) of a sequence.
struct HeadKv {
  int64_t begin, end;
  InterleavedRows keys;        // [position - begin, head_dim]
  std::vector<double> values;  // [position - begin, head_dim]
};

HeadKv read_head(const KvView& kv, int64_t head, const int32_t* blocks, int64_t begin, int64_t end) {
  const KvLayerDesc& desc = kv.desc;
  HeadKv read{.begin = begin, .end = end, .keys = InterleavedRows(end - begin, desc.head_dim), .values = {}};
  for (int64_t position = begin; position < end; ++position) {
    void* block = block_data(kv, blocks[position / desc.kv_block_size]);
    const int64_t in_block = position % desc.kv_block_size;
    const auto element = [&](KvPart part, int64_t d) {
      const int64_t at = element_in_block(desc, part, in_block, head) + d;
      if (desc.dtype != DType::kI8) return load(block, desc.dtype, at);
      return *scale_in_block(desc, block, part, in_block, head) *
             static_cast<double>(static_cast<const int8_t*>(block)[at]);
    };
    for (int64_t d = 0; d < desc.head_dim; ++d) read.keys.at(position - begin, d) = element(kKey, d);
    for (int64_t d = 0; d < desc.head_dim; ++d) read.values.push_back(element(kValue, d));
  }
  return read;
}

// One query row of one head over the keys [begin, end).
void attend(const AttentionPagedParams& p, int64_t token, int64_t head, const HeadKv& kv, int64_t begin, int64_t end) {
  const auto head_dim = static_cast<size_t>(p.kv.desc.head_dim);
  std::vector<double> q(head_dim), scores(static_cast<size_t>(end - begin)), sums(head_dim, 0.0);
  for (size_t d = 0; d < head_dim; ++d) q[d] = load(p.q, token, head, static_cast<int64_t>(d));
  kv.keys.dots<1>({q.data()}, begin - kv.begin, end - kv.begin, {scores.data()});
  double max_score = -INFINITY, denominator = 0;
  for (double& score : scores) max_score = std::max(max_score, score *= p.softmax_scale);
  for (double& score : scores) denominator += score = std::exp(score - max_score);
  const double* values = kv.values.data() + static_cast<size_t>(begin - kv.begin) * head_dim;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t d = 0; d < head_dim; ++d) sums[d] += scores[i] * values[i * head_dim + d];
  }
  for (size_t d = 0; d < head_dim; ++d) store(p.out, token, head, static_cast<int64_t>(d), sums[d] / denominator);
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
    const auto first_key = [&](int64_t position) {
      return p.window > 0 ? std::max<int64_t>(0, position - p.window + 1) : 0;
    };
    for (int64_t kv_head = 0; kv_head < p.kv.desc.num_kv_heads && query_len > 0; ++kv_head) {
      const HeadKv kv = read_head(p.kv, kv_head, blocks, first_key(seq_len - query_len), seq_len);
      const int64_t group_size = p.q.dim(1) / p.kv.desc.num_kv_heads;
      for (int64_t i = 0; i < query_len; ++i) {
        const int64_t position = seq_len - query_len + i;
        for (int64_t h = kv_head * group_size; h < (kv_head + 1) * group_size; ++h) {
          attend(p, first + i, h, kv, first_key(position), position + 1);
        }
      }
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
