// Floats as unsigned integers of the same order, and the descending order of tokens: larger logit first, then smaller
// id.
#pragma once

#include <cstdint>

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

// The logit of a key, -0 as 0.
__device__ inline float logit_of_key(uint64_t key) {
  const uint32_t bits = static_cast<uint32_t>(key >> kIdBits);
  return __uint_as_float(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits);
}

constexpr uint64_t kSpoiledKey = ~uint64_t{0};  // above every token's: stands for a NaN or +inf in the row

}  // namespace spate::cuda
