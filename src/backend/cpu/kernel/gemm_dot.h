// linear by dot products of words (dot_tile.h): bf16 by bf16, and rows of int8 codes by int8 or two-level int4 weights.
// For AVX-512 without AMX, for AVX-VNNI, and for ARM. AVX-512 without BF16 takes bf16 as floats, by FMA, from
// kLeastFloatPanelRows rows on, with the bits of micro_gemm.h, which takes fewer.
//
// x is packed into panels of up to 12 rows, word by word: [panels][units][rows of a panel]. Panels are equally high, so
// that 16 rows are two of 8 and 32 rows three of 11. For 2 n-blocks (4 of up to 6 rows), kWordsAtOnce words at a time,
// all panels of a chunk pass by from L2, while the weight that comes next is asked for. So weight comes from memory at
// the pace of the products, few rows are limited by memory and more by arithmetic, and nothing is tuned to a number of
// rows.
//
// Weights that are no words yet become some in scratch, once for all rows of a chunk: two-level int4 becomes int8
// (int4_multiply.h), and codes whose x stays as it is become bf16 (dequantize.h).
#pragma once

#include "backend/cpu/kernel/dequantize.h"
#include "backend/cpu/kernel/dot_tile.h"
#include "backend/cpu/kernel/int4_multiply.h"

