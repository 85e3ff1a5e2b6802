// expert_outliers.cu's kernel, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/expert/expert_order.h"
#include "backend/cuda/kernel/linear/integer_weight.h"

namespace spate::cuda {

constexpr int kExpertOutlierWarps = kWgmmaTileRows / 16;

struct ExpertOutliersKernelParams {
  const char* weight;        // [experts] of layout.matrix_bytes
  IntegerLayout layout;      // of a matrix
  const QuantizedRow* rows;  // [num_pairs] of activations
  const Outlier* outliers;   // [num_pairs, kMaxOutliers]
  ExpertOrder order;
  void* y;           // [num_pairs, y_stride] f32 or bf16
  int64_t y_stride;  // elements
  int32_t is_y_bf16;
};

}  // namespace spate::cuda
