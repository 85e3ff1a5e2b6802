#pragma once

#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/rms_norm/rms_norm.h"

namespace spate::cuda {

struct AddRmsNormCodesKernelParams {
  AddRmsNormKernelParams add;  // of bf16; norm.out is not used
  RowCodes out;                // num_ctas 1
};

}  // namespace spate::cuda
