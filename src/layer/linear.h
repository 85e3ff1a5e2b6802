// Linear: y = x W^T + b, with W sharded over the tensor-parallel group.
//
// Column parallel: each rank holds rows of W and computes its columns of y; no collective. Several checkpoint matrices
// may be fused into one (q, k, v; gate, up): their shards lie one after the other.
//
// Row parallel: each rank holds columns of W, x is this rank's columns; y is summed over the ranks.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "layer/parameter_factory.h"
#include "layer/step_context.h"

namespace spate {

// One checkpoint matrix "<name>.weight" [out_features, in_features] inside a fused column-parallel one.
struct LinearPart {
  std::string name;
  int64_t out_features = 0;  // over all ranks
  Range rows;                // of this rank
};

class Linear {
 public:
  static Result<Linear> column_parallel(ParameterFactory& factory, std::span<const LinearPart> parts,
                                        int64_t in_features, bool has_bias);
  static Result<Linear> row_parallel(ParameterFactory& factory, const std::string& name, int64_t out_features,
                                     int64_t in_features, bool has_bias);

  // Column parallel with all rows on every rank, quantised like other products.
  static Result<Linear> whole(ParameterFactory& factory, const std::string& name, int64_t out_features,
                              int64_t in_features, bool has_bias) {
    const LinearPart parts[] = {{name, out_features, {0, out_features}}};
    return column_parallel(factory, parts, in_features, has_bias);
  }
  // The same on every rank: a small matrix that decides something, as a router does. Never quantised.
  static Result<Linear> replicated(ParameterFactory& factory, const std::string& name, int64_t out_features,
                                   int64_t in_features);

  // x [n, in_features of this rank] -> out [n, out_features of this rank]; row parallel: summed over the ranks.
  void forward(const StepContext& ctx, const Tensor& x, const Tensor& out) const;
  // The same without the sum over the ranks, which is the caller's to take.
  void forward_of_rank(const StepContext& ctx, const Tensor& x, const Tensor& out) const;

  const PackedWeight& weight() const { return *weight_; }
  const Tensor& bias() const { return bias_.view; }  // undefined without one

 private:
  Linear() = default;
  std::unique_ptr<PackedWeight> weight_;
  DeviceVector bias_;
  bool sum_over_ranks_ = false;
};

}  // namespace spate
