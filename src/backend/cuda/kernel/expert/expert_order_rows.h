#pragma once

#include <cstdint>

#include "backend/cuda/kernel/expert/expert_order.h"

namespace spate::cuda {

constexpr int kOrderRowsWarps = 16, kOrderRowsMaxExperts = 256, kOrderRowsMaxPairs = 2048;
constexpr int kOrderRowsSlots = 8;  // of rows of x a warp, at most
constexpr int kOrderRowsStateBytes = 34 << 10, kOrderRowsSharedBytes = 226 << 10;
constexpr int kOrderRowsBytes = (kOrderRowsSharedBytes - kOrderRowsStateBytes) / kOrderRowsWarps;  // of a row

struct ExpertOrderRowsKernelParams {
  ExpertOrderKernelParams order;
  ExpertCopyRowsKernelParams copy;  // of order.order
  uint64_t* num_arrived;            // of GridBarrier
  int32_t* cta_counts;              // [gridDim.x, num_experts]
  int32_t num_tokens;
  int32_t num_slots;  // of rows of x a warp
};

}  // namespace spate::cuda
