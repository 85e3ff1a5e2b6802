// The integers of int_simd.h on ARM, and dots of codes by the instructions that the instruction set has.
#pragma once

#include "backend/cpu/kernel/simd.h"

namespace spate::cpu::SPATE_ISA {

struct I {
  int32x4_t low, high;
};

SPATE_INLINE I int_zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
SPATE_INLINE I int_set1(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
SPATE_INLINE I int_load(const void* p) {
  const auto* bytes = static_cast<const int8_t*>(p);
  return {vreinterpretq_s32_s8(vld1q_s8(bytes)), vreinterpretq_s32_s8(vld1q_s8(bytes + 16))};
}
SPATE_INLINE void int_store(void* p, I x) {
  auto* bytes = static_cast<int8_t*>(p);
  vst1q_s8(bytes, vreinterpretq_s8_s32(x.low));
  vst1q_s8(bytes + 16, vreinterpretq_s8_s32(x.high));
}
SPATE_INLINE I int_add(I a, I b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
SPATE_INLINE I int_sub(I a, I b) { return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)}; }
SPATE_INLINE I int_mul(I a, I b) { return {vmulq_s32(a.low, b.low), vmulq_s32(a.high, b.high)}; }
SPATE_INLINE I int_max(I a, I b) { return {vmaxq_s32(a.low, b.low), vmaxq_s32(a.high, b.high)}; }
SPATE_INLINE I int_and(I a, I b) { return {vandq_s32(a.low, b.low), vandq_s32(a.high, b.high)}; }
SPATE_INLINE I int_xor(I a, I b) { return {veorq_s32(a.low, b.low), veorq_s32(a.high, b.high)}; }
SPATE_INLINE I int_shift_left(I x, int n) {
  return {vshlq_s32(x.low, vdupq_n_s32(n)), vshlq_s32(x.high, vdupq_n_s32(n))};
}
template <int kBits>
SPATE_INLINE I int_shift_right(I x) {  // with its sign
  if constexpr (kBits == 0)
    return x;
  else
    return {vshrq_n_s32(x.low, kBits), vshrq_n_s32(x.high, kBits)};
}
SPATE_INLINE int32_t int_sum(I x) { return vaddvq_s32(vaddq_s32(x.low, x.high)); }
SPATE_INLINE int32_t int_max_lane(I x) { return vmaxvq_s32(vmaxq_s32(x.low, x.high)); }
SPATE_INLINE I bits_of(F x) { return {vreinterpretq_s32_f32(x.low), vreinterpretq_s32_f32(x.high)}; }
SPATE_INLINE F to_float(I x) { return {vcvtq_f32_s32(x.low), vcvtq_f32_s32(x.high)}; }
SPATE_INLINE I to_int(F x) { return {vcvtnq_s32_f32(x.low), vcvtnq_s32_f32(x.high)}; }  // to nearest, ties to even
SPATE_INLINE F absolute(F x) { return {vabsq_f32(x.low), vabsq_f32(x.high)}; }
SPATE_INLINE F load_halves(const void* p) {
  const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_f32_f16(vget_high_f16(halves))};
}
// kLanes bytes, each 0 .. 255.
SPATE_INLINE I load_bytes(const void* p) {
  const uint16x8_t words = vmovl_u8(vld1_u8(static_cast<const uint8_t*>(p)));
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words))),
          vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(words)))};
}
// kLanes values in [-128, 127] as bytes.
SPATE_INLINE void store_codes(int8_t* p, I x) {
  vst1_s8(p, vqmovn_s16(vcombine_s16(vqmovn_s32(x.low), vqmovn_s32(x.high))));
}

// kLanes columns of a row of two k of bf16 (dequantize.h).
SPATE_INLINE void store_two_k(char* row, F even, F odd) {
  const auto pairs = [](float32x4_t low, float32x4_t high) __attribute__((always_inline)) {
    return vreinterpretq_u8_u32(vorrq_u32(vmovl_u16(f32_to_bf16(low)), vshll_n_u16(f32_to_bf16(high), 16)));
  };
  vst1q_u8(reinterpret_cast<uint8_t*>(row), pairs(even.low, odd.low));
  vst1q_u8(reinterpret_cast<uint8_t*>(row + 16), pairs(even.high, odd.high));
}

// Adds to each lane the products of its four codes with those of x. Without SDOT two products of 127 by 128 fit 16
// bits.
SPATE_INLINE int32x4_t add_dots4(int32x4_t sums, int8x16_t w, int8x16_t x) {
#ifdef __ARM_FEATURE_DOTPROD
  return vdotq_s32(sums, w, x);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
  return vpadalq_s16(sums, vpaddq_s16(low, high));
#endif
}
SPATE_INLINE I add_dots(I sums, I w, I x) {
  return {add_dots4(sums.low, vreinterpretq_s8_s32(w.low), vreinterpretq_s8_s32(x.low)),
          add_dots4(sums.high, vreinterpretq_s8_s32(w.high), vreinterpretq_s8_s32(x.high))};
}
// The lower or the upper four bits of each byte.
template <bool kHigh>
SPATE_INLINE I half_bytes(I packed) {
  const auto of = [](int32x4_t x) __attribute__((always_inline)) {
    const uint8x16_t bytes = vreinterpretq_u8_s32(x);
    return vreinterpretq_s32_u8(kHigh ? vshrq_n_u8(bytes, 4) : vandq_u8(bytes, vdupq_n_u8(15)));
  };
  return {of(packed.low), of(packed.high)};
}

}  // namespace spate::cpu::SPATE_ISA
