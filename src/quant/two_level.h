// How two-level scales are chosen (weight_format.h): what quantize_row(), the kernels that quantise while a model loads
// and `spate quantize` share.
//
//   row_scale   its largest |w| / (7 * 16), rounded up to 4 significant bits and to a multiple of 2^-24: so the group
//               that holds it needs a multiplier of 15 or 16. A product with a multiplier (4 bits, or 16) has 8 bits at
//               most, is no finer than 2^-24 and no larger than 61440: it is exact in bf16 and in f16.
//   multiplier  the one that holds max|w| of the group with codes to 7, or one of the three below it, which clip: that
//               of the least squared error, the largest among equals.
//
// Three below: on Gaussian weights in groups of 64 the squared error is 1.12 of that with f16 scales for max|w| / 7
// without a choice, 0.93 with one below, 0.83 with two, 0.81 with three and no better with more.
//
// Kernels that are compiled once per instruction set use this: everything is static, and nothing is included.
#pragma once

#include <stdint.h>

namespace spate {

static constexpr int kMaxMultiplier = 16;
static constexpr int kMultipliersTried = 4;

static constexpr float two_level_row_scale(float max_abs) {
  constexpr float kLargest = 3840;  // 15 * 2^8: 16 of them are an f16
  const float wanted = max_abs / (7.0f * kMaxMultiplier);
  if (!(wanted > 0)) return 0;
  if (wanted >= kLargest) return kLargest;
  if (wanted < 0x1p-21f) {
    const float units = wanted * 0x1p24f;
    const auto whole = static_cast<int32_t>(units);
    return static_cast<float>(static_cast<float>(whole) < units ? whole + 1 : whole) * 0x1p-24f;
  }
  // The lowest 20 of the 23 bits behind the first one go; a carry into the exponent is right too.
  const uint32_t bits = __builtin_bit_cast(uint32_t, wanted);
  return __builtin_bit_cast(float, (bits + 0xfffffu) & ~0xfffffu);
}

// The first multiplier to try for a group with this max|w|; row_scale is not 0.
static constexpr int largest_multiplier(float max_abs, float row_scale) {
  const float wanted = max_abs / (7.0f * row_scale);
  if (!(wanted > 1)) return 1;
  if (wanted >= kMaxMultiplier) return kMaxMultiplier;
  const int whole = static_cast<int>(wanted);
  return static_cast<float>(whole) < wanted ? whole + 1 : whole;
}
// The last one, which is tried too.
static constexpr int smallest_multiplier(int largest) {
  return largest > kMultipliersTried ? largest - kMultipliersTried + 1 : 1;
}

}  // namespace spate
