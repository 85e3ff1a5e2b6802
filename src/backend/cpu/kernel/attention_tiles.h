// Attention on AMX: scratch memory, queries as A tiles, and the keys and values of a tile of keys as B tiles, in place
// or widened.
#pragma once

#include "backend/cpu/kernel/amx.h"
#include "backend/cpu/kernel/attention_common.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kTileGroups = kKvTile / kNBlock;  // of 16 keys
constexpr int64_t kTileSteps = kKvTile / kKStep;    // of 32 keys
constexpr int64_t kBlockRows = 32;                  // two tiles of rows
constexpr int64_t kFewAttentionRows = 16;

// Accumulator rows: a multiple of four n-blocks, so that products need no remainders. What lies beyond value_dim is not
// used.
SPATE_INLINE int64_t amx_value_width(int64_t value_dim) { return round_up(value_dim, 4 * kNBlock); }

// Floats from row to row of a block's scores: an odd number of cache lines (512 bytes apart, prefill takes 2 to 4 % longer).
constexpr int64_t kScoreStride = kKvTile + kNBlock;

struct AmxScratch {
  char* q;        // [rows / 16][head_dim / 32] tiles
  float* scores;  // [2][32, kScoreStride]; a row's probabilities take the place of its first half
  RowSums total, span;
  float* factors;       // [32], of the accumulators: 1 unless a maximum moved
  float* key_scales;    // [kKvSpan]
  float* value_scales;  // [kKvSpan]
  char* k;              // of each tile of a span [kTileGroups][head_dim / 32] tiles, widened
  char* v;              // [kTileSteps][value blocks] tiles, widened or put together
};

static int64_t amx_attention_scratch_bytes(int64_t rows, int64_t head_dim) {
  const int64_t padded_rows = round_up(rows, kBlockRows), width = amx_value_width(head_dim);
  return padded_rows * round_up(head_dim, kKStep) * 2 + 2 * kBlockRows * kScoreStride * 4 +
         2 * row_sums_bytes(padded_rows, width) + kBlockRows * 4 + 2 * kKvSpan * 4 +
         kKvSpan * (round_up(head_dim, kKStep) + width) * 2 + 16 * 64;
}

static AmxScratch cut_amx_scratch(char* scratch, int64_t rows, int64_t head_dim) {
  const int64_t padded_rows = round_up(rows, kBlockRows), width = amx_value_width(head_dim);
  AmxScratch s;
  s.q = take<char>(scratch, padded_rows * round_up(head_dim, kKStep) * 2);
  s.scores = take<float>(scratch, 2 * kBlockRows * kScoreStride);
  s.total = take_row_sums(scratch, padded_rows, width);
  s.span = take_row_sums(scratch, padded_rows, width);
  s.factors = take<float>(scratch, kBlockRows);
  s.key_scales = take<float>(scratch, kKvSpan);
  s.value_scales = take<float>(scratch, kKvSpan);
  s.k = take<char>(scratch, kKvSpan * round_up(head_dim, kKStep) * 2);
  s.v = take<char>(scratch, kKvSpan * width * 2);
  return s;
}

// Rows up to padded_rows are zero.
static void tile_q(const AttentionItem& item, int64_t rows, int64_t padded_rows, char* q) {
  const int64_t head_dim = item.layout.head_dim, steps = ceil_div(head_dim, kKStep);
  for (int64_t r = 0; r < padded_rows; ++r) {
    const bf16_t* src = static_cast<const bf16_t*>(item.q) + (r < rows ? q_offset(item, r) : 0);
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t count = r < rows ? min_of(kKStep, head_dim - s * kKStep) : 0;
      const auto lanes = static_cast<__mmask32>(count == kKStep ? ~0u : (1u << count) - 1);
      _mm512_storeu_si512(q + (r / 16 * steps + s) * kTileBytes + r % 16 * 64,
                          _mm512_maskz_loadu_epi16(lanes, src + s * kKStep));
    }
  }
}

// --- keys and values as B tiles --------------------------------------------------------------------------------------

// Codes become bf16, times 2^-104: the code in the upper byte of a word of 16 bits, that word as f16, whose exponent and
// upper seven bits of mantissa (codes have no more) are moved to where bf16 has them; its exponent counts from 127, not
// from 15. The scales take the 2^-104 back.
constexpr float kWidenedUnit = 0x1p104f;

SPATE_INLINE __m512i widen_words(__m512i words) {
  const __m512i moved = _mm512_srai_epi16(_mm512_castph_si512(_mm512_cvtepi16_ph(words)), 3);
  return _mm512_and_si512(moved, _mm512_set1_epi16(static_cast<int16_t>(0x8fff)));  // the sign came thrice more
}