namespace spate::cpu::SPATE_ISA {

#ifdef SPATE_FLOAT_WORDS
constexpr Words kBf16Words = Words::kTwoFloats;
constexpr int64_t kLeastFloatPanelRows = 5;
#else
constexpr Words kBf16Words = Words::kBf16;
#endif
// The most panels of a chunk times the bytes of a word of x: 264 rows x 2 KB = 540 KB, half of L2.
constexpr int64_t kPanelWordBytes = 22 * 4;
#ifdef __AVXVNNI__
constexpr int64_t kWordsAtOnce = 256;  // 16 KB of an n-block
#else
constexpr int64_t kWordsAtOnce = 512;  // 64 KB of two n-blocks
#endif
// Fewer rows of codes are limited by memory and go to gemm_int.h. int4 becomes int8 in memory for panels, which few
// rows do not pay for.
#ifdef __AVX512BF16__
constexpr int64_t kLeastInt8PanelRows = 2, kLeastInt4PanelRows = 5;
#else
constexpr int64_t kLeastInt8PanelRows = 5, kLeastInt4PanelRows = 5;
#endif
constexpr int64_t kDotItemsPerThread = 32, kMaxBlocksPerItem = 8;

#ifdef SPATE_BF16_DOTS
SPATE_INLINE bool dots_take_bf16(const GemmParams& p) {
  return !is_int(p) && p.x_elem == Elem::kBf16 && p.weight_elem == Elem::kBf16;
}
#elif defined(SPATE_FLOAT_WORDS)
SPATE_INLINE bool dots_take_bf16(const GemmParams& p) {
  return !is_int(p) && p.x_elem == Elem::kBf16 && p.weight_elem == Elem::kBf16 && p.m >= kLeastFloatPanelRows;
}
#else
SPATE_INLINE bool dots_take_bf16(const GemmParams&) { return false; }
#endif
SPATE_INLINE bool dots_take_codes(const GemmParams& p) {
  const IntLayout& w = p.weight_ints;
  if (!is_int(p)) return false;
  return w.codes == CodeType::kInt8 ? w.scale_bytes == 4 && p.m >= kLeastInt8PanelRows
                                    : w.two_level() && p.m >= kLeastInt4PanelRows;
}
SPATE_INLINE bool dots_take(const GemmParams& p) { return dots_take_bf16(p) || dots_take_codes(p); }

SPATE_INLINE int64_t num_words(const GemmParams& p) {
  return is_int(p) ? p.weight_ints.k_padded / 4 : round_up(p.k, kKStep) / 2;
}
SPATE_INLINE int64_t word_bytes_of_x(const GemmParams& p) {
  return x_word_bytes(is_int(p) ? Words::kCodes : kBf16Words);
}
SPATE_INLINE int64_t max_panels(const GemmParams& p) { return kPanelWordBytes / word_bytes_of_x(p); }
// One row that needs no padding is a panel as it lies.
SPATE_INLINE bool dots_read_x_in_place(const GemmParams& p) {
  return kRowsTogether == 1 && !is_int(p) && p.m == 1 && p.k % kKStep == 0;
}
// Codes first lie as gemm_int.h would read them, with their scales and outliers behind.
SPATE_INLINE int64_t bytes_before_panels(const GemmParams& p) {
  return is_int(p) ? round_up(int_x_bytes(p.m, p.weight_ints), 64) : 0;
}
SPATE_INLINE const char* panels_of_x(const GemmParams& p) {
  return dots_read_x_in_place(p) ? static_cast<const char*>(p.x) : p.packed_x + bytes_before_panels(p);
}
SPATE_INLINE bool makes_words(const GemmParams& p) { return dequantizes(p) || p.weight_ints.two_level(); }

static GemmPlan dot_plan(const GemmParams& p, int num_threads) {
  const Panels panels = panels_of(p.m);
  const int64_t at_once = blocks_at_once(panels.rows), per_group = p.silu_and_mul ? at_once / 2 : at_once;
  const int64_t groups = ceil_div(ceil_div(p.n, kNBlock), per_group);
  GemmPlan plan;
  plan.packed_x_bytes = dots_read_x_in_place(p)
                            ? 0
                            : bytes_before_panels(p) + panels.count * panels.rows * num_words(p) * word_bytes_of_x(p);
  int64_t chunks = ceil_div(panels.count, max_panels(p));
  while (chunks < panels.count && chunks * groups < 2 * num_threads) ++chunks;
  plan.rows_per_chunk = ceil_div(panels.count, chunks) * panels.rows;
  int64_t groups_per_item = 1;
  while (groups_per_item * per_group < kMaxBlocksPerItem &&
         chunks * groups >= 2 * groups_per_item * kDotItemsPerThread * num_threads) {
    groups_per_item *= 2;
  }
  plan.n_blocks_per_group = groups_per_item * per_group;
  const bool parts = num_words(p) > kWordsAtOnce;
  plan.scratch_bytes = (parts ? plan.rows_per_chunk : panels.rows) * kTileStride * 4 +
                       (makes_words(p) ? at_once * kWordsAtOnce * 64 : 0);
  return plan;
}

// num_bytes at src as units `stride` apart, and zeros up to num_words words.
SPATE_INLINE void spread_words(const char* src, int64_t num_bytes, int64_t num_words, int64_t stride, char* out) {
  int64_t word = 0;
  for (; word + kUnitWords <= num_bytes / 4; word += kUnitWords) {
    __builtin_memcpy(out + word / kUnitWords * stride, src + word * 4, kUnitBytes);
  }
  for (; word < num_words; ++word) {
    uint32_t last = 0;
    for (int64_t i = word * 4; i < min_of(num_bytes, word * 4 + 4); ++i) {
      last |= static_cast<uint32_t>(static_cast<uint8_t>(src[i])) << (i % 4 * 8);
    }
    __builtin_memcpy(out + word / kUnitWords * stride + word % kUnitWords * 4, &last, 4);
  }
}

#ifdef SPATE_FLOAT_WORDS
// num_elements of bf16 as pairs of floats `stride` bytes apart, and zeros up to num_words pairs.
SPATE_INLINE void spread_floats(const char* src, int64_t num_elements, int64_t num_words, int64_t stride, char* out) {
  int64_t word = 0;
  for (; word + kLanes <= num_elements / 2; word += kLanes) {
    uint64_t pairs[kLanes];
    const I even = bits_of(even_k(src + word * 4)), odd = bits_of(odd_k(src + word * 4));
    int_store(pairs, _mm512_unpacklo_epi32(even, odd));
    int_store(pairs + kLanes / 2, _mm512_unpackhi_epi32(even, odd));
    // The halves of each four pairs lie in one lane of 128 bits of the two stores.
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) {
      const int64_t at = i / 4 * 2 + i % 2 + i % 4 / 2 * (kLanes / 2);
      __builtin_memcpy(out + (word + i) * stride, pairs + at, 8);
    }
  }
  for (; word < num_words; ++word) {
    const auto bits = [&](int64_t k) {
      uint16_t element = 0;
      if (k < num_elements) __builtin_memcpy(&element, src + k * 2, 2);
      return static_cast<uint64_t>(element) << 16;
    };
    const uint64_t pair = bits(2 * word) | bits(2 * word + 1) << 32;
    __builtin_memcpy(out + word * stride, &pair, 8);
  }
}
#endif

// What 128 more in each code of the weight adds to a row's dots, taken away again: of two levels, whose starts belong
// to codes that are 8 more, the whole row's goes to the first one.
SPATE_INLINE void join_starts(const GemmParams& p, const IntX& x, int64_t row) {
  if (!p.weight_ints.two_level()) return;
  const int64_t count = int_num_starts(p.weight_ints);
  int32_t* starts = x.starts + int_row_idx(row, count);
  int32_t total = 0;
  for (int64_t g = 0; g < count; ++g) total += starts[g * 16];
  starts[0] = kUnsignedWeight ? total * 16 : 0;
}

