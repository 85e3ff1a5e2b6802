// bfloat16 on the device: the upper half of a float. Kernels are written over T = float or Bf16 with these functions.
#pragma once

#include <cstdint>

namespace spate::cuda {

struct Bf16 {
  uint16_t bits;
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(Bf16 value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }

// Rounds to nearest even; NaN stays NaN.
template <typename T>
__device__ inline T from_float(float value);

template <>
__device__ inline float from_float<float>(float value) {
  return value;
}

template <>
__device__ inline Bf16 from_float<Bf16>(float value) {
  Bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}

// The value that a store as T leaves behind.
template <typename T>
__device__ inline float round_to(float value) {
  return to_float(from_float<T>(value));
}

// a rounded in the low half, b in the high one; and back.
__device__ inline uint32_t pack_bf16(float a, float b) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(b), "f"(a));
  return packed;
}
__device__ inline float low_float(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ inline float high_float(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

// The products of two pairs.
__device__ inline uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  constexpr uint32_t kMinusZeros = 0x80008000u;  // as a sum: Ampere has no product
  uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(kMinusZeros));
  return product;
}

// Of fp16.
__device__ inline uint32_t pack_f16(float a, float b) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(b), "f"(a));
  return packed;
}
__device__ inline uint32_t add_f16x2(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}

// The lower bytes of both halves, codes, as bf16, exactly: the low 7 bits behind the exponent of 128 are
// 128 + low, the sign bit there is 128 or 256, and the difference is the code. As 1 * a - b: Ampere cannot subtract.
__device__ inline uint32_t codes_to_bf16(uint32_t halves) {
  const uint32_t low = (halves & 0x007f007fu) | 0x43004300u, minus_high = (halves & 0x00800080u) | 0xc300c300u;
  constexpr uint32_t kOnes = 0x3f803f80u;
  uint32_t codes;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(codes) : "r"(low), "r"(kOnes), "r"(minus_high));
  return codes;
}

// kCount neighbours that are read in one access; the address is a multiple of min(16, sizeof).
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Vec {
  T elems[kCount];
};

}  // namespace spate::cuda
