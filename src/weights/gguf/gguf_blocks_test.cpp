// gguf_blocks_test.cpp
//
// Goal     Blocks of 2, 3 and 4 bits become scales and codes that mean what the block's formula says: to the bit where
//          gguf_blocks.h calls the type exact, within its bound elsewhere. What no half holds is refused.
// Method   An encoder for each type, written from the description of its layout, puts chosen numbers (d, scales, codes)
//          into a block; the expected weight is the formula in double. Codes and scales take all of their values, or
//          random ones (seed printed). Blocks are heap arrays of their own size at odd addresses, which the sanitizers
//          watch. What llama.cpp's package makes of such blocks: gguf_checkpoint_test.cpp.
#include "weights/gguf/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "base/test_support.h"
#include "quant/quantize.h"

#include "base/test.h"

namespace spate {
namespace {

constexpr uint32_t kTypeQ2K = 10, kTypeQ3K = 11, kTypeQ4K = 12, kTypeQ6K = 14, kTypeIq4Nl = 20, kTypeIq4Xs = 23,
                   kTypeTq1 = 34, kTypeTq2 = 35, kTypeMxfp4 = 39;

using Block = std::vector<uint8_t>;

void put_half(Block& block, size_t at, float value) {
  const F16 half = F16::from_float(value);
  std::memcpy(block.data() + at, &half.bits, 2);
}

double half_of(float value) { return F16::from_float(value).to_float(); }

struct Decoded {
  std::vector<int8_t> codes;
  std::vector<float> scales, offsets;

