// Sums of products by the instructions that multiply four bytes of k at a time and add to 32 bits: two bf16 (VDPBF16PS)
// or four codes (VPDPBUSD, SDOT); ARM's SMMLA and BFMMLA take two words at once. For AVX-512 without tiles, for
// AVX-VNNI and for ARM. AVX-512 without BF16 multiplies floats by FMA in the same tiles.
//
// A word is four bytes of k: a row of 64 bytes of an n-block holds one for each of its 16 columns. Every element adds
// its words one by one, in order, in one accumulator, whatever the number of rows and n-blocks: batch-invariant. Of FMA
// a word of weight is two bf16 or one float, and x is floats.
//
// AVX-512: 12 rows by 2 n-blocks hold 24 sums, 2 vectors of weight and one of x in the 32 registers, and load 14 times
// for 24 products. The instructions are written as assembly, so that no compiler copies the accumulators: GCC 12 did
// with the intrinsics in a loop over 12 row pointers. In a loop over a panel intrinsics were as fast (best of 15: 208
// and 203 GOP/s).
#pragma once

#include "backend/cpu/kernel/int_simd.h"
#include "backend/cpu/layout.h"

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
#define SPATE_DOTS  // of codes
#endif
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define SPATE_BF16_DOTS
#endif
#if defined(__AVX512VNNI__) && !defined(__AVX512BF16__)
#define SPATE_FLOAT_WORDS
#endif

#ifdef SPATE_DOTS
namespace spate::cpu::SPATE_ISA {

enum class Words { kBf16, kCodes, kTwoFloats, kFloat };
// Of a row of x, for a word of weight.
constexpr int64_t x_word_bytes(Words words) { return words == Words::kTwoFloats ? 8 : 4; }

// Rows of x are worked on in panels of equal height, a multiple of kRowsTogether, and units of kUnitWords words.
// kUnsignedWeight: a product takes codes of the weight as 128 more than they are.
#ifdef __AVX512VNNI__
constexpr int64_t kMaxPanelRows = 12, kFewPanelRows = 6, kRowsTogether = 1, kUnitWords = 1;
constexpr bool kUnsignedWeight = true;
#elif defined(__AVXVNNI__)
constexpr int64_t kMaxPanelRows = 6, kFewPanelRows = 0, kRowsTogether = 1, kUnitWords = 1;
constexpr bool kUnsignedWeight = true;
#elif defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int64_t kMaxPanelRows = 12, kFewPanelRows = 0, kRowsTogether = 2, kUnitWords = 2;
constexpr bool kUnsignedWeight = false;
#else
constexpr int64_t kMaxPanelRows = 6, kFewPanelRows = 0, kRowsTogether = 1, kUnitWords = 1;
constexpr bool kUnsignedWeight = false;
#endif
constexpr int64_t kUnitBytes = kUnitWords * 4;
struct Panels {
  int64_t count, rows;  // rows of each
};
SPATE_INLINE Panels panels_of(int64_t m) {
  const int64_t count = ceil_div(m, kMaxPanelRows);
  return {count, round_up(ceil_div(m, count), kRowsTogether)};
}
// Calls fn with the height of a panel as a constant, fn(PanelRows<rows>()).
template <int kRows>
struct PanelRows {
  static constexpr int kCount = kRows;
};
template <int kRows = kRowsTogether, typename Fn>
SPATE_INLINE void for_panel_rows(int64_t rows, const Fn& fn) {
  if constexpr (kRows < kMaxPanelRows) {
    if (rows > kRows) return for_panel_rows<kRows + kRowsTogether>(rows, fn);
  }
  fn(PanelRows<kRows>());
}
// n-blocks that a tile of so many rows takes.
SPATE_INLINE constexpr int64_t blocks_at_once(int64_t panel_rows) { return panel_rows <= kFewPanelRows ? 4 : 2; }

constexpr int kMaxTileBlocks = 4;
constexpr int64_t kTileStride = kMaxTileBlocks * kNBlock;  // of sums, from row to row

// Lines that will be read soon, of as many streams as a tile has n-blocks: asked for a few at each word.
struct LinesAhead {
  const char* first[kMaxTileBlocks];
  int64_t bytes_a_word;  // of each
};

// The words of n-blocks may lie in several segments of memory.
constexpr int kMaxSegments = 8;
struct DotTile {
  const char* x;
  const char* blocks[kMaxSegments][kMaxTileBlocks];
  int64_t num_segments = 1;
  int64_t num_words;  // of each segment
  float* sums;        // of words of codes i32
  bool accumulate;    // else the sums begin at zero
  LinesAhead ahead;
};

}  // namespace spate::cpu::SPATE_ISA
#endif

