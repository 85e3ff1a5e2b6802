#include "weights/gguf/gguf_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "quant/quantize.h"

namespace spate {
namespace {

constexpr int kGroup = 32;
constexpr float kMaxHalf = 65504.0f;
constexpr WeightSpec kInt4Symmetric = integer_spec(Codes::kInt4, kGroup, false),
                     kInt4Asymmetric = integer_spec(Codes::kInt4, kGroup, true);
constexpr WeightSpec kInt8Symmetric = integer_spec(Codes::kInt8, kGroup, false),
                     kInt8Asymmetric = integer_spec(Codes::kInt8, kGroup, true);

enum Type : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kBf16 = 30,
  kTq1_0 = 34,
  kTq2_0 = 35,
  kMxfp4 = 39,
};

constexpr std::string_view kLossOfQ2K = "1/500 of the range of its group, about a hundredth of a step of Q2_K",
                           kLossOfQ6K = "1/254 of the largest of its group, about an eighth of a step of Q6_K";

constexpr GgufFormat kFormats[] = {
    {kF32, "F32", 1, 4, DType::kF32, {}},
    {kF16, "F16", 1, 2, DType::kF16, {}},
    {kBf16, "BF16", 1, 2, DType::kBf16, {}},
    {kQ4_0, "Q4_0", 32, 18, {}, kInt4Symmetric},
    {kQ4_1, "Q4_1", 32, 20, {}, kInt4Asymmetric},
    {kQ5_0, "Q5_0", 32, 22, {}, kInt8Symmetric},
    {kQ5_1, "Q5_1", 32, 24, {}, kInt8Asymmetric},
    {kQ8_0, "Q8_0", 32, 34, {}, kInt8Symmetric},
    {kQ2_K, "Q2_K", 256, 84, {}, kInt8Asymmetric, kLossOfQ2K},
    {kQ3_K, "Q3_K", 256, 110, {}, kInt8Symmetric},
    {kQ4_K, "Q4_K", 256, 144, {}, kInt4Asymmetric},
    {kQ5_K, "Q5_K", 256, 176, {}, kInt8Asymmetric},
    {kQ6_K, "Q6_K", 256, 210, {}, kInt8Symmetric, kLossOfQ6K},
    {kIq4Nl, "IQ4_NL", 32, 18, {}, kInt8Symmetric},
    {kIq4Xs, "IQ4_XS", 256, 136, {}, kInt8Symmetric},
    {kTq1_0, "TQ1_0", 256, 54, {}, kInt4Symmetric},
    {kTq2_0, "TQ2_0", 256, 66, {}, kInt4Symmetric},
    {kMxfp4, "MXFP4", 32, 17, {}, kInt8Symmetric},
    {9, "Q8_1"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {40, "NVFP4"},
    {41, "Q1_0"},
    {42, "Q2_0"},
};

uint8_t byte_at(const char* p) { return static_cast<uint8_t>(*p); }

float half_at(const char* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return F16{bits}.to_float();
}

// A scale or offset as a half. One beyond the largest half becomes infinite, and its row is refused.
float stored(float value) { return F16::from_float(value).to_float(); }

// Values that no scale and codes of ours mean exactly.
void quantize_again(const WeightSpec& spec, const float* values, int64_t n, int8_t* codes, float* scales,
                    float* offsets) {
  const auto is_half = [](float value) { return std::fabs(value) <= kMaxHalf; };
  if (!std::all_of(values, values + n, is_half)) return std::fill(scales, scales + n / kGroup, NAN);
  quantize_row(spec, values, n, codes, scales, offsets);
}

// 32 nibbles less 8: the low ones of 16 bytes, then the high ones. Loops of constant length without branches: the
// compiler makes vectors of them.
void decode_4bit(const char* bytes, int8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = static_cast<int8_t>((byte_at(bytes + j) & 15) - 8);
    codes[j + 16] = static_cast<int8_t>((byte_at(bytes + j) >> 4) - 8);
  }
}

// The fifth bits of 32 elements in four bytes, then their nibbles.
void decode_5bit(const char* high_at, int middle, int8_t* codes) {
  uint32_t high;
  std::memcpy(&high, high_at, 4);
  const char* bytes = high_at + 4;
  for (int j = 0; j < 16; ++j) {
    const int low_bit = static_cast<int>(high >> j & 1) << 4, high_bit = static_cast<int>(high >> (j + 16) & 1) << 4;
    codes[j] = static_cast<int8_t>(((byte_at(bytes + j) & 15) | low_bit) - middle);
    codes[j + 16] = static_cast<int8_t>((byte_at(bytes + j) >> 4 | high_bit) - middle);
  }
}

// Scale and minimum of group g of eight, 6 bits each, in 12 bytes: the first four groups in the low bits of bytes g and
// g + 4; of the others the low nibbles in byte g + 4, the rest in the upper bits of the first eight.
void scale_and_minimum(const char* packed, int g, int& scale, int& minimum) {
  if (g < 4) {
    scale = byte_at(packed + g) & 63;
    minimum = byte_at(packed + g + 4) & 63;
    return;
  }
  scale = (byte_at(packed + g + 4) & 15) | (byte_at(packed + g - 4) >> 6) << 4;
  minimum = (byte_at(packed + g + 4) >> 4) | (byte_at(packed + g) >> 6) << 4;
}

// Q4_K: d, dmin, 12 bytes of scales, 128 of nibbles. Q5_K has 32 bytes of fifth bits before the nibbles, bit g of byte
// j for element j of group g.
template <bool kHasFifthBits>
void decode_k_block(const char* block, int8_t* codes, float* scales, float* offsets) {
  const float d = half_at(block), d_min = half_at(block + 2);
  if (!std::isfinite(d) || !std::isfinite(d_min)) return std::fill(scales, scales + 8, NAN);
  for (int g = 0; g < 8; ++g) {
    int scale = 0, minimum = 0;
    scale_and_minimum(block + 4, g, scale, minimum);
    const float step = d * static_cast<float>(scale), low = d_min * static_cast<float>(minimum);
    scales[g] = stored(step);
    offsets[g] = stored(kHasFifthBits ? -low : 8 * step - low);
  }
  const char* fifth_bits = block + 16;
  const char* nibbles = block + (kHasFifthBits ? 48 : 16);
  for (int pair = 0; pair < 4; ++pair) {
    int8_t* low = codes + pair * 2 * kGroup;
    int8_t* high = low + kGroup;
    for (int j = 0; j < kGroup; ++j) {
      const uint8_t both = byte_at(nibbles + pair * kGroup + j);
      if constexpr (kHasFifthBits) {
        const int fifth = byte_at(fifth_bits + j) >> (2 * pair);
        low[j] = static_cast<int8_t>((both & 15) | (fifth & 1) << 4);
        high[j] = static_cast<int8_t>(both >> 4 | (fifth & 2) << 3);
      } else {
        low[j] = static_cast<int8_t>((both & 15) - 8);
        high[j] = static_cast<int8_t>((both >> 4) - 8);
      }
    }
  }
}

// 128 bytes of low nibbles, 64 of upper pairs of bits, 16 scales, d. Each half of 128 elements takes half of them, each
// quarter of a half its own nibble and its own pair.
void decode_q6_k_block(const char* block, int8_t* codes, float* scales) {
  const float d = half_at(block + 208);
  if (!std::isfinite(d)) return std::fill(scales, scales + 8, NAN);
  float values[256];
  for (int group = 0; group < 16; ++group) {
    const int half = group / 8, quarter = group % 8 / 2, first = group % 2 * 16;
    const char* low = block + half * 64 + quarter % 2 * 32 + first;
    const char* high = block + 128 + half * 32 + first;
    const int low_shift = quarter / 2 * 4, high_shift = quarter * 2;
    const float scale = d * static_cast<float>(static_cast<int8_t>(block[192 + group]));
    for (int j = 0; j < 16; ++j) {
      const int q = (byte_at(low + j) >> low_shift & 15) | (byte_at(high + j) >> high_shift & 3) << 4;
      values[group * 16 + j] = scale * static_cast<float>(q - 32);
    }
  }
  quantize_again(kInt8Symmetric, values, 256, codes, scales, nullptr);
}

// Pair j of group g of eight in 64 bytes: four groups share 32 bytes, the first in the lowest bits.
int pair_of_bits(const char* bytes, int g, int j) { return byte_at(bytes + g / 4 * kGroup + j) >> (g % 4 * 2) & 3; }

// 16 bytes with a scale in the low nibble and a minimum in the high one, 64 of pairs of bits, d, dmin.
void decode_q2_k_block(const char* block, int8_t* codes, float* scales, float* offsets) {
  const float d = half_at(block + 80), d_min = half_at(block + 82);
  for (int g = 0; g < 8; ++g) {
    const uint8_t packed[] = {byte_at(block + 2 * g), byte_at(block + 2 * g + 1)};
    const float low[] = {-d_min * static_cast<float>(packed[0] >> 4), -d_min * static_cast<float>(packed[1] >> 4)};
    int8_t* multiples = codes + g * kGroup;  // of d
    for (int j = 0; j < kGroup; ++j) {
      multiples[j] = static_cast<int8_t>((packed[j / 16] & 15) * pair_of_bits(block + 16, g, j));
    }
    if (low[0] == low[1]) {
      scales[g] = d;
      offsets[g] = stored(low[0]);
      continue;
    }
    float values[kGroup];
    for (int j = 0; j < kGroup; ++j) values[j] = d * static_cast<float>(multiples[j]) + low[j / 16];
    quantize_again(kInt8Asymmetric, values, kGroup, multiples, scales + g, offsets + g);
  }
}

// Scale i of 16, 6 bits each, in 12 bytes: of the first eight the low nibbles of bytes i, of the others the high ones;
// the upper pairs of bits in the last four bytes.
int q3_k_scale(const char* packed, int i) {
  const int low = byte_at(packed + i % 8) >> (i / 8 * 4) & 15;
  return (low | (byte_at(packed + 8 + i % 4) >> (i / 4 * 2) & 3) << 4) - 32;
}

// 32 bytes of third bits, bit g of byte j for element j of group g; 64 of pairs of bits; 12 of scales; d. The product
// of a scale (-32 .. 31) and a code (-4 .. 3) is one of -124 .. 128: only its negative fits 8 bits.
void decode_q3_k_block(const char* block, int8_t* codes, float* scales) {
  std::fill(scales, scales + 8, -half_at(block + 108));
  for (int g = 0; g < 8; ++g) {
    const int negative_scale[] = {-q3_k_scale(block + 96, 2 * g), -q3_k_scale(block + 96, 2 * g + 1)};
    for (int j = 0; j < kGroup; ++j) {
      const int q = pair_of_bits(block + 32, g, j) | (byte_at(block + j) >> g & 1) << 2;
      codes[g * kGroup + j] = static_cast<int8_t>(negative_scale[j / 16] * (q - 4));
    }
  }
}

// The values that the 4-bit codes of IQ4_NL and IQ4_XS mean: kvalues_iq4nl of ggml (src/ggml-common.h, MIT licence).
constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the values of e2m1: a sign, two bits of exponent, one of mantissa (OCP Microscaling Formats, version 1.0).
constexpr int8_t kTwiceE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// As decode_4bit, by a table.
void decode_by_table(const char* bytes, const int8_t* values, int8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = values[byte_at(bytes + j) & 15];
    codes[j + 16] = values[byte_at(bytes + j) >> 4];
  }
}

