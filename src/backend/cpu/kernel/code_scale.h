// What a part of a key, a value or a latent vector is quantised by when it goes into a cache of codes.
#pragma once

#include "backend/cpu/kernel/int_simd.h"

namespace spate::cpu::SPATE_ISA {

// As quantize_activations() (quant/quantize.h) with one group: scale max|x| / 127, codes round(x * inverse), ties to
// even.
struct CodeScale {
  float scale;
  float inverse;  // 0: all codes are 0, whatever x holds
};
template <typename Act>
SPATE_INLINE CodeScale code_scale(const Act* x, int64_t width) {
  F largest = zero();
  uint32_t not_finite = 0;
  const F infinity = set1(__builtin_inff());
  SPATE_FOR_LANES(d, count, width) {
    const F value = load_up_to(x + d, count), magnitude = max(value, sub(zero(), value));
    largest = max(largest, magnitude);
    not_finite |= ~greater_bits(infinity, magnitude);  // NaN is not less than infinity either
  }
  constexpr uint32_t kAllLanes = kLanes == 16 ? 0xffffu : 0xffu;
  const float max_abs = max_lane(largest);
  if ((not_finite & kAllLanes) != 0) return {__builtin_nanf(""), 0};
  if (max_abs < 0x1p-120f) return {0, 0};
  return {max_abs / 127.0f, 127.0f / max_abs};
}

}  // namespace spate::cpu::SPATE_ISA
