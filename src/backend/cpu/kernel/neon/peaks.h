// The loops of peaks.cpp on ARM.
#pragma once

#include "backend/cpu/kernel/int_simd.h"

namespace spate::cpu::SPATE_ISA {

// Four streams side by side, as on x86; which number is best here was not measured.
uint64_t read_memory(const char* data, int64_t bytes) {
  constexpr int64_t kStreams = 4, kAhead = 1024, kLine = 64;
  const int64_t part = bytes / kStreams / kLine * kLine;
  I sums[kStreams] = {int_zero(), int_zero(), int_zero(), int_zero()};
  for (int64_t i = 0; i < part; i += kLine) {
    for (int64_t s = 0; s < kStreams; ++s) {
      const char* p = data + s * part + i;
      prefetch(p + kAhead);
      sums[s] = int_xor(sums[s], int_xor(int_load(p), int_load(p + 32)));
    }
  }
  const I total = int_xor(int_xor(sums[0], sums[1]), int_xor(sums[2], sums[3]));
  return vgetq_lane_u64(vreinterpretq_u64_s32(veorq_s32(total.low, total.high)), 0);
}

// Past the caches: pairs of registers by STNP.
void write_memory(char* data, int64_t bytes) {
  const uint8x16_t zeros = vdupq_n_u8(0);
  for (int64_t i = 0; i + 64 <= bytes; i += 64) {
    asm volatile("stnp %q1, %q1, [%0]\n\tstnp %q1, %q1, [%0, #32]" : : "r"(data + i), "w"(zeros) : "memory");
  }
}

// 32-bit sums of products of codes, in as many chains as cover the latency.
double vector_int8_ops(int64_t iterations) {
  constexpr int kChains = 20;
  int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(-5);
  int32x4_t sums[kChains];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
  for (int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 20
    for (int32x4_t& sum : sums) {
      asm volatile("" : "+w"(a), "+w"(b));  // else one product serves all chains
      sum = add_dots4(sum, a, b);
      asm volatile("" : "+w"(sum));
    }
  }
  return static_cast<double>(iterations) * kChains * 16 * 2;
}

}  // namespace spate::cpu::SPATE_ISA