static void dot_pack_rows(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  const Panels panels = panels_of(p.m);
  const int64_t words = num_words(p), word_bytes = word_bytes_of_x(p), stride = panels.rows * kUnitWords * word_bytes;
  const int64_t end_row = first_row + num_rows == p.m ? panels.count * panels.rows : first_row + num_rows;
  char* packed = p.packed_x + bytes_before_panels(p);
  for (int64_t r = first_row; r < end_row; ++r) {
    char* out = packed + r / panels.rows * words * panels.rows * word_bytes + r % panels.rows * kUnitWords * word_bytes;
    if (r >= p.m) {
#ifdef SPATE_FLOAT_WORDS
      if (!is_int(p)) {
        spread_floats(nullptr, 0, words, stride, out);
        continue;
      }
#endif
      spread_words(nullptr, 0, words, stride, out);
    } else if (is_int(p)) {
      const IntX x = int_x(p);
      int8_t* codes = x.codes + r * p.weight_ints.k_padded;
      pack_int_row<true>(p, x, r, [&](int64_t k) { return codes + k; });
      join_starts(p, x, r);
      spread_words(reinterpret_cast<const char*>(codes), words * 4, words, stride, out);
    } else {
      const auto* src = static_cast<const char*>(p.x) + r * p.x_stride * 2;
#ifdef SPATE_FLOAT_WORDS
      spread_floats(src, p.k, words, stride, out);
#else
      spread_words(src, p.k * 2, words, stride, out);
#endif
    }
  }
}

// The n-blocks that a tile multiplies, or fewer at the end of an item.
struct DotBlocks {
  const char* at[kMaxTileBlocks];
  const char* next[kMaxTileBlocks];  // those worked on after them
  int64_t count;                     // of these
  int64_t n_block, num_out;          // first n-block of the output, and how many
};

// live_rows: that are rows of x. A single row of padding is left out where the panel is high: of 32 rows it would be
// the 33rd.
[[maybe_unused]] constexpr int kLeastRowsLessPadding = 9;
// The weight that comes next is asked for beside the first panels only, a line every few words: asked for again and
// again, bytes apart, a line takes a buffer for misses and a look into L2 each time. Zen 4, which takes AVX-512 with
// BF16, was not measured and asks beside all.
[[maybe_unused]] constexpr int64_t kMostAskingPanels = 4;
template <Words kWords>
static void multiply_panel(int64_t rows, [[maybe_unused]] int64_t live_rows, [[maybe_unused]] bool asks,
                           const DotTile& tile, int64_t num_blocks) {
  for_panel_rows(rows, [&](auto panel) {
    constexpr int kRows = panel.kCount;
    constexpr int64_t kBytes = kUnitWords * x_word_bytes(kWords);
#ifdef __AVX512VNNI__
    if constexpr (kRows >= kLeastRowsLessPadding) {
#ifdef SPATE_FLOAT_WORDS
      if (!asks && live_rows == kRows) {
        return multiply_blocks<kWords, kRows, kBytes, kRows * kBytes, false>(tile, num_blocks, kTileStride);
      }
#endif
      if (live_rows + 1 == kRows) {
        return multiply_blocks<kWords, kRows - 1, kBytes, kRows * kBytes, true>(tile, num_blocks, kTileStride);
      }
    }
#endif
    multiply_blocks<kWords, kRows, kBytes, kRows * kBytes, (kRows > 1 || kRowAsks)>(tile, num_blocks, kTileStride);
  });
}

// Bytes of an n-block that words [first, first + count) are made from.
SPATE_INLINE int64_t stored_bytes(const GemmParams& p, int64_t words) {
  const IntLayout& w = p.weight_ints;
  if (!makes_words(p)) return words * 64;
  return words * (is_int(p) ? 4 : 2) * kNBlock / (w.codes == CodeType::kInt4 ? 2 : 1);
}

// Words of an n-block, made in `out`.
template <Words kWords>
static void make_words(const GemmParams& p, const char* n_block, int64_t first, int64_t count, char* out) {
  if constexpr (kWords == kBf16Words) {
    dequantize_n_block<Elem::kBf16>(p.weight_ints, n_block, first * 2, count * 2, out);
  } else {
    constexpr int64_t kStepWords = kIntKStep / 4;
    for (int64_t i = 0; i < count; i += kStepWords) {
      unpack_two_level_step(p.weight_ints, n_block, (first + i) / kStepWords, out + i * 64);
    }
  }
}

