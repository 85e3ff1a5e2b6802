// linear_skeleton.h and linear_wgmma.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/tensor_map.h"

namespace spate::cuda {

constexpr int kWgmmaRows = 64;       // of one product
constexpr int kWgmmaTileRows = 128;  // rows of W a CTA owns at a time, half of them a warpgroup
constexpr int kWgmmaTileK = 64;
constexpr int kWgmmaConsumers = 2;                          // warpgroups
constexpr int kWgmmaThreads = 128 * (kWgmmaConsumers + 1);  // and one that loads
// Tokens of a tile of each kernel.
constexpr int kWgmmaTileTokens[] = {8, 16, 32, 64, 128, 256};
constexpr int kWgmmaMaxTileTokens = 256;

constexpr int kWgmmaStageRowBytes = 128;  // of W and of x in a stage

// What the stages take at most. Few tokens: as much as lets the next kernel's CTA stand beside this one, so that its
// weights are on their way early.
constexpr int wgmma_ring_bytes(int tile_tokens) {
  return (tile_tokens <= 64 ? 104 : tile_tokens <= 128 ? 192 : 196) * 1024;
}
// Of bf16: 64 tokens take registers that leave no room beside them anyway.
constexpr int bf16_ring_bytes(int tile_tokens) { return wgmma_ring_bytes(tile_tokens == 64 ? 128 : tile_tokens); }
// Stages at a multiple of 1,024 bytes, then their barriers, then a barrier and a number for outlier steps.
// stage_weight_bytes: Format::kStageWeightBytes.
constexpr int wgmma_shared_bytes(int stage_weight_bytes, int tile_tokens, int ring_bytes) {
  const int stage_bytes = stage_weight_bytes + tile_tokens * kWgmmaStageRowBytes;
  return 1024 + ring_bytes / stage_bytes * (stage_bytes + 16) + 16;
}
constexpr int wgmma_shared_bytes(int stage_weight_bytes, int tile_tokens) {
  return wgmma_shared_bytes(stage_weight_bytes, tile_tokens, wgmma_ring_bytes(tile_tokens));
}
// Of the largest tile two CTAs of a cluster share the tokens, where the format can: each copies half of them to both.
constexpr int kWgmmaTeamCtas = 2;
// Where a warpgroup puts results of the largest tile into the order in which they are stored.
constexpr int kWgmmaStagingBytes = 8 * 1024;
constexpr int wgmma_staging_bytes(int tile_tokens) {
  return tile_tokens == kWgmmaMaxTileTokens ? kWgmmaConsumers * kWgmmaStagingBytes : 0;
}
// Of the products of linear_skeleton.h: the staging stands behind all else.
constexpr int linear_wgmma_shared_bytes(int stage_weight_bytes, int tile_tokens, int ring_bytes) {
  return wgmma_shared_bytes(stage_weight_bytes, tile_tokens, ring_bytes) + wgmma_staging_bytes(tile_tokens);
}
constexpr int linear_wgmma_shared_bytes(int stage_weight_bytes, int tile_tokens) {
  return linear_wgmma_shared_bytes(stage_weight_bytes, tile_tokens, wgmma_ring_bytes(tile_tokens));
}
constexpr int kBf16StageWeightBytes = kWgmmaTileRows * kWgmmaStageRowBytes;

struct LinearWgmmaKernelParams {
  TensorMap x;         // [num_tokens, in_features] bf16, boxes of tile_tokens x 64; of a team half as many tokens
  TensorMap weight;    // [out_features, in_features] bf16, boxes of 64 x 64
  const void* bias;    // [out_features] bf16 or f32, or null
  void* out;           // [num_tokens, out_features] bf16 or f32
  float* partial;      // [grid, tile_tokens * 128] sums of a part of k
  uint32_t* arrived;   // [grid] 0; 1 while the CTA's partial sums wait to be added
  int64_t out_stride;  // elements
  int32_t num_tokens;
  int32_t out_features;
  int32_t num_steps;  // of 64 elements of k
  int32_t num_row_tiles;     // of 128 rows; of a team, which counts as one CTA here and below, of 256
  int32_t num_tiles;         // row tiles times token tiles
  int32_t num_whole_tiles;   // the first ones: computed by one CTA each. The k of the others is cut
  int32_t num_sharing_ctas;  // into as many equal runs, for the first CTAs; none is empty
  int32_t is_bias_f32;
  int32_t is_out_f32;
  int32_t is_out_paired;  // even columns of bf16 lie at multiples of 4 bytes
};

}  // namespace spate::cuda
