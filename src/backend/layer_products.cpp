#include "backend/layer_products.h"

#include "backend/check_params.h"

namespace spate {

LayerProductsDevice* layer_products_device(Device& device) { return dynamic_cast<LayerProductsDevice*>(&device); }

void decomposed_layer_products(Stream& stream, const LayerProductsParams& p) {
  const OpTable ops = bind_ops(stream.device().ops()).ops;
  ops.linear(stream, {.x = p.heads, .weight = p.o, .bias = p.o_bias, .out = p.x});
  ops.add_rms_norm(
      stream,
      {.x = p.x, .residual = p.residual, .weight = p.post_norm, .eps = p.post_eps, .out = p.x, .reader = p.gate_up});
  ops.linear_silu_and_mul(
      stream,
      {.x = p.x, .weight = p.gate_up, .bias = p.gate_up_bias, .gate_up = p.scratch, .out = p.act, .reader = p.down});
  ops.linear(stream, {.x = p.act, .weight = p.down, .bias = p.down_bias, .out = p.x});
  if (p.qkv == nullptr) return;
  ops.add_rms_norm(
      stream,
      {.x = p.x, .residual = p.residual, .weight = p.next_norm, .eps = p.next_eps, .out = p.x, .reader = p.qkv});
  ops.linear(stream, {.x = p.x, .weight = p.qkv, .bias = p.qkv_bias, .out = p.qkv_out});
}

void decomposed_layer_products(Stream& stream, const ExpertLayerProductsParams& p) {
  const OpTable ops = bind_ops(stream.device().ops()).ops;
  ops.linear(stream, {.x = p.heads, .weight = p.o, .bias = p.o_bias, .out = p.x});
  ops.add_rms_norm(stream, {.x = p.x, .residual = p.residual, .weight = p.post_norm, .eps = p.post_eps, .out = p.x});
  ops.linear(stream, {.x = p.x, .weight = p.router, .bias = Tensor(), .out = p.route.logits});
  ops.route_experts(stream, p.route);
  if (p.shared.gate_up != nullptr) {
    const SharedExpertParams& shared = p.shared;
    ops.linear_silu_and_mul(stream, {.x = p.x,
                                     .weight = shared.gate_up,
                                     .bias = shared.gate_up_bias,
                                     .gate_up = shared.scratch,
                                     .out = shared.act,
                                     .reader = shared.down});
    ops.linear(stream, {.x = shared.act, .weight = shared.down, .bias = shared.down_bias, .out = shared.out});
  }
  const ExpertMlpParams experts{.x = p.x,
                                .expert_ids = p.route.expert_ids,
                                .expert_weights = p.route.expert_weights,
                                .gate_up = p.gate_up,
                                .down = p.down,
                                .shared = p.shared.gate_up == nullptr ? Tensor() : p.shared.out,
                                .shared_gate = Tensor(),
                                .out = p.x};
  if (p.qkv == nullptr) return ops.expert_mlp(stream, experts);
  ops.expert_mlp_add_norm(
      stream,
      {.experts = experts,
       .norm = {
           .x = p.x, .residual = p.residual, .weight = p.next_norm, .eps = p.next_eps, .out = p.x, .reader = p.qkv}});
  ops.linear(stream, {.x = p.x, .weight = p.qkv, .bias = p.qkv_bias, .out = p.qkv_out});
}

void decomposed_latent_attention(Stream& stream, const LatentAttentionParams& p) {
  const OpTable ops = bind_ops(stream.device().ops()).ops;
  ops.latent_norm_rope_write(stream, p.write);
  ops.linear_heads(stream, {.x = p.q_nope, .weight = p.k_up, .out = p.attention.q_latent});
  ops.attention_latent(stream, p.attention);
  ops.linear_heads(stream, {.x = p.attention.out, .weight = p.v_up, .out = p.heads});
}

namespace {

// The ops check the tensors of each part; here is what they do not see: that the parts fit each other.
struct Checks {
  DType act;
  int64_t num_tokens;

