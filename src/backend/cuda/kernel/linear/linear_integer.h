// Products with integer weights and 8-bit activations.
#pragma once

#include <optional>

#include "backend/cuda/integer_scratch.h"
#include "backend/ops.h"

namespace spate::cuda {

// Rows of activations as codes, of layout.row_bytes() each, with scales and outliers, for products with weights of this
// layout. scratch has room for x.dim(0) rows. columns, where not null, gets marks of the
// columns of outliers (integer_weight.h).
void quantize_rows(Stream& stream, const Tensor& x, const IntegerLayout& layout, const IntegerScratch& scratch,
                   OutlierColumns* columns = nullptr);

// How the threads of a kernel share rows of so many bytes of codes (quantize_row.h).
struct RowShape {
  int num_ctas;     // of a row
  int kernel_idx;   // 0, 1 or 2: 1, 2 or 4 pieces of 8 elements a thread
  int num_threads;  // of a CTA
};
RowShape row_shape(int num_sms, int64_t num_tokens, int64_t row_bytes);
// LaunchGrid::shared_bytes of kernels with so many CTAs, one a row, and kSpreadSharedBytes: without it three or four
// CTAs stand on each of the SMs that are free first. 1.3 % of decode of 32; more than 64 lose by it (128: 1 %).
int spread_bytes(int64_t num_ctas);

// Where an op writes rows of `out` as codes instead, because the product with `reader` is what reads them; nothing:
// the op writes `out`. The codes lie in the integer scratch or, of many tokens, in place of `out`. Where it returns
// something, the product must come, and no other integer product before it.
std::optional<RowCodes> hand_codes(Stream& stream, const PackedWeight* reader, const Tensor& out);

// weight: int8 with a scale a row or two-level int4, Activations::kInt8PerToken.
void linear_integer(Stream& stream, const LinearParams& p);
// In one kernel, for bf16 and a few tokens; false: it has done nothing.
bool linear_silu_and_mul_integer(Stream& stream, const LinearSiluAndMulParams& p);

}  // namespace spate::cuda
