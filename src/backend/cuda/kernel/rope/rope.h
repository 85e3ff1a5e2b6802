#pragma once

#include <cstdint>

namespace spate::cuda {

struct RopeKernelParams {
  const int32_t* positions;  // [num_tokens]
  const float* cos_sin;      // [max_positions, rotary_dim]: cos of every pair, then sin
  void* x;                   // [num_tokens, num_heads, head_dim], in-out
  int64_t token_stride;
  int64_t head_stride;
  int64_t cos_sin_stride;
  int32_t num_heads;
  int32_t rotary_dim;
  int32_t is_interleaved;
};

}  // namespace spate::cuda
