#pragma once

#include <cstdint>

#include "backend/cuda/kernel/expert/expert_order.h"
#include "backend/cuda/kernel/rms_norm/rms_norm.h"

namespace spate::cuda {

constexpr int kProductThreads = 256;
constexpr int kProductTileM = 64, kProductTileN = 64;

// Products of rows with one of several matrices: those of experts, or of heads.
struct ExpertProductKernelParams {
  const void* x;
  const void* weight;          // [num_matrices][out_features, weight_stride]
  void* out;
  ExpertOrder order;           // of experts; of heads tiles is null: each matrix has all rows
  int64_t x_stride;            // elements
  int64_t x_matrix_stride;     // from a head to the next
  int64_t weight_stride;       // elements
  int64_t weight_matrix_stride;
  int64_t out_stride;
  int64_t out_matrix_stride;
  int32_t num_rows;            // of heads
  int32_t out_features;
  int32_t in_features;
  int32_t gathers;             // row r of the order has row row_tokens[r] of x
  int32_t is_out_f32;
};

struct ExpertCombineKernelParams {
  const void* y;                // [rows of the order, hidden_size] f32, of expert_combine_..._y16 bf16
  const int32_t* pair_rows;     // [num_tokens, num_experts_per_tok]
  const float* expert_weights;  // the same
  const void* shared;           // [num_tokens, hidden_size] act, or null
  const float* shared_gate;     // [num_tokens, 1], or null
  void* out;                    // [num_tokens, hidden_size] act
  int64_t y_stride;             // elements
  int64_t weights_stride;
  int64_t shared_stride;
  int64_t shared_gate_stride;
  int64_t out_stride;
  int32_t num_experts_per_tok;
  int32_t hidden_size;
  int32_t is_aligned;  // rows of shared and out start at multiples of 16 bytes
};

// residual += what expert_combine gives, rounded; norm.out = rms_norm(residual). combine.out, norm.x and its strides
// are not used.
struct ExpertCombineNormKernelParams {
  ExpertCombineKernelParams combine;
  AddRmsNormKernelParams add;
};

// Of expert_combine_norm_rows: rows of y in shared memory, threads, CTAs an SM.
constexpr int kCombineRows = 8, kCombineRowsWidth = 2048, kCombineRowsThreads = kCombineRowsWidth / 8;
constexpr int kCombineRowsCtas = 6;

}  // namespace spate::cuda
