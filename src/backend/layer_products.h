// All products of a layer between its attention and that of the next layer, as one op, for devices that can do
// better than to run them one after the other. Beside the op catalogue (backend/ops.h), whose rules hold here: it is
// the caller who asks for it, and runs the parts elsewhere.
#pragma once

#include "backend/backend.h"
#include "backend/ops.h"

namespace spate {

// Each result is rounded as the ops in its place would round it:
//   x = heads o^T; residual = residual + x; x = rms_norm(residual) by post_norm
//   act = silu(x gate^T) * (x up^T) with gate_up = [gate; up]; x = act down^T
// and where there is a qkv
//   residual = residual + x; x = rms_norm(residual) by next_norm; qkv_out = x qkv^T
// Without qkv x is the product with down, else what is left in it is not said, nor what is left in scratch and act.
// heads and qkv_out may share memory with scratch and act.
struct LayerProductsParams {
  Tensor heads;  // [num_tokens, width of the heads] act
  const PackedWeight* o = nullptr;
  Tensor o_bias;     // this and the other biases: [out_features] act, or undefined
  Tensor residual;   // [num_tokens, hidden_size] act, in-out
  Tensor post_norm;  // [hidden_size] act
  float post_eps = 0;
  const PackedWeight* gate_up = nullptr;  // [2 * intermediate_size, hidden_size]
  Tensor gate_up_bias;
  Tensor scratch;  // [num_tokens, 2 * intermediate_size] act
  Tensor act;      // [num_tokens, intermediate_size] act
  const PackedWeight* down = nullptr;
  Tensor down_bias;
  Tensor x;          // [num_tokens, hidden_size] act
  Tensor next_norm;  // [hidden_size] act; this and what follows only with qkv
  float next_eps = 0;
  const PackedWeight* qkv = nullptr;
  Tensor qkv_bias;
  Tensor qkv_out;  // [num_tokens, rows of qkv] act
};

// An expert that every token has: out = down(silu(gate(x)) * up(x)). What is left in these tensors is not said.
struct SharedExpertParams {
  const PackedWeight* gate_up = nullptr;  // [2 * its intermediate_size, hidden_size]; null: there is none
  Tensor gate_up_bias;                    // this and the other bias: [out_features] act, or undefined
  const PackedWeight* down = nullptr;     // [hidden_size, its intermediate_size]
  Tensor down_bias;
  Tensor scratch;  // [num_tokens, 2 * its intermediate_size] act
  Tensor act;      // [num_tokens, its intermediate_size] act
  Tensor out;      // [num_tokens, hidden_size] act
};

// The same of a layer of experts:
//   x = heads o^T; residual = residual + x; x = rms_norm(residual) by post_norm
//   logits = x router^T; the experts of `route`; x = what expert_mlp() gives of them and of the shared one, whose part
//   may stay f32
// and the rest as above. What is left in logits, expert_ids and expert_weights is not said.
struct ExpertLayerProductsParams {
  Tensor heads;  // [num_tokens, width of the heads] act
  const PackedWeight* o = nullptr;
  Tensor o_bias;     // this and the other bias: [out_features] act, or undefined
  Tensor residual;   // [num_tokens, hidden_size] act, in-out
  Tensor post_norm;  // [hidden_size] act
  float post_eps = 0;
  const PackedWeight* router = nullptr;  // [num_experts, hidden_size]
  RouteExpertsParams route;
  const PackedWeight* gate_up = nullptr;  // as ExpertMlpParams
  const PackedWeight* down = nullptr;
  SharedExpertParams shared;
  Tensor x;          // [num_tokens, hidden_size] act
  Tensor next_norm;  // [hidden_size] act; this and what follows only with qkv
  float next_eps = 0;
  const PackedWeight* qkv = nullptr;
  Tensor qkv_bias;
  Tensor qkv_out;  // [num_tokens, rows of qkv] act; may share memory with heads
};

// Attention over latent vectors from the products before it to those behind it: latent_norm_rope_write by `write`,
// q_nope through k_up to attention.q_latent, attention_latent, its result through v_up to heads. What is left in
// attention.q_latent and attention.out is not said.
struct LatentAttentionParams {
  LatentNormRopeWriteParams write;
  Tensor q_nope;                       // [num_tokens, num_heads, qk_nope_head_dim] act
  const PackedWeight* k_up = nullptr;  // as LinearHeadsParams
  AttentionLatentParams attention;
  const PackedWeight* v_up = nullptr;
  Tensor heads;  // [num_tokens, num_heads, v_head_dim] act
};

// What such a device is beside a Device. Threads: as Device.
class LayerProductsDevice {
 public:
  virtual ~LayerProductsDevice() = default;
  // A step of so many tokens is faster with layer_products() than with its parts. Never where results must not depend
  // on the other rows of a batch.
  virtual bool joins_layer_products(int64_t num_tokens) const = 0;
  // Any shapes: those that are not joined run as the parts.
  virtual void layer_products(Stream& stream, const LayerProductsParams& params) = 0;
  virtual void layer_products(Stream& stream, const ExpertLayerProductsParams& params) = 0;
  virtual void latent_attention(Stream& stream, const LatentAttentionParams& params) = 0;
};

// `device` as such a one, or null.
LayerProductsDevice* layer_products_device(Device& device);

// The parts, over stream.device().ops(), and a check of shapes that ends the program.
void decomposed_layer_products(Stream& stream, const LayerProductsParams& p);
void decomposed_layer_products(Stream& stream, const ExpertLayerProductsParams& p);
void decomposed_latent_attention(Stream& stream, const LatentAttentionParams& p);
void check_params(const LayerProductsParams& p);
void check_params(const ExpertLayerProductsParams& p);

}  // namespace spate
