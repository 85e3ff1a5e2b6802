// The layouts of integer weights on the device and what products with them take, for host and device.
//
// int8 (a scale a row): rows of codes, padded with zeros to 128 elements, as many as make a multiple of 16; then the
// scales, [rows] f32.
// int4 (two-level): chunks, [row tiles of 128][steps of 128 elements of k], one behind the other:
//   codes        [128 rows][64 bytes]. Byte 16 p + 4 s + j of a row has k = 32 s + 4 p + j in its low half and the k
//                that is 16 more in its high half, as code + 8: lane p of wgmma's rows finds what it needs of a row in
//                16 neighbours, the 4 codes of a register in one word.
//   multipliers  [128 rows][2 or 4 (groups of 32)] bytes, each of 64 or 32 elements
// then the row scales, [rows] f32. Rows and elements beyond the matrix have multiplier 0.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/linear_wgmma.h"
#include "backend/cuda/kernel/primitive/host_device.h"
#include "quant/outlier_rule.h"

namespace spate::cuda {

constexpr int kIntegerTileK = 128;
constexpr int kInt4RowBytes = kIntegerTileK / 2;  // of a chunk
constexpr int kInt4CodeBytes = kWgmmaTileRows * kInt4RowBytes;

struct IntegerLayout {
  int32_t num_rows;
  int32_t width;            // elements of k
  int32_t num_steps;        // of 128 elements
  int32_t num_multipliers;  // of a row in a chunk; 0: int8
  int64_t scales_offset;    // bytes
  int64_t matrix_bytes;

