// Mlp: down(silu(gate(x)) * up(x)), the intermediate columns sharded over the tensor-parallel group.
#pragma once

#include <string>

#include "layer/linear.h"

namespace spate {

class Mlp {
 public:
  // Weights gate_proj, up_proj, down_proj below `name`.
  static Result<Mlp> create(ParameterFactory& factory, const std::string& name, int64_t hidden_size,
                            int64_t intermediate_size, bool has_bias);

  // x [n, hidden_size] -> out [n, hidden_size], summed over the ranks; out may be x.
  // Scratch: gate_up [n, 2 * width()], act [n, width()].
  void forward(const StepContext& ctx, const Tensor& x, const Tensor& gate_up, const Tensor& act,
               const Tensor& out) const;

  int64_t width() const { return width_; }  // intermediate columns of this rank

 private:
  Mlp(Linear gate_up_proj, Linear down_proj, int64_t width)
      : gate_up_proj_(std::move(gate_up_proj)), down_proj_(std::move(down_proj)), width_(width) {}

  Linear gate_up_proj_, down_proj_;
  int64_t width_;
};

}  // namespace spate
