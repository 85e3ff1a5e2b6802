// Products with integer weights on AMX tiles: 8-bit by 8-bit, exact in i32 inside a group; then the dots are stored and
// join the f32 sums on the vector units (add_group). Many rows by int8 of whole rows are in gemm_amx.h.
//
// Up to 4 rows: VNNI from registers (gemm_int.h). Up to 16: one row of tiles, four n-blocks streamed at once; int4 goes
// through a tile in L1. More: 2 x 2 tiles of dots, kGroupsAtOnce groups of them a unit; while a unit is multiplied, the
// dots of the one before join their sums, which is what takes longest with small groups: 3 vector operations for 16
// elements and group are 24 cycles a tile of 64 k, its product 16. int4 is unpacked once a block of k for all rows.
#pragma once

#include "backend/cpu/kernel/gemm_amx.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kVectorRows = 4;    // up to here VNNI
constexpr int64_t kGroupsAtOnce = 2;  // of a unit
constexpr int64_t kPanelK = 256;      // k of a weight that is worked on: 2 n-blocks x 512 B x 16 = 16 KB of L1
constexpr int64_t kPairColumns = 2 * kNBlock;
constexpr int64_t kDotsBytes = 32 * kPairColumns * 4;  // of a group: 32 rows by a pair of n-blocks

// A step is a tile: 64 k, or 32 for groups of 32.
SPATE_INLINE int64_t int_step_k(const IntLayout& w) { return w.group_k == kIntHalfStep ? kIntHalfStep : kIntKStep; }
SPATE_INLINE int64_t int_steps(const IntLayout& w) { return w.num_groups * w.group_k / int_step_k(w); }
// Steps of a block of k: whole groups, kPanelK of them if they are smaller.
SPATE_INLINE int64_t panel_steps(const IntLayout& w) {
  return max_of(1, kPanelK / w.group_k) * w.group_k / int_step_k(w);
}

// As the tiles of gemm_amx.h, but groups of 32 have A tiles of 32 bytes a row and B tiles of 8 rows.
static constexpr TileConfigs make_half_configs(bool many_rows) {
  TileConfigs configs{};
  for (int rows = 1; rows <= 16; ++rows) {
    for (int tile = 0; tile < 8; ++tile) {
      const bool is_a = tile == 4 || (many_rows && tile == 5), is_c = tile < 4;
      configs.of_rows[rows].row_bytes[tile] = is_a ? 32 : 64;
      configs.of_rows[rows].rows[tile] = static_cast<uint8_t>(is_a || is_c ? rows : 8);
    }
  }
  return configs;
}
static constexpr TileConfigs kHalfConfigs = make_half_configs(false), kHalfConfigsManyRows = make_half_configs(true);

SPATE_INLINE void int_amx_begin(const IntLayout& w, int64_t rows, bool many_rows) {
  amx_fence();
  if (int_step_k(w) == kIntKStep) {
    amx_begin(rows);
  } else {
    _tile_loadconfig(many_rows ? &kHalfConfigsManyRows.of_rows[rows] : &kHalfConfigs.of_rows[rows]);
  }
}

// Bytes of the codes of a step in an n-block: of int8 a B tile, of int4 half of one (groups of 32: two steps share 512
// B).
SPATE_INLINE const char* step_codes(const IntLayout& w, const char* n_block, int64_t step) {
  const int64_t halves = step * (int_step_k(w) / kIntHalfStep);
  return n_block + (w.codes == CodeType::kInt8 ? halves : halves / 2) * 512;
}

