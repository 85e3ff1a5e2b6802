// The outliers of a row of activations (quant/outlier_rule.h): what the oracle and tests compute with.
//
// Both kinds of 8-bit activations (quant/weight_format.h) set the outliers of a row aside before quantize_activations().
// The product with row n of a weight is then
//   y[n] = (that of the codes)  +  sum over the outliers of  x[k] * w[n, k],  in f32 and in the order of k
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/outlier_rule.h"

namespace spate {

// Takes the outliers of a row out of it: they become zeros. In the order of k. A row with a NaN or an infinity has none.
std::vector<Outlier> take_outliers(float* x, int64_t width);

}  // namespace spate
