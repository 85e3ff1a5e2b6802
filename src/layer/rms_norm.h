// RmsNorm: the same on every rank.
#pragma once

#include <string>

#include "layer/parameter_factory.h"
#include "layer/step_context.h"

namespace spate {

class RmsNorm {
 public:
  // Weight "<name>.weight" [size].
  static Result<RmsNorm> create(ParameterFactory& factory, const std::string& name, int64_t size, double eps);

  void forward(const StepContext& ctx, const Tensor& x, const Tensor& out) const;
  // residual += x; out = norm(residual). out may be x. reader: the weight of the one product that reads out
  // (backend/ops.h), or null.
  void add_forward(const StepContext& ctx, const Tensor& x, const Tensor& residual, const Tensor& out,
                   const PackedWeight* reader) const;

  const std::string& name() const { return name_; }
  const Tensor& weight() const { return weight_.view; }
  float eps() const { return eps_; }

 private:
  std::string name_;
  DeviceVector weight_;
  float eps_ = 0;
};

}  // namespace spate
