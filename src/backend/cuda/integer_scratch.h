// What products with integer weights need beside their tensors.
#pragma once

#include "backend/backend.h"
#include "backend/cuda/kernel/linear/int4_groups.h"
#include "backend/cuda/kernel/linear/integer_weight.h"

namespace spate::cuda {

// Activations become codes for kIntegerTokensAtOnce tokens at a time, so that their memory does not grow with the step.
// Codes that the op before a product writes lie in place of its output; of so many tokens at most.
constexpr int64_t kHandedTokens = 8 * kIntegerTokensAtOnce;

struct IntegerScratch {
  int8_t* codes = nullptr;       // [kIntegerTokensAtOnce, row_bytes] of the widest weight
  QuantizedRow* rows = nullptr;  // [kHandedTokens]
  Outlier* outliers = nullptr;   // [kHandedTokens, kMaxOutliers]
  // Of kernel/linear/outlier_columns.h, [kHandedTokens / kIntegerTokensAtOnce]; null for experts, which take outliers
  // from the list.
  OutlierColumns* outlier_columns = nullptr;
  uint16_t* outlier_values = nullptr;   // [kIntegerTokensAtOnce, kMaxOutlierColumns] bf16
  uint16_t* outlier_weights = nullptr;  // kOutlierWeightBytes
};

// Rows that an op has written as codes for the product that reads them next (RowCodes).
struct HandedCodes {
  const PackedWeight* reader = nullptr;  // null: none
  const void* x = nullptr;               // what the reader will be given
  int64_t num_tokens = 0;
  const int8_t* codes = nullptr;
  int64_t codes_bytes = 0;  // from row to row
};

IntegerLayout integer_layout(const WeightDesc& desc);

// Whether the kernels compute with it; then in_features may be up to kMaxIntegerWidth.
bool is_integer_kernel_spec(const WeightSpec& spec);

// Int4 with scales of groups or rows, activations as they are: kernel/linear/int4_groups.h.
bool is_int4_group_spec(const WeightSpec& spec);
Int4GroupLayout int4_group_layout(const WeightDesc& desc);

}  // namespace spate::cuda
