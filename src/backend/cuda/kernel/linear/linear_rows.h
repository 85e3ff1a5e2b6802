// linear_rows.cu, for host and device.
#pragma once

#include <cstdint>

namespace spate::cuda {

constexpr int kRowsWarps = 8;   // share the k of a group of rows
constexpr int kRowsTokens = 8;  // at most
constexpr int kRowsTileK = 64;  // of a step

struct LinearRowsKernelParams {
  const void* x;       // [num_tokens, in_features] bf16, rows at multiples of 16 bytes
  const char* weight;  // [out_features, weight_stride] bf16
  const void* bias;    // [out_features] bf16, or null
  void* out;           // [num_tokens, out_features] bf16 or f32
  int64_t x_stride;    // elements, as the others
  int64_t weight_stride;
  int64_t out_stride;
  int32_t num_tokens;
  int32_t out_features;
  int32_t num_steps;   // of kRowsTileK
  int32_t num_groups;  // of rows
  int32_t group_step;  // from the first row of a group to that of the next
  int32_t pair_step;   // from a lane's row to its other one: 8, or, of gate_up, from a gate to its up
  int32_t has_silu;    // rows are gates, then ups; out is [num_tokens, out_features / 2]
  int32_t is_out_f32;
};

}  // namespace spate::cuda
