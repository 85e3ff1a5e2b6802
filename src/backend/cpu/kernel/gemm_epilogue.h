// From fp32 sums to the output row: bias, rounding, silu(gate) * up.
#pragma once

#include "backend/cpu/kernel/simd.h"
#include "backend/cpu/kernels.h"

namespace spate::cpu::SPATE_ISA {

template <typename Act>
SPATE_INLINE F biased(const float* sums, const GemmParams& p, int64_t column, int64_t count) {
  const F x = load(sums);
  return p.bias == nullptr ? x : add(x, load_up_to(static_cast<const Act*>(p.bias) + column, count));
}

// sums, up_sums: 16 columns of out row `row` at n-block `n_block`.
template <typename Act, typename Out>
SPATE_INLINE void finish_n_block(const GemmParams& p, int64_t row, int64_t n_block, const float* sums,
                                 const float* up_sums) {
  const int64_t first = n_block * kNBlock, width = min_of(kNBlock, p.n - first);
  Out* out = static_cast<Out*>(p.out) + row * p.out_stride + first;
  SPATE_FOR_LANES(i, count, width) {
    F x = biased<Act>(sums + i, p, first + i, count);
    if (p.silu_and_mul) {
      const F up = biased<Act>(up_sums + i, p, p.n + first + i, count);
      x = mul(round_as<Act>(silu(round_as<Act>(x))), round_as<Act>(up));
    }
    store_up_to(out + i, x, count);
  }
}

SPATE_INLINE void finish_n_block(const GemmParams& p, int64_t row, int64_t n_block, const float* sums,
                                 const float* up_sums) {
  if (p.x_elem == Elem::kF32) {
    finish_n_block<float, float>(p, row, n_block, sums, up_sums);
  } else if (p.out_elem == Elem::kF32) {
    finish_n_block<bf16_t, float>(p, row, n_block, sums, up_sums);
  } else {
    finish_n_block<bf16_t, bf16_t>(p, row, n_block, sums, up_sums);
  }
}

}  // namespace spate::cpu::SPATE_ISA
