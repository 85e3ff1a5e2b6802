// Mlp: down(silu(gate(x)) * up(x)), the intermediate columns sharded over the tensor-parallel group.
#pragma once

#include <memory>
#include <string>

#include "layer/feed_forward.h"
#include "layer/linear.h"

namespace spate {

class Mlp final : public FeedForward {
 public:
  // Weights gate_proj, up_proj, down_proj below `name`.
  static Result<Mlp> make(ParameterFactory& factory, const std::string& name, int64_t hidden_size,
                          int64_t intermediate_size, bool has_bias);
  static Result<std::unique_ptr<FeedForward>> create(ParameterFactory& factory, const std::string& name,
                                                     int64_t hidden_size, int64_t intermediate_size, bool has_bias);

  void take_workspace(Arena& arena) override;
  void list_products(const std::string& norm, std::vector<Product>& products) const override;
  const PackedWeight* x_reader() const override { return &gate_up_proj_.weight(); }
  void forward(const StepContext& ctx, const Tensor& x, const Tensor& out) const override;
  // The same without the sum over the ranks, which is the caller's to take.
  void forward_of_rank(const StepContext& ctx, const Tensor& x, const Tensor& out) const;
  // Its part of LayerProductsParams, or of SharedExpertParams; x and the rest are the caller's.
  void put_products(auto& params, int64_t num_tokens) const {
    params.gate_up = &gate_up_proj_.weight();
    params.gate_up_bias = gate_up_proj_.bias();
    params.scratch = gate_up_.rows(0, num_tokens);
    params.act = act_.rows(0, num_tokens);
    params.down = &down_proj_.weight();
    params.down_bias = down_proj_.bias();
  }

 private:
  Mlp(std::string name, Linear gate_up_proj, Linear down_proj, int64_t width)
      : name_(std::move(name)),
        gate_up_proj_(std::move(gate_up_proj)),
        down_proj_(std::move(down_proj)),
        width_(width) {}

  Tensor activations(const StepContext& ctx, const Tensor& x) const;

  std::string name_;
  Linear gate_up_proj_, down_proj_;
  int64_t width_;   // intermediate columns of this rank
  Tensor gate_up_;  // [max_num_tokens, 2 * width] scratch
  Tensor act_;      // [max_num_tokens, width] scratch
};

}  // namespace spate
