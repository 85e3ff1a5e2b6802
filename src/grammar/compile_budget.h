// CompileBudget: how much work and memory one grammar may cost. Counted, not timed: the same grammar is refused on
// every machine. 10 million units are about 0.3 s.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace spate {

class CompileBudget {
 public:
  static constexpr int64_t kDefaultUnits = 10'000'000;
  explicit CompileBudget(int64_t units = kDefaultUnits) : units_(units), left_(units) {}

  bool spend(int64_t units) { return (left_ -= units) >= 0; }
  bool is_spent() const { return left_ < 0; }
  Status error() const {
    return invalid_argument(
        "the grammar is too large: compiling it takes more than {} units of work; use fewer or smaller repetitions, "
        "alternatives and bounds",
        units_);
  }

 private:
  int64_t units_, left_;
};

}  // namespace spate