// d, two bytes with the upper pairs of bits of eight scales, four with their low nibbles, 128 of nibbles.
void decode_iq4_xs_block(const char* block, int8_t* codes, float* scales) {
  const float d = half_at(block);
  for (int g = 0; g < 8; ++g) {
    const int low = byte_at(block + 4 + g / 2) >> (g % 2 * 4) & 15;
    const int high = byte_at(block + 2 + g / 4) >> (g % 4 * 2) & 3;
    scales[g] = stored(d * static_cast<float>((low | high << 4) - 32));
    decode_by_table(block + 8 + g * 16, kIq4Values, codes + g * kGroup);
  }
}

// The exponent of one byte, 16 of nibbles. The smallest half is 2^-24, the largest that is a power of two 2^15.
void decode_mxfp4_block(const char* block, int8_t* codes, float* scales) {
  const int exponent = byte_at(block) - 128;
  scales[0] = exponent > 15 ? NAN : std::ldexp(1.0f, std::max(exponent, -24));
  decode_by_table(block + 1, kTwiceE2m1, codes);
  if (exponent >= -24) return;
  for (int j = 0; j < kGroup; ++j) {
    codes[j] = static_cast<int8_t>(std::nearbyint(std::ldexp(static_cast<float>(codes[j]), exponent + 24)));
  }
}

