// The loops of peaks.cpp on ARM.
#pragma once

#include "backend/cpu/kernel/dot_tile.h"

namespace spate::cpu::SPATE_ISA {

// Both ways of x86; which is better here was not measured.
template <int64_t kStreams, int64_t kAhead>
static uint64_t read_streams(const char* data, int64_t bytes) {
  constexpr int64_t kLine = 64;
  const int64_t part = bytes / kStreams / kLine * kLine;
  I sums[4] = {int_zero(), int_zero(), int_zero(), int_zero()};
  for (int64_t i = 0; i < part; i += kLine) {
    for (int64_t s = 0; s < kStreams; ++s) {
      const char* p = data + s * part + i;
      if constexpr (kAhead > 0) prefetch(p + kAhead);
      sums[s] = int_xor(sums[s], int_xor(int_load(p), int_load(p + 32)));
    }
  }
  const I total = int_xor(int_xor(sums[0], sums[1]), int_xor(sums[2], sums[3]));
  return vgetq_lane_u64(vreinterpretq_u64_s32(veorq_s32(total.low, total.high)), 0);
}
uint64_t read_memory(const char* data, int64_t bytes) { return read_streams<4, 1024>(data, bytes); }
uint64_t read_memory_plain(const char* data, int64_t bytes) { return read_streams<1, 0>(data, bytes); }

// Past the caches: pairs of registers by STNP.
void write_memory(char* data, int64_t bytes) {
  const uint8x16_t zeros = vdupq_n_u8(0);
  for (int64_t i = 0; i + 64 <= bytes; i += 64) {
    asm volatile("stnp %q1, %q1, [%0]\n\tstnp %q1, %q1, [%0, #32]" : : "r"(data + i), "w"(zeros) : "memory");
  }
}

// Products in as many chains of `add` as cover the latency, `products` in each: multiplications and additions.
template <typename Add>
SPATE_INLINE double vector_ops(int64_t iterations, int8_t a_bytes, int8_t b_bytes, int64_t products, const Add& add) {
  constexpr int kChains = 20;
  int8x16_t a = vdupq_n_s8(a_bytes), b = vdupq_n_s8(b_bytes);
  int32x4_t sums[kChains];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 20
    for (int32x4_t& sum : sums) {
      asm volatile("" : "+w"(a), "+w"(b));  // else one product serves all chains
      sum = add(sum, a, b);
      asm volatile("" : "+w"(sum));
    }
  }
  return static_cast<double>(iterations) * kChains * static_cast<double>(products) * 2;
}

// Products of 8-bit codes summed in 32 bits: by SMMLA, SDOT, or multiply, add, widen.
double vector_int8_ops(int64_t iterations) {
#ifdef __ARM_FEATURE_MATMUL_INT8
  return vector_ops(iterations, 3, -5, 32,
                    [](int32x4_t sum, int8x16_t a, int8x16_t b) { return vmmlaq_s32(sum, a, b); });
#else
  return vector_ops(iterations, 3, -5, 16,
                    [](int32x4_t sum, int8x16_t a, int8x16_t b) { return add_dots4(sum, a, b); });
#endif
}

#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
double vector_bf16_flops(int64_t iterations) {  // by BFMMLA, of numbers near 0.0024
  return vector_ops(iterations, 0x3b, 0x3b, 16, add_products<Words::kBf16>);
}
#endif

}  // namespace spate::cpu::SPATE_ISA
