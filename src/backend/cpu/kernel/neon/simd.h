// The vectors of simd.h on ARM: eight floats in two registers. Lanes, and the order in which they are added, are those
// of AVX2, so that every kernel that both run gives the same bits.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

namespace spate::cpu::SPATE_ISA {

static constexpr int64_t kLanes = 8;
struct F {
  float32x4_t low, high;
};
struct Mask {
  uint32x4_t low, high;
};

SPATE_INLINE F zero() { return {vdupq_n_f32(0), vdupq_n_f32(0)}; }
SPATE_INLINE F set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
SPATE_INLINE F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
SPATE_INLINE void store(float* p, F x) {
  vst1q_f32(p, x.low);
  vst1q_f32(p + 4, x.high);
}
SPATE_INLINE void stream(float* p, F x) { store(p, x); }  // STNP is a hint that cores are free to ignore
SPATE_INLINE void stream_fence() {}
SPATE_INLINE F fma(F a, F b, F c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
SPATE_INLINE F add(F a, F b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
SPATE_INLINE F sub(F a, F b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
SPATE_INLINE F mul(F a, F b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
SPATE_INLINE F div(F a, F b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
SPATE_INLINE F sqrt(F x) { return {vsqrtq_f32(x.low), vsqrtq_f32(x.high)}; }
// b where one of them is NaN, as on x86: callers rely on it.
SPATE_INLINE float32x4_t max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
SPATE_INLINE float32x4_t min4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
SPATE_INLINE F max(F a, F b) { return {max4(a.low, b.low), max4(a.high, b.high)}; }
SPATE_INLINE F min(F a, F b) { return {min4(a.low, b.low), min4(a.high, b.high)}; }
SPATE_INLINE float sum(F x) {
  const float32x4_t four = vaddq_f32(x.low, x.high);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
SPATE_INLINE float max_lane(F x) {
  float32x4_t four = max4(x.low, x.high);
  four = max4(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(max4(four, vextq_f32(four, four, 1)), 0);
}
// Lane i is sum(rows[i]), with its bits.
SPATE_INLINE F sums(const F* rows) {
  float32x4_t pairs[4];
  for (int i = 0; i < 4; ++i) {
    const float32x4_t a = vaddq_f32(rows[2 * i].low, rows[2 * i].high),
                      b = vaddq_f32(rows[2 * i + 1].low, rows[2 * i + 1].high);
    pairs[i] =
        vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)), vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
  }
  return {vpaddq_f32(pairs[0], pairs[1]), vpaddq_f32(pairs[2], pairs[3])};
}

SPATE_INLINE float32x4_t bf16_to_f32(uint16x4_t bits) { return vreinterpretq_f32_u32(vshll_n_u16(bits, 16)); }
// Round to nearest even; NaN stays NaN.
SPATE_INLINE uint16x4_t f32_to_bf16(float32x4_t x) {
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  return vreinterpret_u16_bf16(vcvt_bf16_f32(x));
#else
  const uint32x4_t u = vreinterpretq_u32_f32(x);
  const uint32x4_t lsb = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(u, vaddq_u32(lsb, vdupq_n_u32(0x7fff)));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(u, vdupq_n_u32(0x400000))), 16);
#endif
}
SPATE_INLINE F load(const bf16_t* p) {
  const uint16x8_t bits = vld1q_u16(p);
  return {bf16_to_f32(vget_low_u16(bits)), bf16_to_f32(vget_high_u16(bits))};
}
SPATE_INLINE void store(bf16_t* p, F x) { vst1q_u16(p, vcombine_u16(f32_to_bf16(x.low), f32_to_bf16(x.high))); }
SPATE_INLINE F round_bf16(F x) { return {bf16_to_f32(f32_to_bf16(x.low)), bf16_to_f32(f32_to_bf16(x.high))}; }

// The first n lanes, 0 < n < kLanes; the others load as zero.
template <typename T>
SPATE_INLINE F load_n(const T* p, int64_t n) {
  T lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
template <typename T>
SPATE_INLINE void store_n(T* p, F x, int64_t n) {
  T lanes[kLanes];
  store(lanes, x);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// Lanes by bits: lane i belongs to them where bit i is set.
SPATE_INLINE Mask bit_of_lane() {
  constexpr uint32_t kBits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  return {vld1q_u32(kBits), vld1q_u32(kBits + 4)};
}
SPATE_INLINE Mask lanes_of(uint64_t bits) {
  const uint32x4_t all = vdupq_n_u32(static_cast<uint32_t>(bits));
  return {vtstq_u32(all, bit_of_lane().low), vtstq_u32(all, bit_of_lane().high)};
}
SPATE_INLINE uint32_t bits_in(Mask lanes) {
  return vaddvq_u32(vorrq_u32(vandq_u32(lanes.low, bit_of_lane().low), vandq_u32(lanes.high, bit_of_lane().high)));
}
// max(a, b) in these lanes, a in the others.
SPATE_INLINE F max_in(Mask lanes, F a, F b) {
  return {vbslq_f32(lanes.low, max4(a.low, b.low), a.low), vbslq_f32(lanes.high, max4(a.high, b.high), a.high)};
}
SPATE_INLINE F keep(Mask lanes, F x) {
  return {vreinterpretq_f32_u32(vandq_u32(lanes.low, vreinterpretq_u32_f32(x.low))),
          vreinterpretq_f32_u32(vandq_u32(lanes.high, vreinterpretq_u32_f32(x.high)))};
}
// a * b in these lanes, 0 in the others, whatever they hold.
SPATE_INLINE F mul_in(Mask lanes, F a, F b) { return keep(lanes, mul(a, b)); }
SPATE_INLINE bool all_less_equal(F a, F b) {
  return vminvq_u32(vandq_u32(vcleq_f32(a.low, b.low), vcleq_f32(a.high, b.high))) != 0;
}
// Bit i set where a[i] > b[i] (or >=).
SPATE_INLINE uint32_t greater_bits(F a, F b) { return bits_in({vcgtq_f32(a.low, b.low), vcgtq_f32(a.high, b.high)}); }
SPATE_INLINE uint32_t greater_equal_bits(F a, F b) {
  return bits_in({vcgeq_f32(a.low, b.low), vcgeq_f32(a.high, b.high)});
}

// The two k of kLanes columns of a bf16 n-block row: element 2 i is the even k of column i.
SPATE_INLINE uint32x4_t four_words(const char* p) {
  return vreinterpretq_u32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
}
SPATE_INLINE float32x4_t even_of(uint32x4_t pairs) { return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)); }
SPATE_INLINE float32x4_t odd_of(uint32x4_t pairs) {
  return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
}
SPATE_INLINE F even_k(const char* p) { return {even_of(four_words(p)), even_of(four_words(p + 16))}; }
SPATE_INLINE F odd_k(const char* p) { return {odd_of(four_words(p)), odd_of(four_words(p + 16))}; }

// The four k of kLanes columns of an int8 n-block row.
template <int kLeft>
SPATE_INLINE float32x4_t byte_of(uint32x4_t words) {  // that begins at bit 24 - kLeft
  return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_u32(words), kLeft), 24));
}
SPATE_INLINE void load_codes(const char* p, F* k) {
  const uint32x4_t low = four_words(p), high = four_words(p + 16);
  k[0] = {byte_of<24>(low), byte_of<24>(high)};
  k[1] = {byte_of<8>(low), byte_of<8>(high)};
  k[2] = {byte_of<16>(low), byte_of<16>(high)};
  k[3] = {byte_of<0>(low), byte_of<0>(high)};
}

// 2^n for integral n in [-127, 127]: zero at -127.
SPATE_INLINE float32x4_t pow2_of(float32x4_t n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
}
SPATE_INLINE F pow2(F n) { return {pow2_of(n.low), pow2_of(n.high)}; }
SPATE_INLINE F round_int(F x) { return {vrndnq_f32(x.low), vrndnq_f32(x.high)}; }

// Makes the compiler take x for anything.
SPATE_INLINE void forget(F& x) { asm volatile("" : "+w"(x.low), "+w"(x.high)); }

SPATE_INLINE float half_to_float(uint16_t bits) { return static_cast<float>(__builtin_bit_cast(__fp16, bits)); }
SPATE_INLINE uint16_t float_to_half(float x) { return __builtin_bit_cast(uint16_t, static_cast<__fp16>(x)); }

SPATE_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
SPATE_INLINE void prefetch_to_l2(const void* p) { __builtin_prefetch(p, 0, 2); }
SPATE_INLINE void prefetch_to_write(const void* p) { __builtin_prefetch(p, 1, 3); }

}  // namespace spate::cpu::SPATE_ISA
