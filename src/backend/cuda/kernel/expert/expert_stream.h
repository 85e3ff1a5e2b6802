// expert_stream.h's kernels, for host and device: a layer of int4 experts of few rows in one launch.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/primitive/host_device.h"

namespace spate::cuda {

constexpr int kExpertStreamWarps = 16, kExpertStreamThreads = 32 * kExpertStreamWarps;
constexpr int kExpertStreamTokens = 256, kExpertStreamExperts = 256, kExpertStreamPairs = 2048;
constexpr int kExpertStreamMaxWidth = 2560;  // elements of x and of an expert's activations

constexpr int kExpertStreamGroupRows = 32;  // of W, that a warp takes at a time

// Steps of a warp's ring.
constexpr int expert_stream_depth(int tile_rows) { return tile_rows == 16 ? 3 : 4; }
// A group's rows of 128 codes, then their multipliers.
constexpr int expert_stream_step_bytes(int num_multipliers) {
  return kExpertStreamGroupRows * (kInt4RowBytes + num_multipliers);
}
// Tiles of a call: rows of one expert that are multiplied at once.
constexpr int expert_stream_max_tiles(int tile_rows) { return kExpertStreamExperts + kExpertStreamPairs / tile_rows; }
// x as integers: 2 bytes an element, a unit of each 128 of 4 rows.
constexpr int kExpertStreamBlockStepBytes = 4 * (2 * kIntegerTileK + 4);
// Sums that warps leave of groups that are cut along k.
constexpr int expert_stream_sums_bytes(int tile_rows) {
  return kExpertStreamWarps * kExpertStreamGroupRows * tile_rows * 4;
}
// Room for x of a tile as integers, for sums, and for x of the next tile as it is.
constexpr int expert_stream_room_bytes(int tile_rows) { return tile_rows == 16 ? 116736 : 81920; }
constexpr int expert_stream_shared_bytes(int num_multipliers, int tile_rows) {
  return kExpertStreamWarps * expert_stream_depth(tile_rows) * expert_stream_step_bytes(num_multipliers) +
         expert_stream_room_bytes(tile_rows);
}
static_assert(expert_stream_room_bytes(8) >=
              expert_stream_sums_bytes(8) + 2 * (kExpertStreamMaxWidth / kIntegerTileK) * kExpertStreamBlockStepBytes);
static_assert(expert_stream_room_bytes(16) >=
              expert_stream_sums_bytes(16) + 4 * (kExpertStreamMaxWidth / kIntegerTileK) * kExpertStreamBlockStepBytes);

// Words by which CTAs tell that activations of a tile are there, and that they have read them.
constexpr int kExpertStreamMaxTiles = expert_stream_max_tiles(8), kExpertStreamArrivals = 2 * kExpertStreamMaxTiles;

// One of the two products.
struct ExpertStreamProduct {
  const char* weight;    // [experts] of layout.matrix_bytes
  IntegerLayout layout;  // of a matrix
};

struct ExpertStreamKernelParams {
  ExpertStreamProduct gate_up, down;
  const void* x;                           // [num_tokens, in_features] bf16, rows at multiples of 16 bytes
  void* act;                               // [num_pairs, act_stride] bf16, likewise
  float* y;                                // [num_pairs, y_stride]
  const int32_t* expert_ids;               // [num_tokens, num_experts_per_tok]
  int32_t* pair_rows;                      // [num_pairs] of y, for expert_combine; -1 where the expert is not here
  uint32_t* arrived;                       // [2][kExpertStreamMaxTiles] 0 between kernels
  int64_t x_stride, act_stride, y_stride;  // elements
  int64_t ids_stride;
  int32_t num_pairs;
  int32_t num_experts_per_tok;
  int32_t num_experts;
  int32_t intermediate_size;  // a multiple of 16
  int32_t hidden_size;        // rows of down, a multiple of 32
};

}  // namespace spate::cuda