// 64 bytes of pairs of bits, d.
void decode_tq2_0_block(const char* block, int8_t* codes, float* scales) {
  std::fill(scales, scales + 8, half_at(block + 64));
  for (int g = 0; g < 8; ++g) {
    for (int j = 0; j < kGroup; ++j) codes[g * kGroup + j] = static_cast<int8_t>(pair_of_bits(block, g, j) - 1);
  }
}

// A byte is a fraction of 256 whose first digits to the base of three are codes. Digits of 32 bytes in turn, five of
// each byte: all the first ones, all the second ones, ...; then of 16 bytes; then four digits of four bytes; d.
void decode_tq1_0_block(const char* block, int8_t* codes, float* scales) {
  std::fill(scales, scales + 8, half_at(block + 52));
  const auto decode_digits = [&codes](const char* bytes, int num_bytes, int num_digits) {
    int power = 1;
    for (int i = 0; i < num_digits; ++i, power *= 3) {
      for (int j = 0; j < num_bytes; ++j) {
        const int fraction = byte_at(bytes + j) * power & 255;
        *codes++ = static_cast<int8_t>((fraction * 3 >> 8) - 1);
      }
    }
  };
  decode_digits(block, 32, 5);
  decode_digits(block + 32, 16, 5);
  decode_digits(block + 48, 4, 4);
}

