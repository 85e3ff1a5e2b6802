// linear on AVX2 without VNNI: more than a few rows of codes by int8 weights of whole rows and by two-level int4
// weights (int_tile.h).
//
// x is packed into panels of 4 to 6 rows, equally high, word by word. An n-block, 16 KB of it at a time, stays in L1
// while all panels of a chunk pass by from L2. int4 is unpacked there once for all rows of a chunk; its multipliers
// take part when the sums of a group become 32 bits, at no price.
//
// Dots are exact, so the bits are those of gemm_int.h.
#pragma once

#include "backend/cpu/kernel/gemm_int.h"
#include "backend/cpu/kernel/int_tile.h"

#ifdef SPATE_INT_PANELS
namespace spate::cpu::SPATE_ISA {

constexpr int64_t kPanelRowsAtOnce = 256;                  // of 64 bytes of an n-block
constexpr int64_t kPanelsPerChunk = 44;                    // 264 rows x 2 KB = 540 KB of int8, half of L2
constexpr int64_t kPanelBlocks = 2;                        // n-blocks that are finished together
constexpr int64_t kPanelStride = kPanelBlocks * kNBlock;   // of sums, from row to row
constexpr int64_t kLeastInt8Rows = 4, kLeastInt4Rows = 3;  // fewer are as fast in gemm_int.h
constexpr int64_t kPanelsThatAsk = 4;                      // for the weight that comes next
constexpr int64_t kPanelItemsPerThread = 8, kPanelBlocksPerItem = 8;

SPATE_INLINE bool panels_take(const GemmParams& p) {
  const IntLayout& w = p.weight_ints;
  if (!is_int(p)) return false;
  if (w.two_level()) return p.m >= kLeastInt4Rows;
  return w.codes == CodeType::kInt8 && w.scale_bytes == 4 && p.m >= kLeastInt8Rows;
}

struct RowPanels {
  int64_t count, rows;  // rows of each
};
// As high as leaves the least work: lower panels leave fewer rows empty, but load more for each product.
SPATE_INLINE RowPanels row_panels(int64_t m) {
  constexpr int64_t kCosts[] = {53, 51, 50};  // of a row in a panel of 4, 5 and 6
  RowPanels best{ceil_div(m, kTileRows), kTileRows};
  for (int64_t rows = kTileRows - 1; rows >= 4; --rows) {
    if (ceil_div(m, rows) * rows * kCosts[rows - 4] < best.count * best.rows * kCosts[best.rows - 4]) {
      best = {ceil_div(m, rows), rows};
    }
  }
  return best;
}

// Rows of unpacked int4 that share a multiplier, 16 at most.
SPATE_INLINE int64_t int4_group_rows(const IntLayout& w) { return w.multiplier_k == kIntHalfStep ? 8 : 16; }
// Bytes of a row of x that are multiplied with so many rows of weight.
SPATE_INLINE int64_t panel_x_bytes(const IntLayout& w, int64_t weight_rows) {
  return w.two_level() ? (weight_rows + weight_rows / int4_group_rows(w)) * 4 : weight_rows * 8;
}
// Codes first lie as gemm_int.h would read them, with their scales and outliers behind.
SPATE_INLINE char* row_panels_of_x(const GemmParams& p) {
  return p.packed_x + round_up(int_x_bytes(p.m, p.weight_ints), 64);
}

static GemmPlan panel_plan(const GemmParams& p, int num_threads) {
  const RowPanels panels = row_panels(p.m);
  const int64_t per_group = p.silu_and_mul ? kPanelBlocks / 2 : kPanelBlocks;
  const int64_t groups = ceil_div(ceil_div(p.n, kNBlock), per_group);
  GemmPlan plan;
  plan.packed_x_bytes = round_up(int_x_bytes(p.m, p.weight_ints), 64) +
                        panels.count * panels.rows * panel_x_bytes(p.weight_ints, p.weight_ints.k_padded / 4);
  int64_t chunks = ceil_div(panels.count, kPanelsPerChunk);
  while (chunks < panels.count && chunks * groups < 2 * num_threads) ++chunks;
  plan.rows_per_chunk = ceil_div(panels.count, chunks) * panels.rows;
  int64_t groups_per_item = 1;
  while (groups_per_item * per_group < kPanelBlocksPerItem &&
         chunks * groups >= 2 * groups_per_item * kPanelItemsPerThread * num_threads) {
    groups_per_item *= 2;
  }
  plan.n_blocks_per_group = groups_per_item * per_group;
  plan.scratch_bytes = plan.rows_per_chunk * kPanelStride * 4 + kPanelRowsAtOnce / 8 * 9 * 64;
  return plan;
}

// --- x
// -----------------------------------------------------------------------------------------------------------------

SPATE_INLINE void spread_words(I words, char* out, int64_t stride) {
  alignas(32) int32_t lanes[8];
  int_store(lanes, words);
#pragma GCC unroll 8
  for (int64_t i = 0; i < 8; ++i) __builtin_memcpy(out + i * stride, lanes + i, 4);
}

// Words of a row are `stride` bytes apart in a panel.
static void spread_int8(const int8_t* codes, int64_t k_padded, char* out, int64_t stride) {
  for (int64_t k = 0; k < k_padded; k += 32, out += 16 * stride) {
    const I four = int_load(codes + k);
    spread_words(even_codes(four), out, 2 * stride);
    spread_words(odd_codes(four), out + stride, 2 * stride);
  }
}
static void spread_int4(const int8_t* codes, int64_t k_padded, int64_t group_rows, char* out, int64_t stride) {
  const I ones = _mm256_set1_epi8(1);
  for (int64_t k = 0; k < k_padded; k += group_rows * 4, out += (1 + group_rows) * stride) {
    I pairs = int_zero();
    for (int64_t row = 0; row < group_rows; row += 8) {
      const I four = int_load(codes + k + row * 4);
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(ones, four));
      spread_words(four, out + (1 + row) * stride, stride);
    }
    __m128i sum = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0xb1));
    const int32_t start = _mm_cvtsi128_si32(_mm_mullo_epi16(sum, _mm_set1_epi16(-8)));
    __builtin_memcpy(out, &start, 4);
  }
}

