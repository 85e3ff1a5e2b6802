// int4_multiply.h on ARM: multiplier * code is at least -128 and at most 112, a product of bytes.
#pragma once

#include "backend/cpu/kernel/int_simd.h"
#include "backend/cpu/weight_layout.h"

namespace spate::cpu::SPATE_ISA {

// The multipliers of 16 columns, each four times: for the four codes that a column has in a row of a step.
struct Multipliers {
  int8x16_t columns[4];
};
SPATE_INLINE Multipliers load_multipliers(const IntLayout& w, const char* n_block, int64_t group) {
  constexpr uint8_t kFourTimes[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  const int8x16_t all = vld1q_s8(reinterpret_cast<const int8_t*>(n_block + w.multipliers_offset() + group * kNBlock));
  Multipliers by;
  for (int i = 0; i < 4; ++i) {
    by.columns[i] = vqtbl1q_s8(all, vaddq_u8(vld1q_u8(kFourTimes), vdupq_n_u8(static_cast<uint8_t>(4 * i))));
  }
  return by;
}

// A packed step (64 k) of an n-block as a step of int8.
SPATE_INLINE void unpack_two_level_step(const IntLayout& w, const char* n_block, int64_t step, char* out) {
  const auto* packed = reinterpret_cast<const uint8_t*>(n_block + step * 512);
  auto* codes = reinterpret_cast<int8_t*>(out);
  const int64_t group = w.multiplier_of(step * kIntKStep);
  const Multipliers low = load_multipliers(w, n_block, group);
  const Multipliers high = w.multiplier_k == kIntHalfStep ? load_multipliers(w, n_block, group + 1) : low;
  const int8x16_t eight = vdupq_n_s8(8);
  for (int64_t row = 0; row < 8; ++row) {
    for (int i = 0; i < 4; ++i) {
      const int64_t at = row * 64 + i * 16;
      const uint8x16_t both = vld1q_u8(packed + at);
      const int8x16_t lower = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))),
                      upper = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
      vst1q_s8(codes + at, vmulq_s8(vsubq_s8(lower, eight), low.columns[i]));
      vst1q_s8(codes + at + 8 * 64, vmulq_s8(vsubq_s8(upper, eight), high.columns[i]));
    }
  }
}

}  // namespace spate::cpu::SPATE_ISA
