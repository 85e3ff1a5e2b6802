// What kernels for few tokens that own whole rows of W share: the load of W, and the store of a group's sums.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/linear/linear_rows.h"
#include "backend/cuda/kernel/primitive/bf16.h"

namespace spate::cuda {

constexpr int kLanes = 32;

// What no other CTA reads: past L1.
__device__ inline uint4 load_stream(const char* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

// sums: of kPair * 8 rows and 8 tokens, as mma.h leaves them.
template <int kPair>
__device__ inline void finish_rows(const LinearRowsKernelParams& p, const float (&sums)[4], int first_row) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int token = lane % 4 * 2 + c;
    if (token >= p.num_tokens) continue;
    float values[2] = {};
#pragma unroll
    for (int r = 0; r < kPair; ++r) {
      const int row = first_row + lane / 4 + p.pair_step * r;
      if (row >= p.out_features) continue;
      values[r] = sums[2 * r + c];
      if (p.bias != nullptr) values[r] += to_float(static_cast<const Bf16*>(p.bias)[row]);
      if (p.has_silu) continue;
      const int64_t offset = token * p.out_stride + row;
      if (p.is_out_f32) {
        static_cast<float*>(p.out)[offset] = values[r];
      } else {
        static_cast<Bf16*>(p.out)[offset] = from_float<Bf16>(values[r]);
      }
    }
    if (kPair == 2 && p.has_silu) {
      const float gate = round_to<Bf16>(values[0]), up = round_to<Bf16>(values[1]);
      static_cast<Bf16*>(p.out)[token * p.out_stride + first_row + lane / 4] =
          from_float<Bf16>(silu_times<Bf16>(gate, up));
    }
  }
}

}  // namespace spate::cuda
