// Vectors of doubles whose dot products with other vectors run side by side; for the scalar reference only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace spate::reference {

// Rows in blocks of eight, element k of all eight beside each other. A scalar sum waits for each addition before the
// next; many sums do not wait for one another. Each has the bits of a loop over its row alone: its terms are added in
// the order of k.
class InterleavedRows {
 public:
  InterleavedRows(int64_t num_rows, int64_t width)
      : width_(width), values_(static_cast<size_t>((num_rows + kBlock - 1) / kBlock * width * kLanes)) {}

  double& at(int64_t row, int64_t k) {
    return reinterpret_cast<double*>(values_.data() + (row / kBlock * width_ + k) * kLanes)[row % kBlock];
  }

  // outs[j][row - begin] = sum over k of xs[j][k] * at(row, k), for the rows [begin, end).
  template <size_t kVectors>
  void dots(const std::array<const double*, kVectors>& xs, int64_t begin, int64_t end,
            const std::array<double*, kVectors>& outs) const {
    constexpr int64_t kManyBlocks = std::max<int64_t>(1, kSums / static_cast<int64_t>(kVectors));
    int64_t block = begin / kBlock;
    const int64_t end_block = (end + kBlock - 1) / kBlock;
    for (; block + kManyBlocks <= end_block; block += kManyBlocks) {
      dots_of_blocks<kManyBlocks>(xs, block, begin, end, outs);
    }
    for (; block < end_block; ++block) dots_of_blocks<1>(xs, block, begin, end, outs);
  }

 private:
  static constexpr int64_t kBlock = 8;
  static constexpr int64_t kSums = 4;  // blocks of sums at a time: as many as the registers hold
  // A vector that a register holds: of a longer one GCC 12 keeps the sum in memory.
#ifdef __AVX__
  static constexpr int64_t kLane = 4;
#else
  static constexpr int64_t kLane = 2;
#endif
  static constexpr int64_t kLanes = kBlock / kLane;  // of a block
  typedef double Lane __attribute__((vector_size(kLane * sizeof(double))));

  template <int64_t kNumBlocks, size_t kVectors>
  void dots_of_blocks(const std::array<const double*, kVectors>& xs, int64_t block, int64_t begin, int64_t end,
                      const std::array<double*, kVectors>& outs) const {
    const Lane* values = values_.data() + block * width_ * kLanes;
    Lane sums[kVectors][kNumBlocks][kLanes] = {};
    for (int64_t k = 0; k < width_; ++k) {
      for (size_t j = 0; j < kVectors; ++j) {
        for (int64_t b = 0; b < kNumBlocks; ++b) {
          for (int64_t l = 0; l < kLanes; ++l) sums[j][b][l] += xs[j][k] * values[(b * width_ + k) * kLanes + l];
        }
      }
    }
    const int64_t first = block * kBlock;
    for (size_t j = 0; j < kVectors; ++j) {
      for (int64_t row = std::max(first, begin); row < std::min(first + kNumBlocks * kBlock, end); ++row) {
        outs[j][row - begin] = sums[j][(row - first) / kBlock][(row - first) % kBlock / kLane][(row - first) % kLane];
      }
    }
  }

  int64_t width_;
  std::vector<Lane> values_;  // [block of rows, k, lane of the block]
};

}  // namespace spate::reference
