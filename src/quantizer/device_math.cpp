#include "quantizer/device_math.h"

#include "backend/ops.h"

namespace spate {

Result<HostTensor> DeviceMath::product(const Tensor& a, const Tensor& b) {
  CHECK(a.is_contiguous() && b.is_contiguous() && a.dim(1) == b.dim(1), "{} x {}", a.shape_string(), b.shape_string());
  HostTensor out(DType::kF32, {a.dim(0), b.dim(0)});
  ASSIGN_OR_RETURN(PackedWeight weight,
                   device_.create_weight({.out_features = b.dim(0), .in_features = b.dim(1), .spec = {Codes::kF32}}));
  RETURN_IF_ERROR(device_.pack_rows(weight, {}, b));
  ASSIGN_OR_RETURN(const Buffer x, device_.allocate(static_cast<size_t>(a.num_bytes()), MemoryKind::kDevice));
  ASSIGN_OR_RETURN(const Buffer y, device_.allocate(static_cast<size_t>(out.view().num_bytes()), MemoryKind::kDevice));
  device_.copy_to_device(*stream_, x.data(), a.raw(), static_cast<size_t>(a.num_bytes()));
  device_.ops().linear(*stream_, {.x = x.tensor(DType::kF32, {a.dim(0), a.dim(1)}),
                                  .weight = &weight,
                                  .bias = {},
                                  .out = y.tensor(DType::kF32, {a.dim(0), b.dim(0)})});
  device_.copy_to_host(*stream_, out.view().raw(), y.data(), static_cast<size_t>(out.view().num_bytes()));
  device_.synchronize(*stream_);
  return out;
}

Result<double> DeviceMath::squared_output(const Tensor& x, const Tensor& w) {
  ASSIGN_OR_RETURN(const HostTensor y, product(x, w));
  double sum = 0;
  for (const float value : y.span<float>()) sum += double{value} * value;
  return sum;
}

}  // namespace spate
