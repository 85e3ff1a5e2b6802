// The latent cache, attention over it, and products with a matrix for each head.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/check_params.h"
#include "backend/reference/element.h"
#include "backend/reference/product_row.h"
#include "backend/reference/reference_ops.h"

namespace spate::reference {
namespace {

// Scales of the compressed and of the rotated elements of a token in a kI8 cache: after all codes of the block.
float* scales_in_block(const KvLayerDesc& desc, void* block, int64_t token_in_block) {
  return reinterpret_cast<float*>(static_cast<char*>(block) + desc.kv_block_size * desc.latent_width()) +
         2 * token_in_block;
}

// Element d of the vector at a position of a sequence with these blocks.
double element_at(const KvView& kv, const int32_t* blocks, int64_t position, int64_t d) {
  const KvLayerDesc& desc = kv.desc;
  void* block = block_data(kv, blocks[position / desc.kv_block_size]);
  const int64_t token = position % desc.kv_block_size, at = token * desc.latent_width() + d;
  if (desc.dtype != DType::kI8) return load(block, desc.dtype, at);
  const float scale = scales_in_block(desc, block, token)[d < desc.kv_lora_rank ? 0 : 1];
  return double{scale} * static_cast<double>(static_cast<const int8_t*>(block)[at]);
}

// One query row of one head over keys [0, end).
void attend(const AttentionLatentParams& p, int64_t token, int64_t head, const int32_t* blocks, int64_t end) {
  const KvLayerDesc& desc = p.kv.desc;
  const int64_t rank = desc.kv_lora_rank;
  const auto key_at = [&](int64_t position, int64_t d) { return element_at(p.kv, blocks, position, d); };
  std::vector<double> probs(static_cast<size_t>(end));
  for (int64_t position = 0; position < end; ++position) {
    double dot = 0;
    for (int64_t d = 0; d < rank; ++d) dot += load(p.q_latent, token, head, d) * key_at(position, d);
    for (int64_t d = 0; d < desc.qk_rope_head_dim; ++d)
      dot += load(p.q_rope, token, head, d) * key_at(position, rank + d);
    probs[static_cast<size_t>(position)] = dot * double{p.softmax_scale};
  }
  const double largest = *std::max_element(probs.begin(), probs.end());
  double denominator = 0;
  for (double& prob : probs) denominator += prob = std::exp(prob - largest);
  for (int64_t d = 0; d < rank; ++d) {
    double sum = 0;
    for (int64_t position = 0; position < end; ++position) {
      sum += probs[static_cast<size_t>(position)] * key_at(position, d);
    }
    store(p.out, token, head, d, sum / denominator);
  }
}

// Keys and values of one head of one sequence, for the expanded form.
struct HeadKeys {
  int64_t key_dim, value_dim;
  std::vector<double> keys, values;  // [seq_len, key_dim], [seq_len, value_dim]
};

HeadKeys expand(const AttentionLatentExpandedParams& p, int64_t head, const int32_t* blocks, int64_t seq_len) {
  const KvLayerDesc& desc = p.kv.desc;
  const int64_t nope = p.qk_nope_head_dim(), rank = desc.kv_lora_rank, width = desc.latent_width();
  HeadKeys made{.key_dim = p.q.dim(2), .value_dim = p.v_head_dim(), .keys = {}, .values = {}};
  const int64_t first_row = head * (nope + made.value_dim);
  const DType up_dtype = value_dtype(p.kv_up->desc().spec);
  std::vector<double> latent(static_cast<size_t>(width));
  for (int64_t position = 0; position < seq_len; ++position) {
    for (int64_t d = 0; d < width; ++d) latent[static_cast<size_t>(d)] = element_at(p.kv, blocks, position, d);
    const auto product = [&](int64_t row) {
      double sum = 0;
      for (int64_t d = 0; d < rank; ++d) {
        sum += latent[static_cast<size_t>(d)] * load(p.kv_up->matrix(0), up_dtype, (first_row + row) * rank + d);
      }
      return sum;
    };
    for (int64_t i = 0; i < nope; ++i) made.keys.push_back(product(i));
    made.keys.insert(made.keys.end(), latent.begin() + rank, latent.end());
    for (int64_t i = 0; i < made.value_dim; ++i) made.values.push_back(product(nope + i));
  }
  return made;
}

// One query row over keys [0, end).
void attend(const AttentionLatentExpandedParams& p, int64_t token, int64_t head, const HeadKeys& made, int64_t end) {
  std::vector<double> probs(static_cast<size_t>(end));
  for (int64_t i = 0; i < end; ++i) {
    double dot = 0;
    for (int64_t d = 0; d < made.key_dim; ++d) {
      dot += load(p.q, token, head, d) * made.keys[static_cast<size_t>(i * made.key_dim + d)];
    }
    probs[static_cast<size_t>(i)] = dot * double{p.softmax_scale};
  }
  const double largest = *std::max_element(probs.begin(), probs.end());
  double denominator = 0;
  for (double& prob : probs) denominator += prob = std::exp(prob - largest);
  for (int64_t d = 0; d < made.value_dim; ++d) {
    double sum = 0;
    for (int64_t i = 0; i < end; ++i) {
      sum += probs[static_cast<size_t>(i)] * made.values[static_cast<size_t>(i * made.value_dim + d)];
    }
    store(p.out, token, head, d, sum / denominator);
  }
}

}  // namespace

void latent_write(Stream&, const LatentWriteParams& p) {
  check_params(p);
  const KvLayerDesc& desc = p.kv.desc;
  for (int64_t i = 0; i < p.slot_mapping.dim(0); ++i) {
    const int64_t slot = p.slot_mapping.data<int32_t>()[i];
    if (slot == -1) continue;
    void* block = block_data(p.kv, slot / desc.kv_block_size);
    const int64_t token = slot % desc.kv_block_size, first = token * desc.latent_width(), rank = desc.kv_lora_rank;
    if (desc.dtype == DType::kI8) {
      std::vector<float> values;
      for (int64_t d = 0; d < desc.latent_width(); ++d) values.push_back(static_cast<float>(load(p.latent, i, d)));
      int8_t* codes = static_cast<int8_t*>(block) + first;
      float* scales = scales_in_block(desc, block, token);
      quantize_activations(values.data(), rank, rank, codes, scales);
      quantize_activations(values.data() + rank, desc.qk_rope_head_dim, desc.qk_rope_head_dim, codes + rank,
                           scales + 1);
      continue;
    }
    for (int64_t d = 0; d < desc.latent_width(); ++d) store(block, desc.dtype, first + d, load(p.latent, i, d));
  }
}

void attention_latent(Stream&, const AttentionLatentParams& p) {
  check_params(p);
  for (int64_t s = 0; s < p.seq_rows.dim(0); ++s) {
    const int64_t first = p.cu_seqlens_q.data<int32_t>()[s];
    const int64_t query_len = p.cu_seqlens_q.data<int32_t>()[s + 1] - first;
    const int64_t seq_len = p.seq_lens.data<int32_t>()[s];
    if (seq_len == 0) continue;
    const int32_t* blocks = p.block_table.data<int32_t>() + p.seq_rows.data<int32_t>()[s] * p.block_table.stride(0);
    for (int64_t i = 0; i < query_len; ++i) {
      for (int64_t h = 0; h < p.q_latent.dim(1); ++h) attend(p, first + i, h, blocks, seq_len - query_len + i + 1);
    }
  }
}

void attention_latent_expanded(Stream&, const AttentionLatentExpandedParams& p) {
  check_params(p);
  for (int64_t s = 0; s < p.seq_rows.dim(0); ++s) {
    const int64_t first = p.cu_seqlens_q.data<int32_t>()[s];
    const int64_t query_len = p.cu_seqlens_q.data<int32_t>()[s + 1] - first;
    const int64_t seq_len = p.seq_lens.data<int32_t>()[s];
    if (seq_len == 0) continue;
    const int32_t* blocks = p.block_table.data<int32_t>() + p.seq_rows.data<int32_t>()[s] * p.block_table.stride(0);
    for (int64_t h = 0; h < p.q.dim(1); ++h) {
      const HeadKeys made = expand(p, h, blocks, seq_len);
      for (int64_t i = 0; i < query_len; ++i) attend(p, first + i, h, made, seq_len - query_len + i + 1);
    }
  }
}

void linear_heads(Stream&, const LinearHeadsParams& p) {
  check_params(p);
  const int64_t in_features = p.weight->desc().in_features;
  HostTensor x(p.x.dtype(), {1, in_features});
  for (int64_t t = 0; t < p.x.dim(0); ++t) {
    for (int64_t h = 0; h < p.x.dim(1); ++h) {
      for (int64_t k = 0; k < in_features; ++k) store(x.view(), 0, k, load(p.x, t, h, k));
      const ProductRow row(x.view(), 0, *p.weight, h);
      for (int64_t n = 0; n < p.weight->desc().out_features; ++n) store(p.out, t, h, n, row.dot(n, {}));
    }
  }
}

}  // namespace spate::reference