// The codes of a step of int4 as an int8 tile of 16 times their values: (nibble << 4) ^ 0x80, one operation less each
// than the values themselves. kUnpackScale takes the 16 away again, exactly.
constexpr float kUnpackScale = 1.0f / 16;
SPATE_INLINE I sixteenfold(I nibbles_high) {
  constexpr int kAndThenXor = 0x6a;  // (a & b) ^ c
  return _mm512_ternarylogic_epi32(nibbles_high, _mm512_set1_epi8(static_cast<char>(0xf0)),
                                   _mm512_set1_epi8(static_cast<char>(0x80)), kAndThenXor);
}
SPATE_INLINE void unpack_step(const IntLayout& w, const char* n_block, int64_t step, char* tile) {
  const char* packed = step_codes(w, n_block, step);
  if (w.two_level()) return unpack_two_level_step(w, n_block, step, tile);
  const bool whole = int_step_k(w) == kIntKStep;
  if (whole || step % 2 == 0) {
    for (int64_t r = 0; r < 8; ++r) {
      int_store(tile + r * 64, sixteenfold(_mm512_slli_epi16(int_load(packed + r * 64), 4)));
    }
    tile += 512;
  }
  if (whole || step % 2 != 0) {
    for (int64_t r = 0; r < 8; ++r) int_store(tile + r * 64, sixteenfold(int_load(packed + r * 64)));
  }
}
// Scales of an n-block for dots of such tiles.
template <CodeType kCodes>
SPATE_INLINE F tile_scales(const IntLayout& w, const char* n_block, int64_t g) {
  const F scale = load_scales(n_block + w.scales_offset(), w.scale_bytes, g, 0);
  return kCodes == CodeType::kInt4 && !w.two_level() ? mul(scale, set1(kUnpackScale)) : scale;
}

// --- up to 16 rows ---------------------------------------------------------------------------------------------------

// Asks for the codes kIntAhead bytes behind those of a step, and for scales of the n-block that comes after.
SPATE_INLINE void prefetch_step(const IntLayout& w, const IntBlocks& blocks, int64_t j, int64_t step, int64_t g) {
  const int64_t bytes = int_step_k(w) * (w.codes == CodeType::kInt8 ? 16 : 8);
  int64_t offset = step * bytes + kIntAhead;
  const char* from = blocks.block[j];
  if (offset >= w.codes_bytes) {
    offset -= w.codes_bytes;
    from = blocks.next[j];
  }
  for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(from + offset + line, _MM_HINT_T0);
  _mm_prefetch(blocks.next[j] + w.scales_offset() + g * kNBlock * w.scale_bytes, _MM_HINT_T0);
}

// The dots of group g of kBlocks n-blocks join their sums.
template <CodeType kCodes, int kBlocks>
static void join_few_rows(const GemmParams& p, const IntX& x, const IntBlocks& blocks, int64_t first, int64_t g,
                          const char* dots, float* sums) {
  const IntLayout& w = p.weight_ints;
  for (int j = 0; j < kBlocks; ++j) {
    const char* block = blocks.block[first + j];
    const F scale = tile_scales<kCodes>(w, block, g);
    const F offset = w.has_offsets ? load_scales(block + w.offsets_offset(), w.scale_bytes, g, 0) : zero();
    float* to = sums + j * kNBlock;
    const char* from = dots + j * kTileBytes;
    for (int64_t r = 0; r < p.m; ++r, to += kIntGroup * kNBlock, from += 64) {
      F sum = add_group(g == 0 ? zero() : load(to), int_load(from), set1(x.scales[g * 16 + r]), scale);
      if (w.has_offsets) sum = fma(set1(x.sums[g * 16 + r]), offset, sum);
      store(to, sum);
    }
  }
}

