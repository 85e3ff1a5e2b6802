#include "backend/machine_limits.h"

#include <algorithm>

#include "base/check.h"

namespace spate {

MachineLimits larger_limits(MachineLimits a, const MachineLimits& b) {
  if (a.rates.empty()) return b;
  if (b.rates.empty()) return a;
  CHECK(a.rates.size() == b.rates.size(), "limits of {} and of {} figures", a.rates.size(), b.rates.size());
  a.memory_bytes_per_s = std::max(a.memory_bytes_per_s, b.memory_bytes_per_s);
  a.float_flops_per_s = std::max(a.float_flops_per_s, b.float_flops_per_s);
  a.int8_ops_per_s = std::max(a.int8_ops_per_s, b.int8_ops_per_s);
  for (size_t i = 0; i < a.rates.size(); ++i) a.rates[i].per_s = std::max(a.rates[i].per_s, b.rates[i].per_s);
  return a;
}

}  // namespace spate
