// Between the products of many rows (gemm_amx.h) and the output: how sums become rows of it, a few at a time beside tile
// products; and those products, two blocks of rows by two n-blocks.
#pragma once

#include "backend/cpu/kernel/amx.h"
#include "backend/cpu/kernel/gemm_epilogue.h"
#include "backend/cpu/kernel/gemm_int.h"
#include "backend/cpu/kernel/int4_unpack.h"
#include "backend/cpu/kernel/split_pairs.h"

namespace spate::cpu::SPATE_ISA {

// Output n-blocks of a pair of weight n-blocks, and weight n-blocks of an output n-block.
SPATE_INLINE int64_t blocks_per_pair(const GemmParams& p) { return p.silu_and_mul ? 1 : 2; }
SPATE_INLINE int64_t blocks_per_column(const GemmParams& p) { return p.silu_and_mul ? 2 : 1; }

constexpr int64_t kPairBytes = 2 * kNBlock * 4;  // of a row's sums of a pair of n-blocks

// Nearly all outputs.
SPATE_INLINE bool is_bf16_without_bias(const GemmParams& p) {
  return p.bias == nullptr && p.x_elem == Elem::kBf16 && p.out_elem == Elem::kBf16;
}

// Where a pair of n-blocks goes.
struct BlockPair {
  const char* b0;
  const char* b1;   // null: there is no second
  int64_t n_block;  // of the output
};

SPATE_INLINE void finish_rows(const GemmParams& p, const BlockPair& pair, int64_t first_row, int64_t end_row,
                              const float* sums) {
  constexpr int64_t kStride = 2 * kNBlock;
  if (p.silu_and_mul || pair.b1 == nullptr) {
    finish_n_blocks(p, first_row, end_row, pair.n_block, 1, sums, sums + kNBlock, kStride);
  } else {
    finish_n_blocks(p, first_row, end_row, pair.n_block, 2, sums, nullptr, kStride);
  }
}

// Scales and offsets of a pair of n-blocks of whole rows of int8.
struct PairScales {
  F scale[2], offset[2];
};
SPATE_INLINE PairScales pair_scales(const GemmParams& p, const BlockPair& pair) {
  const IntLayout& w = p.weight_ints;
  PairScales at;
  for (int j = 0; j < 2; ++j) {
    const char* block = j == 0 || pair.b1 == nullptr ? pair.b0 : pair.b1;
    at.scale[j] = load_scales(block + w.scales_offset(), w.scale_bytes, 0, 0);
    at.offset[j] = w.has_offsets ? load_scales(block + w.offsets_offset(), w.scale_bytes, 0, 0) : zero();
  }
  return at;
}

// The sums of column block j of a row, from i32 sums of whole rows.
SPATE_INLINE F complete_sum(const GemmParams& p, const IntX& x, const PairScales& scales, int64_t row,
                            const float* sums, int j) {
  const F sum = add_group(zero(), int_load(sums + j * kNBlock), set1(x.scales[row]), scales.scale[j]);
  return p.weight_ints.has_offsets ? fma(set1(x.sums[row]), scales.offset[j], sum) : sum;
}

// What nearly all outputs are. The vector units do one operation a cycle beside tile products, so every one here counts.
SPATE_INLINE bool is_plain(const GemmParams& p, const BlockPair& pair) {
  return is_bf16_without_bias(p) && pair.b1 != nullptr && (pair.n_block + blocks_per_pair(p)) * kNBlock <= p.n;
}

SPATE_INLINE F silu_and_mul_bf16(F gate, F up) { return mul(silu_as<bf16_t>(round_bf16(gate)), round_bf16(up)); }
// The same of two rows, in the halves of a line, with half the operations for rounding (split_pairs.h).
SPATE_INLINE __m512i silu_and_mul_two_rows(F gate0, F gate1, F up0, F up1) {
  const PairOfVectors gate = split(round_pair(gate0, gate1));
  const PairOfVectors y = split(round_pair(silu_before_bf16(gate.even), silu_before_bf16(gate.odd)));
  return round_in_order<2>(mul(y, split(after_one_split(round_pair(up0, up1)))));
}

SPATE_INLINE void finish_plain_rows(const GemmParams& p, const BlockPair& pair, int64_t first_row, int64_t end_row,
                                    const float* sums) {
  const int64_t out_stride = p.out_stride;
  bf16_t* out = static_cast<bf16_t*>(p.out) + first_row * out_stride + pair.n_block * kNBlock;
  for (int64_t row = first_row; row < end_row; ++row, sums += 2 * kNBlock, out += out_stride) {
    const F first = load(sums), second = load(sums + kNBlock);
    if (p.silu_and_mul) {
      store(out, silu_and_mul_bf16(first, second));
    } else {
      _mm512_storeu_si512(out, round_pair(first, second));
    }
  }
}

// Adds the outliers of rows to their complete sums.
SPATE_INLINE void add_pair_outliers(const GemmParams& p, const BlockPair& pair, int64_t first_row, int64_t end_row,
                                    float* sums) {
  const IntX x = int_x(p);
  const char* const n_blocks[2] = {pair.b0, pair.b1};
  for (int64_t row = first_row; row < end_row; ++row, sums += 2 * kNBlock) {
    add_outliers(p, x, row, n_blocks, pair.b1 == nullptr ? 1 : 2, sums);
  }
}

// i32 sums of whole rows become f32, in place, with what their outliers give.
SPATE_INLINE void dequantize_rows(const GemmParams& p, const BlockPair& pair, int64_t first_row, int64_t end_row,
                                  float* sums) {
  const IntX x = int_x(p);
  const PairScales scales = pair_scales(p, pair);
  float* const first_sums = sums;
  for (int64_t row = first_row; row < end_row; ++row, sums += 2 * kNBlock) {
    for (int j = 0; j < (pair.b1 == nullptr ? 1 : 2); ++j) {
      store(sums + j * kNBlock, complete_sum(p, x, scales, row, sums, j));
    }
  }
  add_pair_outliers(p, pair, first_row, end_row, first_sums);
}

// How the rows of an item are finished: bf16 without bias (kLine: 32 columns; kSilu: 16), or anything.
enum class Finish : uint8_t { kLine, kSilu, kAny };

// Rows whose sums are complete, to be finished a few at a time between tile products.
struct PendingRows {
  BlockPair pair = {};
  int64_t left = 0;       // rows
  int64_t row = 0;        // the first of them, of Finish::kAny
  float* sums = nullptr;  // of that row, as the next pointers
  bf16_t* out = nullptr;
  int64_t out_stride = 0;
  // Past the caches, a line at a time; of silu's with the 16 columns before these, which were kept.
  bool stream = false;
  const bf16_t* kept = nullptr;
  const float* x_scales = nullptr;  // kInts
  F scale[2] = {};                  // of columns; kInts
};

// The sums of the next row, which is then taken.
struct SumsOfRow {
  F first, second;
};
template <bool kInts>
SPATE_INLINE SumsOfRow take_sums(PendingRows& pending) {
  const float* sums = pending.sums;
  --pending.left;
  pending.sums += 2 * kNBlock;
  if constexpr (!kInts) return {load(sums), load(sums + kNBlock)};
  const F x_scale = set1(*pending.x_scales++);
  return {add_group(zero(), int_load(sums), x_scale, pending.scale[0]),
          add_group(zero(), int_load(sums + kNBlock), x_scale, pending.scale[1])};
}

SPATE_INLINE void stream_line(const PendingRows& pending, __m512i line) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(pending.out - kNBlock), line);
}
SPATE_INLINE __m256i kept_columns(const PendingRows& pending) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pending.kept));
}
SPATE_INLINE void next_silu_row(PendingRows& pending) {
  pending.out += pending.out_stride;
  pending.kept += kNBlock;
}

