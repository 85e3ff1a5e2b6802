// A thin layer over AVX2, AVX-512 and NEON: vectors of kLanes floats, bf16 in memory. Included only by kernel/*.cpp;
// all static.
#pragma once

#include <stdint.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace spate::cpu::SPATE_ISA {

using bf16_t = uint16_t;

#define SPATE_INLINE static inline __attribute__((always_inline))

SPATE_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
SPATE_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace spate::cpu::SPATE_ISA

#ifdef __aarch64__
#include "backend/cpu/kernel/neon/simd.h"
#endif

namespace spate::cpu::SPATE_ISA {

#ifdef __x86_64__
SPATE_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
SPATE_INLINE void prefetch_to_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
SPATE_INLINE void prefetch_to_write(const void* p) {
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(p)));
}
SPATE_INLINE void stream_fence() { _mm_sfence(); }  // behind stream()
SPATE_INLINE float half_to_float(uint16_t bits) { return _cvtsh_ss(bits); }
SPATE_INLINE uint16_t float_to_half(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#endif

#ifdef __AVX512F__

static constexpr int64_t kLanes = 16;
using F = __m512;
using Mask = __mmask16;

SPATE_INLINE F zero() { return _mm512_setzero_ps(); }
SPATE_INLINE F set1(float x) { return _mm512_set1_ps(x); }
SPATE_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
SPATE_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
SPATE_INLINE void stream(float* p, F x) { _mm512_stream_ps(p, x); }  // past the caches; aligned
SPATE_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
SPATE_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
SPATE_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
SPATE_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
SPATE_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
SPATE_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
SPATE_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
SPATE_INLINE float sum(F x) { return _mm512_reduce_add_ps(x); }
SPATE_INLINE float max_lane(F x) { return _mm512_reduce_max_ps(x); }
SPATE_INLINE F sqrt(F x) { return _mm512_sqrt_ps(x); }
// Lane i is sum(rows[i]), with its bits: halves are added in the same order, those of two rows at a time.
SPATE_INLINE F sums(const F* rows) {
  F a[8], b[4], c[2];
  for (int i = 0; i < 8; ++i) {
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0x44),
                         _mm512_shuffle_f32x4(rows[2 * i], rows[2 * i + 1], 0xee));
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
  }
  for (int i = 0; i < 2; ++i) {
    c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                         _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
  }
  const F rows_4_apart = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), rows_4_apart);
}

SPATE_INLINE F bf16_to_f32(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
// Round to nearest even; NaN stays NaN. (The instruction also flushes denormals to zero.)
SPATE_INLINE __m256i f32_to_bf16(F x) {
#ifdef __AVX512BF16__
  return __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(x));
#else
  const __m512i u = _mm512_castps_si512(x);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
  rounded = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}
SPATE_INLINE F load(const bf16_t* p) { return bf16_to_f32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
SPATE_INLINE void store(bf16_t* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), f32_to_bf16(x)); }
SPATE_INLINE F round_bf16(F x) { return bf16_to_f32(f32_to_bf16(x)); }

// The first n lanes, 0 < n < kLanes; the others load as zero.
SPATE_INLINE Mask first_lanes(int64_t n) { return static_cast<Mask>((1u << n) - 1); }
SPATE_INLINE F load_n(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
SPATE_INLINE void store_n(float* p, F x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
SPATE_INLINE F load_n(const bf16_t* p, int64_t n) { return bf16_to_f32(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
SPATE_INLINE void store_n(bf16_t* p, F x, int64_t n) { _mm256_mask_storeu_epi16(p, first_lanes(n), f32_to_bf16(x)); }

// Lanes by bits: lane i belongs to them where bit i is set.
SPATE_INLINE Mask lanes_of(uint64_t bits) { return static_cast<Mask>(bits); }
// max(a, b) in these lanes, a in the others.
SPATE_INLINE F max_in(Mask lanes, F a, F b) { return _mm512_mask_max_ps(a, lanes, a, b); }
// a * b in these lanes, 0 in the others, whatever they hold.
SPATE_INLINE F mul_in(Mask lanes, F a, F b) { return _mm512_maskz_mul_ps(lanes, a, b); }
SPATE_INLINE F keep(Mask lanes, F x) { return _mm512_maskz_mov_ps(lanes, x); }
SPATE_INLINE bool all_less_equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ) == 0; }
// Bit i set where a[i] > b[i] (or >=).
SPATE_INLINE uint32_t greater_bits(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
SPATE_INLINE uint32_t greater_equal_bits(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }

// The two k of kLanes columns of a bf16 n-block row: element 2 i is the even k of column i.
SPATE_INLINE F even_k(const char* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
SPATE_INLINE F odd_k(const char* p) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// The four k of kLanes columns of an int8 n-block row.
SPATE_INLINE void load_codes(const char* p, F* k) {
  const __m512i words = _mm512_loadu_si512(p);
  k[0] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 24), 24));
  k[1] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 8), 24));
  k[2] = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 16), 24));
  k[3] = _mm512_cvtepi32_ps(_mm512_srai_epi32(words, 24));
}

