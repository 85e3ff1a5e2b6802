// Operands for kernels that measure products.
#pragma once

#include <cstdint>

namespace spate::cuda {

// A result is written where it has these bits, so that the compiler must compute it; nobody reads what is written.
constexpr uint32_t kNeverBits = 0x7fc5ca1a;

__device__ inline uint32_t random_bits(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}
// Two bf16 of either sign from 0.5 to 2.
__device__ inline uint32_t random_bf16_pair(uint32_t x) { return random_bits(x) & 0x80ff80ffu | 0x3f003f00u; }

}  // namespace spate::cuda