#if defined(__ARM_FEATURE_DOTPROD)
#include "backend/cpu/kernel/neon/dot_tile.h"
#elif defined(__AVXVNNI__)
namespace spate::cpu::SPATE_ISA {

// The form without EVEX, which the assembler would choose.
SPATE_INLINE void add_unsigned_by_signed(I& sums, I unsigned_codes, I codes) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(unsigned_codes), "x"(codes));
}
SPATE_INLINE I unsigned_of(I codes) { return int_xor(codes, _mm256_set1_epi8(static_cast<char>(0x80))); }

// Up to 6 rows by one n-block: 12 sums, 2 vectors of weight and one of x in 16 registers.
template <int kRows, int64_t kRowStride, int64_t kWordStride, bool kAhead>
SPATE_INLINE void multiply_n_block(const DotTile& tile, int64_t j, int64_t sum_stride) {
  I sums[kRows][kVecs];
  float* out = tile.sums + j * kNBlock;
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = tile.accumulate ? int_load(out + r * sum_stride + v * kLanes) : int_zero();
    }
  }
  const char* x = tile.x;
  [[maybe_unused]] const char* ahead = tile.ahead.first[j];
  for (int64_t segment = 0; segment < tile.num_segments; ++segment) {
    const char* row = tile.blocks[segment][j];
    for (int64_t word = 0; word < tile.num_words; ++word, x += kWordStride, row += 64) {
      if constexpr (kAhead) {
        prefetch_to_l2(ahead);
        ahead += tile.ahead.bytes_a_word;
      }
      const I w[kVecs] = {unsigned_of(int_load(row)), unsigned_of(int_load(row + 32))};
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        int32_t word_of_row;
        __builtin_memcpy(&word_of_row, x + r * kRowStride, 4);
        const I all = int_set1(word_of_row);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) add_unsigned_by_signed(sums[r][v], w[v], all);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) int_store(out + r * sum_stride + v * kLanes, sums[r][v]);
  }
}

// A function of its own: see below.
template <Words kWords, int kRows, int64_t kRowStride, int64_t kWordStride, bool kAhead>
static __attribute__((noinline)) void multiply_blocks(const DotTile& tile, int64_t num_blocks, int64_t sum_stride) {
  static_assert(kWords == Words::kCodes, "bf16 is multiplied by FMA");
  for (int64_t j = 0; j < num_blocks; ++j)
    multiply_n_block<kRows, kRowStride, kWordStride, kAhead>(tile, j, sum_stride);
}

}  // namespace spate::cpu::SPATE_ISA
#elif defined(__AVX512VNNI__)
namespace spate::cpu::SPATE_ISA {

SPATE_INLINE void add_unsigned_by_signed(I& sums, I unsigned_codes, I codes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(unsigned_codes), "v"(codes));
}

// codes: four, for all columns.
SPATE_INLINE void add_products_with_word(I& sums, I unsigned_codes, const int8_t* codes) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(unsigned_codes), "m"(*reinterpret_cast<const int32_t*>(codes)));
}

#ifdef SPATE_FLOAT_WORDS
// x: a float, for all columns.
SPATE_INLINE void add_floats_by_word(I& sums, I w, const char* x) {
  asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(w), "m"(*reinterpret_cast<const float*>(x)));
}
#endif

// w: of an n-block, of codes 128 more than they are; x: a word in all lanes.
template <Words kWords>
SPATE_INLINE void add_products(I& sums, I w, I x) {
  if constexpr (kWords == Words::kCodes) {
    add_unsigned_by_signed(sums, w, x);
  } else if constexpr (kWords != Words::kBf16) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sums) : "v"(w), "v"(x));
  } else {
#ifdef __AVX512BF16__
    asm("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(w), "v"(x));
#endif
  }
}