void decode_block(uint32_t type, const char* block, int8_t* codes, float* scales, float* offsets) {
  switch (type) {
    case kQ4_0:
      scales[0] = half_at(block);
      return decode_4bit(block + 2, codes);
    case kQ4_1:
      scales[0] = half_at(block);
      offsets[0] = stored(half_at(block + 2) + 8 * scales[0]);
      return decode_4bit(block + 4, codes);
    case kQ5_0:
      scales[0] = half_at(block);
      return decode_5bit(block + 2, 16, codes);
    case kQ5_1:
      scales[0] = half_at(block);
      offsets[0] = half_at(block + 2);
      return decode_5bit(block + 4, 0, codes);
    case kQ8_0:
      scales[0] = half_at(block);
      std::memcpy(codes, block + 2, kGroup);
      return;
    case kQ4_K:
      return decode_k_block<false>(block, codes, scales, offsets);
    case kQ5_K:
      return decode_k_block<true>(block, codes, scales, offsets);
    case kQ6_K:
      return decode_q6_k_block(block, codes, scales);
    case kQ2_K:
      return decode_q2_k_block(block, codes, scales, offsets);
    case kQ3_K:
      return decode_q3_k_block(block, codes, scales);
    case kIq4Nl:
      scales[0] = half_at(block);
      return decode_by_table(block + 2, kIq4Values, codes);
    case kIq4Xs:
      return decode_iq4_xs_block(block, codes, scales);
    case kTq1_0:
      return decode_tq1_0_block(block, codes, scales);
    case kTq2_0:
      return decode_tq2_0_block(block, codes, scales);
    case kMxfp4:
      return decode_mxfp4_block(block, codes, scales);
    default:
      CHECK(false, "blocks of {}", gguf_format_name(type));
  }
}

}  // namespace

const GgufFormat* find_gguf_format(uint32_t type) {
  for (const GgufFormat& format : kFormats) {
    if (format.type == type) return &format;
  }
  return nullptr;
}

const GgufFormat* find_gguf_format(std::string_view name) {
  for (const GgufFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

std::string gguf_format_name(uint32_t type) {
  const GgufFormat* format = find_gguf_format(type);
  return format != nullptr ? std::string(format->name) : fmt::format("type {}", type);
}

std::string readable_gguf_formats() {
  std::string names;
  for (const GgufFormat& format : kFormats) {
    if (format.block_bytes > 0) names += fmt::format("{}{}", names.empty() ? "" : ", ", format.name);
  }
  return names;
}

void decode_gguf_row(const GgufFormat& format, const char* blocks, int64_t in_features, int8_t* codes, float* scales,
                     float* offsets) {
  CHECK(format.spec && in_features % format.block_size == 0, "a row of {} {}", in_features, format.name);
  const int64_t groups = format.block_size / kGroup;
  for (int64_t i = 0; i < in_features / format.block_size; ++i) {
    decode_block(format.type, blocks + i * format.block_bytes, codes + i * format.block_size, scales + i * groups,
                 offsets == nullptr ? nullptr : offsets + i * groups);
  }
}

}  // namespace spate
