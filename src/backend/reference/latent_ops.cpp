// The latent cache, attention over it, and products with a matrix for each head.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/check_params.h"
#include "backend/reference/element.h"
#include "backend/reference/interleaved_rows.h"
#include "backend/reference/product_rows.h"
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

// What a query row attends to: keys, and values of which it takes the mean.
struct KeysAndValues {
  InterleavedRows keys;
  int64_t value_dim;
  std::vector<double> values;  // [position, value_dim]
};

// The mean of the values of the keys [0, end), weighted by the softmax of their products with q.
std::vector<double> attend(const std::vector<double>& q, const KeysAndValues& kv, float softmax_scale, int64_t end) {
  std::vector<double> probs(static_cast<size_t>(end));
  kv.keys.dots<1>({q.data()}, 0, end, {probs.data()});
  for (double& prob : probs) prob *= double{softmax_scale};
  const double largest = *std::max_element(probs.begin(), probs.end());
  double denominator = 0;
  for (double& prob : probs) denominator += prob = std::exp(prob - largest);
  const auto value_dim = static_cast<size_t>(kv.value_dim);
  std::vector<double> mean(value_dim, 0.0);
  for (size_t i = 0; i < probs.size(); ++i) {
    for (size_t d = 0; d < value_dim; ++d) mean[d] += probs[i] * kv.values[i * value_dim + d];
  }
  for (double& value : mean) value /= denominator;
  return mean;
}

// The latent vectors of a sequence: keys as they are, their first kv_lora_rank elements as values.
KeysAndValues read_latents(const KvView& kv, const int32_t* blocks, int64_t seq_len) {
  const int64_t rank = kv.desc.kv_lora_rank, width = kv.desc.latent_width();
  KeysAndValues read{.keys = InterleavedRows(seq_len, width), .value_dim = rank, .values = {}};
  for (int64_t position = 0; position < seq_len; ++position) {
    for (int64_t d = 0; d < width; ++d) {
      const double element = element_at(kv, blocks, position, d);
      read.keys.at(position, d) = element;
      if (d < rank) read.values.push_back(element);
    }
  }
  return read;
}

// Keys and values of one head of one sequence, for the expanded form.
KeysAndValues expand(const AttentionLatentExpandedParams& p, int64_t head, const int32_t* blocks, int64_t seq_len) {
  const KvLayerDesc& desc = p.kv.desc;
  const int64_t nope = p.qk_nope_head_dim(), rank = desc.kv_lora_rank, width = desc.latent_width();
  const int64_t num_products = nope + p.v_head_dim(), first_row = head * num_products;
  InterleavedRows up(num_products, rank);
  const DType up_dtype = value_dtype(p.kv_up->desc().spec);
  for (int64_t row = 0; row < num_products; ++row) {
    for (int64_t d = 0; d < rank; ++d) up.at(row, d) = load(p.kv_up->matrix(0), up_dtype, (first_row + row) * rank + d);
  }
  KeysAndValues made{.keys = InterleavedRows(seq_len, p.q.dim(2)), .value_dim = p.v_head_dim(), .values = {}};
  std::vector<double> latent(static_cast<size_t>(width)), products(static_cast<size_t>(num_products));
  for (int64_t position = 0; position < seq_len; ++position) {
    for (int64_t d = 0; d < width; ++d) latent[static_cast<size_t>(d)] = element_at(p.kv, blocks, position, d);
    up.dots<1>({latent.data()}, 0, num_products, {products.data()});
    for (int64_t i = 0; i < nope; ++i) made.keys.at(position, i) = products[static_cast<size_t>(i)];
    for (int64_t d = rank; d < width; ++d) made.keys.at(position, nope + d - rank) = latent[static_cast<size_t>(d)];
    made.values.insert(made.values.end(), products.begin() + nope, products.end());
  }
  return made;
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
    const KeysAndValues kv = read_latents(p.kv, blocks, query_len > 0 ? seq_len : 0);
    for (int64_t i = 0; i < query_len; ++i) {
      for (int64_t h = 0; h < p.q_latent.dim(1); ++h) {
        std::vector<double> q;
        for (int64_t d = 0; d < p.q_latent.dim(2); ++d) q.push_back(load(p.q_latent, first + i, h, d));
        for (int64_t d = 0; d < p.q_rope.dim(2); ++d) q.push_back(load(p.q_rope, first + i, h, d));
        const std::vector<double> out = attend(q, kv, p.softmax_scale, seq_len - query_len + i + 1);
        for (size_t d = 0; d < out.size(); ++d) store(p.out, first + i, h, static_cast<int64_t>(d), out[d]);
      }
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
      const KeysAndValues kv = expand(p, h, blocks, query_len > 0 ? seq_len : 0);
      for (int64_t i = 0; i < query_len; ++i) {
        std::vector<double> q;
        for (int64_t d = 0; d < p.q.dim(2); ++d) q.push_back(load(p.q, first + i, h, d));
        const std::vector<double> out = attend(q, kv, p.softmax_scale, seq_len - query_len + i + 1);
        for (size_t d = 0; d < out.size(); ++d) store(p.out, first + i, h, static_cast<int64_t>(d), out[d]);
      }
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
      const std::vector<ProductRows::Sums> products = ProductRows(x.view(), 0, *p.weight, h).products({});
      for (size_t n = 0; n < products.size(); ++n) store(p.out, t, h, static_cast<int64_t>(n), products[n][0]);
    }
  }
}

}  // namespace spate::reference
