// Floats as unsigned integers of the same order, and the descending order of tokens: larger logit first, then smaller
// id.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

// -0 counts as 0.
__device__ inline uint32_t ascending_key(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

constexpr int kIdBits = 24;
constexpr int kTokenKeyBits = 32 + kIdBits;

// Distinct for every token of a row; the larger key comes first.
__device__ inline uint64_t token_key(float logit, int32_t id) {
  return static_cast<uint64_t>(ascending_key(logit)) << kIdBits | ((1u << kIdBits) - 1 - static_cast<uint32_t>(id));
}

__device__ inline int32_t token_of_key(uint64_t key) {
  return static_cast<int32_t>((1u << kIdBits) - 1 - (static_cast<uint32_t>(key) & ((1u << kIdBits) - 1)));
}

// Whether the row holds a NaN or +inf. All threads of the CTA call it and get the answer.
__device__ inline bool has_nan_or_inf(const float* logits, int vocab_size) {
  int found = 0;
  for (int id = threadIdx.x; id < vocab_size; id += blockDim.x) found |= !(logits[id] < kInfinity);
  return block_reduce(found, Max()) != 0;
}

}  // namespace spate::cuda
