#include "base/dtype.h"

namespace spate {

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBf16: return "bf16";
    case DType::kF64: return "f64";
    case DType::kI8: return "i8";
    case DType::kU8: return "u8";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
  }
  return "?";
}

F16 F16::from_float(float value) {
  uint32_t u;
  std::memcpy(&u, &value, 4);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return F16{static_cast<uint16_t>(sign | 0x7e00u)};    // NaN
  if (magnitude >= 0x477ff000u) return F16{static_cast<uint16_t>(sign | 0x7c00u)};   // rounds to infinity
  if (magnitude < 0x38800000u) {                                                     // subnormal half
    float absolute;
    std::memcpy(&absolute, &magnitude, 4);
    absolute += 0.5f;  // the mantissa of 0.5 + x has its last bit at 2^-24, the subnormal unit of half
    uint32_t rounded;
    std::memcpy(&rounded, &absolute, 4);
    return F16{static_cast<uint16_t>(sign | (rounded - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u);
  return F16{static_cast<uint16_t>(sign | (rounded >> 13))};
}

float F16::to_float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  uint32_t u;
  if (exponent == 0x1f) {
    u = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    u = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else {
    const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
    std::memcpy(&u, &subnormal, 4);
    u |= sign;
  }
  float value;
  std::memcpy(&value, &u, 4);
  return value;
}

}  // namespace spate
