// expert_chain.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/expert/route_experts.h"

namespace spate::cuda {

constexpr int kExpertChainWarps = 16;  // share the k of a group of rows
// Of a warp's ring: steps that its copies are ahead, and the bytes of one. int4: 16 rows of 128 codes, then
// multipliers.
constexpr int kExpertChainBf16Depth = 3, kExpertChainInt4Depth = 3;
constexpr int kExpertChainBf16StepBytes = 2048, kExpertChainInt4StepBytes = 1024 + 32;
constexpr int kExpertChainMaxWidth = 8192;   // elements of x of a product: heads, and the activations of all experts
constexpr int kExpertChainMaxHidden = 4096;  // of the residual
constexpr int kExpertChainMaxExperts = 256;
constexpr int kExpertChainMaxChosen = 16;
constexpr int kExpertChainMaxGroups = 16;    // of a CTA in a product
constexpr int kExpertChainMaxDownRows = 64;  // int4: of a CTA

// The products, in their order.
enum ExpertChainProduct { kChainO, kChainRouter, kChainGateUp, kChainDown, kChainQkv, kExpertChainProducts };

// The rings; x; the sums of groups; the chosen experts and the rest. int4: x of the router, sums of x, scales of down.
constexpr int expert_chain_bytes(int ring_bytes) {
  return kExpertChainWarps * ring_bytes + kExpertChainMaxWidth * 2 +
         kExpertChainMaxGroups * kExpertChainWarps * 16 * 4 + kExpertChainMaxChosen * 8 + kExpertChainWarps * 4 + 128;
}
constexpr int kExpertChainBf16Bytes = expert_chain_bytes(kExpertChainBf16Depth * kExpertChainBf16StepBytes);
constexpr int kExpertChainInt4Bytes = expert_chain_bytes(kExpertChainInt4Depth * kExpertChainInt4StepBytes) +
                                      kExpertChainMaxHidden * 2 + kExpertChainMaxWidth / 64 * 4 +
                                      kExpertChainMaxChosen * kExpertChainMaxDownRows * 4;

// A step of a group of bf16 is 16 times 128 bytes: 16 rows, where pair_bytes is the way to the other 8; or 8 rows of
// 256 bytes, where it is 128. Of int4 it is 16 rows of 128 codes, and that of the router, which is bf16, 8 rows of 128
// bytes.
struct ExpertChainPhase {
  const char* weight;        // the first matrix
  const void* bias;          // [rows] bf16, or null
  void* out;                 // [rows] bf16; of the router f32; of gate_up [chosen, width of an expert] bf16
  int64_t matrix_bytes;      // of the experts
  int64_t row_bytes;         // bf16
  int64_t pair_bytes;        // bf16
  int64_t tile_bytes;        // int4: of 128 rows
  int64_t scales_offset;     // int4
  int32_t num_groups;        // of all matrices
  int32_t groups_of_matrix;  // of gate_up: of an expert
  int32_t num_steps;         // of all matrices
  int32_t steps_of_matrix;   // of down: of an expert
  int32_t group_step;        // rows from a group to the next
  int32_t pair_rows;         // from a row to its other one
  int32_t step_bytes;        // along k; int4: of a chunk
  int32_t step_width;        // elements of k
};

struct ExpertChainKernelParams {
  ExpertChainPhase phases[kExpertChainProducts];
  int32_t num_phases;  // without qkv one less
  int32_t hidden_size;
  int32_t heads_width;
  int32_t act_width;  // of all chosen experts
  RoutingRules rules;
  const void* heads;      // [heads_width] bf16
  const void* x;          // [hidden_size] bf16: what o and down give
  const void* post_norm;  // [hidden_size] bf16
  const void* next_norm;
  float post_eps, next_eps;
  void* residual;         // [hidden_size] bf16, in-out
  uint64_t* num_arrived;  // CTAs at the barriers of all grids so far: a multiple of the grid between kernels
};

}  // namespace spate::cuda