// 2^n for integral n in [-127, 127]: zero at -127.
SPATE_INLINE F pow2(F n) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
SPATE_INLINE F round_int(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

#elif defined(__AVX2__)

static constexpr int64_t kLanes = 8;
using F = __m256;

SPATE_INLINE F zero() { return _mm256_setzero_ps(); }
SPATE_INLINE F set1(float x) { return _mm256_set1_ps(x); }
SPATE_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
SPATE_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x); }
SPATE_INLINE void stream(float* p, F x) { _mm256_stream_ps(p, x); }  // past the caches; aligned
SPATE_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
SPATE_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
SPATE_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
SPATE_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
SPATE_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
SPATE_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
SPATE_INLINE F min(F a, F b) { return _mm256_min_ps(a, b); }
SPATE_INLINE float sum(F x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
SPATE_INLINE float max_lane(F x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
SPATE_INLINE F sqrt(F x) { return _mm256_sqrt_ps(x); }
SPATE_INLINE F sums(const F* rows) {
  F a[4], b[2];
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm256_add_ps(_mm256_permute2f128_ps(rows[2 * i], rows[2 * i + 1], 0x20),
                         _mm256_permute2f128_ps(rows[2 * i], rows[2 * i + 1], 0x31));
  }
  for (int i = 0; i < 2; ++i) {
    b[i] = _mm256_add_ps(_mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                         _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee));
  }
  const F even_rows_first = _mm256_add_ps(_mm256_shuffle_ps(b[0], b[1], 0x88), _mm256_shuffle_ps(b[0], b[1], 0xdd));
  return _mm256_permutevar8x32_ps(even_rows_first, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

SPATE_INLINE F bf16_to_f32(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
SPATE_INLINE __m128i f32_to_bf16(F x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
  rounded = _mm256_srli_epi32(rounded, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}
SPATE_INLINE F load(const bf16_t* p) { return bf16_to_f32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
SPATE_INLINE void store(bf16_t* p, F x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), f32_to_bf16(x)); }
SPATE_INLINE F round_bf16(F x) { return bf16_to_f32(f32_to_bf16(x)); }

SPATE_INLINE __m256i lane_idx() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
SPATE_INLINE __m256i first_lanes(int64_t n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane_idx()); }
SPATE_INLINE F load_n(const float* p, int64_t n) { return _mm256_maskload_ps(p, first_lanes(n)); }
SPATE_INLINE void store_n(float* p, F x, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), x); }
SPATE_INLINE F load_n(const bf16_t* p, int64_t n) {
  alignas(16) bf16_t lanes[8] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
SPATE_INLINE void store_n(bf16_t* p, F x, int64_t n) {
  alignas(16) bf16_t lanes[8];
  store(lanes, x);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

using Mask = __m256i;
SPATE_INLINE Mask lanes_of(uint64_t bits) {
  const __m256i bit_of_lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits & 0xff)), bit_of_lane), bit_of_lane);
}
SPATE_INLINE F max_in(Mask lanes, F a, F b) { return _mm256_blendv_ps(a, max(a, b), _mm256_castsi256_ps(lanes)); }
SPATE_INLINE F keep(Mask lanes, F x) { return _mm256_and_ps(_mm256_castsi256_ps(lanes), x); }
SPATE_INLINE F mul_in(Mask lanes, F a, F b) { return keep(lanes, mul(a, b)); }
SPATE_INLINE bool all_less_equal(F a, F b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ)) == 0; }
SPATE_INLINE uint32_t greater_bits(F a, F b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
}
SPATE_INLINE uint32_t greater_equal_bits(F a, F b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}

SPATE_INLINE F even_k(const char* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16));
}
SPATE_INLINE F odd_k(const char* p) {
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                                              _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

SPATE_INLINE void load_codes(const char* p, F* k) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  k[0] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 24), 24));
  k[1] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 8), 24));
  k[2] = _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 16), 24));
  k[3] = _mm256_cvtepi32_ps(_mm256_srai_epi32(words, 24));
}
// The first two of them, or the others: kLanes columns each.
template <bool kOthers>
SPATE_INLINE void load_two_codes(const char* p, F* k) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const auto as_float = [](__m256i high) __attribute__((always_inline)) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(high, 24));
  };
  k[0] = as_float(_mm256_slli_epi32(words, kOthers ? 16 : 24));
  k[1] = as_float(kOthers ? words : _mm256_slli_epi32(words, 8));
}

