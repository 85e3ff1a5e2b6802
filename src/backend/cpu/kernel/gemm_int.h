// Products with integer weights on the vector units: VNNI, SDOT, or multiply-add of bytes.
//
// The codes of a group are multiplied and summed as integers, exactly, and each group's dot is added to the f32 sum of
// its element in the order of groups (add_group): so the bits are the same for all instruction sets and batch sizes.
//
// The outliers of a row are not among the dots: each is multiplied with its column of codes in f32, in the order of k,
// and their sum joins the complete sum of the row's element.
//
// Two-level scales: the dots of a multiplier's k are multiplied by it and added as integers. For 64 k by 16 columns and
// one row that is 44 operations, 3 of them the joining; codes that are multiplied first take 56 and a sum of x less.
#pragma once

#include "backend/cpu/kernel/dot_tile.h"
#include "backend/cpu/kernel/gemm_epilogue.h"
#include "backend/cpu/kernel/int_pack.h"
#include "backend/cpu/kernel/int_tile.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kIntGroup = 4;          // n-blocks worked on together
constexpr int64_t kIntRowsPerChunk = 48;  // rows of x that stay in L2: 48 x 3072 B = 147 KB
constexpr int64_t kIntAhead = 1024;       // bytes that memory is asked for ahead, in each n-block

// A product of codes by codes; other integer weights become floats (dequantize.h).
SPATE_INLINE bool is_int(const GemmParams& p) { return p.weight_ints.codes != CodeType::kNone && p.quantizes_x; }

#if (defined(__AVX512BF16__) && !defined(__AMX_INT8__)) || \
    (defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__))
#define SPATE_STREAMS_ROW
constexpr int64_t kStreamSiluBlocks = 8;  // n-blocks of gate that are read one after the other, then as many of up

// Whether a product of one row reads as stream_n_blocks() does. int4 of more k is read faster by four streams, each
// long enough for hardware to run ahead; of 1,024 k they end after two pages. Intel's CPUs read four streams that are
// asked for faster (int_rows()).
constexpr int64_t kMaxStreamInt4K = 2048;
SPATE_INLINE bool streams_row(const GemmParams& p) {
  const IntLayout& w = p.weight_ints;
  if (p.m != 1 || __builtin_cpu_is("intel")) return false;
#ifdef __AVX512F__
  if (w.codes == CodeType::kInt8) return w.num_groups == 1;
#endif
  return w.multiplier_k >= kIntKStep && w.k_padded <= kMaxStreamInt4K;
}
#endif

static GemmPlan int_plan(const GemmParams& p, int num_threads) {
  GemmPlan plan;
  plan.packed_x_bytes = int_x_bytes(p.m, p.weight_ints);
  plan.rows_per_chunk = kIntRowsPerChunk;
  plan.n_blocks_per_group = p.silu_and_mul ? kIntGroup / 2 : kIntGroup;
#ifdef SPATE_STREAMS_ROW
  if (p.silu_and_mul && streams_row(p)) plan.n_blocks_per_group = kStreamSiluBlocks;
#endif
  const int64_t row_chunks = ceil_div(p.m, plan.rows_per_chunk), n_blocks = ceil_div(p.n, kNBlock);
  while (plan.n_blocks_per_group > 1 && row_chunks * ceil_div(n_blocks, plan.n_blocks_per_group) < 2 * num_threads) {
    plan.n_blocks_per_group /= 2;
  }
  plan.scratch_bytes = kIntRowsPerChunk * kIntGroup * kNBlock * 4;
  return plan;
}

// Row after row.
static void int_pack_rows(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  const IntX x = int_x(p);
  for (int64_t r = first_row; r < first_row + num_rows; ++r) {
    pack_int_row<true>(p, x, r, [&](int64_t k) { return x.codes + r * p.weight_ints.k_padded + k; });
  }
}

// kLanes scales (or offsets) of group g from those of an n-block.
SPATE_INLINE F load_scales(const char* scales, int64_t scale_bytes, int64_t g, int64_t v) {
  const int64_t idx = g * kNBlock + v * kLanes;
  return scale_bytes == 4 ? load(reinterpret_cast<const float*>(scales) + idx) : load_halves(scales + idx * 2);
}