static void panel_pack_rows(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  const IntLayout& w = p.weight_ints;
  const IntX x = int_x(p);
  const RowPanels panels = row_panels(p.m);
  const int64_t row_bytes = panel_x_bytes(w, w.k_padded / 4), stride = panels.rows * 4;
  const int64_t end_row = first_row + num_rows == p.m ? panels.count * panels.rows : first_row + num_rows;
  for (int64_t r = first_row; r < end_row; ++r) {
    char* out = row_panels_of_x(p) + r / panels.rows * row_bytes * panels.rows + r % panels.rows * 4;
    if (r >= p.m) {
      for (int64_t i = 0; i < row_bytes / 4; ++i) __builtin_memset(out + i * stride, 0, 4);
      continue;
    }
    int8_t* codes = x.codes + r * w.k_padded;
    pack_int_row<true>(p, x, r, [&](int64_t k) { return codes + k; });
    if (w.two_level()) {
      spread_int4(codes, w.k_padded, int4_group_rows(w), out, stride);
      x.starts[int_row_idx(r, int_num_starts(w))] = 0;  // the tiles' sums have begun with theirs
    } else {
      spread_int8(codes, w.k_padded, out, stride);
    }
  }
}

// --- int4 as tiles read it
// ---------------------------------------------------------------------------------------------

SPATE_INLINE void store_multipliers(const IntLayout& w, const char* n_block, int64_t k, char* out) {
  const char* multipliers = n_block + w.multipliers_offset() + w.multiplier_of(k) * kNBlock;
  for (int64_t v = 0; v < 2; ++v) {
    const I one = load_bytes(multipliers + v * kLanes);
    int_store(out + v * 32, _mm256_or_si256(one, _mm256_slli_epi32(one, 16)));
  }
}
// Rows [first, first + count) of an n-block, whole steps of 64 k.
static void unpack_int4_rows(const IntLayout& w, const char* n_block, int64_t first, int64_t count, char* out) {
  const I low = _mm256_set1_epi8(15);
  const bool halves = w.multiplier_k == kIntHalfStep;  // of a step have multipliers of their own
  const int64_t gap = halves ? 64 : 0;
  for (int64_t row = first; row < first + count; row += 16, out += 1024 + gap + 64) {
    const char* packed = n_block + row * 32;
    for (int64_t i = 0; i < 512; i += 32) {
      const I codes = int_load(packed + i);
      int_store(out + i, int_and(codes, low));
      int_store(out + 512 + gap + i, int_and(_mm256_srli_epi16(codes, 4), low));
    }
    if (halves) store_multipliers(w, n_block, row * 4, out + 512);
    store_multipliers(w, n_block, row * 4 + (halves ? kIntHalfStep : 0), out + 1024 + gap);
  }
}

// --- products
// ----------------------------------------------------------------------------------------------------------