SPATE_INLINE F pow2(F n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
SPATE_INLINE F round_int(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

#endif

#ifdef __x86_64__
SPATE_INLINE void forget(F& x) { asm volatile("" : "+v"(x)); }  // makes the compiler take x for anything
#endif

static constexpr int64_t kVecs = 16 / kLanes;  // vectors of an n-block row

// 2^x, relative error 2e-7 (Cephes' polynomial); exactly 0 below -126.5 and at -inf, exactly 1 at 0; x above 127.4 counts as 127.4.
SPATE_INLINE F exp2(F x) {
  x = min(max(x, set1(-127.0f)), set1(127.4f));
  const F n = round_int(x);
  const F r = sub(x, n);
  F p = set1(1.535336188319500e-4f);
  p = fma(p, r, set1(1.339887440266574e-3f));
  p = fma(p, r, set1(9.618437357674640e-3f));
  p = fma(p, r, set1(5.550332471162809e-2f));
  p = fma(p, r, set1(2.402264791363012e-1f));
  p = fma(p, r, set1(6.931472028550421e-1f));
  p = fma(p, r, set1(1.0f));
  return mul(p, pow2(n));
}
SPATE_INLINE F exp(F x) { return exp2(mul(x, set1(1.44269504f))); }
#ifdef __AVX512F__
// 2^(x - floor(x)), off by 9e-5 at most and exact at whole numbers: scalef makes 2^x of it, and underflows by itself.
SPATE_INLINE F rough_exp2_fraction(F x) {
  const F r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  F p = set1(0.07706699f);
  p = fma(p, r, set1(0.22764506f));
  p = fma(p, r, set1(0.69511677f));
  return fma(p, r, set1(1.0f));
}
// x / (1 + e^-x) to 1.5e-4, for a result that is then rounded to bf16, to 2e-3: beside tile products, where the vector
// units do one operation a cycle, every one less shows.
SPATE_INLINE F silu_before_bf16(F x) {
  const F y = mul(x, set1(-1.44269504f));
  return mul(x, _mm512_rcp14_ps(add(set1(1.0f), _mm512_scalef_ps(rough_exp2_fraction(y), y))));
}
// x / (1 + e^-x) to 3e-7. e^-x as 2^n times a polynomial (9e-8), |x| beyond 87 counting as 87; the quotient from an
// estimate of 14 bits and a Newton step, since a division takes 16 cycles.
SPATE_INLINE F silu(F x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: what is added to it loses its fraction
  constexpr int kSmallerMagnitude = 2;     // with the first operand's sign
  const F bounded = _mm512_range_ps(x, set1(87.0f), kSmallerMagnitude), minus_log2e = set1(-1.44269504f);
  const F n = sub(fma(bounded, minus_log2e, set1(kRounder)), set1(kRounder));
  const F r = _mm512_fmsub_ps(bounded, minus_log2e, n);
  F power = set1(1.326472731307149e-3f);
  power = fma(power, r, set1(9.671512991189957e-3f));
  power = fma(power, r, set1(5.550733581185341e-2f));
  power = fma(power, r, set1(2.402224242687225e-1f));
  power = fma(power, r, set1(6.931470036506653e-1f));
  power = fma(power, r, set1(1.0f));
  const F denominator = add(set1(1.0f), _mm512_scalef_ps(power, n)), estimate = _mm512_rcp14_ps(denominator);
  return mul(x, mul(estimate, _mm512_fnmadd_ps(denominator, estimate, set1(2.0f))));
}
#else
SPATE_INLINE F silu(F x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }
#endif

// Rounds as storing to T and loading again does.
template <typename T>
SPATE_INLINE F round_as(F x) {
  if constexpr (sizeof(T) == 2) return round_bf16(x);
  return x;
}

// round_as<T>(silu(x)), where bf16 with fewer operations: its 2^-9 hides e^-x of degree 3, off by 9e-5, and an estimate
// of 14 bits. Infinities come out by themselves.
template <typename T>
SPATE_INLINE F silu_as(F x) {
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 2) return round_bf16(silu_before_bf16(x));
#endif
  return round_as<T>(silu(x));
}

// Calls body(offset, count) over [0, width) in vectors; count < kLanes only in the last call.
#define SPATE_FOR_LANES(offset, count, width)                                                    \
  for (int64_t offset = 0, count = min_of(kLanes, (width)); offset < (width);                      \
       offset += kLanes, count = min_of(kLanes, (width)-offset))

template <typename T>
SPATE_INLINE F load_up_to(const T* p, int64_t n) {
  return n == kLanes ? load(p) : load_n(p, n);
}
template <typename T>
SPATE_INLINE void store_up_to(T* p, F x, int64_t n) {
  if (n == kLanes) {
    store(p, x);
  } else {
    store_n(p, x, n);
  }
}

}  // namespace spate::cpu::SPATE_ISA
