// Products of the outliers of a few rows with W, which is decoded for them (expert_outliers.cu).
#pragma once

#include "backend/cuda/kernel/expert/expert_stream.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/mma.h"

namespace spate::cuda {

constexpr int kOutlierProductSteps = kExpertStreamMaxWidth / kIntegerTileK;

// An outlier of a row of bf16: k in the high half, the number in the low one.
__device__ inline uint32_t pack_outlier(int k, float x) {
  return static_cast<uint32_t>(k) << 16 | __float_as_uint(x) >> 16;
}

// How many outliers rows have and, of those that have any, how many stand before each step of k.
template <int kRows>
struct OutlierCounts {
  int32_t of_rows[kRows];
  uint8_t before[kRows][kOutlierProductSteps + 1];
};

// The outliers of up to kRows rows of x times 16 rows of W, of one warp: as the codes of W are decoded for something
// else, by the tensor core in bf16, which holds both exactly.
template <int kRows>
class OutlierProducts {
 public:
  static constexpr int kBlocks = kRows / 8;
  float sums[kBlocks][4] = {};  // without the scale of W

  __device__ OutlierProducts(const OutlierCounts<kRows>& counts, const uint32_t* outliers, int num_rows)
      : counts_(counts), outliers_(outliers) {
    const int column = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      if (8 * j + column < num_rows && counts.of_rows[8 * j + column] > 0) columns_ |= 1u << j;
    }
  }
  // a: the codes of a step, 128 above what they are: a[s][2 h + r] has k = 32 s + 16 h + 4 pair and the three behind it
  // of row group + 8 r.
  __device__ void add(const uint32_t (&a)[4][4], int step) {
    const int lane = static_cast<int>(threadIdx.x) % 32, pair = lane % 4;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      const int column = 8 * j + lane / 4;
      int at = 0, end = 0;  // of the column's outliers
      if ((columns_ >> j & 1) != 0) {
        at = counts_.before[column][step];
        end = counts_.before[column][step + 1];
      }
      if (!__any_sync(0xffffffffu, at < end)) continue;
      const uint32_t* list = outliers_ + column * kMaxOutliers;
      const auto next_k = [&] {
        return at < end ? static_cast<int>(list[at] >> 16) - step * kIntegerTileK : kIntegerTileK;
      };
      int k = next_k();
#pragma unroll
      for (int part = 0; part < 8; ++part) {
        const int behind = 16 * (part + 1);
        if (!__any_sync(0xffffffffu, k < behind)) continue;
        uint32_t b[2] = {};
        while (k < behind) {
          const uint32_t x = list[at];
          const uint32_t place = k / 4 % 4 != pair ? 0 : k % 4 >= 2 ? x << 16 : x & 0xffff;
          b[0] |= k % 2 == 0 ? place : 0;
          b[1] |= k % 2 == 0 ? 0 : place;
          ++at;
          k = next_k();
        }
        __syncwarp();
        const uint32_t low = a[part / 2][part % 2 * 2] ^ 0x80808080u,
                       high = a[part / 2][part % 2 * 2 + 1] ^ 0x80808080u;
        const uint32_t codes[4] = {codes_to_bf16(low), codes_to_bf16(high), codes_to_bf16(low >> 8),
                                   codes_to_bf16(high >> 8)};
        mma_m16n8k16_bf16(sums[j], codes, b);
      }
    }
  }

 private:
  const OutlierCounts<kRows>& counts_;
  const uint32_t* outliers_;
  uint32_t columns_ = 0;  // bit j: the lane's column of block j has outliers
};

}  // namespace spate::cuda
