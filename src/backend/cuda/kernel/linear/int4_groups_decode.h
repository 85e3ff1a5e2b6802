// From codes of int4_groups.h to bf16, to the bit: what quant/quantize.h calls dequantized(), rounded once more.
//
// A nibble u of a word, alone under a mask, is a number already: bits 0 to 3 of bf16 are u * 2^-133, bits 4 to 7 (the
// last one is the exponent's, which is 1 of a subnormal number too) u * 2^-129, and of f32 likewise. One fused
// operation makes (u - 8) * 2^-6 of it, exactly, and the scale is 2^6 times as large.
//
// Symmetric f16 scales stay in pairs of bf16. A scale has 11 bits, the upper 8 and the other 3 are bf16 values:
//   value = upper * code + (lower * code)
// where the bracket has at most 7 bits and is exact, so that the fused product rounds once: 4.25 instructions a pair.
// With offsets, and f32 scales, it goes through floats: 7.25 a pair, of rows 9.25.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/int4_groups.h"
#include "backend/cuda/kernel/primitive/bf16.h"

namespace spate::cuda {

__device__ inline float half_to_float(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// Scale and offset of a group, from what is stored.
struct ScaleAndOffset {
  float scale, offset;
};
__device__ inline ScaleAndOffset halves_to_scale(uint32_t halves) {
  return {half_to_float(static_cast<uint16_t>(halves)), half_to_float(static_cast<uint16_t>(halves >> 16))};
}

// A symmetric scale as pairs of bf16, times 2^6.
struct ScalePair {
  uint32_t upper, lower;
};
__device__ inline ScalePair split_scale(uint16_t half) {
  const float scale = half_to_float(half) * 0x1p6f;
  const uint32_t upper = __float_as_uint(scale) & 0xffff0000u;
  const uint32_t lower = __float_as_uint(scale - __uint_as_float(upper));
  return {__byte_perm(upper, 0, 0x3232), __byte_perm(lower, 0, 0x3232)};
}

__device__ inline uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// values[i]: nibbles i and i + 4 of the word, the first in the low half.
__device__ inline void decode_word(uint32_t word, const ScalePair& scale, uint32_t (&values)[4]) {
  constexpr uint32_t k127 = 0x7f007f00, k123 = 0x7d007d00, kMinusEighth = 0xbe00be00;  // 2^127, 2^123
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t moved = i < 2 ? word : word >> 8;
    const uint32_t code = i % 2 == 0 ? fma_bf16x2(moved & 0x000f000fu, k127, kMinusEighth)
                                     : fma_bf16x2(moved & 0x00f000f0u, k123, kMinusEighth);
    values[i] = fma_bf16x2(code, scale.upper, fma_bf16x2(code, scale.lower, 0));
  }
}

// The code of the nibble at bit kBit, times 2^-22.
template <int kBit>
__device__ inline float nibble_to_float(uint32_t word) {
  constexpr int kAt = kBit <= 20 ? kBit : kBit - 8;
  constexpr float kPower = __builtin_bit_cast(float, (127u + 127 - kAt) << 23);
  const uint32_t moved = kBit <= 20 ? word : word >> 8;
  return __fmaf_rn(__uint_as_float(moved & 15u << kAt), kPower, -0x1p-19f);
}

template <typename Value>
__device__ inline void decode_by_floats(uint32_t word, Value value, uint32_t (&values)[4]) {
  values[0] = pack_bf16(value(nibble_to_float<0>(word)), value(nibble_to_float<16>(word)));
  values[1] = pack_bf16(value(nibble_to_float<4>(word)), value(nibble_to_float<20>(word)));
  values[2] = pack_bf16(value(nibble_to_float<8>(word)), value(nibble_to_float<24>(word)));
  values[3] = pack_bf16(value(nibble_to_float<12>(word)), value(nibble_to_float<28>(word)));
}
// An f16 scale times 2^22.
struct LargeScale {
  float scale, offset;
};
__device__ inline void decode_word(uint32_t word, const LargeScale& s, uint32_t (&values)[4]) {
  decode_by_floats(
      word, [&](float code) { return __fmaf_rn(s.scale, code, s.offset); }, values);
}
// Any scale: an f32 one has no room for more.
__device__ inline void decode_word(uint32_t word, const ScaleAndOffset& s, uint32_t (&values)[4]) {
  decode_by_floats(
      word, [&](float code) { return __fmaf_rn(s.scale, code * 0x1p22f, s.offset); }, values);
}

__device__ inline LargeScale halves_to_large_scale(uint32_t halves) {
  const ScaleAndOffset s = halves_to_scale(halves);
  return {s.scale * 0x1p22f, s.offset};
}

// A scale of the matrix, whichever way it is stored.
__device__ inline ScaleAndOffset read_scale(const char* matrix, const Int4GroupLayout& layout, int row, int idx) {
  const char* at = matrix + layout.scale_offset(row, idx);
  if (layout.scale_bytes == 2) return {half_to_float(*reinterpret_cast<const uint16_t*>(at)), 0.0f};
  if (layout.scale_bytes == 4) return halves_to_scale(*reinterpret_cast<const uint32_t*>(at));
  const float2 both = *reinterpret_cast<const float2*>(at);
  return {both.x, both.y};
}

}  // namespace spate::cuda
