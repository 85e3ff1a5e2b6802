// F8_E4M3 (torch.float8_e4m3fn): a sign, 4 bits of exponent with a bias of 7, 3 of mantissa. The largest value is 448,
// the smallest step 2^-9. There is no infinity; 0x7f and 0xff are NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace spate {

constexpr float kMaxE4m3 = 448;

constexpr bool is_nan_e4m3(uint8_t code) { return (code & 0x7f) == 0x7f; }

// Exact. Of a NaN code: unspecified. Without branches, so that a loop over codes becomes vector code.
inline float e4m3_to_float(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
  const uint32_t normal = (magnitude << 20) + ((127u - 7u) << 23);
  const auto subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
  const uint32_t is_subnormal = magnitude < 8 ? ~0u : 0u;
  return std::bit_cast<float>((subnormal & is_subnormal) | (normal & ~is_subnormal) | sign);
}

}  // namespace spate