// A software pipeline: while a step is multiplied, the next one's int4 codes are unpacked, the dots of the group before
// are stored tile by tile and join their sums.
template <CodeType kCodes, int kBlocks>
static void int_amx_few_row_tile(const GemmParams& p, const IntX& x, const IntBlocks& blocks, int64_t first,
                                 float* sums, char* scratch) {
  const IntLayout& w = p.weight_ints;
  const int64_t step_k = int_step_k(w), group_steps = w.group_k / step_k, steps = w.num_groups * group_steps;
  char* dots = scratch;                              // [2][kBlocks][16][16] i32
  char* tiles = scratch + 2 * kBlocks * kTileBytes;  // int4: [2][kBlocks]
  sums += first * kNBlock;
  const auto prepare = [&](int64_t step, int64_t j) {
    if (step == steps) return;
    prefetch_step(w, blocks, first + j, step, step / group_steps);
    if constexpr (kCodes == CodeType::kInt4) {
      unpack_step(w, blocks.block[first + j], step, tiles + (step % 2 * kBlocks + j) * kTileBytes);
    }
  };
  const auto b = [&](int64_t step, int64_t j) {
    if constexpr (kCodes == CodeType::kInt8) return step_codes(w, blocks.block[first + j], step);
    return static_cast<const char*>(tiles + (step % 2 * kBlocks + j) * kTileBytes);
  };
  const auto begin_group = [&](int64_t g, int64_t s) { return s == g * group_steps; };
  for (int64_t j = 0; j < kBlocks; ++j) prepare(0, j);
  for (int64_t g = 0; g < w.num_groups; ++g) {
    char* before = dots + (g + 1) % 2 * kBlocks * kTileBytes;  // of the group before
    for (int64_t s = g * group_steps; s < (g + 1) * group_steps; ++s) {
      amx_fence();
      const bool is_first = begin_group(g, s);
      _tile_loadd(4, x.codes + s * step_k, w.k_padded);
      _tile_loadd(5, b(s, 0), 64);
      if (is_first) {
        _tile_stored(0, before, 64);
        _tile_zero(0);
      }
      _tile_dpbssd(0, 4, 5);
      prepare(s + 1, 0);
      if constexpr (kBlocks == 4) {
        _tile_loadd(6, b(s, 1), 64);
        if (is_first) {
          _tile_stored(1, before + kTileBytes, 64);
          _tile_zero(1);
        }
        _tile_dpbssd(1, 4, 6);
        prepare(s + 1, 1);
        _tile_loadd(7, b(s, 2), 64);
        if (is_first) {
          _tile_stored(2, before + 2 * kTileBytes, 64);
          _tile_zero(2);
        }
        _tile_dpbssd(2, 4, 7);
        prepare(s + 1, 2);
        _tile_loadd(5, b(s, 3), 64);
        if (is_first) {
          _tile_stored(3, before + 3 * kTileBytes, 64);
          _tile_zero(3);
        }
        _tile_dpbssd(3, 4, 5);
        prepare(s + 1, 3);
      }
      amx_fence();
      if (is_first && g > 0) join_few_rows<kCodes, kBlocks>(p, x, blocks, first, g - 1, before, sums);
    }
  }
  char* last = dots + (w.num_groups + 1) % 2 * kBlocks * kTileBytes;
  _tile_stored(0, last, 64);
  if constexpr (kBlocks == 4) {
    _tile_stored(1, last + kTileBytes, 64);
    _tile_stored(2, last + 2 * kTileBytes, 64);
    _tile_stored(3, last + 3 * kTileBytes, 64);
  }
  amx_fence();
  join_few_rows<kCodes, kBlocks>(p, x, blocks, first, w.num_groups - 1, last, sums);
}

template <CodeType kCodes>
SPATE_INLINE void int_amx_few_row_tiles(const GemmParams& p, const IntX& x, const IntBlocks& blocks, float* sums,
                                        char* scratch) {
  if (blocks.count == 4) return int_amx_few_row_tile<kCodes, 4>(p, x, blocks, 0, sums, scratch);
  for (int64_t j = 0; j < blocks.count; ++j) int_amx_few_row_tile<kCodes, 1>(p, x, blocks, j, sums, scratch);
}

static void int_amx_few_rows(const GemmParams& p, int64_t first_n_block, int64_t num_n_blocks, char* scratch) {
  const IntX x = int_x(p);
  auto* sums = reinterpret_cast<float*>(scratch);
  char* tiles = scratch + 16 * kIntGroup * kNBlock * 4;
  int_amx_begin(p.weight_ints, p.m, false);
  for_int_blocks(p, first_n_block, num_n_blocks, [&](const IntBlocks& blocks, int64_t n_block, int64_t count) {
    if (p.weight_ints.codes == CodeType::kInt8) {
      int_amx_few_row_tiles<CodeType::kInt8>(p, x, blocks, sums, tiles);
    } else {
      int_amx_few_row_tiles<CodeType::kInt4>(p, x, blocks, sums, tiles);
    }
    for (int64_t r = 0; r < p.m; ++r) {
      add_outliers(p, x, r, blocks.block, blocks.count, sums + r * kIntGroup * kNBlock);
    }
    finish_n_blocks(p, 0, p.m, n_block, count, sums, sums + count * kNBlock, kIntGroup * kNBlock);
  });
  amx_end();
}

