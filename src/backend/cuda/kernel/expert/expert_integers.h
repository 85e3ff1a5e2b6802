// bf16 numbers as integers that share a unit, a power of two, as a high byte and a signed low one: what products by int4
// weights take where x is not rounded to 8-bit codes.
#pragma once

#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

// The bits of the largest magnitude of the pieces of kLanes neighbours, all of whom call it.
template <int kLanes>
__device__ inline uint32_t largest_bits(const Piece<Bf16>& piece) {
  uint32_t largest = 0;  // of even elements and of odd ones
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = __vmaxu2(largest, piece.words[i] & 0x7fff7fffu);
  largest = max(largest >> 16, largest & 0xffffu);
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
  return largest;
}

struct IntegerBytes {
  uint32_t high, low;  // of four elements
};
// Elements 4 * half to 4 * half + 3 times `power`, below 2^14, rounded.
__device__ inline IntegerBytes integer_bytes(const Piece<Bf16>& piece, int half, float power) {
  // The low 16 bits of a float from 1.5 * 2^23 on are those of its integer. 128 more: a high byte and a signed low one
  // make it.
  constexpr float kInteger = 0x1.8p23f + 128.0f;
  uint32_t pairs[2];  // low bytes, then high bytes
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float even = __fmaf_rn(value_of(piece, 4 * half + 2 * j), power, kInteger);
    const float odd = __fmaf_rn(value_of(piece, 4 * half + 2 * j + 1), power, kInteger);
    pairs[j] = __byte_perm(__float_as_uint(even), __float_as_uint(odd), 0x5140);
  }
  return {__byte_perm(pairs[0], pairs[1], 0x7632), __byte_perm(pairs[0], pairs[1], 0x5410) ^ 0x80808080u};
}

}  // namespace spate::cuda