// num_rows (even) rows of 32 codes.
SPATE_INLINE void widen_rows(const char* codes, int64_t num_rows, char* out) {
  const __m512i upper_bytes = _mm512_set1_epi16(static_cast<int16_t>(0xff00));
  for (int64_t row = 0; row < num_rows; row += 2, codes += 64, out += 128) {
    const __m512i both = _mm512_loadu_si512(codes);
    _mm512_storeu_si512(out, widen_words(_mm512_slli_epi16(both, 8)));
    _mm512_storeu_si512(out + 64, widen_words(_mm512_and_si512(both, upper_bytes)));
  }
}

// Where the 16 keys or values from `position` on lie, of the groups that hold keys: beyond the last one it is repeated.
SPATE_INLINE int64_t group_position(const KeyTile& tile, int64_t group) {
  return tile.begin + min_of(group, (tile.num_keys - 1) / kNBlock) * kNBlock;
}

// B tiles of K: tile of step s of group g at group[g] + s * kTileBytes.
struct KeyTiles {
  const char* group[kTileGroups];
};
template <bool kCodes>
static KeyTiles key_tiles_of(const AttentionItem& item, const KeyTile& tile, char* widened) {
  const int64_t group_bytes = ceil_div(item.layout.head_dim, kKStep) * kTileBytes,
                groups = ceil_div(tile.num_keys, kNBlock);
  KeyTiles tiles;
  for (int64_t g = 0; g < kTileGroups; ++g) {
    tiles.group[g] = k_group(item, group_position(tile, g));
    if constexpr (kCodes) {
      if (g < groups) widen_rows(tiles.group[g], group_bytes / 64, widened + g * group_bytes);
      tiles.group[g] = widened + min_of(g, groups - 1) * group_bytes;
    }
  }
  return tiles;
}

// B tiles of V: 32 keys from step s of block d at step[s] + d * stride[s].
struct ValueTiles {
  const char* step[kTileSteps];
  int64_t stride[kTileSteps];
};

// One tile of V of a kI8 cache. Codes that are not written yet are numbers, too, and their probabilities are 0.
SPATE_INLINE void widen_value_tile(const AttentionItem& item, const KeyTile& tile, int64_t step, int64_t d, char* out) {
  for (int64_t half = 0; half < 2; ++half) {
    const char* codes = v_at(item, group_position(tile, 2 * step + half)) + d * item.layout.v_n_block_bytes;
    widen_rows(codes, kNBlock / 2, out + half * kTileBytes / 2);
  }
}

// bf16: in place when the 32 keys lie in one block and are all written, else a copy with zeros for the rest.
static void copy_value_step(const AttentionItem& item, const KeyTile& tile, int64_t step, int64_t value_blocks,
                            char* out) {
  const int64_t position = tile.begin + step * kKStep, written = min_of(kKStep, item.seq_len - position);
  for (int64_t pair = 0; pair < kKStep / 2; ++pair) {
    const int64_t key = 2 * pair;
    const char* src = key < written ? v_at(item, position + key) : nullptr;
    const __m512i keep = _mm512_set1_epi32(key + 1 < written ? -1 : 0xffff);
    for (int64_t d = 0; d < value_blocks; ++d) {
      const __m512i line = src == nullptr
                               ? _mm512_setzero_si512()
                               : _mm512_and_si512(keep, _mm512_loadu_si512(src + d * item.layout.v_n_block_bytes));
      _mm512_storeu_si512(out + d * kTileBytes + pair * 64, line);
    }
  }
}

template <bool kCodes>
static ValueTiles value_tiles_of(const AttentionItem& item, const KeyTile& tile, char* copy) {
  const int64_t kv_block_size = item.layout.kv_block_size, value_blocks = ceil_div(item.layout.value_dim, kNBlock);
  ValueTiles tiles;
  for (int64_t s = 0; s * kKStep < tile.num_keys; ++s) {
    const int64_t position = tile.begin + s * kKStep;
    char* out = copy + s * value_blocks * kTileBytes;
    tiles.step[s] = out;
    tiles.stride[s] = kTileBytes;
    if constexpr (kCodes) {
      for (int64_t d = 0; d < value_blocks; ++d) widen_value_tile(item, tile, s, d, out + d * kTileBytes);
    } else if (item.seq_len - position >= kKStep && position % kv_block_size + kKStep <= kv_block_size) {
      tiles.step[s] = v_at(item, position);
      tiles.stride[s] = item.layout.v_n_block_bytes;
    } else {
      copy_value_step(item, tile, s, value_blocks, out);
    }
  }
  return tiles;
}

}  // namespace spate::cpu::SPATE_ISA