// --- more rows -------------------------------------------------------------------------------------------------------

// Where the A tile of row block `block` (16 rows) at step `step` is: panels, in them pairs of row blocks, in them steps,
// in them the two tiles of the pair.
SPATE_INLINE int64_t int_x_tile_offset(const GemmParams& p, int64_t block, int64_t step) {
  const IntLayout& w = p.weight_ints;
  const int64_t steps = w.k_padded / int_step_k(w), panel = panel_steps(w);
  const int64_t first = step / panel * panel, size = min_of(panel, steps - first);
  return (first * round_up(p.m, 32) / 16 + block / 2 * 2 * size + (step - first) * 2 + block % 2) * 16 * int_step_k(w);
}

static void int_amx_pack_rows(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  int8_t* codes = int_x(p).codes;
  const int64_t step_k = int_step_k(p.weight_ints);
  pack_int_rows(p, first_row, num_rows, [&](int64_t row, int64_t k) {
    return codes + int_x_tile_offset(p, row / 16, k / step_k) + row % 16 * step_k + k % step_k;
  });
}

// A pair of n-blocks over the panel of steps [first, first + steps): what all rows pass by at a time.
struct Stage {
  int64_t chunk_begin, chunk_end;  // steps of the chunk of K that the pairs are worked through in
  int64_t pair;                    // of the item
  int64_t first, steps;
  BlockPair blocks;
  int64_t number;  // of the stages before it in the item
};

// Memory of one thread. A stage is prepared while the one before is worked on; of scales there are three, since the
// last unit of the stage before that may still need its own.
struct StageScratch {
  char* dots;         // [2][kGroupsAtOnce][32][kPairColumns] i32
  char* panels[2];    // int4: [steps][2] tiles
  float* scales[3];   // [groups of a panel][kPairColumns]
  float* offsets[3];  // the same
  float* sums;        // [rows][kPairColumns], for each pair of the item when K is cut
};

SPATE_INLINE int64_t panel_bytes(const IntLayout& w) { return panel_steps(w) * 2 * kTileBytes; }
SPATE_INLINE int64_t panel_scales(const IntLayout& w) {
  return panel_steps(w) * int_step_k(w) / w.group_k * kPairColumns;
}
SPATE_INLINE int64_t stage_scratch_bytes(const IntLayout& w) {
  return 2 * kGroupsAtOnce * kDotsBytes + 2 * panel_bytes(w) + 6 * panel_scales(w) * 4;
}
SPATE_INLINE StageScratch stage_scratch(const IntLayout& w, char* scratch) {
  StageScratch at;
  at.dots = scratch;
  at.panels[0] = at.dots + 2 * kGroupsAtOnce * kDotsBytes;
  at.panels[1] = at.panels[0] + panel_bytes(w);
  at.sums = reinterpret_cast<float*>(at.panels[1] + panel_bytes(w));
  for (int i = 0; i < 3; ++i) {
    at.scales[i] = at.sums;
    at.offsets[i] = at.scales[i] + panel_scales(w);
    at.sums = at.offsets[i] + panel_scales(w);
  }
  return at;
}

// Dots of a unit on their way into the sums of 32 rows.
struct PendingDots {
  BlockPair blocks;
  int64_t row = 32;  // the next one; 32: nothing is pending
  int64_t num_groups = 0;
  const char* dots = nullptr;
  float* sums = nullptr;
  const float* x_scales = nullptr;  // of row 0 and the unit's first group
  const float* x_sums = nullptr;
  int64_t x_block_stride = 0;            // from rows 0-15 to rows 16-31
  const float* scales = nullptr;         // of the unit's first group
  const float* offsets = nullptr;        // null: symmetric
  bool is_first = false;                 // there are no sums yet
  bool is_last = false;                  // the sums are complete with these
  int64_t out_row = 0, end_out_row = 0;  // of row 0, and of the first row that does not exist
};

