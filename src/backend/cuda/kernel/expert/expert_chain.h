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
// Elements of x of a product: heads, and the activations of all experts; where there is a shared one.
constexpr int kExpertChainMaxWidth = 8192, kExpertChainMaxSharedWidth = 12288;
constexpr int kExpertChainMaxHidden = 4096;  // of the residual
constexpr int kExpertChainMaxExperts = 256;
constexpr int kExpertChainMaxChosen = 16;    // with the shared one
constexpr int kExpertChainMaxGroups = 16;    // of a CTA in a product
constexpr int kExpertChainMaxDownRows = 64;  // int4: of a CTA
constexpr int kExpertChainMaxORows = 32;     // of a CTA
// Of the router's columns that a CTA has: they lie behind the sums of o, of kExpertChainMaxORows / 8 groups at most.
constexpr int kExpertChainMaxRouterBytes =
    (kExpertChainMaxGroups - kExpertChainMaxORows / 8) * kExpertChainWarps * 16 * 4;
// Logits are sums of integers, so that their order is free: a unit is 2^-32 of what the router makes of the residual
// times the norm's weights.
constexpr float kExpertChainLogitUnits = 4294967296.0f;

// The products, in their order. What the shared expert adds to down is a part of it, and the router's product one of o.
enum ExpertChainProduct {
  kChainO,
  kChainSharedGateUp,
  kChainGateUp,
  kChainDown,
  kChainQkv,
  kExpertChainProducts,
  kChainSharedDown = kExpertChainProducts
};

// The rings; x; the sums of groups; the chosen experts and the rest. int4: sums of x, scales of down.
constexpr int expert_chain_bytes(int ring_bytes, bool has_shared) {
  return kExpertChainWarps * ring_bytes + (has_shared ? kExpertChainMaxSharedWidth : kExpertChainMaxWidth) * 2 +
         kExpertChainMaxGroups * kExpertChainWarps * 16 * 4 + kExpertChainMaxChosen * 8 + kExpertChainWarps * 4 +
         3 * kExpertChainMaxORows * 4 + 128;
}
constexpr int expert_chain_bf16_bytes(bool has_shared) {
  return expert_chain_bytes(kExpertChainBf16Depth * kExpertChainBf16StepBytes, has_shared);
}
constexpr int expert_chain_int4_bytes(bool has_shared) {
  return expert_chain_bytes(kExpertChainInt4Depth * kExpertChainInt4StepBytes, has_shared) +
         kExpertChainMaxSharedWidth / 64 * 4 + kExpertChainMaxChosen * kExpertChainMaxDownRows * 4;
}

// A step of a group of bf16 is 16 times 128 bytes: 16 rows, where pair_bytes is the way to the other 8; or 8 rows of
// 256 bytes, where it is 128. Of int4 it is 16 rows of 128 codes.
struct ExpertChainPhase {
  const char* weight;        // the first matrix
  const void* bias;          // [rows] bf16, or null
  void* out;                 // [rows] bf16; of gate_up [chosen, width of an expert] bf16
  int64_t matrix_bytes;      // of the experts
  int64_t row_bytes;         // bf16
  int64_t pair_bytes;        // bf16
  int64_t tile_bytes;        // int4: of 128 rows
  int64_t scales_offset;     // int4
  int32_t num_groups;        // of all matrices; of shared_gate_up 0 where there is no shared expert
  int32_t groups_of_matrix;  // of gate_up: of an expert
  int32_t num_steps;         // of all matrices; of down with those of shared_down
  int32_t steps_of_matrix;   // of down: of an expert
  int32_t group_step;        // rows from a group to the next
  int32_t pair_rows;         // from a row to its other one
  int32_t step_bytes;        // along k; int4: of a chunk
  int32_t step_width;        // elements of k
};

struct ExpertChainKernelParams {
  ExpertChainPhase phases[kExpertChainProducts + 1];
  int32_t num_phases;  // without qkv one less
  int32_t hidden_size;
  int32_t heads_width;
  int32_t act_width;  // of all chosen experts and the shared one
  RoutingRules rules;
  const char* router;  // [num_experts, hidden_size] bf16
  int64_t router_row_bytes;
  uint64_t* logit_sums;   // [num_experts] i64, of kExpertChainLogitUnits
  const void* heads;      // [heads_width] bf16
  const void* x;          // [hidden_size] bf16: what o and down give
  const void* post_norm;  // [hidden_size] bf16
  const void* next_norm;
  float post_eps, next_eps;
  void* residual;         // [hidden_size] bf16, in-out
  uint64_t* num_arrived;  // CTAs at the barriers of all grids so far: a multiple of the grid between kernels
};

}  // namespace spate::cuda
