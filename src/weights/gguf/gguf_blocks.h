// The blocks that GGUF keeps weights in, and how they become ours.
//
//   type        elements  bytes   w =                                      here
//   Q4_0        32        18      d * (q - 8)                              int4 g32, exact
//   Q4_1        32        20      d * q + m                                int4 g32 with offsets m + 8 d, rounded to a
//   half Q5_0        32        22      d * (q - 16)                             int8 g32, exact Q5_1        32 24 d * q
//   + m                                int8 g32 with offsets, exact Q8_0        32        34      d * q int8 g32, exact
//   Q4_K        256       144     d * sc * q - dmin * mn, by 32            int4 g32 with offsets; d * sc rounded to a
//   half Q5_K        256       176     the same, q of 5 bits                    int8 g32 with offsets, the same Q6_K
//   256       210     d * sc * (q - 32), by 16                 int8 g32, quantised again: a step of the new
//                                                                          scale is about a quarter of one of the old
//   F32, F16, BF16                                                         as they are
//
// d, m, dmin are halves; sc and mn integers of 6 bits (Q6_K: 8, signed). Threads: all functions are pure.
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
};

const GgufFormat* find_gguf_format(uint32_t type);  // null: no type that ggml has
std::string gguf_format_name(uint32_t type);        // "Q4_K", "type 99"
std::string readable_gguf_formats();                // "F32, F16, ..."

// A row of in_features elements (a multiple of block_size) at `blocks`, any alignment, in format.spec: codes
// [in_features], scales and offsets [in_features / 32]; offsets may be null where the spec has none. A block
// whose d is no number gives scales that are none.
void decode_gguf_row(const GgufFormat& format, const char* blocks, int64_t in_features, int8_t* codes, float* scales,
                     float* offsets);

}  // namespace spate