template <int kGroups, bool kOffsets>
SPATE_INLINE void join_rows(const PendingDots& from, int64_t begin, int64_t end) {
  F scale[kGroups][2], offset[kGroups][2];
  for (int g = 0; g < kGroups; ++g) {
    for (int j = 0; j < 2; ++j) {
      scale[g][j] = load(from.scales + g * kPairColumns + j * kNBlock);
      offset[g][j] = kOffsets ? load(from.offsets + g * kPairColumns + j * kNBlock) : zero();
    }
  }
  const float* x_scales = from.x_scales;
  const float* x_sums = from.x_sums;
  const bool is_first = from.is_first;
  const int64_t x_block_stride = from.x_block_stride;
  float* at = from.sums + begin * kPairColumns;
  const char* dots = from.dots + begin * kPairColumns * 4;
  for (int64_t r = begin; r < end; ++r, at += kPairColumns, dots += kPairColumns * 4) {
    const int64_t idx = (r & 15) + (r >> 4) * x_block_stride;
    F sum[2];
    for (int j = 0; j < 2; ++j) sum[j] = is_first ? zero() : load(at + j * kNBlock);
    for (int g = 0; g < kGroups; ++g) {
      const F x_scale = set1(x_scales[idx + g * 16]);
      for (int j = 0; j < 2; ++j) {
        sum[j] = add_group(sum[j], int_load(dots + g * kDotsBytes + j * 64), x_scale, scale[g][j]);
        if constexpr (kOffsets) sum[j] = fma(set1(x_sums[idx + g * 16]), offset[g][j], sum[j]);
      }
    }
    for (int j = 0; j < 2; ++j) store(at + j * kNBlock, sum[j]);
  }
}

template <bool kOffsets>
SPATE_INLINE void join_groups(const PendingDots& from, int64_t begin, int64_t end) {
  if (from.num_groups == 2) {
    join_rows<2, kOffsets>(from, begin, end);
  } else {
    join_rows<1, kOffsets>(from, begin, end);
  }
}

static __attribute__((noinline)) void finish_joined(const GemmParams& p, BlockPair blocks, int64_t first_row,
                                                    int64_t end_row, float* sums) {
  if (first_row >= end_row) return;
  add_pair_outliers(p, blocks, first_row, end_row, sums);
  if (is_plain(p, blocks)) {
    finish_plain_rows(p, blocks, first_row, end_row, sums);
  } else {
    finish_rows(p, blocks, first_row, end_row, sums);
  }
}

template <bool kOffsets>
SPATE_INLINE void join_some(const GemmParams& p, PendingDots& pending, int64_t max_rows) {
  const int64_t begin = pending.row, end = min_of(32, begin + max_rows);
  pending.row = end;
  join_groups<kOffsets>(pending, begin, end);
  if (!pending.is_last) return;
  finish_joined(p, pending.blocks, pending.out_row + begin, min_of(pending.out_row + end, pending.end_out_row),
                pending.sums + begin * kPairColumns);
}

// The tiles of sums go to `dots`, rows of a pair of n-blocks.
SPATE_INLINE void store_dots(char* dots) {
  _tile_stored(0, dots, kPairColumns * 4);
  _tile_stored(1, dots + 64, kPairColumns * 4);
  _tile_stored(2, dots + 16 * kPairColumns * 4, kPairColumns * 4);
  _tile_stored(3, dots + 16 * kPairColumns * 4 + 64, kPairColumns * 4);
}

