// C += A B for a few rows of A (f32) and n-blocks of B (bf16 or f32), by fused multiply-add; for linear and attention.
// k advances one by one in one accumulator an element, whatever the number of rows and n-blocks: batch-invariant.
#pragma once

#include "backend/cpu/kernel/simd.h"

namespace spate::cpu::SPATE_ISA {

struct Bf16Weight {
  static constexpr int64_t kRowK = 2;  // k in a row of 16 columns
  static constexpr int64_t kRowBytes = 64;
};
struct F32Weight {
  static constexpr int64_t kRowK = 1;
  static constexpr int64_t kRowBytes = 64;
};

constexpr int kMaxAheadBlocks = 4;
// What is asked for in L2 beside the products: of each n-block what is read after this, in equal parts a tile. So
// memory works beside all tiles of rows and not only beside the first.
struct BlocksAhead {
  const char* next[kMaxAheadBlocks];
  int64_t row_bytes;  // for each row of B
};

// GCC 12 keeps sums in memory on ARM unless these loops are written out and a tile is a function of its own
// (tools/kernel_spills): a load and a store for each product. On x86 it does not need to be told.
#ifdef __aarch64__
#define SPATE_ARM_UNROLL _Pragma("GCC unroll 12")
#define SPATE_TILE_FUNCTION static __attribute__((noinline))
#else
#define SPATE_ARM_UNROLL
#define SPATE_TILE_FUNCTION static
#endif

// One tile: kRows rows times kBlocks n-blocks, num_k a multiple of W::kRowK. c: [kRows][c_stride], block j at column 16
// j. kPrefetch: bytes ahead that each stream of B is asked for; 0 where B is in the cache; kAsksNext: see BlocksAhead.
constexpr int kAsksNext = -1;
template <typename W, int kRows, int kBlocks, int kPrefetch>
SPATE_INLINE void micro_tile(const float* a, int64_t a_stride, const char* const* b, int64_t num_k, float* c,
                             int64_t c_stride, [[maybe_unused]] const char* const* next,
                             [[maybe_unused]] int64_t next_row_bytes) {
  F acc[kRows][kBlocks][kVecs];
  SPATE_ARM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    SPATE_ARM_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      SPATE_ARM_UNROLL
      for (int v = 0; v < kVecs; ++v) acc[r][j][v] = load(c + r * c_stride + j * kNBlock + v * kLanes);
    }
  }
  const char* rows[kBlocks];
  [[maybe_unused]] const char* ahead[kBlocks];
  SPATE_ARM_UNROLL
  for (int j = 0; j < kBlocks; ++j) {
    rows[j] = b[j];
    if constexpr (kPrefetch == kAsksNext) ahead[j] = next[j];
  }
  for (int64_t k = 0; k < num_k; k += W::kRowK) {
    SPATE_ARM_UNROLL
    for (int parity = 0; parity < W::kRowK; ++parity) {
      F w[kBlocks][kVecs];
      SPATE_ARM_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        SPATE_ARM_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          const char* p = rows[j] + v * kLanes * 4;
          if constexpr (W::kRowK == 1) {
            w[j][v] = load(reinterpret_cast<const float*>(p));
          } else {
            w[j][v] = parity == 0 ? even_k(p) : odd_k(p);
          }
        }
      }
      SPATE_ARM_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const F x = set1(a[r * a_stride + k + parity]);
        SPATE_ARM_UNROLL
        for (int j = 0; j < kBlocks; ++j) {
          SPATE_ARM_UNROLL
          for (int v = 0; v < kVecs; ++v) acc[r][j][v] = fma(x, w[j][v], acc[r][j][v]);
        }
      }
    }
    SPATE_ARM_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      if constexpr (kPrefetch > 0) prefetch(rows[j] + kPrefetch);
      if constexpr (kPrefetch == kAsksNext) {
        prefetch_to_l2(ahead[j]);
        ahead[j] += next_row_bytes;
      }
      rows[j] += W::kRowBytes;
    }
  }
  SPATE_ARM_UNROLL
  for (int r = 0; r < kRows; ++r) {
    SPATE_ARM_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      SPATE_ARM_UNROLL
      for (int v = 0; v < kVecs; ++v) store(c + r * c_stride + j * kNBlock + v * kLanes, acc[r][j][v]);
    }
  }
}