// The one way in which a group's dots join the sums: first by the scale of x, then by that of the weight.
SPATE_INLINE F add_group(F sum, I dot, F x_scale, F w_scale) { return fma(mul(to_float(dot), x_scale), w_scale, sum); }

SPATE_INLINE int32_t four_x(const int8_t* x) {
  int32_t word;
  __builtin_memcpy(&word, x, 4);
  return word;
}

template <int kRows, int kBlocks>
using Dots = I[kRows][kBlocks][kVecs];

// The eight rows of a half step one by one. Few rows of x have few products for the work of a loop; of more, a loop
// that is written out would hold more than registers do.
template <int kRows, typename Fn>
SPATE_INLINE void for_half_step_rows(const Fn& multiply_row) {
  if constexpr (kRows <= 2) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < 8; ++r) multiply_row(r);
  } else {
#pragma GCC unroll 1
    for (int64_t r = 0; r < 8; ++r) multiply_row(r);
  }
}

#ifdef __AVX512VNNI__

// Row r of the half step (32 k: 8 rows of 4) as unsigned bytes.
template <CodeType kCodes>
SPATE_INLINE I unsigned_codes(const char* row, [[maybe_unused]] bool high) {
  if constexpr (kCodes == CodeType::kInt8) {
    return _mm512_xor_si512(int_load(row), _mm512_set1_epi8(static_cast<char>(0x80)));
  } else {
    const I packed = int_load(row);
    return int_and(high ? _mm512_srli_epi16(packed, 4) : packed, _mm512_set1_epi8(15));
  }
}

template <CodeType kCodes, int kRows, int kBlocks>
SPATE_INLINE void half_step(const int8_t* const* x, const char* const* rows, bool high, Dots<kRows, kBlocks>& dots) {
  for_half_step_rows<kRows>([&](int64_t r) __attribute__((always_inline)) {
    I w[kBlocks];
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) w[j] = unsigned_codes<kCodes>(rows[j] + r * 64, high);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const I four = int_set1(four_x(x[i] + r * 4));
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) add_unsigned_by_signed(dots[i][j][0], w[j], four);
    }
  });
}

#elif defined(__AVX512F__)
#error "the AVX-512 kernels need VNNI"
#elif defined(__AVXVNNI__)

template <CodeType kCodes, int kRows, int kBlocks>
SPATE_INLINE void half_step(const int8_t* const* x, const char* const* rows, bool high, Dots<kRows, kBlocks>& dots) {
  for_half_step_rows<kRows>([&](int64_t r) __attribute__((always_inline)) {
    I four[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) four[i] = int_set1(four_x(x[i] + r * 4));
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        I w = int_load(rows[j] + r * 64 + v * 32);
        if constexpr (kCodes == CodeType::kInt8) {
          w = unsigned_of(w);
        } else {
          w = int_and(high ? _mm256_srli_epi16(w, 4) : w, _mm256_set1_epi8(15));
        }
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) add_unsigned_by_signed(dots[i][j][v], w, four[i]);
      }
    }
  });
}

#elif defined(__aarch64__)

template <CodeType kCodes, int kRows, int kBlocks>
SPATE_INLINE void half_step(const int8_t* const* x, const char* const* rows, bool high, Dots<kRows, kBlocks>& dots) {
  for (int r = 0; r < 8; ++r) {
    I four[kRows];
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) four[i] = int_set1(four_x(x[i] + r * 4));
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        I w = int_load(rows[j] + r * 64 + v * 32);
        if constexpr (kCodes == CodeType::kInt4) w = high ? half_bytes<true>(w) : half_bytes<false>(w);
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) dots[i][j][v] = add_dots(dots[i][j][v], w, four[i]);
      }
    }
  }
}

#else

