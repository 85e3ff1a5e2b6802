// What products with integer weights need beside their tensors.
#pragma once

#include "backend/backend.h"
#include "backend/cuda/kernel/linear/integer_weight.h"

namespace spate::cuda {

// Activations become codes for this many tokens at a time, so that their memory does not grow with the step.
constexpr int64_t kIntegerTokensAtOnce = 2048;

struct IntegerScratch {
  int8_t* codes = nullptr;  // [kIntegerTokensAtOnce, row_bytes] of the widest weight
  QuantizedRow* rows = nullptr;
  Outlier* outliers = nullptr;
  // Of kernel/linear/outlier_columns.h; null for experts, which take outliers from the list.
  OutlierColumns* outlier_columns = nullptr;
  uint16_t* outlier_values = nullptr;   // [kIntegerTokensAtOnce, kMaxOutlierColumns] bf16
  uint16_t* outlier_weights = nullptr;  // kOutlierWeightBytes
};

IntegerLayout integer_layout(const WeightDesc& desc);

// Whether the kernels compute with it; then in_features may be up to kMaxIntegerWidth.
bool is_integer_kernel_spec(const WeightSpec& spec);

}  // namespace spate::cuda