template <typename W, int kRows, int kBlocks, int kPrefetch>
SPATE_TILE_FUNCTION void micro_row_tile(const float* a, int64_t a_stride, const char* const* b, int64_t num_blocks,
                                        int64_t num_k, float* c, int64_t c_stride, const BlocksAhead& ahead) {
  const auto next = [&](int64_t j) { return kPrefetch == kAsksNext ? ahead.next + j : nullptr; };
  int64_t j = 0;
  for (; j + kBlocks <= num_blocks; j += kBlocks) {
    micro_tile<W, kRows, kBlocks, kPrefetch>(a, a_stride, b + j, num_k, c + j * kNBlock, c_stride, next(j),
                                             ahead.row_bytes);
  }
  if constexpr (kBlocks > 1) {
    for (; j < num_blocks; ++j) {
      micro_tile<W, kRows, 1, kPrefetch>(a, a_stride, b + j, num_k, c + j * kNBlock, c_stride, next(j),
                                         ahead.row_bytes);
    }
  }
}

#if defined(__AVX2__) && !defined(__AVX512F__)
#define SPATE_CODE_TILES
// kRows rows times kBlocks n-blocks of codes of a kI8 cache, which become floats in registers; else as micro_tile.
template <int kRows, int kBlocks>
SPATE_INLINE void code_tile(const float* a, int64_t a_stride, const char* const* b, int64_t num_k, float* c,
                            int64_t c_stride) {
  constexpr int kAhead = 1024;
  F acc[kRows][kBlocks][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kBlocks; ++j) {
      for (int v = 0; v < kVecs; ++v) acc[r][j][v] = load(c + r * c_stride + j * kNBlock + v * kLanes);
    }
  }
  const auto multiply = [&](int64_t k, auto load_two) __attribute__((always_inline)) {
    F x[kRows][2];
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < 2; ++i) x[r][i] = set1(a[r * a_stride + k + i]);
    }
    for (int j = 0; j < kBlocks; ++j) {
      for (int v = 0; v < kVecs; ++v) {
        F w[2];
        load_two(j, v, w);
        for (int i = 0; i < 2; ++i) {
          for (int r = 0; r < kRows; ++r) acc[r][j][v] = fma(x[r][i], w[i], acc[r][j][v]);
        }
      }
    }
  };
  for (int64_t k = 0; k < num_k; k += 4) {
    const int64_t row = k / 4 * 64;
    for (int j = 0; j < kBlocks; ++j) prefetch(b[j] + row + kAhead);
    multiply(
        k, [&](int j, int v, F* w) __attribute__((always_inline)) { load_two_codes<false>(b[j] + row + v * 32, w); });
    multiply(
        k + 2, [&](int j, int v, F* w)
                   __attribute__((always_inline)) { load_two_codes<true>(b[j] + row + v * 32, w); });
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kBlocks; ++j) {
      for (int v = 0; v < kVecs; ++v) store(c + r * c_stride + j * kNBlock + v * kLanes, acc[r][j][v]);
    }
  }
}
template <int kRows, int kBlocks>
static void code_row_tile(const float* a, int64_t a_stride, const char* const* b, int64_t num_blocks, int64_t num_k,
                          float* c, int64_t c_stride) {
  int64_t j = 0;
  for (; j + kBlocks <= num_blocks; j += kBlocks)
    code_tile<kRows, kBlocks>(a, a_stride, b + j, num_k, c + j * kNBlock, c_stride);
  for (; j < num_blocks; ++j) code_tile<kRows, 1>(a, a_stride, b + j, num_k, c + j * kNBlock, c_stride);
}
// Up to kFewCodeRows rows.
constexpr int64_t kFewCodeRows = 4;
SPATE_INLINE void multiply_codes(const float* a, int64_t a_stride, int64_t num_rows, const char* const* b,
                                 int64_t num_blocks, int64_t num_k, float* c, int64_t c_stride) {
  for (; num_rows >= 2; num_rows -= 2, a += 2 * a_stride, c += 2 * c_stride) {
    code_row_tile<2, 2>(a, a_stride, b, num_blocks, num_k, c, c_stride);
  }
  if (num_rows == 1) code_row_tile<1, 2>(a, a_stride, b, num_blocks, num_k, c, c_stride);
}
#endif

