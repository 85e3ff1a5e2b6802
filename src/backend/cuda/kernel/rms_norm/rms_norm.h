#pragma once

#include <cstdint>

namespace spate::cuda {

constexpr int kNormNarrowWidth = 256;  // rows up to here: a piece a lane of one warp
constexpr int kNormNarrowThreads = 256;
constexpr int kNormMaxThreads = 512;  // of a CTA that owns a wider row

struct RmsNormKernelParams {
  const void* x;       // [num_tokens, num_heads, width]
  const void* weight;  // [width]
  void* out;           // as x
  int64_t x_token_stride;
  int64_t x_head_stride;
  int64_t out_token_stride;
  int64_t out_head_stride;
  int64_t num_rows;   // num_tokens * num_heads
  int32_t num_heads;  // 1 for a matrix
  int32_t width;
  float eps;
  int32_t is_aligned;  // every row and the weight start at multiples of 16 bytes
};

struct AddRmsNormKernelParams {
  RmsNormKernelParams norm;  // of matrices; x is what is added
  void* residual;            // [num_tokens, width]
  int64_t residual_stride;
};

}  // namespace spate::cuda
