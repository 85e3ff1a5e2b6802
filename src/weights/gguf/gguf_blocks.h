// The blocks that GGUF keeps weights in, and how they become ours.
//
// clang-format off
//   type     elements  bytes   w =                                 here
//   Q4_0     32        18      d * (q - 8)                         int4 g32, exact
//   Q4_1     32        20      d * q + m                           int4 g32 with offsets m + 8 d, rounded to halves
//   Q5_0     32        22      d * (q - 16)                        int8 g32, exact
//   Q5_1     32        24      d * q + m                           int8 g32 with offsets, exact
//   Q8_0     32        34      d * q                               int8 g32, exact
//   Q2_K     256       84      d * sc * q - dmin * mn, by 16       int8 g32 with offsets. Where the halves of 32
//                                                                  have one dmin * mn: codes sc * q, the offset
//                                                                  rounded to a half. Else quantised again, off by
//                                                                  at most 1/500 of the range of the 32, and 2^-17
//   Q3_K     256       110     d * (sc - 32) * (q - 4), by 16      int8 g32, exact: the scale is -d
//   Q4_K     256       144     d * sc * q - dmin * mn, by 32       int4 g32 with offsets; d * sc and offsets
//                                                                  rounded to halves
//   Q5_K     256       176     the same, q of 5 bits               int8 g32 with offsets, the same
//   Q6_K     256       210     d * sc * (q - 32), by 16            int8 g32, quantised again: a step of the new
//                                                                  scale is about a quarter of one of the old
//   IQ4_NL   32        18      d * codebook[q]                     int8 g32, exact
//   IQ4_XS   256       136     d * (sc - 32) * codebook[q], by 32  int8 g32; d * (sc - 32) rounded to a half
//   TQ1_0    256       54      d * (q - 1), q in 0 .. 2            int4 g32, exact
//   TQ2_0    256       66      d * (q - 1), q in 0 .. 3            int4 g32, exact
//   MXFP4    32        17      2^(e - 127) * e2m1[q]               int8 g32, exact from e = 104 to 143: codes
//                                                                  2 * e2m1, scale 2^(e - 128). Smaller e, that is
//                                                                  weights below 2^-21: rounded to multiples of
//                                                                  2^-24. Larger e: refused
//   F32, F16, BF16                                                 as they are
// clang-format on
//
// d, m, dmin are halves; sc and mn integers of 4 bits (Q2_K), 8 bits (Q6_K, signed) or 6 bits; e is a byte. Rounding to
// a half moves a scale or offset by at most 2^-11 of itself. A scale or offset beyond the largest half, 65504, is
// refused, and so is a value beyond it that is quantised again. Threads: all functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "quant/weight_format.h"

namespace spate {

struct GgufFormat {
  uint32_t type = 0;  // GgufTensorInfo::ggml_type
  std::string_view name;
  int64_t block_size = 1;  // elements
  int64_t block_bytes = 0;
  std::optional<DType> dtype;      // of floats
  std::optional<WeightSpec> spec;  // of codes; with neither the type is known by name only
  std::string_view requantized = {};  // of codes that are quantised again: how far that moves a weight
};

const GgufFormat* find_gguf_format(uint32_t type);  // null: no type that ggml has
const GgufFormat* find_gguf_format(std::string_view name);
std::string gguf_format_name(uint32_t type);        // "Q4_K", "type 99"
std::string readable_gguf_formats();                // "F32, F16, ..."

// A row of in_features elements (a multiple of block_size) at `blocks`, any alignment, in format.spec: codes
// [in_features], scales and offsets [in_features / 32]; offsets may be null where the spec has none. A scale
// or offset that is no number, or beyond the largest half, is NaN or infinite.
void decode_gguf_row(const GgufFormat& format, const char* blocks, int64_t in_features, int8_t* codes, float* scales,
                     float* offsets);

}  // namespace spate