// All rows. The tile heights fill the registers: 16 of AVX2, 32 of AVX-512 and NEON. Few rows take several n-blocks at
// once: enough independent chains for the FMA latency, and up to four streams of memory.
template <typename W>
static void micro_gemm(const float* a, int64_t a_stride, int64_t num_rows, const char* const* b, int64_t num_blocks,
                       int64_t num_k, float* c, int64_t c_stride) {
  constexpr int kAhead = 1024;
  const BlocksAhead nothing{};
  const auto tile = [&](auto* row_tile, int64_t rows) {
    row_tile(a, a_stride, b, num_blocks, num_k, c, c_stride, nothing);
    a += rows * a_stride;
    c += rows * c_stride;
    num_rows -= rows;
  };
#ifdef __AVX512F__
  while (num_rows >= 12) tile(micro_row_tile<W, 12, 2, 0>, 12);
  if (num_rows >= 8) tile(micro_row_tile<W, 8, 2, 0>, 8);
  if (num_rows >= 4) tile(micro_row_tile<W, 4, 4, 0>, 4);
  if (num_rows >= 2) tile(micro_row_tile<W, 2, 4, kAhead>, 2);
  if (num_rows >= 1) tile(micro_row_tile<W, 1, 4, kAhead>, 1);
#else
  while (num_rows >= 6) tile(micro_row_tile<W, 6, 1, 2 * kAhead>, 6);
  if (num_rows >= 4) tile(micro_row_tile<W, 4, 1, 2 * kAhead>, 4);
  if (num_rows == 3) tile(micro_row_tile<W, 3, 1, 2 * kAhead>, 3);
  if (num_rows >= 2) tile(micro_row_tile<W, 2, 2, kAhead>, 2);
#ifdef __aarch64__
  constexpr int kRowAhead = kAhead;
#else
  constexpr int kRowAhead = 0;  // Zen 4's hardware prefetch: 1.05 times the rate
#endif
  if (num_rows >= 1) tile(micro_row_tile<W, 1, 4, kRowAhead>, 1);
#endif
}

// The same; asks for next[j] meanwhile, as many bytes as of b[j] are read, where that was measured.
template <typename W>
static void micro_gemm_asking(const float* a, int64_t a_stride, int64_t num_rows, const char* const* b,
                              int64_t num_blocks, int64_t num_k, float* c, int64_t c_stride,
                              [[maybe_unused]] const char* const* next) {
#ifdef SPATE_CODE_TILES
  constexpr int64_t kLeastRows = 4;  // fewer are limited by memory: what they read is asked for as they go
  if (num_rows >= kLeastRows) {
    BlocksAhead ahead{.row_bytes = ceil_div(W::kRowBytes, ceil_div(num_rows, 6))};
    for (int64_t j = 0; j < num_blocks; ++j) ahead.next[j] = next[j];
    const auto tile = [&](auto* row_tile, int64_t rows) {
      row_tile(a, a_stride, b, num_blocks, num_k, c, c_stride, ahead);
      for (int64_t j = 0; j < num_blocks; ++j) ahead.next[j] += num_k / W::kRowK * ahead.row_bytes;
      a += rows * a_stride;
      c += rows * c_stride;
      num_rows -= rows;
    };
    while (num_rows >= 6) tile(micro_row_tile<W, 6, 1, kAsksNext>, 6);
    if (num_rows >= 4) tile(micro_row_tile<W, 4, 1, kAsksNext>, 4);
    if (num_rows == 3) tile(micro_row_tile<W, 3, 1, kAsksNext>, 3);
    if (num_rows >= 2) tile(micro_row_tile<W, 2, 2, kAsksNext>, 2);
    if (num_rows >= 1) tile(micro_row_tile<W, 1, 4, kAsksNext>, 1);
    return;
  }
#endif
  micro_gemm<W>(a, a_stride, num_rows, b, num_blocks, num_k, c, c_stride);
}

}  // namespace spate::cpu::SPATE_ISA
