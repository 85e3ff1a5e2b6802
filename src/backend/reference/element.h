// Elements of f32, f16 and bf16 arrays as double, and back with one rounding; for the scalar reference only.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace spate::reference {

inline double load(const void* data, DType dtype, int64_t idx) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[idx];
    case DType::kBf16:
      return static_cast<const Bf16*>(data)[idx].to_float();
    case DType::kF16:
      return static_cast<const F16*>(data)[idx].to_float();
    default:
      SPATE_CHECK(false, "false", "{} is no float type", dtype_name(dtype));
  }
}

inline void store(void* data, DType dtype, int64_t idx, double value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[idx] = static_cast<float>(value);
      return;
    case DType::kBf16:
      static_cast<Bf16*>(data)[idx] = Bf16::from_float(static_cast<float>(value));
      return;
    default:
      SPATE_CHECK(false, "false", "{} is no activation type", dtype_name(dtype));
  }
}

// The value that store() leaves behind.
inline double round_to(DType dtype, double value) {
  const float f = static_cast<float>(value);
  return dtype == DType::kBf16 ? Bf16::from_float(f).to_float() : f;
}

inline double load(const Tensor& t, int64_t i, int64_t j) { return load(t.raw(), t.dtype(), i * t.stride(0) + j); }
inline void store(const Tensor& t, int64_t i, int64_t j, double value) {
  store(t.raw(), t.dtype(), i * t.stride(0) + j, value);
}
inline double load(const Tensor& t, int64_t i, int64_t j, int64_t k) {
  return load(t.raw(), t.dtype(), i * t.stride(0) + j * t.stride(1) + k);
}
inline void store(const Tensor& t, int64_t i, int64_t j, int64_t k, double value) {
  store(t.raw(), t.dtype(), i * t.stride(0) + j * t.stride(1) + k, value);
}

}  // namespace spate::reference
