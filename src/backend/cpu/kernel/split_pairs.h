// bf16, 32 elements at a time, for instruction sets that round two vectors to one of bf16. Doing so and taking the even and
// the odd elements apart again costs half of rounding each vector and widening it again, but leaves the elements in
// another order: "split" once more each time. What they meet is brought to that order beforehand, and one permutation of
// words puts the result right. Every lane's arithmetic is that of single vectors.
#pragma once

#include "backend/cpu/kernel/simd.h"

#ifdef __AVX512BF16__
namespace spate::cpu::SPATE_ISA {

static constexpr int kMaxSplits = 3;
static constexpr int element_after_splits(int num_splits, int position) {
  for (int i = 0; i < num_splits; ++i) position = position < 16 ? 2 * position : 2 * (position - 16) + 1;
  return position;
}
struct SplitOrders {
  alignas(64) int16_t words[kMaxSplits + 1][32] = {};  // [n][i]: the element at i after n splits
  alignas(64) int16_t undo[kMaxSplits + 1][32] = {};   // [n][e]: where element e is then
  alignas(64) int32_t floats[kMaxSplits + 1][32] = {};
};
static constexpr SplitOrders make_split_orders() {
  SplitOrders orders;
  for (int n = 0; n <= kMaxSplits; ++n) {
    for (int i = 0; i < 32; ++i) {
      const int element = element_after_splits(n, i);
      orders.words[n][i] = static_cast<int16_t>(element);
      orders.undo[n][element] = static_cast<int16_t>(i);
      orders.floats[n][i] = element;
    }
  }
  return orders;
}
static constexpr SplitOrders kSplitOrders = make_split_orders();

struct PairOfVectors {
  F even, odd;
};
SPATE_INLINE PairOfVectors split(__m512i x) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
SPATE_INLINE PairOfVectors split(const bf16_t* x) { return split(_mm512_loadu_si512(x)); }
SPATE_INLINE __m512i round_pair(F low, F high) { return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high, low)); }
SPATE_INLINE PairOfVectors mul(PairOfVectors a, PairOfVectors b) { return {mul(a.even, b.even), mul(a.odd, b.odd)}; }
SPATE_INLINE PairOfVectors mul(PairOfVectors a, F b) { return {mul(a.even, b), mul(a.odd, b)}; }
SPATE_INLINE PairOfVectors add(PairOfVectors a, PairOfVectors b) { return {add(a.even, b.even), add(a.odd, b.odd)}; }
SPATE_INLINE PairOfVectors sub(PairOfVectors a, PairOfVectors b) { return {sub(a.even, b.even), sub(a.odd, b.odd)}; }
SPATE_INLINE __m512i round_pair(PairOfVectors x) { return round_pair(x.even, x.odd); }

SPATE_INLINE __m512i after_one_split(__m512i x) {
  return _mm512_permutexvar_epi16(_mm512_load_si512(kSplitOrders.words[1]), x);
}
SPATE_INLINE PairOfVectors after_two_splits(const bf16_t* x) { return split(after_one_split(_mm512_loadu_si512(x))); }
SPATE_INLINE PairOfVectors after_three_splits(const float* x) {
  const F low = load(x), high = load(x + 16);
  return {_mm512_permutex2var_ps(low, _mm512_load_si512(kSplitOrders.floats[3]), high),
          _mm512_permutex2var_ps(low, _mm512_load_si512(kSplitOrders.floats[3] + 16), high)};
}
// Elements that were split kSplits times, rounded, in their first order.
template <int kSplits>
SPATE_INLINE __m512i round_in_order(PairOfVectors x) {
  return _mm512_permutexvar_epi16(_mm512_load_si512(kSplitOrders.undo[kSplits]), round_pair(x));
}

}  // namespace spate::cpu::SPATE_ISA
#endif
