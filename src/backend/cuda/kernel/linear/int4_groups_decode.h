// From codes of int4_groups.h to bf16, to the bit: what quant/quantize.h calls dequantized(), rounded once more.
//
// Symmetric f16 scales stay in pairs of bf16. A scale has 11 bits, the upper 8 and the other 3 are bf16 values:
//   value = upper * code + (lower * code)
// where the bracket has at most 7 bits and is exact, so that the fused product rounds once: 5 instructions a pair. With
// offsets, and f32 scales, it goes through floats: 8 a pair.
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

// A symmetric scale as pairs of bf16.
struct ScalePair {
  uint32_t upper, lower;
};
__device__ inline ScalePair split_scale(uint16_t half) {
  const float scale = half_to_float(half);
  const uint32_t upper = __float_as_uint(scale) & 0xffff0000u;
  const uint32_t lower = __float_as_uint(scale - __uint_as_float(upper));
  return {__byte_perm(upper, 0, 0x3232), __byte_perm(lower, 0, 0x3232)};
}

// values[i]: nibbles i and i + 4 of the word, the first in the low half.
__device__ inline void decode_word(uint32_t word, const ScalePair& scale, uint32_t (&values)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t biased = (word >> (4 * i) & 0x000f000fu) | 0x43004300u;  // 128 + 8 + code
    uint32_t code, lower;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(code) : "r"(biased), "r"(0x3f803f80u), "r"(0xc308c308u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(lower) : "r"(code), "r"(scale.lower), "r"(0u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(values[i]) : "r"(code), "r"(scale.upper), "r"(lower));
  }
}

// The code of the nibble at bit kBit: it stands in the lowest bits of a float between powers of two.
template <int kBit>
__device__ inline float nibble_to_float(uint32_t word) {
  constexpr int kAt = kBit < 20 ? kBit : kBit - 12;  // of 23 bits
  constexpr uint32_t kExponent = (127u + 23 - kAt) << 23;
  constexpr float kBias = static_cast<float>((1 << (23 - kAt)) + 8);
  const uint32_t moved = kBit < 20 ? word : word >> 12;
  return __uint_as_float((moved & 15u << kAt) | kExponent) - kBias;
}

__device__ inline void decode_word(uint32_t word, const ScaleAndOffset& s, uint32_t (&values)[4]) {
  const auto value = [&](float code) { return __fmaf_rn(s.scale, code, s.offset); };
  values[0] = pack_bf16(value(nibble_to_float<0>(word)), value(nibble_to_float<16>(word)));
  values[1] = pack_bf16(value(nibble_to_float<4>(word)), value(nibble_to_float<20>(word)));
  values[2] = pack_bf16(value(nibble_to_float<8>(word)), value(nibble_to_float<24>(word)));
  values[3] = pack_bf16(value(nibble_to_float<12>(word)), value(nibble_to_float<28>(word)));
}

// A scale of the matrix, whichever way it is stored.
__device__ inline ScaleAndOffset read_scale(const char* matrix, const Int4GroupLayout& layout, int row, int group) {
  const char* at = matrix + layout.scale_offset(row, group);
  if (layout.scale_bytes == 2) return {half_to_float(*reinterpret_cast<const uint16_t*>(at)), 0.0f};
  if (layout.scale_bytes == 4) return halves_to_scale(*reinterpret_cast<const uint32_t*>(at));
  const float2 both = *reinterpret_cast<const float2*>(at);
  return {both.x, both.y};
}

}  // namespace spate::cuda