template <CodeType kCodes, int kRows, int kBlocks>
SPATE_INLINE void half_step(const int8_t* const* x, const char* const* rows, [[maybe_unused]] bool high,
                            Dots<kRows, kBlocks>& dots) {
  const I ones = _mm256_set1_epi16(1);
  if constexpr (kCodes == CodeType::kInt8) {
    for_half_step_rows<kRows>([&](int64_t r) __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) {
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          const I w = int_load(rows[j] + r * 64 + v * 32), magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 4
          for (int i = 0; i < kRows; ++i) {
            add_signed_products(dots[i][j][v], w, magnitude, int_set1(four_x(x[i] + r * 4)), ones);
          }
        }
      }
    });
  } else {
    // Eight sums of two products fit 16 bits: 8 * 2 * 15 * 127 = 30480.
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      I words[kVecs][kRows];
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) words[0][i] = words[1][i] = int_zero();
#pragma GCC unroll 1
      for (int64_t r = 0; r < 8; ++r) {
        I w[kVecs];
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          const I packed = int_load(rows[j] + r * 64 + v * 32);
          w[v] = int_and(high ? _mm256_srli_epi16(packed, 4) : packed, _mm256_set1_epi8(15));
        }
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          const I four = int_set1(four_x(x[i] + r * 4));
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) add_byte_products(words[v][i], w[v], four);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) dots[i][j][v] = int_add(dots[i][j][v], _mm256_madd_epi16(words[v][i], ones));
      }
    }
  }
}

#endif

// n-blocks worked on together, and those that come after them in memory.
struct IntBlocks {
  const char* block[kIntGroup];
  const char* next[kIntGroup];
  int64_t count;
};

// Asks for what the half step's place will need kIntAhead bytes later, and for the scales of the n-blocks after these.
template <CodeType kCodes, int kBlocks>
SPATE_INLINE void prefetch_half_step(const IntLayout& w, const IntBlocks& blocks, int64_t first, int64_t half,
                                     int64_t g) {
  if (kCodes == CodeType::kInt4 && half % 2 != 0) return;
  int64_t offset = (kCodes == CodeType::kInt8 ? half : half / 2) * 512 + kIntAhead;
  const bool behind = offset >= w.codes_bytes;
  if (behind) offset -= w.codes_bytes;
  for (int j = 0; j < kBlocks; ++j) {
    const char* from = (behind ? blocks.next : blocks.block)[first + j];
    for (int line = 0; line < 8; ++line) prefetch(from + offset + line * 64);
    const int64_t of_group =
        w.two_level() ? w.multipliers_offset() + g * kNBlock : w.scales_offset() + g * kNBlock * w.scale_bytes;
    prefetch(blocks.next[first + j] + of_group);
    if (w.has_offsets) prefetch(blocks.next[first + j] + w.offsets_offset() + g * kNBlock * w.scale_bytes);
  }
}

// Adds the dots of group g to the sums of kRows rows by kBlocks n-blocks, rows 64 floats apart.
template <int kRows, int kBlocks>
SPATE_INLINE void join_dots(const IntLayout& w, const IntX& x, const int64_t* idx, const char* const* blocks, int64_t g,
                            const Dots<kRows, kBlocks>& dots, float* sums) {
  constexpr int64_t kStride = kIntGroup * kNBlock;
#pragma GCC unroll 4
  for (int j = 0; j < kBlocks; ++j) {
    const char* scales = blocks[j] + w.scales_offset();
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const F scale = load_scales(scales, w.scale_bytes, g, v);
#pragma GCC unroll 12
      for (int i = 0; i < kRows; ++i) {
        float* at = sums + i * kStride + j * kNBlock + v * kLanes;
        const int64_t group = idx[i] + g * 16;
        F sum = add_group(g == 0 ? zero() : load(at), dots[i][j][v], set1(x.scales[group]), scale);
        if (w.has_offsets) {
          sum = fma(set1(x.sums[group]), load_scales(blocks[j] + w.offsets_offset(), w.scale_bytes, g, v), sum);
        }
        store(at, sum);
      }
    }
  }
}

