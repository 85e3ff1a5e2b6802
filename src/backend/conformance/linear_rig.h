// Products, embeddings and their comparison, for cases that differ in the weights alone (linear_cases.cpp,
// quantized_linear_cases.cpp, invariance_cases.cpp).
#pragma once

#include <span>

#include "backend/conformance/rig.h"

namespace spate::conformance {

// Puts the case's weight on a side; the weight lives until side.clear().
using PutWeight = std::function<const PackedWeight&(Side& side)>;

struct LinearCase {
  int64_t m, n, k;     // out [m, n] = x [m, k] W^T; for linear_silu_and_mul W has 2 n rows
  DType act, out;      // out: of linear
  bool bias, strided;  // strided: x and out are columns of wider matrices
};

// linear of random x and bias, on both sides. The label is m, n and k, then `note`, then the dtype of out.
void compare_linear(Family& family, Sides sides, const LinearCase& c, const std::string& note, const PutWeight& weight,
                    const Tolerance& tolerance);

// linear_silu_and_mul with c.act out, on both sides; where the actual side has the fused op also against its
// decomposition.
void compare_linear_silu_and_mul(Family& family, Sides sides, const LinearCase& c, const PutWeight& weight,
                                 const Tolerance& tolerance);

// Rows of a table [rows, width], which is the shard [rows / 2, rows / 2 + rows) of a larger vocabulary: the same bits
// on both sides.
void compare_embedding(Family& family, Sides sides, const std::string& label, DType act, int64_t rows, int64_t width,
                       int64_t num_tokens, const PutWeight& table);

// Rows of a product of x alone, in batches of sizes[i] rows from the beginning, from row 7 and up to the end of x: bits
// as in the product of all of x, on the side and its siblings. W has n rows; with silu 2 n.
constexpr int64_t kBatchSizes[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33, 64, 129};
void check_linear_invariance(Family& family, Side& sides, const Tensor& x, int64_t n, bool silu,
                             const PutWeight& weight, std::span<const int64_t> sizes = kBatchSizes);

}  // namespace spate::conformance