template <bool kInts, bool kSilu>
SPATE_INLINE void finish_row(PendingRows& pending) {
  const SumsOfRow sums = take_sums<kInts>(pending);
  if constexpr (kSilu) {
    const F y = silu_and_mul_bf16(sums.first, sums.second);
    if (pending.stream) {
      stream_line(pending, _mm512_inserti64x4(_mm512_castsi256_si512(kept_columns(pending)), f32_to_bf16(y), 1));
    } else {
      store(pending.out, y);
    }
    next_silu_row(pending);
  } else {
    const __m512i line = round_pair(sums.first, sums.second);
    if (pending.stream) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(pending.out), line);
    } else {
      _mm512_storeu_si512(pending.out, line);
    }
    pending.out += pending.out_stride;
  }
}

template <bool kInts, bool kSilu>
SPATE_INLINE void finish_two_rows(PendingRows& pending) {
  if constexpr (!kSilu) {
    finish_row<kInts, false>(pending);
    finish_row<kInts, false>(pending);
  } else {
    const SumsOfRow sums0 = take_sums<kInts>(pending), sums1 = take_sums<kInts>(pending);
    const __m512i rows = silu_and_mul_two_rows(sums0.first, sums1.first, sums0.second, sums1.second);
    const __m256i row0 = _mm512_castsi512_si256(rows);
    if (pending.stream) {
      stream_line(pending, _mm512_inserti64x4(_mm512_castsi256_si512(kept_columns(pending)), row0, 1));
      next_silu_row(pending);
      stream_line(pending, _mm512_inserti64x4(rows, kept_columns(pending), 0));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pending.out), row0);
      next_silu_row(pending);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pending.out), _mm512_extracti64x4_epi64(rows, 1));
    }
    next_silu_row(pending);
  }
}