template <int kRows, bool kAhead>
static void multiply_panel_rows(const IntLayout& w, const IntTile& tile) {
  if (!w.two_level()) {
    multiply_int8<kRows, kAhead>(tile, kPanelStride);
  } else if (int4_group_rows(w) == 8) {
    multiply_int4<8, kRows, kAhead>(tile, kPanelStride);
  } else {
    multiply_int4<16, kRows, kAhead>(tile, kPanelStride);
  }
}
template <bool kAhead>
static void multiply_row_panel(const IntLayout& w, int64_t rows, const IntTile& tile) {
  switch (rows) {
    case 4:
      return multiply_panel_rows<4, kAhead>(w, tile);
    case 5:
      return multiply_panel_rows<5, kAhead>(w, tile);
    default:
      return multiply_panel_rows<6, kAhead>(w, tile);
  }
}

// n-blocks that are finished together, and those that come after them.
struct PanelBlocks {
  const char* at[kPanelBlocks];
  const char* next[kPanelBlocks];
  int64_t count;             // of these
  int64_t n_block, num_out;  // first n-block of the output, and how many
};

static void multiply_row_panels(const GemmParams& p, const PanelBlocks& blocks, int64_t first_row, int64_t num_rows,
                                char* scratch) {
  const IntLayout& w = p.weight_ints;
  const RowPanels panels = row_panels(p.m);
  const int64_t weight_rows = w.k_padded / 4, num_panels = ceil_div(num_rows, panels.rows);
  const int64_t panel_bytes = panels.rows * panel_x_bytes(w, weight_rows), stored = w.two_level() ? 32 : 64;
  const char* x = row_panels_of_x(p) + first_row / panels.rows * panel_bytes;
  auto* sums = reinterpret_cast<int32_t*>(scratch);
  char* unpacked = scratch + num_panels * panels.rows * kPanelStride * 4;
  // Parts of whole steps of 64 k, about equally long.
  const int64_t part_rows = round_up(ceil_div(weight_rows, ceil_div(weight_rows, kPanelRowsAtOnce)), 16);
  const int64_t asking = min_of(num_panels, kPanelsThatAsk);
  for (int64_t first = 0; first < weight_rows; first += part_rows) {
    const int64_t count = min_of(part_rows, weight_rows - first), next = first + count, bytes_ahead = count * stored;
    IntTile tile{.num_rows = count, .accumulate = first > 0, .ahead_bytes = ceil_div(stored, asking)};
    for (int64_t j = 0; j < blocks.count; ++j) {
      tile.weight = blocks.at[j] + first * stored;
      if (w.two_level()) {
        unpack_int4_rows(w, blocks.at[j], first, count, unpacked);
        tile.weight = unpacked;
      }
      const char* ahead = next < weight_rows ? blocks.at[j] + next * stored : blocks.next[j];
      for (int64_t i = 0; i < num_panels; ++i) {
        tile.x = x + i * panel_bytes + panels.rows * panel_x_bytes(w, first);
        tile.sums = sums + i * panels.rows * kPanelStride + j * kNBlock;
        tile.ahead = ahead + bytes_ahead * i / asking;
        i < asking ? multiply_row_panel<true>(w, panels.rows, tile) : multiply_row_panel<false>(w, panels.rows, tile);
      }
    }
  }
  auto* complete = reinterpret_cast<float*>(scratch);
  dots_to_sums(p, blocks.at, blocks.count, first_row, num_rows, complete, kPanelStride);
  finish_n_blocks(p, first_row, first_row + num_rows, blocks.n_block, blocks.num_out, complete,
                  complete + blocks.num_out * kNBlock, kPanelStride);
}

static void gemm_panels(const GemmParams& p, int64_t first_row, int64_t num_rows, int64_t first_n_block,
                        int64_t num_n_blocks, char* scratch) {
  const int64_t block_bytes = p.weight_ints.block_bytes, step = p.silu_and_mul ? kPanelBlocks / 2 : kPanelBlocks;
  const int64_t end = first_n_block + num_n_blocks;
  for (int64_t n_block = first_n_block; n_block < end; n_block += step) {
    PanelBlocks blocks{.n_block = n_block, .num_out = min_of(step, end - n_block)};
    blocks.count = p.silu_and_mul ? 2 * blocks.num_out : blocks.num_out;
    for (int64_t j = 0; j < blocks.count; ++j) {
      const int64_t idx = j < blocks.num_out ? n_block + j : n_block + j - blocks.num_out + p.up_blocks;
      blocks.at[j] = p.weight + idx * block_bytes;
      blocks.next[j] = blocks.at[j] + step * block_bytes;
    }
    multiply_row_panels(p, blocks, first_row, num_rows, scratch);
  }
}

}  // namespace spate::cpu::SPATE_ISA
#endif
