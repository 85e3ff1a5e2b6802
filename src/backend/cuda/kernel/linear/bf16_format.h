// The format of linear_wgmma.cu for linear_skeleton.h.
#pragma once

#include "backend/cuda/kernel/linear/linear_skeleton.h"

namespace spate::cuda {

struct Bf16Format {
  using Params = LinearWgmmaKernelParams;
  using Sum = float;
  struct Operand {};
  static constexpr bool kHasSilu = false;
  static constexpr int kTileK = kWgmmaTileK, kOutlierRows = 0;
  static constexpr int ring_bytes(int tokens) { return bf16_ring_bytes(tokens); }
  static constexpr int kWeightBytes = kWgmmaTileRows * kWgmmaStageRowBytes, kStageWeightBytes = kWeightBytes;

  __device__ static const LinearWgmmaKernelParams& tiles(const Params& p) { return p; }
  __device__ static void load_weight(const Params& p, uint32_t shared, int row, int step, uint32_t barrier) {
    copy_box(shared, p.weight, step * kTileK, row, barrier);
    copy_box(shared + kWeightBytes / 2, p.weight, step * kTileK, row + kWgmmaTileRows / 2, barrier);
  }
  __device__ static void take(const Params&, Operand&, uint32_t, int) {}
  template <int kTokens>
  __device__ static void multiply(float (&sums)[kTokens / 2], const Operand&, uint32_t weight, uint32_t x,
                                  int consumer) {
    const uint64_t a = wgmma_descriptor(weight + static_cast<uint32_t>(consumer) * kWgmmaRows * kWgmmaStageRowBytes),
                   b = wgmma_descriptor(x);
#pragma unroll
    for (int k = 0; k < kTileK / kWgmmaK; ++k) wgmma_bf16<kTokens>(sums, next_wgmma_k(a, k), next_wgmma_k(b, k));
  }
  template <int kTokens, typename OutlierSteps>
  __device__ static void finish(const Params&, const float (&sums)[kTokens / 2], float (&values)[kTokens / 2], int, int,
                                OutlierSteps) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) values[i] = sums[i];
  }
};

template <>
constexpr bool kHasTeams<Bf16Format> = true;

}  // namespace spate::cuda
