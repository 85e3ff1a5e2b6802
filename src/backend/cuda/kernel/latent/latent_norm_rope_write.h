#pragma once

#include "backend/cuda/kernel/latent/latent.h"

namespace spate::cuda {

constexpr int kLatentWriteThreads = 128;

struct LatentNormRopeWriteKernelParams {
  LatentWriteKernelParams write;
  void* q_rope;              // [num_tokens, num_heads, rotary_dim] bf16
  const void* norm;          // [kv_lora_rank]
  const int32_t* positions;  // [num_tokens]
  const float* cos_sin;      // [max_positions, rotary_dim]
  int64_t q_token_stride;    // elements
  int64_t q_head_stride;
  int64_t cos_sin_stride;
  int32_t num_heads;
  float eps;
  int32_t is_interleaved;
};

}  // namespace spate::cuda
