#include "quant/outliers.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace spate {

std::vector<Outlier> take_outliers(float* x, int64_t width) {
  float limit = INFINITY;
  float top = 0;
  bool finite = true;
  for (int64_t k = 0; k < width; ++k) {
    top = std::max(top, std::fabs(x[k]));
    finite &= std::isfinite(x[k]);
  }
  while (finite && top >= kSmallestScaled) {
    const float share = top * kOutlierShare;
    int64_t count = 0;
    float largest_below = 0;
    for (int64_t k = 0; k < width; ++k) {
      const float magnitude = std::fabs(x[k]);
      if (magnitude > share) {
        ++count;
      } else {
        largest_below = std::max(largest_below, magnitude);
      }
    }
    if (count > max_outliers(width)) break;
    limit = share;
    top = largest_below;
  }
  std::vector<Outlier> outliers;
  for (int64_t k = 0; k < width; ++k) {
    if (std::fabs(x[k]) > limit) outliers.push_back({static_cast<int32_t>(k), std::exchange(x[k], 0.0f)});
  }
  return outliers;
}

}  // namespace spate
