// Vectors of doubles whose dot products with another vector run side by side; for the scalar reference only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace spate::reference {

// Rows in blocks of eight, element k of all eight beside each other. A scalar sum waits for each addition before the
// next; eight sums do not wait for one another. Each has the bits of a loop over its row alone: its terms are added in
// the order of k.
class InterleavedRows {
 public:
  InterleavedRows(int64_t num_rows, int64_t width)
      : width_(width), values_(static_cast<size_t>((num_rows + kBlock - 1) / kBlock * width)) {}

  double& at(int64_t row, int64_t k) {
    return reinterpret_cast<double*>(&values_[static_cast<size_t>(row / kBlock * width_ + k)])[row % kBlock];
  }

  // out[row - begin] = sum over k of x[k] * at(row, k), for the rows [begin, end).
  void dots(const double* x, int64_t begin, int64_t end, double* out) const {
    for (int64_t first = begin / kBlock * kBlock; first < end; first += kBlock) {
      const Block* values = values_.data() + first / kBlock * width_;
      Block sums = {};
      for (int64_t k = 0; k < width_; ++k) sums += x[k] * values[k];
      for (int64_t row = std::max(first, begin); row < std::min(first + kBlock, end); ++row) {
        out[row - begin] = sums[row - first];
      }
    }
  }

 private:
  static constexpr int64_t kBlock = 8;
  typedef double Block __attribute__((vector_size(kBlock * sizeof(double))));

  int64_t width_;
  std::vector<Block> values_;  // [block of rows, k]
};

}  // namespace spate::reference
