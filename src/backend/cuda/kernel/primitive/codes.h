// Numbers as 8-bit codes with a scale, by the rules of quantize_activations() in quant/quantize.h.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/reduce.h"
#include "quant/outlier_rule.h"

namespace spate::cuda {

__device__ inline float to_float(int8_t code) { return static_cast<float>(code); }

// NaN and infinity are as large as can be.
__device__ inline float magnitude_of(float x) {
  const float magnitude = fabsf(x);
  return magnitude < kInfinity ? magnitude : kInfinity;
}

// Of numbers whose largest magnitude_of() is `top`: code = x * inverse rounded to nearest even, none where inverse is
// 0.
struct CodeScale {
  float scale;
  float inverse;
};
__device__ inline CodeScale code_scale(float top) {
  if (!(top < kInfinity)) return {kInfinity - kInfinity, 0.0f};
  if (top < kSmallestScaled) return {};
  return {top / 127.0f, 127.0f / top};
}
__device__ inline int code_of(float x, float inverse) { return inverse > 0.0f ? __float2int_rn(x * inverse) : 0; }

// Eight codes in 8 bytes, the first in the lowest.
__device__ inline uint2 pack_codes(const int (&codes)[8]) {
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) words[i / 4] |= (static_cast<uint32_t>(codes[i]) & 0xff) << (8 * (i % 4));
  return make_uint2(words[0], words[1]);
}

}  // namespace spate::cuda
