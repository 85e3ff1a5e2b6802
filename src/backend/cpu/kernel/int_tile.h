// Tiles of integer products on AVX2 without VNNI. A panel of up to 6 rows of x by the 16 columns of an n-block holds 12
// sums, 2 vectors of weight, one of x and one of products in the 16 registers.
//
// Products are written as assembly: GCC 12 moves the additions away from them and keeps sums in memory (29 products of
// 4-bit codes a cycle instead of 48).
#pragma once

#include "backend/cpu/kernel/int_simd.h"
#include "backend/cpu/layout.h"

#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
#define SPATE_INT_PANELS

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kTileRows = 6;

struct IntTile {
  const char* x;
  const char* weight;
  int64_t num_rows;  // of 64 bytes of weight
  int32_t* sums;
  bool accumulate;    // else the sums begin at zero
  const char* ahead;  // asked for beside the products, ahead_bytes a row
  int64_t ahead_bytes;
};

SPATE_INLINE I word_of(const char* x) {
  int32_t word;
  __builtin_memcpy(&word, x, 4);
  return int_set1(word);
}

// The first and third of four codes as 16 bits, and the second and fourth.
SPATE_INLINE I even_codes(I four) { return _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8); }
SPATE_INLINE I odd_codes(I four) { return _mm256_srai_epi16(four, 8); }

SPATE_INLINE void add_word_products(I& sums, I w, I x) {
  I product;
  asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(sums), "=&x"(product) : "x"(x), "x"(w));
}
SPATE_INLINE void add_byte_products(I& sums, I unsigned_w, I x) {
  I product;
  asm("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+x"(sums), "=&x"(product) : "x"(x), "x"(unsigned_w));
}

// Codes of both signs; no product of two pairs leaves 16 bits: 2 * 128 * 127.
SPATE_INLINE void add_signed_products(I& sums, I w, I magnitude_of_w, I x, I ones) {
  I product;
  asm("vpsignb %4, %2, %1\n\tvpmaddubsw %1, %3, %1\n\tvpmaddwd %5, %1, %1\n\tvpaddd %1, %0, %0"
      : "+x"(sums), "=&x"(product)
      : "x"(x), "x"(magnitude_of_w), "x"(w), "x"(ones));
}

// An int8 n-block as it lies; x [rows of weight][2][kRows]: the first and third code as 16 bits, then the others.
// VPMADDUBSW is no way: two products of unsigned by signed bytes do not fit 16 bits.
template <int kRows, bool kAhead>
static void multiply_int8(const IntTile& tile, int64_t sum_stride) {
  I sums[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
      sums[r][v] = tile.accumulate ? int_load(tile.sums + r * sum_stride + v * 8) : int_zero();
  }
  const char *x = tile.x, *row = tile.weight, *ahead = tile.ahead;
  const auto multiply = [&](I first, I second) __attribute__((always_inline)) {
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const I of_row = word_of(x + r * 4);
      add_word_products(sums[r][0], first, of_row);
      add_word_products(sums[r][1], second, of_row);
    }
    x += kRows * 4;
  };
  for (int64_t i = 0; i < tile.num_rows; ++i, row += 64) {
    if constexpr (kAhead) {
      prefetch_to_l2(ahead);
      ahead += tile.ahead_bytes;
    }
    multiply(even_codes(int_load(row)), even_codes(int_load(row + 32)));
    asm("" : "+r"(row));  // loaded again: there is no register to keep them in
    multiply(odd_codes(int_load(row)), odd_codes(int_load(row + 32)));
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) int_store(tile.sums + r * sum_stride + v * 8, sums[r][v]);
  }
}

// 4-bit codes, one a byte and each 8 more than it is; behind every kGroupRows rows, which are counted, one that is not,
// with the multiplier of these in both halves of each column's 32 bits. x [groups][1 + kGroupRows][kRows]: what a
// group's sums begin with, which takes the 8 away, then four codes. A group's sums have 16 bits: what overflows on the
// way comes back, for with the codes as they are no more than 16 * 2 * 8 * 127 is left.
template <int64_t kGroupRows, int kRows, bool kAhead>
static void multiply_int4(const IntTile& tile, int64_t sum_stride) {
  const char *x = tile.x, *row = tile.weight, *ahead = tile.ahead;
  for (int64_t i = 0; i < tile.num_rows; i += kGroupRows) {
    I sums[kRows][2];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = word_of(x + r * 4);
    x += kRows * 4;
    for (int64_t j = 0; j < kGroupRows; ++j, row += 64, x += kRows * 4) {
      if constexpr (kAhead) {
        prefetch_to_l2(ahead);
        ahead += tile.ahead_bytes;
      }
      const I w[2] = {int_load(row), int_load(row + 32)};
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const I of_row = word_of(x + r * 4);
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) add_byte_products(sums[r][v], w[v], of_row);
      }
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const I multiplier = int_load(row + v * 32);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        int32_t* at = tile.sums + r * sum_stride + v * 8;
        const I before = tile.accumulate || i > 0 ? int_load(at) : int_zero();
        int_store(at, int_add(before, _mm256_madd_epi16(sums[r][v], multiplier)));
      }
    }
    row += 64;
  }
}

}  // namespace spate::cpu::SPATE_ISA
#endif