  double weight(size_t i) const {
    const double offset = offsets.empty() ? 0 : offsets[i / 32];
    return static_cast<double>(scales[i / 32]) * codes[i] + offset;
  }
  bool is_finite(size_t group) const {
    return std::isfinite(scales[group]) && (offsets.empty() || std::isfinite(offsets[group]));
  }
};

Decoded decode(uint32_t type, const Block& block) {
  const GgufFormat& format = *find_gguf_format(type);
  REQUIRE(static_cast<int64_t>(block.size()) == format.block_bytes);
  const std::unique_ptr<char[]> odd(new char[block.size() + 1]);
  std::memcpy(odd.get() + 1, block.data(), block.size());
  const auto width = static_cast<size_t>(format.block_size);
  Decoded out{.codes = std::vector<int8_t>(width), .scales = std::vector<float>(width / 32), .offsets = {}};
  if (format.spec->has_offsets) out.offsets.resize(width / 32);
  decode_gguf_row(format, odd.get() + 1, format.block_size, out.codes.data(), out.scales.data(),
                  out.offsets.empty() ? nullptr : out.offsets.data());
  const int limit = format.spec->codes == Codes::kInt4 ? 8 : 128;
  for (const int8_t code : out.codes) CHECK((code >= -limit && code < limit));
  for (const float scale : out.scales) CHECK((!(std::fabs(scale) <= 65504) || scale == half_of(scale)));
  for (const float offset : out.offsets) CHECK((!(std::fabs(offset) <= 65504) || offset == half_of(offset)));
  return out;
}

// Pairs of bits of 256 codes: 32 codes to 32 bytes, four times, in bits 0, 2, 4, 6; then the other 128.
void put_pairs(Block& block, size_t at, const std::array<int, 256>& codes) {
  for (size_t i = 0; i < 256; ++i) {
    block[at + i / 128 * 32 + i % 32] |= static_cast<uint8_t>((codes[i] & 3) << (i % 128 / 32 * 2));
  }
}

struct Q2K {
  float d = 1, d_min = 1;
  std::array<int, 16> scales{}, minimums{};  // 0 .. 15
  std::array<int, 256> codes{};              // 0 .. 3
};

Block block_of(const Q2K& q) {
  Block block(84);
  for (size_t i = 0; i < 16; ++i) block[i] = static_cast<uint8_t>(q.scales[i] | q.minimums[i] << 4);
  put_pairs(block, 16, q.codes);
  put_half(block, 80, q.d);
  put_half(block, 82, q.d_min);
  return block;
}

double weight_of(const Q2K& q, size_t i) {
  return half_of(q.d) * q.scales[i / 16] * q.codes[i] - half_of(q.d_min) * q.minimums[i / 16];
}

Q2K random_q2_k(Rng& rng) {
  Q2K q{.d = static_cast<float>(rng.uniform()) * 0.01f, .d_min = static_cast<float>(rng.uniform()) * 0.02f};
  for (int& scale : q.scales) scale = static_cast<int>(rng.below(16));
  for (int& minimum : q.minimums) minimum = static_cast<int>(rng.below(16));
  for (int& code : q.codes) code = static_cast<int>(rng.below(4));
  return q;
}

TEST_CASE("Q2_K with one minimum for both halves of 32: exact but for the rounding of the offset") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  for (int round = 0; round < 100; ++round) {
    Q2K q = random_q2_k(rng);
    for (size_t i = 0; i < 16; i += 2) q.minimums[i + 1] = q.minimums[i];
    const Decoded out = decode(kTypeQ2K, block_of(q));
    for (size_t i = 0; i < 256; ++i) {
      CHECK(out.scales[i / 32] == half_of(q.d));
      CHECK(out.codes[i] == q.scales[i / 16] * q.codes[i]);
      CHECK(out.offsets[i / 32] == half_of(static_cast<float>(-half_of(q.d_min) * q.minimums[i / 16])));
    }
  }
}

TEST_CASE("Q2_K with other minimums: off by at most 1/500 of the range of 32, and 2^-17") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  double worst = 0;
  for (int round = 0; round < 200; ++round) {
    const Q2K q = random_q2_k(rng);
    const Decoded out = decode(kTypeQ2K, block_of(q));
    for (size_t g = 0; g < 8; ++g) {
      double low = 0, high = 0, error = 0;
      for (size_t i = g * 32; i < g * 32 + 32; ++i) {
        low = std::min(low, weight_of(q, i));
        high = std::max(high, weight_of(q, i));
        error = std::max(error, std::abs(out.weight(i) - weight_of(q, i)));
      }
      CHECK(error <= (high - low) / 500 + 0x1p-17);  // 255 steps of a scale below 2^-14, off by 2^-25
      worst = std::max(worst, error / (high - low));
    }
  }
  MESSAGE("largest error ", worst, " of a range");
}

TEST_CASE("Q3_K: every scale with every code, exact") {
  for (int first = -32; first < 32; first += 16) {
    Block block(110);
    std::array<int, 256> low{};
    std::array<int, 16> scales{};
    for (size_t i = 0; i < 16; ++i) {
      scales[i] = first + static_cast<int>(i);
      const int stored = scales[i] + 32;
      block[96 + i % 8] |= static_cast<uint8_t>((stored & 15) << (i / 8 * 4));
      block[104 + i % 4] |= static_cast<uint8_t>((stored >> 4) << (i / 4 * 2));
    }
    for (size_t i = 0; i < 256; ++i) {
      low[i] = static_cast<int>(i * 5) & 3;
      if (((i * 5) >> 2 & 1) != 0) block[i % 32] |= static_cast<uint8_t>(1 << (i / 32));
    }
    put_pairs(block, 32, low);
    for (const float d : {0.37f, -0.011f, 0x1p-24f, 65504.0f}) {
      put_half(block, 108, d);
      const Decoded out = decode(kTypeQ3K, block);
      for (size_t i = 0; i < 256; ++i) {
        CHECK(out.weight(i) == half_of(d) * scales[i / 16] * (static_cast<int>(i * 5 & 7) - 4));
      }
    }
  }
}