template <bool kInts>
static __attribute__((noinline)) void finish_any_rows(const GemmParams& p, PendingRows& pending, int64_t num_rows) {
  const int64_t count = min_of(pending.left, num_rows), end = pending.row + count;
  if constexpr (kInts) dequantize_rows(p, pending.pair, pending.row, end, pending.sums);
  finish_rows(p, pending.pair, pending.row, end, pending.sums);
  pending.sums += count * 2 * kNBlock;
  pending.row = end;
  pending.left -= count;
}

template <bool kInts, Finish kFinish>
SPATE_INLINE void finish_all(const GemmParams& p, PendingRows& pending) {
  if constexpr (kFinish == Finish::kAny) {
    if (pending.left > 0) finish_any_rows<kInts>(p, pending, pending.left);
  } else {
    while (pending.left > 0) finish_row<kInts, kFinish == Finish::kSilu>(pending);
  }
}

// The tiles of a pair of n-blocks as they lie in memory, and the lines to ask for beside their products: of the tiles to
// come. kFew: up to 64 rows, the first pair of row blocks: the tiles themselves come from memory, asked for just before.
template <bool kFew>
struct StoredTiles {
  const char* tiles[2];  // of the step
  const char* next[2];   // next[1]: only when rows pass once; else null
  int64_t lines;         // to ask for in a step, of next[0], 2 at least; of next[1] 16

  __attribute__((always_inline)) const char* tile(int j) const {
    if constexpr (kFew) prefetch_lines_l1(tiles[j] + 2 * kTileBytes);
    return tiles[j];
  }
  __attribute__((always_inline)) void next_step() {
    for (int j = 0; j < 2; ++j) tiles[j] += kTileBytes;
    _mm_prefetch(next[0], _MM_HINT_T1);
    _mm_prefetch(next[0] + 64, _MM_HINT_T1);
    for (int64_t line = 2; line < lines; ++line) _mm_prefetch(next[0] + line * 64, _MM_HINT_T1);
    next[0] += lines * 64;
    if (!kFew || next[1] == nullptr) return;
    for (int64_t line = 0; line < 16; ++line) _mm_prefetch(next[1] + line * 64, _MM_HINT_T1);
    next[1] += kTileBytes;
  }
};

