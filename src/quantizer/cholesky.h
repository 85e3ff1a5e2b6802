// The one factorisation that GPTQ needs.
#pragma once

#include "base/status.h"
#include "base/tensor.h"

namespace spate {

// The upper triangular U with H^-1 = U^T U, of a symmetric positive definite H [k, k] f64, in place: zeros below the
// diagonal. H = R R^T with R upper triangular (a Cholesky factorisation from the last row up), and U = R^-1: no inverse
// of H is formed, k^3 / 3 multiply-adds in all. Error: H is not positive definite.
Status invert_to_upper_factor(const Tensor& h, int num_threads);

}  // namespace spate