// The dots of one group: 2 x 2 tiles over its steps, left in the tiles. Those that are there are stored to `before`
// first, each just before its tile is used again: a store waits for the products of its tile, and so the others go on.
// meanwhile(stored) runs behind products; stored: all of `before` is there.
template <typename B, typename Meanwhile>
SPATE_INLINE void group_dots(const TileRows& a, const B& b, int64_t steps, char* before, const Meanwhile& meanwhile) {
  _tile_loadd(6, b(0, 0), 64);
  _tile_stream_loadd(4, a.base, a.row_stride);
  _tile_stored(0, before, kPairColumns * 4);
  _tile_zero(0);
  _tile_dpbssd(0, 4, 6);
  _tile_loadd(7, b(0, 1), 64);
  _tile_stored(1, before + 64, kPairColumns * 4);
  _tile_zero(1);
  _tile_dpbssd(1, 4, 7);
  meanwhile(false);
  _tile_stream_loadd(5, a.base + a.block_stride, a.row_stride);
  _tile_stored(2, before + 16 * kPairColumns * 4, kPairColumns * 4);
  _tile_zero(2);
  _tile_dpbssd(2, 5, 6);
  meanwhile(false);
  _tile_stored(3, before + 16 * kPairColumns * 4 + 64, kPairColumns * 4);
  _tile_zero(3);
  _tile_dpbssd(3, 5, 7);
  meanwhile(true);
  for (int64_t s = 1; s < steps; ++s) {
    const char* rows = a.base + s * a.step_stride;
    _tile_loadd(6, b(s, 0), 64);
    _tile_stream_loadd(4, rows, a.row_stride);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b(s, 1), 64);
    _tile_dpbssd(1, 4, 7);
    meanwhile(true);
    _tile_stream_loadd(5, rows + a.block_stride, a.row_stride);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
    meanwhile(true);
  }
}

// Step s of a stage: int4 is unpacked, int8 asked for, the scales become f32.
template <CodeType kCodes>
SPATE_INLINE void prepare_step(const GemmParams& p, const StageScratch& scratch, const Stage& stage, int64_t s) {
  const IntLayout& w = p.weight_ints;
  const int64_t step = stage.first + s, group_steps = w.group_k / int_step_k(w);
  const int64_t bytes = int_step_k(w) * (w.codes == CodeType::kInt8 ? 16 : 8);
  for (int j = 0; j < 2; ++j) {
    const char* block = j == 0 ? stage.blocks.b0 : stage.blocks.b1;
    if (block == nullptr) block = stage.blocks.b0;
    const char* codes = step_codes(w, block, step);
    if (w.codes == CodeType::kInt8) {
      for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(codes + line, _MM_HINT_T0);
    } else {
      for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(codes + kIntAhead + line, _MM_HINT_T0);
      unpack_step(w, block, step, scratch.panels[stage.number % 2] + (s * 2 + j) * kTileBytes);
    }
    if (step % group_steps != 0) continue;
    const int64_t g = step / group_steps, at = s / group_steps * kPairColumns + j * kNBlock;
    store(scratch.scales[stage.number % 3] + at, tile_scales<kCodes>(w, block, g));
    if (!w.has_offsets) continue;
    store(scratch.offsets[stage.number % 3] + at, load_scales(block + w.offsets_offset(), w.scale_bytes, g, 0));
  }
}