  void tensor(const char* name, const Tensor& tensor, int64_t columns) const {
    CHECK(tensor.dtype() == act && tensor.dim(0) == num_tokens && tensor.dim(1) == columns,
          "layer_products: {} is {} {}, not [{}, {}]", name, dtype_name(tensor.dtype()), tensor.shape_string(),
          num_tokens, columns);
  }
  void weight(const char* name, const PackedWeight& weight, int64_t rows, int64_t columns) const {
    CHECK(weight.desc().out_features == rows && weight.desc().in_features == columns,
          "layer_products: {} is of {} by {}, not {} by {}", name, weight.desc().out_features,
          weight.desc().in_features, rows, columns);
  }
  void vector(const char* name, const Tensor& vector, int64_t size) const {
    CHECK(vector.dtype() == act && vector.dim(0) == size, "layer_products: {} is {} {}, not [{}]", name,
          dtype_name(vector.dtype()), vector.shape_string(), size);
  }
  void bias(const char* name, const Tensor& bias, int64_t size) const {
    if (bias.defined()) vector(name, bias, size);
  }
  // What both kinds of layers have.
  void ends(const auto& p) const {
    const int64_t hidden_size = p.residual.dim(1);
    tensor("residual", p.residual, hidden_size);
    tensor("x", p.x, hidden_size);
    weight("o", *p.o, hidden_size, p.heads.dim(1));
    vector("post_norm", p.post_norm, hidden_size);
    bias("o_bias", p.o_bias, hidden_size);
    if (p.qkv == nullptr) return;
    weight("qkv", *p.qkv, p.qkv_out.dim(1), hidden_size);
    tensor("qkv_out", p.qkv_out, p.qkv_out.dim(1));
    vector("next_norm", p.next_norm, hidden_size);
    bias("qkv_bias", p.qkv_bias, p.qkv_out.dim(1));
  }
};

}  // namespace

void check_params(const LayerProductsParams& p) {
  const int64_t hidden_size = p.residual.dim(1), width = p.down->desc().in_features;
  const Checks check{p.heads.dtype(), p.heads.dim(0)};
  check.ends(p);
  check.tensor("act", p.act, width);
  check.weight("gate_up", *p.gate_up, 2 * width, hidden_size);
  check.weight("down", *p.down, hidden_size, width);
  check.bias("gate_up_bias", p.gate_up_bias, 2 * width);
  check.bias("down_bias", p.down_bias, hidden_size);
}

void check_params(const ExpertLayerProductsParams& p) {
  const int64_t hidden_size = p.residual.dim(1), num_experts = p.gate_up->desc().num_matrices;
  const Checks check{p.heads.dtype(), p.heads.dim(0)};
  check.ends(p);
  check.weight("router", *p.router, num_experts, hidden_size);
  check.weight("gate_up", *p.gate_up, 2 * p.down->desc().in_features, hidden_size);
  check.weight("down", *p.down, hidden_size, p.down->desc().in_features);
  check_params(p.route);
  if (p.shared.gate_up != nullptr) {
    const int64_t width = p.shared.down->desc().in_features;
    check.weight("gate_up of the shared expert", *p.shared.gate_up, 2 * width, hidden_size);
    check.weight("down of the shared expert", *p.shared.down, hidden_size, width);
    check.tensor("act of the shared expert", p.shared.act, width);
    check.tensor("what the shared expert gives", p.shared.out, hidden_size);
    check.bias("gate_up_bias of the shared expert", p.shared.gate_up_bias, 2 * width);
    check.bias("down_bias of the shared expert", p.shared.down_bias, hidden_size);
  }
  CHECK(p.route.logits.dim(0) == check.num_tokens && p.route.logits.dim(1) == num_experts,
        "layer_products: logits are {}, not [{}, {}]", p.route.logits.shape_string(), check.num_tokens, num_experts);
}

}  // namespace spate
