// The tiles of dot_tile.h on ARM.
//
// With I8MM a tile is made of 2 x 2 sums: SMMLA multiplies two rows of x by two columns, 8 codes each, BFMMLA the same
// of four bf16: two words either way. Two columns by two words are the halves of a zip of two rows of an n-block. 12
// rows by 8 columns hold 24 sums and load 10 registers for 24 products. BFMMLA adds two words to a sum one after the
// other, each rounded to odd; a row alone takes the same instruction, so its bits do not depend on the rows beside it.
//
// With SDOT alone a tile has up to 6 rows by 16 columns, one word at a time.
#pragma once

#ifdef __ARM_FEATURE_MATMUL_INT8

namespace spate::cpu::SPATE_ISA {

template <Words kWords>
SPATE_INLINE int32x4_t add_products(int32x4_t sums, int8x16_t x, int8x16_t w) {
  if constexpr (kWords == Words::kCodes) {
    return vmmlaq_s32(sums, x, w);
  } else {
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
    return vreinterpretq_s32_f32(
        vbfmmlaq_f32(vreinterpretq_f32_s32(sums), vreinterpretq_bf16_s8(x), vreinterpretq_bf16_s8(w)));
#endif
  }
}

// Two words of two rows.
template <int64_t kRowStride>
SPATE_INLINE int8x16_t two_rows(const char* x) {
  const auto* first = reinterpret_cast<const int8_t*>(x);
  if constexpr (kRowStride == 8) return vld1q_s8(first);
  return vcombine_s8(vld1_s8(first), vld1_s8(first + kRowStride));
}

// 2 kPairs rows by 2 kColumnPairs columns of n-block j, from `column` on.
template <Words kWords, int kPairs, int kColumnPairs, int64_t kRowStride, int64_t kUnitStride, bool kAhead>
SPATE_INLINE void multiply_columns(const DotTile& tile, int64_t j, int64_t column, int64_t sum_stride) {
  auto* out = reinterpret_cast<int32_t*>(tile.sums) + j * kNBlock + column;
  int32x4_t sums[kPairs][kColumnPairs];
#pragma GCC unroll 6
  for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumnPairs; ++c) {
      const int32_t* at = out + 2 * p * sum_stride + 2 * c;
      sums[p][c] = tile.accumulate ? vcombine_s32(vld1_s32(at), vld1_s32(at + sum_stride)) : vdupq_n_s32(0);
    }
  }
  const char* x = tile.x;
  [[maybe_unused]] const char* ahead = tile.ahead.first[j];
  for (int64_t segment = 0; segment < tile.num_segments; ++segment) {
    const auto* rows = reinterpret_cast<const int32_t*>(tile.blocks[segment][j]) + column;
    for (int64_t word = 0; word < tile.num_words; word += 2, x += kUnitStride, rows += 2 * kNBlock) {
      if constexpr (kAhead) {
        prefetch_to_l2(ahead);
        prefetch_to_l2(ahead + tile.ahead.bytes_a_word);
        ahead += 2 * tile.ahead.bytes_a_word;
      }
      int8x16_t w[kColumnPairs];
#pragma GCC unroll 4
      for (int c = 0; c < kColumnPairs; c += 2) {
        const int32x4_t first = vld1q_s32(rows + 2 * c), second = vld1q_s32(rows + kNBlock + 2 * c);
        w[c] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
        w[c + 1] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
      }
#pragma GCC unroll 6
      for (int p = 0; p < kPairs; ++p) {
        const int8x16_t pair = two_rows<kRowStride>(x + 2 * p * kRowStride);
#pragma GCC unroll 8
        for (int c = 0; c < kColumnPairs; ++c) sums[p][c] = add_products<kWords>(sums[p][c], pair, w[c]);
      }
    }
  }
#pragma GCC unroll 6
  for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
    for (int c = 0; c < kColumnPairs; ++c) {
      int32_t* at = out + 2 * p * sum_stride + 2 * c;
      vst1_s32(at, vget_low_s32(sums[p][c]));
      vst1_s32(at + sum_stride, vget_high_s32(sums[p][c]));
    }
  }
}

template <Words kWords, int kRows, int64_t kRowStride, int64_t kUnitStride, bool kAhead>
static __attribute__((noinline)) void multiply_blocks(const DotTile& tile, int64_t num_blocks, int64_t sum_stride) {
  constexpr int kPairs = kRows / 2, kColumnPairs = kPairs <= 3 ? 8 : 4;
  for (int64_t j = 0; j < num_blocks; ++j) {
    multiply_columns<kWords, kPairs, kColumnPairs, kRowStride, kUnitStride, kAhead>(tile, j, 0, sum_stride);
    if constexpr (kColumnPairs == 4) {
      multiply_columns<kWords, kPairs, kColumnPairs, kRowStride, kUnitStride, false>(tile, j, 8, sum_stride);
    }
  }
}

}  // namespace spate::cpu::SPATE_ISA

#else

namespace spate::cpu::SPATE_ISA {

template <int kRows, int64_t kRowStride, int64_t kUnitStride, bool kAhead>
SPATE_INLINE void multiply_n_block(const DotTile& tile, int64_t j, int64_t sum_stride) {
  auto* out = reinterpret_cast<int32_t*>(tile.sums) + j * kNBlock;
  int32x4_t sums[kRows][4];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) sums[r][v] = tile.accumulate ? vld1q_s32(out + r * sum_stride + 4 * v) : vdupq_n_s32(0);
  }
  const char* x = tile.x;
  [[maybe_unused]] const char* ahead = tile.ahead.first[j];
  for (int64_t segment = 0; segment < tile.num_segments; ++segment) {
    const auto* row = reinterpret_cast<const int8_t*>(tile.blocks[segment][j]);
    for (int64_t word = 0; word < tile.num_words; ++word, x += kUnitStride, row += 64) {
      if constexpr (kAhead) {
        prefetch_to_l2(ahead);
        ahead += tile.ahead.bytes_a_word;
      }
      int8x16_t w[4];
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) w[v] = vld1q_s8(row + 16 * v);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const int8x16_t all = vreinterpretq_s8_s32(vld1q_dup_s32(reinterpret_cast<const int32_t*>(x + r * kRowStride)));
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) sums[r][v] = vdotq_s32(sums[r][v], w[v], all);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) vst1q_s32(out + r * sum_stride + 4 * v, sums[r][v]);
  }
}

template <Words kWords, int kRows, int64_t kRowStride, int64_t kUnitStride, bool kAhead>
static __attribute__((noinline)) void multiply_blocks(const DotTile& tile, int64_t num_blocks, int64_t sum_stride) {
  static_assert(kWords == Words::kCodes, "bf16 is multiplied where there is BFMMLA");
  for (int64_t j = 0; j < num_blocks; ++j)
    multiply_n_block<kRows, kRowStride, kUnitStride, kAhead>(tile, j, sum_stride);
}

}  // namespace spate::cpu::SPATE_ISA
#endif