// Two levels: the dots of a multiplier's k times it join the totals of whole rows.
template <int kRows, int kBlocks>
SPATE_INLINE void add_multiplied(const char* const* multipliers, const Dots<kRows, kBlocks>& dots,
                                 Dots<kRows, kBlocks>& totals) {
#pragma GCC unroll 4
  for (int j = 0; j < kBlocks; ++j) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const I multiplier = load_bytes(multipliers[j] + v * kLanes);
#pragma GCC unroll 12
      for (int i = 0; i < kRows; ++i) totals[i][j][v] = int_add(totals[i][j][v], int_mul(dots[i][j][v], multiplier));
    }
  }
}

// kRows rows from `row` by n-blocks [first, first + kBlocks). sums: of `row` and block 0, rows 64 floats apart. A
// function of its own, its loops over rows and n-blocks written out: else GCC 12 keeps the dots in memory
// (tools/kernel_spills).
template <CodeType kCodes, bool kTwoLevel, int kRows, int kBlocks, bool kPrefetch>
static __attribute__((noinline)) void int_tile(const GemmParams& p, const IntX& x, int64_t row, const IntBlocks& blocks,
                                               int64_t first, float* sums) {
  const IntLayout& w = p.weight_ints;
  const int64_t run_halves = (kTwoLevel ? w.multiplier_k : w.group_k) / kIntHalfStep;
  const int64_t num_runs = int_num_starts(w), num_halves = w.k_padded / kIntHalfStep;
  const int8_t* codes[kRows];
  int64_t idx[kRows], start_idx[kRows];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    codes[i] = x.codes + (row + i) * w.k_padded;
    idx[i] = int_row_idx(row + i, w.num_groups);
    start_idx[i] = int_row_idx(row + i, num_runs);
  }
  sums += first * kNBlock;
  [[maybe_unused]] const char* multipliers[kBlocks];
  [[maybe_unused]] Dots<kRows, kBlocks> totals;
#pragma GCC unroll 4
  for (int j = 0; j < kBlocks && kTwoLevel; ++j) {
    multipliers[j] = blocks.block[first + j] + w.multipliers_offset();
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) totals[i][j][v] = int_zero();
    }
  }
  for (int64_t g = 0; g < num_runs; ++g) {
    Dots<kRows, kBlocks> dots;
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const I start = int_start_factor(kCodes) == 0 ? int_zero() : int_set1(x.starts[start_idx[i] + g * 16]);
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) {
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) dots[i][j][v] = start;
      }
    }
    const int64_t end_half = min_of((g + 1) * run_halves, num_halves);
    for (int64_t half = g * run_halves; half < end_half; ++half) {
      const char* rows[kBlocks];
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) {
        rows[j] = blocks.block[first + j] + (kCodes == CodeType::kInt8 ? half : half / 2) * 512;
      }
      const int8_t* at[kRows];
#pragma GCC unroll 12
      for (int i = 0; i < kRows; ++i) at[i] = codes[i] + half * kIntHalfStep;
      if constexpr (kPrefetch) prefetch_half_step<kCodes, kBlocks>(w, blocks, first, half, g);
      if (kCodes == CodeType::kInt4 && half % 2 != 0) {
        half_step<kCodes, kRows, kBlocks>(at, rows, true, dots);
      } else {
        half_step<kCodes, kRows, kBlocks>(at, rows, false, dots);
      }
    }
    if constexpr (kTwoLevel) {
      add_multiplied<kRows, kBlocks>(multipliers, dots, totals);
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) multipliers[j] += kNBlock;
    } else {
      join_dots<kRows, kBlocks>(w, x, idx, blocks.block + first, g, dots, sums);
    }
  }
  if constexpr (kTwoLevel) join_dots<kRows, kBlocks>(w, x, idx, blocks.block + first, 0, totals, sums);
}

template <CodeType kCodes, bool kTwoLevel, int kRows, int kBlocks, bool kPrefetch>
static void int_row_tile(const GemmParams& p, const IntX& x, int64_t row, const IntBlocks& blocks, float* sums) {
  int64_t j = 0;
  for (; j + kBlocks <= blocks.count; j += kBlocks) {
    int_tile<kCodes, kTwoLevel, kRows, kBlocks, kPrefetch>(p, x, row, blocks, j, sums);
  }
  if constexpr (kBlocks > 1) {
    for (; j < blocks.count; ++j) int_tile<kCodes, kTwoLevel, kRows, 1, kPrefetch>(p, x, row, blocks, j, sums);
  }
}

