// Int4 weights whose groups have scales of their own, for activations as they are: the layout on the device and what
// kernels take, for host and device. What GPTQ, AWQ, compressed-tensors and GGUF files hold.
//
// Units, [row tiles of 128][steps of 128 elements of k][2 halves of 64 rows]: what a kernel copies at once. A tile of W
// is two neighbours; one that takes gates and their ups, of one weight, has a half of each. A unit has codes, [2 chunks
// of 64 elements][64 rows][32 bytes]: lane pair p of a tensor core's rows finds its 16 elements of a row in 8
// neighbouring bytes, two words of 8 codes. Nibble i + 4 h of word j, as code + 8, is element
//   k = 32 j + 16 (i / 2) + 8 (i % 2) + 2 p + h
// so that a mask gives both halves of a register of bf16 (mma.h, wgmma_rows.h). Behind them its scales, [places][64
// rows]: one place of 128 elements, two of 64 where groups end between them, or four of 32. A group of several places
// stands in each. Bytes of a scale:
//   2   f16 scale                    groups, symmetric
//   4   f16 scale, f16 offset        groups
//   8   f32 scale, f32 offset        whole rows: not in the units but behind them all, a row each
// Elements behind the end of a row have code 0; places behind it scale and offset 0.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/linear_rows.h"
#include "backend/cuda/kernel/linear/linear_wgmma.h"
#include "backend/cuda/kernel/primitive/host_device.h"

namespace spate::cuda {

constexpr int kInt4GroupTileK = 64;
constexpr int kInt4GroupRowBytes = kInt4GroupTileK / 2;  // of a chunk
constexpr int kInt4UnitRows = kWgmmaTileRows / 2, kInt4UnitChunks = 2;
constexpr int kInt4UnitK = kInt4UnitChunks * kInt4GroupTileK;
constexpr int kInt4ChunkBytes = kInt4UnitRows * kInt4GroupRowBytes,
              kInt4UnitCodeBytes = kInt4UnitChunks * kInt4ChunkBytes;

// Chunks of k in a stage. Two halve the waits, and scales are read once; of 256 tokens they leave no room for stages.
constexpr int int4_groups_stage_chunks(int tile_tokens) { return tile_tokens <= 128 ? 2 : 1; }
// Of W in a stage, at most: scales of groups of 32, two or four places of each half, or of rows.
constexpr int int4_groups_stage_bytes(bool has_offsets, int num_chunks) {
  const int scale_bytes = has_offsets ? 4 : 2,
            bytes = num_chunks * (2 * kInt4ChunkBytes + kWgmmaTileRows * 2 * scale_bytes);
  return (bytes + 1023) / 1024 * 1024;
}
constexpr int int4_groups_shared_bytes(bool has_offsets, int tile_tokens) {
  const int num_chunks = int4_groups_stage_chunks(tile_tokens);
  return linear_wgmma_shared_bytes(
      int4_groups_stage_bytes(has_offsets, num_chunks) + (num_chunks - 1) * tile_tokens * kWgmmaStageRowBytes,
      tile_tokens);
}

struct Int4GroupLayout {
  int32_t num_rows;
  int32_t width;        // elements of k
  int32_t num_chunks;   // of a row, whole units
  int32_t group_width;  // elements; of whole rows all of the chunks'
  int32_t place_width;  // elements that a stored scale is of
  int32_t num_places;   // of a unit; of whole rows 0
  int32_t scale_bytes;  // 2, 4 or 8
  int32_t unit_bytes;
  int64_t row_scales_offset;  // of whole rows
  int64_t matrix_bytes;

  SPATE_HOST_DEVICE int num_scales() const { return num_places == 0 ? 1 : num_chunks / kInt4UnitChunks * num_places; }
  // Of the unit that has the row's elements from step * 128 on.
  SPATE_HOST_DEVICE int64_t unit_offset(int row, int step) const {
    const int64_t of_tile = static_cast<int64_t>(row / kWgmmaTileRows) * (num_chunks / kInt4UnitChunks) + step;
    return (of_tile * 2 + row % kWgmmaTileRows / kInt4UnitRows) * unit_bytes;
  }
  // Of the word that holds 8 codes of a row, `word` counting words of a row in a chunk: 2 p + j.
  SPATE_HOST_DEVICE int64_t word_offset(int row, int chunk, int word) const {
    return unit_offset(row, chunk / kInt4UnitChunks) + chunk % kInt4UnitChunks * kInt4ChunkBytes +
           row % kInt4UnitRows * kInt4GroupRowBytes + word * 4;
  }
  // idx: k / place_width.
  SPATE_HOST_DEVICE int64_t scale_offset(int row, int idx) const {
    if (num_places == 0) return row_scales_offset + static_cast<int64_t>(row) * scale_bytes;
    return unit_offset(row, idx / num_places) + kInt4UnitCodeBytes +
           (idx % num_places * kInt4UnitRows + row % kInt4UnitRows) * scale_bytes;
  }
  // The first element of nibble i of a word, and from it to that of nibble i + 4.
  SPATE_HOST_DEVICE static int k_of(int chunk, int word, int i) {
    return chunk * kInt4GroupTileK + word % 2 * 32 + i / 2 * 16 + i % 2 * 8 + word / 2 * 2;
  }
};

// group_width 0: whole rows.
inline Int4GroupLayout make_int4_group_layout(int64_t num_rows, int64_t width, int64_t group_width, bool has_offsets) {
  const auto units = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit; };
  Int4GroupLayout layout{};
  layout.num_rows = static_cast<int32_t>(num_rows);
  layout.width = static_cast<int32_t>(width);
  const int64_t num_steps = units(width, kInt4UnitK), num_tiles = units(num_rows, kWgmmaTileRows);
  layout.num_chunks = static_cast<int32_t>(num_steps * kInt4UnitChunks);
  const int64_t padded_width = num_steps * kInt4UnitK;
  layout.group_width = static_cast<int32_t>(group_width == 0 ? padded_width : group_width);
  layout.scale_bytes = group_width == 0 ? 8 : has_offsets ? 4 : 2;
  layout.num_places = group_width == 0                     ? 0
                      : group_width % kInt4UnitK == 0      ? 1
                      : group_width % kInt4GroupTileK == 0 ? 2
                                                           : 4;
  layout.place_width = group_width == 0 ? layout.group_width : kInt4UnitK / layout.num_places;
  layout.unit_bytes = kInt4UnitCodeBytes + layout.num_places * kInt4UnitRows * layout.scale_bytes;
  layout.row_scales_offset = num_tiles * num_steps * 2 * layout.unit_bytes;
  const int64_t row_scale_bytes = group_width == 0 ? num_tiles * kWgmmaTileRows * layout.scale_bytes : 0;
  layout.matrix_bytes = units(layout.row_scales_offset + row_scale_bytes, 256) * 256;
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
  int32_t place_shift;          // (k % 128 / 32) >> place_shift: the place of k's scale in a unit
};

// --- packing ---------------------------------------------------------------------------------------------------------

constexpr int kInt4GroupThreads = 256;
constexpr int64_t kMaxInt4GroupWidth = 65536;  // of a row that is quantised on the device

struct PackInt4GroupsKernelParams {
  const void* rows;    // [num_rows, width] f32 or bf16, or i8 codes
  const char* scales;  // of codes: [num_rows, num_groups], as they are stored
  char* matrix;
  Int4GroupLayout layout;
  int32_t first_row;
  int32_t num_groups;  // of a row of `scales`
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
