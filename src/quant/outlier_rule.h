// Which values of a row of activations are outliers: they keep their bits while the others become 8-bit codes.
//
// A few channels of large language models are a hundred times as large as the others. A scale that holds them leaves
// the others a code or none. So, row by row:
//
//   as long as at most max_outliers() values of the row are above 1/8 of the largest |x| that is left, they are set
//   aside
//
// and the codes and scales are those of the row with zeros in their places. A row of ordinary numbers has none: far
// more than that many are above 1/8 of its largest. What is set aside is told by comparisons alone, so that all
// back-ends choose alike, and depends on nothing but the row.
//
// Kernels that are compiled once per instruction set use this: everything is static, and nothing of the standard
// library is included.
#pragma once

#include <stdint.h>

namespace spate {

static constexpr int64_t kMaxOutliers = 32;
static constexpr float kOutlierShare = 0.125f;       // a power of two: the product is exact
static constexpr float kSmallestScaled = 0x1p-120f;  // a largest |x| below it becomes zeros

// Of a row of this width: one in eight at most. Products with rows that have them are still mostly integer.
static constexpr int64_t max_outliers(int64_t width) { return width / 8 < kMaxOutliers ? width / 8 : kMaxOutliers; }

// A value that is set aside.
struct Outlier {
  int32_t k;
  float x;
};

}  // namespace spate
