// Products of f32 matrices of the host, computed on a device: the back-end's kernels are there already.
//
// Belongs to one thread, that of its device.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "base/status.h"

namespace spate {

class DeviceMath {
 public:
  explicit DeviceMath(Device& device) : device_(device), stream_(device.create_stream()) {}

  // a b^T: a [m, k] and b [n, k] f32, contiguous -> [m, n] f32. Error: memory.
  Result<HostTensor> product(const Tensor& a, const Tensor& b);
  // The sum of the squares of x w^T over all rows of x [m, k], for w [n, k].
  Result<double> squared_output(const Tensor& x, const Tensor& w);

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace spate