// All rows of an item pass by a stage, in pairs of 16 and units of kGroupsAtOnce groups. Behind the products of each
// group some of the rest is done: the dots of the unit before join their sums, and the next stage is prepared.
template <CodeType kCodes, bool kOffsets>
static void int_amx_many_rows(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows,
                              int64_t first_n_block, int64_t num_n_blocks, char* memory) {
  const IntLayout& w = p.weight_ints;
  const IntX x = int_x(p);
  const StageScratch scratch = stage_scratch(w, memory);
  const int64_t step_k = int_step_k(w), group_steps = w.group_k / step_k, panel = panel_steps(w);
  const int64_t steps = int_steps(w), per_pair = blocks_per_pair(p), rows32 = round_up(num_rows, 32);
  const int64_t num_pairs = ceil_div(num_n_blocks, per_pair);
  const bool cut = k_is_cut(p, plan.rows_per_chunk);
  const int64_t chunk_steps = cut ? round_up(max_of(1, kXChunkBytes / (rows32 * step_k)), panel) : steps;

  const auto fill = [&](Stage& stage) {
    stage.steps = min_of(panel, stage.chunk_end - stage.first);
    const int64_t n_block = first_n_block + stage.pair * per_pair;
    const char* b0 = p.weight + n_block * w.block_bytes;
    const bool has_second = p.silu_and_mul || n_block + 1 < first_n_block + num_n_blocks;
    stage.blocks = {b0, has_second ? b0 + (p.silu_and_mul ? p.up_blocks : 1) * w.block_bytes : nullptr, n_block};
  };
  // To the stage that comes after it: the next panel of the chunk, then the next pair, then the next chunk.
  const auto advance = [&](Stage& stage) {
    ++stage.number;
    stage.first += panel;
    if (stage.first >= stage.chunk_end) {
      if (++stage.pair == num_pairs) {
        stage.pair = 0;
        stage.chunk_begin = stage.chunk_end;
        stage.chunk_end = min_of(steps, stage.chunk_begin + chunk_steps);
      }
      stage.first = stage.chunk_begin;
    }
    if (stage.first >= steps) return false;
    fill(stage);
    return true;
  };

  Stage stage{.chunk_begin = 0,
              .chunk_end = min_of(steps, chunk_steps),
              .pair = 0,
              .first = 0,
              .steps = 0,
              .blocks = {},
              .number = 0};
  fill(stage);
  for (int64_t s = 0; s < stage.steps; ++s) prepare_step<kCodes>(p, scratch, stage, s);
  int_amx_begin(w, 16, true);
  PendingDots pending;
  char* in_tiles =
      scratch.dots + (2 * kGroupsAtOnce - 1) * kDotsBytes;  // where the dots in the tiles go; at first nothing's
  for (int64_t unit = 0;;) {
    Stage next = stage;
    const bool has_next = advance(next);
    int64_t prepared = has_next ? 0 : next.steps;
    float* sums = scratch.sums + (cut ? stage.pair * rows32 * kPairColumns : 0);
    const char* panel_tiles = scratch.panels[stage.number % 2];
    const char* blocks[2] = {stage.blocks.b0, stage.blocks.b1 == nullptr ? stage.blocks.b0 : stage.blocks.b1};
    const int64_t num_units = ceil_div(stage.steps / group_steps, kGroupsAtOnce);
    for (int64_t row = 0; row < num_rows; row += 32) {
      const char* x_tiles =
          reinterpret_cast<const char*>(x.codes) + int_x_tile_offset(p, (first_row + row) / 16, stage.first);
      for (int64_t u = 0; u < num_units; ++u, ++unit) {
        const int64_t first_group = u * kGroupsAtOnce;  // in the panel
        const int64_t num_groups = min_of(kGroupsAtOnce, stage.steps / group_steps - first_group);
        // A unit's last dots are stored by the first products of the next one: from there on they can join.
        const int64_t slots = 2 * group_steps - 1 + (num_groups - 1) * (2 * group_steps + 1);
        const int64_t rows_per_slot = ceil_div(32, slots);
        char* dots = scratch.dots + unit % 2 * kGroupsAtOnce * kDotsBytes;
        for (int64_t g = 0; g < num_groups; ++g) {
          const int64_t from = (first_group + g) * group_steps;  // step of the panel
          const TileRows a{.base = x_tiles + from * 32 * step_k,
                           .row_stride = step_k,
                           .step_stride = 32 * step_k,
                           .block_stride = 16 * step_k};
          const auto b = [&](int64_t s, int64_t j) {
            if constexpr (kCodes == CodeType::kInt8) return blocks[j] + (stage.first + from + s) * step_k * kNBlock;
            return panel_tiles + ((from + s) * 2 + j) * kTileBytes;
          };
          const auto meanwhile = [&](bool stored) __attribute__((always_inline)) {
            if ((!stored && g == 0) || pending.row >= 32) return;
            amx_fence();
            join_some<kOffsets>(p, pending, rows_per_slot);
            amx_fence();
          };
          group_dots(a, b, group_steps, in_tiles, meanwhile);
          in_tiles = dots + g * kDotsBytes;
          amx_fence();
          for (int64_t s = 0; s < group_steps && prepared < next.steps; ++s)
            prepare_step<kCodes>(p, scratch, next, prepared++);
        }
        const int64_t group = stage.first / group_steps + first_group;
        const int64_t idx = int_row_idx(first_row + row, w.num_groups) + group * 16;
        pending = {.blocks = stage.blocks,
                   .row = 0,
                   .num_groups = num_groups,
                   .dots = dots,
                   .sums = sums + row * kPairColumns,
                   .x_scales = x.scales + idx,
                   .x_sums = x.sums + idx,
                   .x_block_stride = w.num_groups * 16,
                   .scales = scratch.scales[stage.number % 3] + first_group * kPairColumns,
                   .offsets = w.has_offsets ? scratch.offsets[stage.number % 3] + first_group * kPairColumns : nullptr,
                   .is_first = group == 0,
                   .is_last = group + num_groups == w.num_groups,
                   .out_row = first_row + row,
                   .end_out_row = first_row + num_rows};
      }
    }
    if (!has_next) break;
    while (prepared < next.steps) prepare_step<kCodes>(p, scratch, next, prepared++);
    stage = next;
  }
  store_dots(in_tiles);
  amx_fence();
  join_some<kOffsets>(p, pending, 32);
  amx_end();
}