// The list of ggml once more: no formula of it is known.
constexpr std::array<int, 16> kCodebook{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

TEST_CASE("IQ4_NL: exact") {
  Block block(18);
  for (size_t i = 0; i < 16; ++i) block[2 + i] = static_cast<uint8_t>(i | ((i + 3) % 16) << 4);
  for (const float d : {0.013f, -2.0f, 0x1p-24f, 0.0f}) {
    put_half(block, 0, d);
    const Decoded out = decode(kTypeIq4Nl, block);
    for (size_t i = 0; i < 16; ++i) {
      CHECK(out.weight(i) == half_of(d) * kCodebook[i]);
      CHECK(out.weight(i + 16) == half_of(d) * kCodebook[(i + 3) % 16]);
    }
  }
}

TEST_CASE("IQ4_XS: exact but for the rounding of the scale") {
  for (int first = 0; first < 64; first += 8) {
    Block block(136);
    for (size_t g = 0; g < 8; ++g) {
      const size_t stored = static_cast<size_t>(first) + g;
      block[4 + g / 2] |= static_cast<uint8_t>((stored & 15) << (g % 2 * 4));
      block[2 + g / 4] |= static_cast<uint8_t>((stored >> 4) << (g % 4 * 2));
      for (size_t i = 0; i < 16; ++i) block[8 + g * 16 + i] = static_cast<uint8_t>((i + g) % 16 | i << 4);
    }
    for (const float d : {0.00021f, -0.5f, 0x1p-24f}) {
      put_half(block, 0, d);
      const Decoded out = decode(kTypeIq4Xs, block);
      for (size_t i = 0; i < 256; ++i) {
        const size_t g = i / 32;
        const double scale = half_of(d) * (first + static_cast<int>(g) - 32);
        CHECK(std::abs(out.scales[g] - scale) <= 0x1p-11 * std::abs(scale));
        CHECK(out.codes[i] == kCodebook[i % 32 < 16 ? (i % 16 + g) % 16 : i % 16]);
      }
    }
  }
}

TEST_CASE("TQ1_0: five codes a byte, exact") {
  // All 243 bytes that a writer makes: of the number n of five digits ceil(256 n / 243).
  for (int first = 0; first < 243; first += 13) {
    Block block(54);
    std::array<int, 256> expected{};
    const auto put = [&](size_t byte, size_t first_code, size_t stride, int number, int num_digits) {
      block[byte] = static_cast<uint8_t>((number * 256 + 242) / 243);
      int place = 81;
      for (int digit = 0; digit < num_digits; ++digit, place /= 3) {
        expected[first_code + static_cast<size_t>(digit) * stride] = number / place % 3 - 1;
      }
    };
    for (size_t j = 0; j < 32; ++j) put(j, j, 32, (first + static_cast<int>(j) * 7) % 243, 5);
    for (size_t j = 0; j < 16; ++j) put(32 + j, 160 + j, 16, (first + static_cast<int>(j) * 11) % 243, 5);
    for (size_t j = 0; j < 4; ++j) put(48 + j, 240 + j, 4, (first + static_cast<int>(j) * 30) % 81 * 3, 4);
    put_half(block, 52, 0.043f);
    const Decoded out = decode(kTypeTq1, block);
    for (size_t i = 0; i < 256; ++i) CHECK(out.weight(i) == half_of(0.043f) * expected[i]);
  }
}

TEST_CASE("TQ2_0: all four codes, exact") {
  Block block(66);
  std::array<int, 256> codes{};
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<int>(i * i / 7 % 4);
  put_pairs(block, 0, codes);
  put_half(block, 64, -0.3f);
  const Decoded out = decode(kTypeTq2, block);
  for (size_t i = 0; i < 256; ++i) CHECK(out.weight(i) == half_of(-0.3f) * (codes[i] - 1));
}

TEST_CASE("MXFP4: every exponent with every code, exact where halves reach") {
  for (int e = 0; e < 256; ++e) {
    Block block(17);
    block[0] = static_cast<uint8_t>(e);
    for (size_t i = 0; i < 16; ++i) block[1 + i] = static_cast<uint8_t>(i | (15 - i) << 4);
    const Decoded out = decode(kTypeMxfp4, block);
    CHECK(out.is_finite(0) == (e <= 143));
    if (e > 143) continue;
    for (size_t i = 0; i < 32; ++i) {
      const size_t code = i < 16 ? i : 31 - i;
      const int exponent = static_cast<int>(code) >> 1 & 3;
      const double magnitude = exponent == 0 ? 0.5 * static_cast<double>(code & 1)
                                             : std::ldexp(1 + 0.5 * static_cast<double>(code & 1), exponent - 1);
      const double weight = std::ldexp((code & 8) != 0 ? -magnitude : magnitude, e - 127);
      CHECK(std::abs(out.weight(i) - weight) <= (e >= 104 ? 0 : 0x1p-25));
      if (e < 104) CHECK(std::abs(weight) < 0x1p-21);
    }
  }
}

TEST_CASE("blocks whose d is no number are refused") {
  const std::pair<uint32_t, size_t> places[] = {{kTypeQ2K, 80}, {kTypeQ2K, 82},  {kTypeQ3K, 108}, {kTypeQ4K, 0},
                                                {kTypeQ4K, 2},  {kTypeQ6K, 208}, {kTypeIq4Nl, 0}, {kTypeIq4Xs, 0},
                                                {kTypeTq1, 52}, {kTypeTq2, 64}};
  for (const auto& [type, at] : places) {
    CAPTURE(find_gguf_format(type)->name);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      for (const uint8_t filling : {0x00, 0x5a, 0xff}) {
        Block block(static_cast<size_t>(find_gguf_format(type)->block_bytes), filling);
        if (type == kTypeQ2K || type == kTypeQ4K) put_half(block, type == kTypeQ2K ? 162 - at : 2 - at, 0.5f);
        put_half(block, at, bad);
        const Decoded out = decode(type, block);
        for (size_t g = 0; g < out.scales.size(); ++g) CHECK_FALSE(out.is_finite(g));
      }
    }
  }
}

