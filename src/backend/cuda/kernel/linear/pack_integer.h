#pragma once

#include "backend/cuda/kernel/linear/integer_weight.h"

namespace spate::cuda {

constexpr int kPackThreads = 256;

struct PackIntegerKernelParams {
  const void* rows;            // [num_rows, width] f32 or bf16, or codes
  const float* row_scales;     // place_int4: [num_rows]
  const uint8_t* multipliers;  // place_int4: [num_rows, num_groups]
  char* matrix;                // where they go
  IntegerLayout layout;
  int32_t first_row;
  int32_t group_width;  // of int4
};

}  // namespace spate::cuda
