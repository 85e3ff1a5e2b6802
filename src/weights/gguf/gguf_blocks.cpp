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
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBf16 = 30,
};

constexpr GgufFormat kFormats[] = {
    {kF32, "F32", 1, 4, DType::kF32, {}},
    {kF16, "F16", 1, 2, DType::kF16, {}},
    {kBf16, "BF16", 1, 2, DType::kBf16, {}},
    {kQ4_0, "Q4_0", 32, 18, {}, kInt4Symmetric},
    {kQ4_1, "Q4_1", 32, 20, {}, kInt4Asymmetric},
    {kQ5_0, "Q5_0", 32, 22, {}, kInt8Symmetric},
    {kQ5_1, "Q5_1", 32, 24, {}, kInt8Asymmetric},
    {kQ8_0, "Q8_0", 32, 34, {}, kInt8Symmetric},
    {kQ4_K, "Q4_K", 256, 144, {}, kInt4Asymmetric},
    {kQ5_K, "Q5_K", 256, 176, {}, kInt8Asymmetric},
    {kQ6_K, "Q6_K", 256, 210, {}, kInt8Symmetric},
    {9, "Q8_1"},
    {10, "Q2_K"},
    {11, "Q3_K"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {20, "IQ4_NL"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {23, "IQ4_XS"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {39, "MXFP4"},
};

uint8_t byte_at(const char* p) { return static_cast<uint8_t>(*p); }

float half_at(const char* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return F16{bits}.to_float();
}

float stored(float value) { return stored_scale(kInt4Symmetric, value); }

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
  quantize_row(kInt8Symmetric, values, 256, codes, scales, nullptr);
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
