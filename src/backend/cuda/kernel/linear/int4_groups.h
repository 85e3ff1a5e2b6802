// Int4 weights whose groups have scales of their own, for activations as they are: the layout on the device and what
// kernels take, for host and device. What GPTQ, AWQ, compressed-tensors and GGUF files hold.
//
// Chunks of codes, [row tiles of 128][steps of 64 elements of k][128 rows][32 bytes]: lane pair p of a tensor core's
// rows finds its 16 elements of a row in 8 neighbouring bytes, two words of 8 codes. Nibble i + 4 h of word j, as
// code + 8, is element
//   k = 32 j + 16 (i / 2) + 8 (i % 2) + 2 p + h
// so that a mask gives both halves of a register of bf16 (mma.h, wgmma_rows.h).
// Then the scales, [row tiles][num_groups][128 rows]:
//   2 bytes   f16 scale                    groups, symmetric
//   4 bytes   f16 scale, f16 offset        groups
//   8 bytes   f32 scale, f32 offset        whole rows
// Elements behind the end of a row have code 0; what their groups lack of a step has scale and offset 0.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/linear_rows.h"
#include "backend/cuda/kernel/linear/linear_wgmma.h"
#include "backend/cuda/kernel/primitive/host_device.h"

namespace spate::cuda {

constexpr int kInt4GroupTileK = 64;
constexpr int kInt4GroupRowBytes = kInt4GroupTileK / 2;  // of a chunk
constexpr int kInt4GroupChunkBytes = kWgmmaTileRows * kInt4GroupRowBytes;
// A stage of W: a chunk, and scales of 512 or, with offsets, 1,024 bytes, which may be of two groups.
constexpr int kInt4GroupScaleBytes = 512, kInt4GroupOffsetBytes = 1024;
constexpr int kInt4GroupStageBytes = kInt4GroupChunkBytes + kInt4GroupOffsetBytes;

struct Int4GroupLayout {
  int32_t num_rows;
  int32_t width;        // elements of k
  int32_t num_steps;    // of 64 elements
  int32_t num_groups;   // of a row, with those behind its end that fill a step
  int32_t group_width;  // elements; of whole rows all of the steps'
  int32_t scale_bytes;  // 2, 4 or 8
  int64_t scales_offset;
  int64_t matrix_bytes;

  SPATE_HOST_DEVICE bool has_half_steps() const { return group_width < kInt4GroupTileK; }
  SPATE_HOST_DEVICE int64_t chunk_offset(int row, int step) const {
    return (static_cast<int64_t>(row / kWgmmaTileRows) * num_steps + step) * kInt4GroupChunkBytes;
  }
  // Of the word that holds 8 codes of a row, `word` counting words of a row in a chunk: 2 p + j.
  SPATE_HOST_DEVICE int64_t word_offset(int row, int step, int word) const {
    return chunk_offset(row, step) + row % kWgmmaTileRows * kInt4GroupRowBytes + word * 4;
  }
  SPATE_HOST_DEVICE int64_t scale_offset(int row, int group) const {
    const int64_t of_tile = static_cast<int64_t>(row / kWgmmaTileRows) * num_groups + group;
    return scales_offset + (of_tile * kWgmmaTileRows + row % kWgmmaTileRows) * scale_bytes;
  }
  // The first element of nibble i of a word, and from it to that of nibble i + 4.
  SPATE_HOST_DEVICE static int k_of(int step, int word, int i) {
    return step * kInt4GroupTileK + word % 2 * 32 + i / 2 * 16 + i % 2 * 8 + word / 2 * 2;
  }
};

// group_width 0: whole rows.
inline Int4GroupLayout make_int4_group_layout(int64_t num_rows, int64_t width, int64_t group_width, bool has_offsets) {
  const auto units = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit; };
  Int4GroupLayout layout{};
  layout.num_rows = static_cast<int32_t>(num_rows);
  layout.width = static_cast<int32_t>(width);
  layout.num_steps = static_cast<int32_t>(units(width, kInt4GroupTileK));
  const int64_t padded_width = int64_t{layout.num_steps} * kInt4GroupTileK;
  layout.group_width = static_cast<int32_t>(group_width == 0 ? padded_width : group_width);
  layout.num_groups = static_cast<int32_t>(group_width == 0 ? 1 : units(padded_width, group_width));
  layout.scale_bytes = group_width == 0 ? 8 : has_offsets ? 4 : 2;
  const int64_t num_tiles = units(num_rows, kWgmmaTileRows);
  layout.scales_offset = num_tiles * layout.num_steps * kInt4GroupChunkBytes;
  const int64_t scales_bytes = num_tiles * layout.num_groups * kWgmmaTileRows * layout.scale_bytes;
  // Stages copy scales of two groups.
  layout.matrix_bytes = units(layout.scales_offset + scales_bytes + kInt4GroupOffsetBytes, 256) * 256;
  return layout;
}

struct LinearInt4GroupKernelParams {
  LinearWgmmaKernelParams tiles;  // x: boxes of tile_tokens x 64; weight: unused
  const char* weight;             // the matrix
  Int4GroupLayout layout;
};

// --- few tokens ------------------------------------------------------------------------------------------------------

constexpr int kInt4RowsTileK = 128;  // of a step
// The rows of x in shared memory: of two CTAs an SM.
constexpr int kInt4RowsSmallBytes = 32 << 10, kInt4RowsLargeBytes = 88 << 10;
// Of a row there: no two of 8 rows begin in the same bank.
SPATE_HOST_DEVICE constexpr int64_t int4_rows_x_bytes(int64_t width) { return width * 2 + 16; }

struct LinearInt4RowsKernelParams {
  LinearRowsKernelParams rows;  // num_steps: of kInt4RowsTileK; weight_stride: unused
  Int4GroupLayout layout;       // groups of 32 << n
  int32_t group_shift;          // (k / 32) >> group_shift: the group of k
};

// --- packing ---------------------------------------------------------------------------------------------------------

constexpr int kInt4GroupThreads = 256;
constexpr int64_t kMaxInt4GroupWidth = 65536;  // of a row that is quantised on the device

struct PackInt4GroupsKernelParams {
  const void* rows;    // [num_rows, width] f32 or bf16, or i8 codes
  const char* scales;  // of codes: [num_rows, num_scales], as they are stored
  char* matrix;
  Int4GroupLayout layout;
  int32_t first_row;
  int32_t num_scales;
};

struct ExpandInt4GroupsKernelParams {
  const char* matrix;
  void* out;  // [num_rows, out_stride] bf16 or f32
  Int4GroupLayout layout;
  int64_t out_stride;
  int32_t first_row;
};

// The rows of an embedding table.
struct EmbeddingInt4GroupsKernelParams {
  const int32_t* token_ids;  // [num_tokens]
  const char* table;
  Int4GroupLayout layout;
  void* out;  // [num_tokens, out_stride] bf16 or f32
  int64_t out_stride;
  int32_t first_row;
};

}  // namespace spate::cuda
