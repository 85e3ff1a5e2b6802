// Products with integer weights and 8-bit activations.
#pragma once

#include "backend/cuda/integer_scratch.h"
#include "backend/ops.h"

namespace spate::cuda {

// Rows of activations as codes, of layout.row_bytes() each, with scales and outliers, for products with weights of this
// layout. scratch has room for x.dim(0) rows. columns, where not null, gets marks of the
// columns of outliers (integer_weight.h).
void quantize_rows(Stream& stream, const Tensor& x, const IntegerLayout& layout, const IntegerScratch& scratch,
                   OutlierColumns* columns = nullptr);

// weight: int8 with a scale a row or two-level int4, Activations::kInt8PerToken.
void linear_integer(Stream& stream, const LinearParams& p);
// In one kernel, for bf16 and a few tokens; false: it has done nothing.
bool linear_silu_and_mul_integer(Stream& stream, const LinearSiluAndMulParams& p);

}  // namespace spate::cuda
