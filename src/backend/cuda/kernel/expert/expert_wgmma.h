// expert_skeleton.h and the kernels made of it, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/expert/expert_order.h"
#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/linear/linear_wgmma.h"
#include "backend/cuda/kernel/primitive/tensor_map.h"

namespace spate::cuda {

// Of so many tokens and experts and, with tiles of up to 64 rows, of so many pairs each CTA makes the order itself.
constexpr int kCtaOrderTokens = 256, kCtaOrderExperts = 256;
SPATE_HOST_DEVICE constexpr int cta_order_pairs(int tile_rows) {
  return tile_rows == 8 ? 1024 : tile_rows <= 64 ? 2048 : 0;
}

constexpr int kExpertTeamCtas = 2;  // of the largest tile, that share its rows of x

constexpr int kExpertGatherThreads = 96;  // of those that load: rows of x that lie apart

// Of few rows the stages take more than half of an SM's shared memory: no two CTAs of a grid share an SM while another has
// none, and beside them is room for a CTA of linear_wgmma.
constexpr int expert_ring_bytes(int tile_rows) { return tile_rows <= 64 ? 120 * 1024 : wgmma_ring_bytes(tile_rows); }
// Rows of x that one copy by TMA brings: a tile with few rows loads no others.
constexpr int expert_box_rows(int tile_rows) { return tile_rows < 64 ? tile_rows : 64; }
constexpr int kExpertSegmentBytes = 32;  // what the loading thread says of a stage, of at most 8 stages
constexpr int kExpertStoreBoxRows = 64;  // of results that the copy engine stores
// Where results are put into the order in which they are stored: of 256 rows twice for each warpgroup, at a multiple of
// 1,024 bytes, up to the end of what a CTA can have.
constexpr int expert_staging_bytes(int tile_rows) {
  return tile_rows == 256 ? 33456 : tile_rows >= 128 ? kWgmmaConsumers * kWgmmaStagingBytes : 0;
}
// wgmma_shared_bytes(), then the token of each row, segments, staging.
constexpr int expert_shared_bytes(int stage_weight_bytes, int tile_rows) {
  return wgmma_shared_bytes(stage_weight_bytes, tile_rows, expert_ring_bytes(tile_rows)) + tile_rows * 4 +
         (tile_rows >= 128 ? 8 * kExpertSegmentBytes : 0) + expert_staging_bytes(tile_rows);
}

// What products with integer weights take beside the rest.
struct ExpertIntegerParams {
  const char* weight;        // [matrices] of layout.matrix_bytes
  IntegerLayout layout;      // of a matrix
  const QuantizedRow* rows;  // of x
  const QuantizedRow* ordered_rows;  // the same in the order of experts, where those of x were copied, or of down
  const Outlier* outliers;   // [rows of x, kMaxOutliers]
  int32_t gathers;           // row r of the order has those of row order.row_tokens[r], else r
  int32_t leaves_outliers;   // of down, to expert_outliers
};

struct ExpertWgmmaKernelParams {
  // A box is 128 rows of W.
  //   gate_up         [expert][8 rows][gate, up][rows / 8] of the matrices, so that it has, by turns, 8 rows of gate and the
  //                   same 8 of up; int4: none
  //   down, of heads  [matrices * out_features, in_features]; int8: [matrix][1][1][row]; int4: none
  TensorMap weight;
  TensorMap x;                // not gathered: boxes of expert_box_rows() x 128 bytes
  TensorMap out_map;          // bf16 of tiles of 256 rows: boxes of 64 rows and a warpgroup's features
  const void* x_rows;         // gathered: rows at multiples of 16 bytes
  void* out;                  // of gate_up: activations; of down: f32 or bf16; of heads: bf16
  ExpertOrder order;          // of experts; of heads tiles is null: each matrix has all rows
  const int32_t* expert_ids;  // CTAs make the order from them; else null
  ExpertIntegerParams integer;
  float* partial;             // [grid, tile_rows * 128] sums of a part of k
  uint32_t* arrived;          // [grid] 0; 1 while the CTA's partial sums wait to be added
  int64_t ids_stride;         // of expert_ids
  int64_t x_stride_bytes;     // gathered
  int64_t out_stride;         // elements
  int64_t out_matrix_stride;  // of heads
  int32_t x_row_bytes;        // gathered: a multiple of 16
  int32_t x_matrix_columns;   // of heads: from the columns of one to those of the next
  int32_t num_rows;           // of heads
  int32_t num_matrices;       // of heads, and with expert_ids
  int32_t num_pairs;          // with expert_ids
  int32_t num_experts_per_tok;
  int32_t out_features;       // of a matrix; of gate_up the rows of gate
  int32_t num_steps;          // of 128 bytes of x along k
  int32_t num_weight_tiles;   // of a matrix
  int32_t is_act_f32;         // of gate_up
  int32_t is_y_bf16;          // of down
  int32_t is_whole;           // no tile is cut along k
  int32_t is_many;            // whole tiles first, then the rest along k; else all along k
};

}  // namespace spate::cuda
