// linear_codes.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/integer_weight.h"

namespace spate::cuda {

constexpr int kCodesWarps = 8;   // share the k of a group of rows
constexpr int kCodesRows = 16;   // of a group
constexpr int kCodesTokens = 8;  // at most
// What a CTA that makes the codes of x itself has room for: tokens, their codes, and pieces of a row a thread.
constexpr int kOwnCodesTokens = 2, kOwnCodesBytes = 14336;
constexpr int kOwnCodesPieces = 2, kOwnCodesWidePieces = 7;  // of 8 elements a thread

struct LinearCodesKernelParams {
  const int8_t* codes;  // [num_tokens, row_bytes] of x, as rows and outliers; unused where the CTAs make them
  const void* x;        // [num_tokens, in_features] bf16, from which the CTAs make them
  int64_t x_stride;     // elements
  const char* weight;   // the matrix
  IntegerLayout layout;
  const QuantizedRow* rows;  // [num_tokens]
  const Outlier* outliers;   // [num_tokens, kMaxOutliers]
  const void* bias;          // [out_features] bf16 or f32, or null
  void* out;                 // [num_tokens, out_features] bf16 or f32
  int64_t out_stride;        // elements
  int32_t num_tokens;
  int32_t num_groups;    // of rows
  int32_t group_step;    // from the first row of a group to that of the next
  int32_t pair_step;     // from a lane's row to its other one: 8, or, of gate_up, from a gate to its up
  int32_t has_silu;      // rows are gates, then ups; out is [num_tokens, out_features / 2]
  int32_t is_x_aligned;  // rows of x start at multiples of 16 bytes
  int32_t is_bias_f32;
  int32_t is_out_f32;
};

}  // namespace spate::cuda
