// FeedForward: the part of a layer that works on each token alone.
//
// Implementations: layer/mlp.h. Owned by a model; used by its thread.
#pragma once

#include <string>
#include <vector>

#include "layer/arena.h"
#include "layer/product.h"
#include "layer/rms_norm.h"
#include "layer/step_context.h"

namespace spate {

// The norms around the part: of the same layer, and the next one's first. Without `next` the residual stays as `own`
// left it.
struct NormsAround {
  const RmsNorm& own;
  const RmsNorm* next = nullptr;
  const PackedWeight* next_reader = nullptr;  // RmsNorm::add_forward's, of next
};

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // As Attention's.
  virtual void take_workspace(Arena& arena) = 0;
  virtual void list_products(const std::string& norm, std::vector<Product>& products) const = 0;
  virtual const PackedWeight* x_reader() const { return nullptr; }
  // x [n, hidden_size] -> out [n, hidden_size], summed over the ranks; out may be x. Any rows of a step.
  virtual void forward(const StepContext& ctx, const Tensor& x, const Tensor& out) const = 0;
  // residual += x; x = forward(own(residual)); with next: residual += x; x = next(residual).
  virtual void forward_with_norms(const StepContext& ctx, const NormsAround& norms, const Tensor& x,
                                  const Tensor& residual) const {
    norms.own.add_forward(ctx, x, residual, x, x_reader());
    forward(ctx, x, x);
    if (norms.next != nullptr) norms.next->add_forward(ctx, x, residual, x, norms.next_reader);
  }
};

}  // namespace spate