  SPATE_HOST_DEVICE int64_t chunk_bytes() const {
    return kInt4CodeBytes + static_cast<int64_t>(kWgmmaTileRows) * num_multipliers;
  }
  SPATE_HOST_DEVICE int64_t row_bytes() const { return static_cast<int64_t>(num_steps) * kIntegerTileK; }  // int8
  SPATE_HOST_DEVICE int64_t chunk_offset(int row, int k) const {
    return (static_cast<int64_t>(row / kWgmmaTileRows) * num_steps + k / kIntegerTileK) * chunk_bytes();
  }
  // Of the byte that holds an element of int4, and whether it is the high half.
  SPATE_HOST_DEVICE int64_t code_offset(int row, int k) const {
    const int in_step = k % 32;
    return chunk_offset(row, k) + row % kWgmmaTileRows * kInt4RowBytes + in_step % 16 / 4 * 16 +
           k % kIntegerTileK / 32 * 4 + in_step % 4;
  }
  SPATE_HOST_DEVICE static bool is_high(int k) { return k % 32 >= 16; }
  SPATE_HOST_DEVICE int64_t multiplier_offset(int row, int k) const {
    return chunk_offset(row, k) + kInt4CodeBytes + row % kWgmmaTileRows * num_multipliers +
           k % kIntegerTileK * num_multipliers / kIntegerTileK;
  }
};

// group_width 0: int8.
inline IntegerLayout make_integer_layout(int64_t num_rows, int64_t width, int64_t group_width) {
  const auto rounded_up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
  IntegerLayout layout{.num_rows = static_cast<int32_t>(num_rows),
                       .width = static_cast<int32_t>(width),
                       .num_steps = static_cast<int32_t>(rounded_up(width, kIntegerTileK) / kIntegerTileK),
                       .num_multipliers = group_width == 0    ? 0
                                          : group_width == 32 ? 4
                                                              : 2,
                       .scales_offset = 0,
                       .matrix_bytes = 0};
  layout.scales_offset = group_width == 0 ? rounded_up(num_rows, 16) * layout.row_bytes()
                                          : rounded_up(num_rows, kWgmmaTileRows) / kWgmmaTileRows * layout.num_steps *
                                                layout.chunk_bytes();
  layout.matrix_bytes = rounded_up(layout.scales_offset + num_rows * 4, 256);
  return layout;
}

// --- activations as codes --------------------------------------------------------------------------------------------

// Elements of a row of x: as many products of at most 255 * 127 fit a sum of 32 bits.
constexpr int64_t kMaxIntegerWidth = 65536;

struct QuantizedRow {
  float scale;
  int32_t code_sum;
  int32_t num_outliers;
  int32_t padding;
};

// Of outlier_columns.h: columns of W that outliers of any token meet. marks and num_arrived are zero between products.
constexpr int kOutlierStepColumns = 64;                      // of an outlier step of linear_skeleton.h
constexpr int kMaxOutlierColumns = 4096;                     // of a product
constexpr int64_t kOutlierWeightBytes = int64_t{128} << 20;  // of what is gathered from a weight, at most

struct OutlierColumns {
  uint32_t marks[kMaxIntegerWidth / 32];   // bit k % 32 of word k / 32
  uint16_t before[kMaxIntegerWidth / 32];  // marks of the words before
  uint16_t ks[kMaxOutlierColumns];
  uint32_t num_arrived;  // CTAs that have gathered their share
  uint32_t is_gathered;  // 1 when all have; quantize_rows sets it back
};

// How many columns of a weight of num_rows rows are gathered at most: a multiple of kOutlierStepColumns, or 0.
inline int outlier_capacity(int64_t num_rows) {
  const int64_t fits = kOutlierWeightBytes / (2 * num_rows) / kOutlierStepColumns * kOutlierStepColumns;
  return static_cast<int>(fits < kMaxOutlierColumns ? fits : kMaxOutlierColumns);
}

// Products take codes of so many tokens at a time.
constexpr int64_t kIntegerTokensAtOnce = 2048;

// Where rows of activations go as codes.
struct RowCodes {
  int8_t* codes;        // [num_tokens, row_bytes]; zeros behind the width
  int64_t codes_bytes;  // from row to row, a multiple of 8
  QuantizedRow* rows;   // [num_tokens]
  Outlier* outliers;    // [num_tokens, kMaxOutliers], in the order of k
  // Or null: one for each kIntegerTokensAtOnce tokens, gets marks.
  OutlierColumns* outlier_columns;
  int32_t row_bytes;  // a multiple of 128
  int32_t width;
  int32_t num_ctas;  // that share a row, a cluster
};

struct QuantizeRowsKernelParams {
  const void* x;     // [num_tokens, width] act
  int64_t x_stride;  // elements
  RowCodes out;
  int32_t is_x_aligned;  // rows of x start at multiples of 16 bytes
  int32_t num_tokens;
};

constexpr int kQuantizeMaxThreads = 512, kQuantizeMaxPieces = 4;  // of a CTA; of 8 elements, of a thread
constexpr int kQuantizeMaxCtas = 8;                               // that share a row
constexpr int kQuantizeNarrowWarps = 8, kQuantizeNarrowWidth = 8 * 8 * 32;  // a warp a row
static_assert(int64_t{8} * kQuantizeMaxPieces * kQuantizeMaxThreads * kQuantizeMaxCtas >= kMaxIntegerWidth);

struct LinearIntegerKernelParams {
  LinearWgmmaKernelParams tiles;  // x: the codes, boxes of tile_tokens x 128; weight: of int8, boxes of 64 x 128
  const char* weight;             // the matrix
  IntegerLayout layout;
  QuantizedRow* rows;  // [num_tokens]
  Outlier* outliers;   // [num_tokens, kMaxOutliers]; those that are gathered leave it
  // Where outliers are gathered; else outlier_columns is null.
  TensorMap outlier_values_map;   // boxes of tile_tokens x 64
  TensorMap outlier_weights_map;  // boxes of 64 x 64
  OutlierColumns* outlier_columns;
  uint16_t* outlier_values;   // [num_tokens, outlier_capacity] bf16
  uint16_t* outlier_weights;  // [num_rows, outlier_capacity] bf16: columns of W
  int32_t outlier_capacity;   // outlier_capacity(num_rows)
};

constexpr int kInt8StageWeightBytes = kWgmmaTileRows * kWgmmaStageRowBytes;
constexpr int kInt4StageWeightBytes = kInt4CodeBytes + 1024;

}  // namespace spate::cuda
