// Vectors of 32-bit integers and of 8-bit codes, beside the floats of simd.h.
#pragma once

#include "backend/cpu/kernel/simd.h"
#ifdef __aarch64__
#include "backend/cpu/kernel/neon/int_simd.h"
#endif

namespace spate::cpu::SPATE_ISA {

#ifdef __AVX512F__

using I = __m512i;

SPATE_INLINE I int_zero() { return _mm512_setzero_si512(); }
SPATE_INLINE I int_set1(int32_t x) { return _mm512_set1_epi32(x); }
SPATE_INLINE I int_load(const void* p) { return _mm512_loadu_si512(p); }
SPATE_INLINE void int_store(void* p, I x) { _mm512_storeu_si512(p, x); }
SPATE_INLINE I int_add(I a, I b) { return _mm512_add_epi32(a, b); }
SPATE_INLINE I int_sub(I a, I b) { return _mm512_sub_epi32(a, b); }
SPATE_INLINE I int_mul(I a, I b) { return _mm512_mullo_epi32(a, b); }
SPATE_INLINE I int_max(I a, I b) { return _mm512_max_epi32(a, b); }
SPATE_INLINE I int_and(I a, I b) { return _mm512_and_si512(a, b); }
SPATE_INLINE I int_xor(I a, I b) { return _mm512_xor_si512(a, b); }
SPATE_INLINE I int_shift_left(I x, int n) { return _mm512_sll_epi32(x, _mm_cvtsi32_si128(n)); }
template <int kBits>
SPATE_INLINE I int_shift_right(I x) {  // with its sign
  return _mm512_srai_epi32(x, kBits);
}
SPATE_INLINE int32_t int_sum(I x) { return _mm512_reduce_add_epi32(x); }
SPATE_INLINE int32_t int_max_lane(I x) { return _mm512_reduce_max_epi32(x); }
SPATE_INLINE I bits_of(F x) { return _mm512_castps_si512(x); }
SPATE_INLINE F to_float(I x) { return _mm512_cvtepi32_ps(x); }
SPATE_INLINE I to_int(F x) { return _mm512_cvtps_epi32(x); }  // to nearest, ties to even
SPATE_INLINE F absolute(F x) { return _mm512_abs_ps(x); }
SPATE_INLINE F load_halves(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
// kLanes bytes, each 0 .. 255.
SPATE_INLINE I load_bytes(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
// kLanes values in [-128, 127] as bytes.
SPATE_INLINE void store_codes(int8_t* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}

#elif defined(__AVX2__)

using I = __m256i;

SPATE_INLINE I int_zero() { return _mm256_setzero_si256(); }
SPATE_INLINE I int_set1(int32_t x) { return _mm256_set1_epi32(x); }
SPATE_INLINE I int_load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
SPATE_INLINE void int_store(void* p, I x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
SPATE_INLINE I int_add(I a, I b) { return _mm256_add_epi32(a, b); }
SPATE_INLINE I int_sub(I a, I b) { return _mm256_sub_epi32(a, b); }
SPATE_INLINE I int_mul(I a, I b) { return _mm256_mullo_epi32(a, b); }
SPATE_INLINE I int_max(I a, I b) { return _mm256_max_epi32(a, b); }
SPATE_INLINE I int_and(I a, I b) { return _mm256_and_si256(a, b); }
SPATE_INLINE I int_xor(I a, I b) { return _mm256_xor_si256(a, b); }
SPATE_INLINE I int_shift_left(I x, int n) { return _mm256_sll_epi32(x, _mm_cvtsi32_si128(n)); }
template <int kBits>
SPATE_INLINE I int_shift_right(I x) {
  return _mm256_srai_epi32(x, kBits);
}
SPATE_INLINE int32_t int_sum(I x) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
SPATE_INLINE int32_t int_max_lane(I x) {
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
SPATE_INLINE I bits_of(F x) { return _mm256_castps_si256(x); }
SPATE_INLINE F to_float(I x) { return _mm256_cvtepi32_ps(x); }
SPATE_INLINE I to_int(F x) { return _mm256_cvtps_epi32(x); }
SPATE_INLINE F absolute(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
SPATE_INLINE I load_bytes(const void* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
SPATE_INLINE F load_halves(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
SPATE_INLINE void store_codes(int8_t* p, I x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

#endif

SPATE_INLINE void store_codes_up_to(int8_t* p, I x, int64_t n) {
  if (n == kLanes) return store_codes(p, x);
  int8_t lanes[kLanes];
  store_codes(lanes, x);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

}  // namespace spate::cpu::SPATE_ISA