TEST_CASE("scales beyond the largest half are refused, not clamped") {
  Block iq4(136, 0xff);  // scales of 31 d
  put_half(iq4, 0, 3000);
  CHECK_FALSE(decode(kTypeIq4Xs, iq4).is_finite(0));
  put_half(iq4, 0, 2000);
  CHECK(decode(kTypeIq4Xs, iq4).is_finite(0));
  Block q4(144, 0xff);  // scales and minimums of 63
  put_half(q4, 0, 2000);
  put_half(q4, 2, 1);
  CHECK_FALSE(decode(kTypeQ4K, q4).is_finite(0));
  put_half(q4, 0, 1);
  put_half(q4, 2, 2000);
  CHECK_FALSE(decode(kTypeQ4K, q4).is_finite(0));
  Block q6(210, 0x7f);
  put_half(q6, 208, 100);
  CHECK_FALSE(decode(kTypeQ6K, q6).is_finite(0));
  Q2K q2{.d = 1, .d_min = 5000};
  q2.minimums.fill(15);
  CHECK_FALSE(decode(kTypeQ2K, block_of(q2)).is_finite(0));
  q2.minimums[1] = 1;  // quantised again
  CHECK_FALSE(decode(kTypeQ2K, block_of(q2)).is_finite(0));
}

TEST_CASE("types that are read, and names of others") {
  const std::string readable = readable_gguf_formats();
  for (const char* name : {"Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "Q6_K", "BF16"}) {
    CHECK_MESSAGE((readable + ",").find(std::string(" ") + name + ",") != std::string::npos, readable);
  }
  for (const auto& [type, name] : {std::pair<uint32_t, const char*>{16, "IQ2_XXS"}, {21, "IQ3_S"}, {40, "NVFP4"}}) {
    CHECK(gguf_format_name(type) == name);
    CHECK(find_gguf_format(type)->block_bytes == 0);
  }
}

}  // namespace
}  // namespace spate