// Of two floats the first or the second.
template <Words kWords, int kStep>
SPATE_INLINE I load_row(const char* row) {
  if constexpr (kWords == Words::kTwoFloats) return bits_of(kStep == 0 ? even_k(row) : odd_k(row));
  if constexpr (kWords != Words::kCodes) return int_load(row);
  return int_xor(int_load(row), _mm512_set1_epi8(static_cast<char>(0x80)));
}

// kRows rows of x, whose words are kRowStride bytes apart from row to row and kWordStride from word to word, times
// kBlocks n-blocks.
template <Words kWords, int kRows, int kBlocks, int64_t kRowStride, int64_t kWordStride, bool kAhead>
SPATE_INLINE void multiply_tile(const DotTile& tile, int64_t sum_stride) {
  I sums[kRows][kBlocks];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      sums[r][j] = tile.accumulate ? int_load(tile.sums + r * sum_stride + j * kNBlock) : int_zero();
    }
  }
  const char* x = tile.x;
  [[maybe_unused]] const char* ahead[kBlocks];
  for (int j = 0; j < kBlocks && kAhead; ++j) ahead[j] = tile.ahead.first[j];
  for (int64_t segment = 0; segment < tile.num_segments; ++segment) {
    const char* rows[kBlocks];
    for (int j = 0; j < kBlocks; ++j) rows[j] = tile.blocks[segment][j];
    const auto add_rows = [&](const char* at, const I* w) __attribute__((always_inline)) {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        int32_t word_of_row;
        __builtin_memcpy(&word_of_row, at + r * kRowStride, 4);
        const I all = int_set1(word_of_row);
#pragma GCC unroll 4
        for (int j = 0; j < kBlocks; ++j) add_products<kWords>(sums[r][j], w[j], all);
      }
    };
    for (int64_t word = 0; word < tile.num_words; ++word, x += kWordStride) {
      I w[kBlocks];
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) {
        w[j] = load_row<kWords, 0>(rows[j]);
        if constexpr (kWords != Words::kTwoFloats) rows[j] += 64;
        if constexpr (kAhead) {
          _mm_prefetch(ahead[j], _MM_HINT_T1);
          ahead[j] += tile.ahead.bytes_a_word;
        }
      }
      add_rows(x, w);
      if constexpr (kWords == Words::kTwoFloats) {
#pragma GCC unroll 4
        for (int j = 0; j < kBlocks; ++j) {
          asm("" : "+r"(rows[j]));  // read anew: no register is left to keep the row in
          w[j] = load_row<kWords, 1>(rows[j]);
          rows[j] += 64;
        }
        add_rows(x + 4, w);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) int_store(tile.sums + r * sum_stride + j * kNBlock, sums[r][j]);
  }
}

// A tile of blocks_at_once() n-blocks; fewer go one by one. A function of its own: GCC 12 keeps the sums of tiles that
// it inlined into a switch over their heights in memory, with a load and a store for each product.
template <Words kWords, int kRows, int64_t kRowStride, int64_t kWordStride, bool kAhead>
static __attribute__((noinline)) void multiply_blocks(const DotTile& tile, int64_t num_blocks, int64_t sum_stride) {
  constexpr int kBlocks = blocks_at_once(kRows);
  if (num_blocks == kBlocks) {
    return multiply_tile<kWords, kRows, kBlocks, kRowStride, kWordStride, kAhead>(tile, sum_stride);
  }
  DotTile single = tile;
  for (int64_t j = 0; j < num_blocks; ++j, single.sums += kNBlock) {
    for (int64_t i = 0; i < tile.num_segments; ++i) single.blocks[i][0] = tile.blocks[i][j];
    single.ahead.first[0] = tile.ahead.first[j];
    multiply_tile<kWords, kRows, 1, kRowStride, kWordStride, kAhead>(single, sum_stride);
  }
}

}  // namespace spate::cpu::SPATE_ISA
#endif
