#pragma once

#include "backend/cuda/kernel/linear/integer_weight.h"

namespace spate::cuda {

struct SiluAndMulCodesKernelParams {
  const void* gate_up;  // [num_tokens, 2 * out.width] bf16
  int64_t gate_up_stride;
  RowCodes out;
  int32_t is_aligned;  // every row, and its up half, starts at a multiple of 16 bytes
};

}  // namespace spate::cuda
