// linear_codes.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/integer_weight.h"

namespace spate::cuda {

constexpr int kCodesWarps = 8;   // share the k of a group of rows
constexpr int kCodesRows = 16;   // of a group
constexpr int kCodesTokens = 8;  // at most

struct LinearCodesKernelParams {
  const int8_t* x;     // [num_tokens, row_bytes] codes
  const char* weight;  // the matrix
  IntegerLayout layout;
  const QuantizedRow* rows;  // [num_tokens]
  const Outlier* outliers;   // [num_tokens, kMaxOutliers]
  const void* bias;          // [out_features] bf16 or f32, or null
  void* out;                 // [num_tokens, out_features] bf16 or f32
  int64_t out_stride;        // elements
  int32_t num_tokens;
  int32_t num_groups;  // of rows
  int32_t is_bias_f32;
  int32_t is_out_f32;
};

}  // namespace spate::cuda
