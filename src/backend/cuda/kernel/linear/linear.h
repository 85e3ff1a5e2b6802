#pragma once

#include <cstdint>

namespace spate::cuda {

// Tiles of the output that a CTA computes, for host and device.
constexpr int kLinearMmaThreads = 128;
constexpr int kLinearMmaTileM = 64, kLinearMmaTileN = 64;
// linear_tile: many tokens.
constexpr int kLinearTileStages = 4;
constexpr int kLinearTileLargeThreads = 256, kLinearTileLargeM = 128, kLinearTileLargeN = 256;
constexpr int kLinearTileSmallThreads = 128, kLinearTileSmallM = 64, kLinearTileSmallN = 64;
constexpr int linear_tile_shared_bytes(int tile_m, int tile_n) {
  return kLinearTileStages * (tile_m + tile_n) * 64 * 2;
}
constexpr int kLinearStreamWarps = 8;  // they share k
constexpr int kLinearFmaThreads = 256;
constexpr int kLinearFmaTileM = 64, kLinearFmaTileN = 64;

struct LinearKernelParams {
  const void* x;          // [num_tokens, in_features] act
  const void* weight;     // [out_features, weight_stride], zeros between in_features and weight_stride
  const void* bias;       // [out_features] act, or null
  void* out;              // [num_tokens, out_features] act or f32
  int64_t x_stride;       // elements
  int64_t weight_stride;  // elements, a multiple of 16
  int64_t out_stride;
  int32_t num_tokens;
  int32_t out_features;
  int32_t in_features;
  int32_t is_x_aligned;  // rows of x start at multiples of 16 bytes
  int32_t is_out_f32;
  int32_t is_out_paired;  // even columns of bf16 lie at multiples of 4 bytes
};

}  // namespace spate::cuda