// Few rows take several n-blocks at once, as many streams of memory; many rows as much as the registers hold. How a
// single row reads is measured: on Zen 4 hardware prefetch beats asking. There int8 in one stream takes 0.67 to 0.82 of
// the time of four (two of AVX2) that are asked for, int4 is fastest in four. Of the others only a Xeon with AMX was
// measured; it reaches 93 to 96 % of its bandwidth by asking.
#if defined(__aarch64__)
constexpr bool kRowAsks = true;
constexpr int kRowInt8Blocks = 2, kRowInt4Blocks = 2;
#elif defined(__AVX512F__) && (!defined(__AVX512BF16__) || defined(__AMX_INT8__))
constexpr bool kRowAsks = true;
constexpr int kRowInt8Blocks = 4, kRowInt4Blocks = 4;
#else
constexpr bool kRowAsks = false;
constexpr int kRowInt8Blocks = 1, kRowInt4Blocks = 4;
#endif
template <CodeType kCodes, bool kTwoLevel>
static void int_rows(const GemmParams& p, const IntX& x, int64_t row, int64_t num_rows, const IntBlocks& blocks,
                     float* sums) {
  constexpr int kRowBlocks = kCodes == CodeType::kInt8 ? kRowInt8Blocks : kRowInt4Blocks;
  const auto tile = [&](auto* row_tile, int64_t rows) {
    row_tile(p, x, row, blocks, sums);
    row += rows;
    sums += rows * kIntGroup * kNBlock;
    num_rows -= rows;
  };
#ifdef __AVX512F__
  while (num_rows >= 12) tile(int_row_tile<kCodes, kTwoLevel, 12, 2, false>, 12);
  if (num_rows >= 8) tile(int_row_tile<kCodes, kTwoLevel, 8, 2, false>, 8);
  if (num_rows >= 4) tile(int_row_tile<kCodes, kTwoLevel, 4, 4, true>, 4);
  if (num_rows >= 2) tile(int_row_tile<kCodes, kTwoLevel, 2, 4, true>, 2);
#else
  while (num_rows >= 4) tile(int_row_tile<kCodes, kTwoLevel, 4, 1, false>, 4);
  if (num_rows >= 2) tile(int_row_tile<kCodes, kTwoLevel, 2, 1, true>, 2);
#endif
#if defined(__AVX2__) && (!defined(__AVX512F__) || (defined(__AVX512BF16__) && !defined(__AMX_INT8__)))
  // CPUs of both makers run these. On a Xeon four streams that are asked for take 0.7 to 0.8 of the time of int8.
  if (num_rows >= 1 && __builtin_cpu_is("intel")) return tile(int_row_tile<kCodes, kTwoLevel, 1, 4, true>, 1);
#endif
  if (num_rows >= 1) tile(int_row_tile<kCodes, kTwoLevel, 1, kRowBlocks, kRowAsks>, 1);
}

// Calls fn(blocks, first output n-block, number of output n-blocks) for kIntGroup n-blocks of the weight at a time.
template <typename Fn>
SPATE_INLINE void for_int_blocks(const GemmParams& p, int64_t first_n_block, int64_t num_n_blocks, const Fn& fn) {
  const IntLayout& w = p.weight_ints;
  const int64_t step = p.silu_and_mul ? kIntGroup / 2 : kIntGroup;
  for (int64_t group = first_n_block; group < first_n_block + num_n_blocks; group += step) {
    const int64_t count = min_of(step, first_n_block + num_n_blocks - group);
    IntBlocks blocks;
    blocks.count = p.silu_and_mul ? 2 * count : count;
    for (int64_t j = 0; j < blocks.count; ++j) {
      blocks.block[j] = p.weight + (j < count ? group + j : group + j - count + p.up_blocks) * w.block_bytes;
      blocks.next[j] = blocks.block[j] + step * w.block_bytes;
    }
    fn(blocks, group, count);
  }
}