// --- all -------------------------------------------------------------------------------------------------------------

static GemmPlan int_amx_plan(const GemmParams& p, int num_threads) {
  GemmPlan plan = p.m <= 16 ? int_plan(p, num_threads) : amx_plan(p, num_threads);
  if (p.m <= 16) {
    plan.scratch_bytes = max_of(plan.scratch_bytes, 16 * kIntGroup * kNBlock * 4 + 4 * kIntGroup * kTileBytes);
  } else {
    // Several pairs an item, so that the next one is prepared in time.
    const int64_t num_items =
        ceil_div(p.m, plan.rows_per_chunk) * ceil_div(ceil_div(p.n, kNBlock), plan.n_blocks_per_group);
    if (!amx_takes_int8(p) && !k_is_cut(p, plan.rows_per_chunk))
      plan.n_blocks_per_group *= min_of(8, max_of(1, num_items / (8 * num_threads)));
    plan.scratch_bytes += p.weight_ints.two_level() ? Int4Tiles::kBytes : stage_scratch_bytes(p.weight_ints);
  }
  return plan;
}

static void int_amx_pack(const GemmParams& p, int64_t first_row, int64_t num_rows) {
  if (p.m <= 16) {
    int_pack_rows(p, first_row, num_rows);
  } else if (amx_takes_int8(p)) {
    amx_pack_int8_rows(p, first_row, num_rows);
  } else {
    int_amx_pack_rows(p, first_row, num_rows);
  }
}

static void gemm_int_amx(const GemmParams& p, const GemmPlan& plan, int64_t first_row, int64_t num_rows,
                         int64_t first_n_block, int64_t num_n_blocks, char* scratch) {
  if (p.m <= kVectorRows) {
    gemm_int(p, first_row, num_rows, first_n_block, num_n_blocks, reinterpret_cast<float*>(scratch));
  } else if (p.m <= 16) {
    int_amx_few_rows(p, first_n_block, num_n_blocks, scratch);
  } else if (amx_takes_int8(p)) {
    gemm_amx(p, plan, first_row, num_rows, first_n_block, num_n_blocks, scratch);
  } else {
    const bool int8 = p.weight_ints.codes == CodeType::kInt8, offsets = p.weight_ints.has_offsets;
    const auto run =
        int8 ? (offsets ? int_amx_many_rows<CodeType::kInt8, true> : int_amx_many_rows<CodeType::kInt8, false>)
             : (offsets ? int_amx_many_rows<CodeType::kInt4, true> : int_amx_many_rows<CodeType::kInt4, false>);
    run(p, plan, first_row, num_rows, first_n_block, num_n_blocks, scratch);
  }
}

}  // namespace spate::cpu::SPATE_ISA
