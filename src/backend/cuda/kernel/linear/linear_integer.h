// Products with integer weights and 8-bit activations.
#pragma once

#include "backend/ops.h"

namespace spate::cuda {

// weight: int8 with a scale a row or two-level int4, Activations::kInt8PerToken.
void linear_integer(Stream& stream, const LinearParams& p);

}  // namespace spate::cuda