template <Words kWords>
static void multiply_dot_blocks(const GemmParams& p, const DotBlocks& blocks, int64_t first_row, int64_t num_rows,
                                char* scratch) {
  const Panels panels = panels_of(p.m);
  const int64_t words = num_words(p), num_panels = ceil_div(num_rows, panels.rows),
                num_parts = ceil_div(words, kWordsAtOnce);
  constexpr int64_t kWordBytes = x_word_bytes(kWords);
  const int64_t panel_bytes = words * panels.rows * kWordBytes,
                panel_sums = num_parts > 1 ? panels.rows * kTileStride : 0;
  const char* x = panels_of_x(p) + first_row / panels.rows * panel_bytes;
  auto* sums = reinterpret_cast<float*>(scratch);
  char* made = scratch + (num_parts > 1 ? num_panels : 1) * panels.rows * kTileStride * 4;
  // Parts of whole steps of 64 k, about equally long.
  const int64_t part_words = round_up(ceil_div(words, num_parts), 16);
  for (int64_t first = 0; first < words; first += part_words) {
    const int64_t count = min_of(part_words, words - first), next = first + count;
    DotTile tile{.num_words = count, .accumulate = first > 0};
    const char* weight[kMaxTileBlocks];
    for (int64_t j = 0; j < blocks.count; ++j) {
      weight[j] = blocks.at[j] + first * 64;
      if (!makes_words(p)) continue;
      weight[j] = made + j * kWordsAtOnce * 64;
      make_words<kWords>(p, blocks.at[j], first, count, made + j * kWordsAtOnce * 64);
    }
    const int64_t bytes_ahead = stored_bytes(p, count);
#ifdef SPATE_FLOAT_WORDS
    const int64_t asking_panels = min_of(num_panels, kMostAskingPanels);
#else
    const int64_t asking_panels = num_panels;
#endif
    tile.ahead.bytes_a_word = ceil_div(bytes_ahead, asking_panels * count);
    for (int64_t i = 0; i < num_panels; ++i) {
      tile.x = x + i * panel_bytes + first * panels.rows * kWordBytes;
      tile.sums = sums + i * panel_sums;
      for (int64_t j = 0; j < blocks.count; ++j) {
        tile.blocks[0][j] = weight[j];
        const char* from = next < words ? blocks.at[j] + stored_bytes(p, next) : blocks.next[j];
        tile.ahead.first[j] = from + bytes_ahead * min_of(i, asking_panels - 1) / asking_panels;
      }
      const int64_t row = first_row + i * panels.rows, rows = min_of(panels.rows, num_rows - i * panels.rows);
      multiply_panel<kWords>(panels.rows, rows, i < asking_panels, tile, blocks.count);
      if (next < words) continue;
      float* of_panel = sums + i * panel_sums;
      if constexpr (kWords == Words::kCodes) dots_to_sums(p, blocks.at, blocks.count, row, rows, of_panel, kTileStride);
      finish_n_blocks(p, row, row + rows, blocks.n_block, blocks.num_out, of_panel, of_panel + blocks.num_out * kNBlock,
                      kTileStride);
    }
  }
}

template <Words kWords>
static void gemm_dot(const GemmParams& p, int64_t first_row, int64_t num_rows, int64_t first_n_block,
                     int64_t num_n_blocks, char* scratch) {
  const int64_t block_bytes = p.weight_ints.codes != CodeType::kNone ? p.weight_ints.block_bytes : num_words(p) * 64;
  const int64_t at_once = blocks_at_once(panels_of(p.m).rows), step = p.silu_and_mul ? at_once / 2 : at_once;
  const int64_t end = first_n_block + num_n_blocks;
  for (int64_t n_block = first_n_block; n_block < end; n_block += step) {
    DotBlocks blocks{.n_block = n_block, .num_out = min_of(step, end - n_block)};
    blocks.count = p.silu_and_mul ? 2 * blocks.num_out : blocks.num_out;
    for (int64_t j = 0; j < blocks.count; ++j) {
      const int64_t idx = j < blocks.num_out ? n_block + j : n_block + j - blocks.num_out + p.up_blocks;
      blocks.at[j] = p.weight + idx * block_bytes;
      blocks.next[j] = blocks.at[j] + step * block_bytes;
    }
    multiply_dot_blocks<kWords>(p, blocks, first_row, num_rows, scratch);
  }
}

}  // namespace spate::cpu::SPATE_ISA