// kLanes codes of column k of an n-block.
SPATE_INLINE I column_codes(const IntLayout& w, const char* n_block, int64_t k, int64_t v) {
  const int byte = static_cast<int>(k % 4);
  if (w.codes == CodeType::kInt8) {
    const I words = int_load(n_block + int8_offset(k - byte, v * kLanes));
    return int_shift_right<24>(int_shift_left(words, 24 - 8 * byte));
  }
  const I words = int_load(n_block + int4_offset(k - byte, v * kLanes));
  const I high = int_shift_left(words, (k % kIntKStep < kIntHalfStep ? 28 : 24) - 8 * byte);
  return int_shift_right<28>(int_xor(high, int_set1(static_cast<int32_t>(0x80000000u))));  // code + 8 without the 8
}

// Adds the products of a row's outliers with an n-block to its 16 sums.
static void add_outlier_products(const IntLayout& w, const Outlier* outliers, int64_t count, const char* n_block,
                                 float* sums) {
  const char *scales = n_block + w.scales_offset(), *offsets = n_block + w.offsets_offset();
  const bool whole_rows = w.num_groups == 1 && !w.has_offsets;
  for (int64_t v = 0; v < kVecs; ++v) {
    F sum = zero();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = outliers[i].k;
      F weight = to_float(column_codes(w, n_block, k, v));
      if (w.two_level()) {
        weight = mul(
            weight, to_float(load_bytes(n_block + w.multipliers_offset() + w.multiplier_of(k) * kNBlock + v * kLanes)));
      } else if (!whole_rows) {
        const int64_t g = k / w.group_k;
        const F offset = w.has_offsets ? load_scales(offsets, w.scale_bytes, g, v) : zero();
        weight = fma(weight, load_scales(scales, w.scale_bytes, g, v), offset);
      }
      sum = fma(set1(outliers[i].x), weight, sum);
    }
    float* at = sums + v * kLanes;
    const F before = load(at);
    store(at, whole_rows ? fma(sum, load_scales(scales, w.scale_bytes, 0, v), before) : add(before, sum));
  }
}

// The same of row `row` with some n-blocks.
SPATE_INLINE void add_outliers(const GemmParams& p, const IntX& x, int64_t row, const char* const* n_blocks,
                               int64_t num_blocks, float* sums) {
  const int64_t count = x.num_outliers[row];
  if (__builtin_expect(count == 0, 1)) return;
  for (int64_t j = 0; j < num_blocks; ++j) {
    add_outlier_products(p.weight_ints, x.outliers + row * kMaxOutliers, count, n_blocks[j], sums + j * kNBlock);
  }
}

// Complete dots of rows of codes by weights with one scale a row become sums, `stride` floats apart. A row's first
// start joins them: panels set it.
SPATE_INLINE void dots_to_sums(const GemmParams& p, const char* const* n_blocks, int64_t num_blocks, int64_t first_row,
                               int64_t num_rows, float* sums, int64_t stride) {
  const IntLayout& w = p.weight_ints;
  const IntX x = int_x(p);
  F scales[kIntGroup * kVecs], offsets[kIntGroup * kVecs];
  for (int64_t i = 0; i < num_blocks * kVecs; ++i) {
    const char* n_block = n_blocks[i / kVecs] + i % kVecs * kLanes * 4;
    scales[i] = load(reinterpret_cast<const float*>(n_block + w.scales_offset()));
    offsets[i] = w.has_offsets ? load(reinterpret_cast<const float*>(n_block + w.offsets_offset())) : zero();
  }
  for (int64_t row = first_row; row < first_row + num_rows; ++row, sums += stride) {
    const I start = int_set1(x.starts[int_row_idx(row, int_num_starts(w))]);
    const F x_scale = set1(x.scales[row]), x_sum = set1(x.sums[row]);
    for (int64_t i = 0; i < num_blocks * kVecs; ++i) {
      float* at = sums + i * kLanes;
      const F sum = add_group(zero(), int_add(int_load(at), start), x_scale, scales[i]);
      store(at, w.has_offsets ? fma(x_sum, offsets[i], sum) : sum);
    }
    add_outliers(p, x, row, n_blocks, num_blocks, sums);
  }
}

