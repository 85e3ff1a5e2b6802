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

// Logits of several sequences: no cache keeps them until they are sampled, and to write a line the usual way it would first
// be fetched.
SPATE_INLINE bool streams_floats(const GemmParams& p) {
  constexpr int64_t kLeastBytes = int64_t{4} << 20;
  return p.out_elem == Elem::kF32 && p.m * p.n * 4 >= kLeastBytes && reinterpret_cast<uintptr_t>(p.out) % 64 == 0 &&
         p.out_stride % kNBlock == 0;
}

template <typename Act, typename Out, bool kSilu>
static void finish_rows_of(const GemmParams& p, int64_t first_row, int64_t end_row, int64_t n_block, int64_t num_blocks,
                           const float* sums, const float* up_sums, int64_t stride) {
  const int64_t first = n_block * kNBlock, width = min_of(num_blocks * kNBlock, p.n - first);
  [[maybe_unused]] const bool streams = streams_floats(p);
  for (int64_t row = first_row; row < end_row; ++row, sums += stride, up_sums += kSilu ? stride : 0) {
    Out* out = static_cast<Out*>(p.out) + row * p.out_stride + first;
    SPATE_FOR_LANES(i, count, width) {
      F x = biased<Act>(sums + i, p, first + i, count);
      if constexpr (kSilu) {
        const F up = biased<Act>(up_sums + i, p, p.n + first + i, count);
        x = mul(silu_as<Act>(round_as<Act>(x)), round_as<Act>(up));
      }
      if constexpr (sizeof(Out) == sizeof(float)) {
        if (streams && count >= kLanes) {
          stream(out + i, x);
          continue;
        }
      }
      store_up_to(out + i, x, count);
    }
  }
}

template <bool kSilu>
SPATE_INLINE void finish_typed(const GemmParams& p, int64_t first_row, int64_t end_row, int64_t n_block, int64_t num_blocks,
                               const float* sums, const float* up_sums, int64_t stride) {
  if (p.x_elem == Elem::kF32) {
    finish_rows_of<float, float, kSilu>(p, first_row, end_row, n_block, num_blocks, sums, up_sums, stride);
  } else if (p.out_elem == Elem::kF32) {
    finish_rows_of<bf16_t, float, kSilu>(p, first_row, end_row, n_block, num_blocks, sums, up_sums, stride);
  } else {
    finish_rows_of<bf16_t, bf16_t, kSilu>(p, first_row, end_row, n_block, num_blocks, sums, up_sums, stride);
  }
}

// Output rows [first_row, end_row), n-blocks [n_block, n_block + num_blocks). sums: of first_row's first column, rows `stride` apart; up_sums
// likewise, read only with silu_and_mul.
SPATE_INLINE void finish_n_blocks(const GemmParams& p, int64_t first_row, int64_t end_row, int64_t n_block, int64_t num_blocks,
                                  const float* sums, const float* up_sums, int64_t stride) {
  if (p.silu_and_mul) {
    finish_typed<true>(p, first_row, end_row, n_block, num_blocks, sums, up_sums, stride);
  } else {
    finish_typed<false>(p, first_row, end_row, n_block, num_blocks, sums, up_sums, stride);
  }
}

}  // namespace spate::cpu::SPATE_ISA
