#pragma once

#include <cstdint>

namespace spate::cuda {

struct RmsNormKernelParams {
  const void* x;       // [num_tokens, num_heads, width]
  const void* weight;  // [width]
  void* out;           // as x
  int64_t x_token_stride;
  int64_t x_head_stride;
  int64_t out_token_stride;
  int64_t out_head_stride;
  int32_t num_heads;  // 1 for a matrix
  int32_t width;
  float eps;
};

}  // namespace spate::cuda