// Those of int4, which are unpacked on the way.
struct UnpackedTiles {
  Int4Tiles* tiles;
  int64_t step = 0;

  __attribute__((always_inline)) const char* tile(int j) const { return tiles->tile(step, j); }
  __attribute__((always_inline)) void next_step() { tiles->unpack_some(step++); }
};

// Sums of two row blocks by a pair of n-blocks; kPairBytes apart.
struct PairSums {
  const float* from;  // what is added to; null: nothing
  float* to;
};

// A step of 32 k (64 of int8). Each tile of sums is loaded or cleared just before its first product and stored behind its
// last, so that the others go on. kFew: A is in L1; else it comes from L2 and must not drive B out of L1.
template <bool kInts, bool kFew, bool kFirst, bool kLast, typename Tiles>
SPATE_INLINE void multiply_step(const TileRows& a, const Tiles& b, const PairSums& sums) {
  constexpr int64_t kLower = 16 * 2 * kNBlock;
#define SPATE_LOAD_A(tile, at)                  \
  if constexpr (kFew) {                         \
    _tile_loadd(tile, at, a.row_stride);        \
  } else {                                      \
    _tile_stream_loadd(tile, at, a.row_stride); \
  }
#define SPATE_ADD(c, a_tile, b_tile, at)                       \
  if (kFirst && sums.from == nullptr) {                        \
    _tile_zero(c);                                             \
  } else if (kFirst) {                                         \
    _tile_loadd(c, sums.from + (at), kPairBytes);              \
  }                                                            \
  SPATE_TILE_PRODUCT(c, a_tile, b_tile)                        \
  if constexpr (kLast) _tile_stored(c, sums.to + (at), kPairBytes);
  _tile_loadd(6, b.tile(0), 64);
  SPATE_LOAD_A(4, a.base)
  SPATE_ADD(0, 4, 6, 0)
  _tile_loadd(7, b.tile(1), 64);
  SPATE_ADD(1, 4, 7, kNBlock)
  SPATE_LOAD_A(5, a.base + a.block_stride)
  SPATE_ADD(2, 5, 6, kLower)
  SPATE_ADD(3, 5, 7, kLower + kNBlock)
#undef SPATE_ADD
#undef SPATE_LOAD_A
}

// All steps, with two rows of the pair of row blocks before finished beside each. Works on copies, which stay in registers
// where it is inlined; a call for each pair of row blocks, which takes them through memory, costs 8 to 17 %.
template <bool kInts, bool kFew, Finish kFinish, typename Tiles>
SPATE_INLINE void multiply_row_pair(const GemmParams& p, TileRows a, Tiles b, int64_t steps, const PairSums& sums,
                                    PendingRows& pending_rows) {
  PendingRows pending = pending_rows;
  const auto beside = [&]() __attribute__((always_inline)) {
    a.base += a.step_stride;
    b.next_step();
    if constexpr (kFinish == Finish::kAny) {
      if (pending.left > 0) finish_any_rows<kInts>(p, pending, 2);
    } else if (__builtin_expect(pending.left >= 2, 1)) {  // what is left over is finished with the rows of the next ones
      finish_two_rows<kInts, kFinish == Finish::kSilu>(pending);
    }
  };
  if (steps == 1) {
    multiply_step<kInts, kFew, true, true>(a, b, sums);
  } else {
    multiply_step<kInts, kFew, true, false>(a, b, sums);
    beside();
    for (int64_t s = steps - 2; s > 0; --s) {
      multiply_step<kInts, kFew, false, false>(a, b, sums);
      beside();
    }
    multiply_step<kInts, kFew, false, true>(a, b, sums);
  }
  beside();
  amx_fence();
  pending_rows = pending;
}

}  // namespace spate::cpu::SPATE_ISA
