// head_rows.cu, for host and device.
#pragma once

#include <cstdint>

namespace spate::cuda {

constexpr int kHeadRowsWarps = 8;
constexpr int kHeadRowsShortWidth = 128, kHeadRowsLongWidth = 512;  // in_features at most
// Rows of a warp.
constexpr int kHeadRowsShort = 8, kHeadRowsLong = 2;

struct HeadRowsKernelParams {
  const void* x;       // [num_heads, in_features] bf16, at multiples of 16 bytes
  const char* weight;  // [num_heads * out_features, in_features] bf16, at multiples of 16 bytes
  void* out;           // [num_heads, out_features] bf16
  int64_t x_stride;    // elements from head to head
  int64_t out_stride;
  int64_t weight_row_bytes;
  int32_t num_rows;  // of all heads
  int32_t out_features;
  int32_t in_features;  // a multiple of 8
};

}  // namespace spate::cuda
