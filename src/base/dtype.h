// Element types and the two 16-bit floats on the host.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace spate {

enum class DType : uint8_t { kF32, kF16, kBf16, kF64, kI8, kU8, kI32, kI64 };

std::string_view dtype_name(DType dtype);  // "f32", "bf16", ...

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kI8:
    case DType::kU8: return 1;
    case DType::kF16:
    case DType::kBf16: return 2;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF64:
    case DType::kI64: return 8;
  }
  return 0;
}

// bfloat16: the upper half of a float. Conversion rounds to nearest even; NaN stays NaN.
struct Bf16 {
  uint16_t bits = 0;

  static Bf16 from_float(float value) {
    uint32_t u;
    std::memcpy(&u, &value, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return Bf16{static_cast<uint16_t>((u >> 16) | 0x40u)};
    u += 0x7fffu + ((u >> 16) & 1u);
    return Bf16{static_cast<uint16_t>(u >> 16)};
  }
  float to_float() const {
    const uint32_t u = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &u, 4);
    return value;
  }
};

// IEEE half precision, software conversion (weights files hold it; it is converted once).
struct F16 {
  uint16_t bits = 0;
  static F16 from_float(float value);
  float to_float() const;
};

template <typename T>
struct DTypeOf;
template <> struct DTypeOf<float> { static constexpr DType value = DType::kF32; };
template <> struct DTypeOf<double> { static constexpr DType value = DType::kF64; };
template <> struct DTypeOf<Bf16> { static constexpr DType value = DType::kBf16; };
template <> struct DTypeOf<F16> { static constexpr DType value = DType::kF16; };
template <> struct DTypeOf<int8_t> { static constexpr DType value = DType::kI8; };
template <> struct DTypeOf<uint8_t> { static constexpr DType value = DType::kU8; };
template <> struct DTypeOf<int32_t> { static constexpr DType value = DType::kI32; };
template <> struct DTypeOf<int64_t> { static constexpr DType value = DType::kI64; };

}  // namespace spate
