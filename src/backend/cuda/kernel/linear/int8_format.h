// The format of linear_int8.cu for linear_skeleton.h.
#pragma once

#include "backend/cuda/kernel/linear/integer_sums.h"
#include "backend/cuda/kernel/linear/linear_skeleton.h"
#include "backend/cuda/kernel/primitive/wgmma_int8.h"

namespace spate::cuda {

struct Int8Format : IntegerFinish<Int8Format> {
  using Sum = int32_t;
  struct Operand {};
  static constexpr bool kHasSilu = false;
  static constexpr int kTileK = kIntegerTileK, kBias = 0, kOutlierRows = kWgmmaTileRows;
  static constexpr int ring_bytes(int tokens) { return wgmma_ring_bytes(tokens); }
  static constexpr int kWeightBytes = kInt8StageWeightBytes, kStageWeightBytes = kInt8StageWeightBytes;

  __device__ static const LinearWgmmaKernelParams& tiles(const Params& p) { return p.tiles; }
  __device__ static void load_weight(const Params& p, uint32_t shared, int row, int step, uint32_t barrier) {
    copy_box(shared, p.tiles.weight, step * kTileK, row, barrier);
    copy_box(shared + kWeightBytes / 2, p.tiles.weight, step * kTileK, row + kWgmmaTileRows / 2, barrier);
  }
  __device__ static void take(const Params&, Operand&, uint32_t, int) {}
  template <int kTokens>
  __device__ static void multiply(int32_t (&sums)[kTokens / 2], const Operand&, uint32_t weight, uint32_t x,
                                  int consumer) {
    const uint64_t a = wgmma_descriptor(weight + static_cast<uint32_t>(consumer) * kWgmmaRows * kWgmmaStageRowBytes),
                   b = wgmma_descriptor(x);
#pragma unroll
    for (int k = 0; k < kTileK / 32; ++k) wgmma_s8<kTokens>(sums, next_wgmma_k(a, k), next_wgmma_k(b, k));
  }
  // Of the code of W at (n, k).
  __device__ static auto code_of(const Params& p) {
    return [&p](int n, int k) { return reinterpret_cast<const int8_t*>(p.weight)[n * p.layout.row_bytes() + k]; };
  }
  __device__ static void load_two_rows(const Params& p, int row, int k, int (&values)[2]) {
    const int8_t* first = reinterpret_cast<const int8_t*>(p.weight) + row * p.layout.row_bytes() + k;
    values[0] = first[0];
    values[1] = first[p.layout.row_bytes()];
  }
};

template <>
constexpr bool kHasTeams<Int8Format> = true;

}  // namespace spate::cuda
