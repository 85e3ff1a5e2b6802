// linear_chain.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/integer_weight.h"

namespace spate::cuda {

constexpr int kChainWarps = 16;        // share the k of a group of rows
constexpr int kChainPhases = 4;        // o, gate_up, down, qkv
constexpr int kChainMaxWidth = 14336;  // elements of x of a product
constexpr int kChainMinHidden = 2048;  // of the residual: what is narrower gains nothing
constexpr int kChainMaxHidden = 4096;
constexpr int kChainMaxGroups = 16;  // of 16 rows, of a CTA in a phase

// A step is so many rows and elements of k: bf16 16 by 64, int8 16 by 128, int4 32 by 128. A warp's copies are so many
// steps ahead.
constexpr int kChainDepth = 3;
constexpr int kChainStepBytes = 2048;  // without the multipliers of int4

// The rings; x; the sums of groups; the sums of x's codes; outliers and the rest.
constexpr int chain_shared_bytes(int step_bytes, int x_bytes, int num_warps = kChainWarps) {
  return num_warps * kChainDepth * step_bytes + kChainMaxWidth * x_bytes + kChainMaxGroups * num_warps * 16 * 4 +
         kChainMaxWidth / 32 * 2 + 2 * 32 * 8 + 4 * num_warps * 4 + 64;
}
constexpr int kChainInt4Bytes = chain_shared_bytes(kChainStepBytes + 64, 1);
constexpr int kChainInt4Group32Bytes = chain_shared_bytes(kChainStepBytes + 128, 1);
constexpr int kChainInt8Bytes = chain_shared_bytes(kChainStepBytes, 1);
constexpr int kChainBf16Bytes = chain_shared_bytes(kChainStepBytes, 2);

struct ChainPhase {
  const char* weight;  // the matrix
  const void* bias;    // [num_rows] bf16, or null
  const void* x;       // [width] bf16; with `norm` what is added to the residual
  const void* norm;    // [width] bf16: the product's x is rms_norm of the residual; or null: it is x
  void* out;           // [num_rows] bf16; with has_silu half as many
  IntegerLayout layout;
  int64_t row_bytes;   // from row to row; not of int4
  int32_t num_groups;  // of rows
  int32_t group_step;  // from the first row of a group to that of the next
  int32_t pair_step;   // from a lane's row to its other one: 8, or, of gate_up, from a gate to its up
  int32_t has_silu;
  float eps;
};

struct LinearChainKernelParams {
  ChainPhase phases[kChainPhases];
  int32_t num_phases;
  void* residual;         // [hidden] bf16, in-out
  uint64_t* num_arrived;  // CTAs at the barriers of all grids so far: a multiple of the grid between kernels
};

}  // namespace spate::cuda