#ifdef SPATE_STREAMS_ROW
// A single row. An item's n-blocks go one after the other, line by line: where hardware prefetch is all that asks for
// lines, one stream is read faster than four. Sums go in chains that are added at last (the same integers), since in
// one each product would wait for the one before. int4: multipliers of whole steps; the upper codes stay where they are
// in their byte, 16 times as large.
constexpr int64_t kStreamAhead =
    12 * 1024;  // bytes of int4, which takes longer than memory; nearer lines are asked for by hardware

#ifdef __AVX512F__

// num_blocks n-blocks that lie one behind the other.
template <CodeType kCodes>
static void stream_n_blocks(const GemmParams& p, const IntX& x, const char* n_block, int64_t num_blocks, float* sums) {
  const IntLayout& w = p.weight_ints;
  const int64_t num_runs = int_num_starts(w), num_steps = w.k_padded / kIntKStep;
  const int64_t run_steps = kCodes == CodeType::kInt8 ? num_steps : w.multiplier_k / kIntKStep;
  const int64_t row = 0;
  [[maybe_unused]] const I low_bits = _mm512_set1_epi8(15), high_bits = _mm512_set1_epi8(static_cast<char>(0xf0));
  for (int64_t j = 0; j < num_blocks; ++j, n_block += w.block_bytes, sums += kNBlock) {
    const char* line = n_block;
    const int8_t* codes = x.codes;
    Dots<1, 1> total = {{{int_zero()}}};
    for (int64_t run = 0; run < num_runs; ++run) {
      I chain[4] = {int_set1(x.starts[run * 16]), int_zero(), int_zero(), int_zero()};
      const int64_t end_step = min_of((run + 1) * run_steps, num_steps);
      for (int64_t step = run * run_steps; step < end_step; ++step, codes += kIntKStep) {
        if constexpr (kCodes == CodeType::kInt8) {
#pragma GCC unroll 16
          for (int64_t r = 0; r < 16; ++r) {
            add_products_with_word(chain[r % 2], unsigned_codes<kCodes>(line + r * 64, false), codes + r * 4);
          }
          line += 1024;
        } else {
#pragma GCC unroll 8
          for (int64_t r = 0; r < 8; ++r) {
            prefetch(line + r * 64 + kStreamAhead);
            const I packed = int_load(line + r * 64);
            add_products_with_word(chain[r % 2], int_and(packed, low_bits), codes + r * 4);
            add_products_with_word(chain[2 + r % 2], int_and(packed, high_bits), codes + kIntHalfStep + r * 4);
          }
          line += 512;
        }
      }
      I dots = int_add(chain[0], chain[1]);
      if constexpr (kCodes == CodeType::kInt4) {
        dots = int_add(dots, int_shift_right<4>(int_add(chain[2], chain[3])));
        dots = int_mul(dots, load_bytes(n_block + w.multipliers_offset() + run * kNBlock));
      }
      total[0][0][0] = int_add(total[0][0][0], dots);
    }
    join_dots<1, 1>(w, x, &row, &n_block, 0, total, sums);
    add_outliers(p, x, row, &n_block, 1, sums);
  }
}

#else

