// expert_wgmma.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/expert/expert_order.h"
#include "backend/cuda/kernel/primitive/tensor_map.h"

namespace spate::cuda {

constexpr int kExpertTileWeights = 128;  // rows of W a CTA owns at a time, half of them a warpgroup
constexpr int kExpertTileK = 64;
constexpr int kExpertConsumers = 2;                             // warpgroups
constexpr int kExpertThreads = 128 * (kExpertConsumers + 1);    // and one that loads
constexpr int kExpertGatherThreads = 96;                        // of those that load: rows of x that lie apart
// Rows of x of a tile, of each kernel.
constexpr int kExpertTileRows[] = {8, 16, 32, 64, 128, 256};
constexpr int kExpertMaxTileRows = 256;

constexpr int expert_stage_bytes(int tile_rows) { return (kExpertTileWeights + tile_rows) * kExpertTileK * 2; }
// Few rows: as much as lets the next kernel's CTA stand beside this one.
constexpr int expert_num_stages(int tile_rows) {
  return tile_rows <= 64 ? (104 * 1024) / expert_stage_bytes(tile_rows) : tile_rows <= 128 ? 6 : 4;
}
// Stages at a multiple of 1,024 bytes, then their barriers, then the token of each row.
constexpr int expert_shared_bytes(int tile_rows) {
  return 1024 + expert_num_stages(tile_rows) * (expert_stage_bytes(tile_rows) + 16) + tile_rows * 4;
}

struct ExpertWgmmaKernelParams {
  // gate_up: [expert][8 rows][gate, up][rows / 8] of the matrices, so that a box of 128 rows has, by turns, 8 rows of
  // gate and the same 8 of up. Else [matrices * out_features, in_features], boxes of 128 rows.
  TensorMap weight;
  TensorMap x;            // not gathered: boxes of tile_rows x 64
  const void* x_rows;     // gathered: bf16, rows at multiples of 16 bytes
  void* out;
  ExpertOrder order;      // of experts; of heads tiles is null: each matrix has all rows
  float* partial;         // [grid, tile_rows * 128] sums of a part of k
  uint32_t* arrived;      // [grid] 0; 1 while the CTA's partial sums wait to be added
  int64_t x_stride;       // gathered: elements
  int64_t out_stride;     // elements
  int64_t out_matrix_stride;  // of heads
  int32_t x_matrix_columns;   // of heads: from the columns of one to those of the next
  int32_t num_rows;           // of heads
  int32_t num_matrices;       // of heads
  int32_t out_features;       // of a matrix; of gate_up the rows of gate
  int32_t in_features;
  int32_t num_steps;          // of 64 elements of k
  int32_t num_weight_tiles;   // of a matrix
  int32_t is_whole;           // no tile is cut along k
  int32_t is_many;            // whole tiles first, then the rest along k; else all along k
};

}  // namespace spate::cuda
