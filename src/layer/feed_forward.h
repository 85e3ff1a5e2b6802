// FeedForward: the part of a layer that works on each token alone.
//
// Implementations: layer/mlp.h. Owned by a model; used by its thread.
#pragma once

#include <string>
#include <vector>

#include "layer/arena.h"
#include "layer/product.h"
#include "layer/step_context.h"

namespace spate {

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // As Attention's.
  virtual void take_workspace(Arena& arena) = 0;
  virtual void list_products(const std::string& norm, std::vector<Product>& products) const = 0;
  virtual const PackedWeight* x_reader() const { return nullptr; }
  // x [n, hidden_size] -> out [n, hidden_size], summed over the ranks; out may be x. Any rows of a step.
  virtual void forward(const StepContext& ctx, const Tensor& x, const Tensor& out) const = 0;
};

}  // namespace spate
