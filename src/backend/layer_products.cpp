#include "backend/layer_products.h"

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

// The ops check the tensors of each part; here is what they do not see: that the parts fit each other.
void check_params(const LayerProductsParams& p) {
  const int64_t num_tokens = p.heads.dim(0), hidden_size = p.residual.dim(1), width = p.down->desc().in_features;
  const auto check_tensor = [&](const char* name, const Tensor& tensor, int64_t columns) {
    CHECK(tensor.dtype() == p.heads.dtype() && tensor.dim(0) == num_tokens && tensor.dim(1) == columns,
          "layer_products: {} is {} {}, not [{}, {}]", name, dtype_name(tensor.dtype()), tensor.shape_string(),
          num_tokens, columns);
  };
  const auto check_weight = [&](const char* name, const PackedWeight& weight, int64_t rows, int64_t columns) {
    CHECK(weight.desc().out_features == rows && weight.desc().in_features == columns,
          "layer_products: {} is of {} by {}, not {} by {}", name, weight.desc().out_features,
          weight.desc().in_features, rows, columns);
  };
  const auto check_vector = [&](const char* name, const Tensor& vector, int64_t size) {
    CHECK(vector.dtype() == p.heads.dtype() && vector.dim(0) == size, "layer_products: {} is {} {}, not [{}]", name,
          dtype_name(vector.dtype()), vector.shape_string(), size);
  };
  const auto check_bias = [&](const char* name, const Tensor& bias, int64_t size) {
    if (bias.defined()) check_vector(name, bias, size);
  };
  check_tensor("residual", p.residual, hidden_size);
  check_tensor("x", p.x, hidden_size);
  check_tensor("act", p.act, width);
  check_weight("o", *p.o, hidden_size, p.heads.dim(1));
  check_weight("gate_up", *p.gate_up, 2 * width, hidden_size);
  check_weight("down", *p.down, hidden_size, width);
  check_vector("post_norm", p.post_norm, hidden_size);
  check_bias("o_bias", p.o_bias, hidden_size);
  check_bias("gate_up_bias", p.gate_up_bias, 2 * width);
  check_bias("down_bias", p.down_bias, hidden_size);
  if (p.qkv == nullptr) return;
  check_weight("qkv", *p.qkv, p.qkv_out.dim(1), hidden_size);
  check_tensor("qkv_out", p.qkv_out, p.qkv_out.dim(1));
  check_vector("next_norm", p.next_norm, hidden_size);
  check_bias("qkv_bias", p.qkv_bias, p.qkv_out.dim(1));
}

}  // namespace spate
