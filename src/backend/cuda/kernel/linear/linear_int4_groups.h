// Products with float weights as other files call them, and with int4 weights whose groups have scales of their own.
#pragma once

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/kernel/linear/int4_groups.h"
#include "backend/cuda/kernel/linear/linear.h"
#include "backend/ops.h"

namespace spate::cuda {

// Of rows that are not empty.
struct FloatProduct {
  DType act;    // of x
  Codes codes;  // of W: kF32 or kBf16
  LinearKernelParams params;
  bool is_weight_constant = true;  // kernels may read W before the kernels ahead of them have ended
};
void linear_floats(Stream& stream, const FloatProduct& product);
// For a weight of p.weight's size.
LinearKernelParams linear_kernel_params(const LinearParams& p, const void* weight, int64_t weight_stride);

// weight: is_int4_group_spec().
void linear_int4_groups(Stream& stream, const LinearParams& p);
// In one kernel, for bf16 and a few tokens; false: it has done nothing.
bool linear_silu_and_mul_int4_groups(Stream& stream, const LinearSiluAndMulParams& p);

}  // namespace spate::cuda