// The same of int4 on AVX2; int8 is read one n-block at a time anyway. Each half of a step is summed in 16 bits
// (8 * 2 * 15 * 127 = 30480), and its multiplier makes 32 bits of it.
template <CodeType kCodes>
static void stream_n_blocks(const GemmParams& p, const IntX& x, const char* n_block, int64_t num_blocks, float* sums) {
  static_assert(kCodes == CodeType::kInt4, "int_tile() reads int8");
  const IntLayout& w = p.weight_ints;
  const int64_t num_steps = w.k_padded / kIntKStep, row = 0;
  const I low_bits = _mm256_set1_epi8(15);
  for (int64_t j = 0; j < num_blocks; ++j, n_block += w.block_bytes, sums += kNBlock) {
    const char *line = n_block, *multipliers = n_block + w.multipliers_offset();
    const int8_t* codes = x.codes;
    Dots<1, 1> total = {{{int_zero(), int_zero()}}};
    for (int64_t step = 0; step < num_steps; ++step, codes += kIntKStep, line += 512) {
      I low[kVecs] = {int_zero(), int_zero()}, high[kVecs] = {int_zero(), int_zero()};
#pragma GCC unroll 8
      for (int64_t r = 0; r < 8; ++r) {
        prefetch(line + r * 64 + kStreamAhead);
        const I four = int_set1(four_x(codes + r * 4)), later_four = int_set1(four_x(codes + kIntHalfStep + r * 4));
#pragma GCC unroll 2
        for (int64_t v = 0; v < kVecs; ++v) {
          const I packed = int_load(line + r * 64 + v * 32);
          const I later = _mm256_srli_epi16(packed, 4);
          add_byte_products(low[v], int_and(packed, low_bits), four);
          add_byte_products(high[v], int_and(later, low_bits), later_four);
        }
      }
      const int64_t run = w.multiplier_of(step * kIntKStep);
      const I start = int_set1(step * kIntKStep % w.multiplier_k == 0 ? x.starts[run * 16] : 0);
      for (int64_t v = 0; v < kVecs; ++v) {
        const I one = load_bytes(multipliers + run * kNBlock + v * kLanes);
        const I words = _mm256_or_si256(one, _mm256_slli_epi32(one, 16));
        const I dots = int_add(_mm256_madd_epi16(low[v], words), _mm256_madd_epi16(high[v], words));
        total[0][0][v] = int_add(total[0][0][v], int_add(dots, int_mul(start, one)));
      }
    }
    join_dots<1, 1>(w, x, &row, &n_block, 0, total, sums);
    add_outliers(p, x, row, &n_block, 1, sums);
  }
}

#endif

static void stream_row(const GemmParams& p, int64_t n_block, int64_t num_blocks, float* sums) {
  const IntX x = int_x(p);
  auto* run = stream_n_blocks<CodeType::kInt4>;
#ifdef __AVX512F__
  if (p.weight_ints.codes == CodeType::kInt8) run = stream_n_blocks<CodeType::kInt8>;
#endif
  const char* weight = p.weight + n_block * p.weight_ints.block_bytes;
  run(p, x, weight, num_blocks, sums);
  if (p.silu_and_mul)
    run(p, x, weight + p.up_blocks * p.weight_ints.block_bytes, num_blocks, sums + num_blocks * kNBlock);
  finish_n_blocks(p, 0, 1, n_block, num_blocks, sums, sums + num_blocks * kNBlock, 0);
}
#endif

static void gemm_int(const GemmParams& p, int64_t first_row, int64_t num_rows, int64_t first_n_block,
                     int64_t num_n_blocks, float* sums) {
#ifdef SPATE_STREAMS_ROW
  if (streams_row(p)) return stream_row(p, first_n_block, num_n_blocks, sums);
#endif
  const IntX x = int_x(p);
  for_int_blocks(p, first_n_block, num_n_blocks, [&](const IntBlocks& blocks, int64_t n_block, int64_t count) {
    if (p.weight_ints.codes == CodeType::kInt8) {
      int_rows<CodeType::kInt8, false>(p, x, first_row, num_rows, blocks, sums);
    } else if (p.weight_ints.two_level()) {
      int_rows<CodeType::kInt4, true>(p, x, first_row, num_rows, blocks, sums);
    } else {
      int_rows<CodeType::kInt4, false>(p, x, first_row, num_rows, blocks, sums);
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      add_outliers(p, x, first_row + r, blocks.block, blocks.count, sums + r * kIntGroup * kNBlock);
    }
    finish_n_blocks(p, first_row, first_row + num_rows, n_block, count, sums, sums + count * kNBlock,
                    kIntGroup * kNBlock);
  });
}

}  // namespace spate::cpu::SPATE_ISA
