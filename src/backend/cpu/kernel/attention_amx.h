// Paged attention on AMX tiles, for bf16 activations over bf16 and int8 caches: prefill and decode alike, so that their
// bits agree. Probabilities are rounded to bf16 for the product with V; the denominator sums them unrounded. int8 codes
// are exact in bf16 and are widened on their way to the tiles; the scale of a key multiplies its column of scores, the
// scale of a value its probabilities.
//
// More than 16 rows: blocks of 32 rows pass over the keys of a span one after the other, so that a block's queries,
// scores and sums stay in L1 while keys and values stream from L2. While the tiles multiply the values of the tile
// before and the scores of the next one, the vector units run the softmax of the current one, a row with each 2 x 2
// step; beside tile operations they do one 512-bit operation a cycle, not two. Up to 16 rows (decode): tiles of as many
// rows, four n-blocks at a time, and the keys to come are asked for meanwhile: memory is the limit.
#pragma once

#include "backend/cpu/kernel/amx.h"
#include "backend/cpu/kernel/attention_common.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kTileGroups = kKvTile / kNBlock;  // of 16 keys
constexpr int64_t kTileSteps = kKvTile / kKStep;    // of 32 keys
constexpr int64_t kBlockRows = 32;                  // two tiles of rows
constexpr int64_t kFewAttentionRows = 16;

// Accumulator rows: a multiple of four n-blocks, so that products need no remainders. What lies beyond head_dim is not
// used.
SPATE_INLINE int64_t amx_value_width(int64_t head_dim) { return round_up(head_dim, 4 * kNBlock); }

struct AmxScratch {
  char* q;        // [rows / 16][head_dim / 32] tiles
  float* scores;  // [2][32, kKvTile]; a row's probabilities take the place of its first half
  RowSums total, span;
  float* factors;       // [32]
  float* key_scales;    // [kKvSpan]
  float* value_scales;  // [kKvSpan]
  char* k;              // of each tile of a span [kTileGroups][head_dim / 32] tiles, widened
  char* v;              // [kTileSteps][value blocks] tiles, widened or put together
};

static int64_t amx_attention_scratch_bytes(int64_t rows, int64_t head_dim) {
  const int64_t padded_rows = round_up(rows, kBlockRows), width = amx_value_width(head_dim);
  return padded_rows * round_up(head_dim, kKStep) * 2 + 2 * kBlockRows * kKvTile * 4 +
         2 * row_sums_bytes(padded_rows, width) + kBlockRows * 4 + 2 * kKvSpan * 4 +
         kKvSpan * (round_up(head_dim, kKStep) + width) * 2 + 16 * 64;
}

static AmxScratch cut_amx_scratch(char* scratch, int64_t rows, int64_t head_dim) {
  const int64_t padded_rows = round_up(rows, kBlockRows), width = amx_value_width(head_dim);
  AmxScratch s;
  s.q = take<char>(scratch, padded_rows * round_up(head_dim, kKStep) * 2);
  s.scores = take<float>(scratch, 2 * kBlockRows * kKvTile);
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

// --- keys and values as B tiles
// -----------------------------------------------------------------------------------------------------------

// Codes become bf16, times 2^24: each in the top byte of a word of 32 bits, that word as f32, and the upper halves of
// two such words together. The scales take the 2^24 back.
constexpr float kWidenedUnit = 0x1p-24f;

struct WidenIndices {
  alignas(64) uint8_t even[2][64],
      odd[2][64];  // for the two lines of 64 codes: the top byte of each word; the others are masked
};
static constexpr WidenIndices make_widen_indices() {
  WidenIndices indices{};
  for (int line = 0; line < 2; ++line) {
    for (int word = 0; word < 16; ++word) {
      indices.even[line][4 * word + 3] = static_cast<uint8_t>(32 * line + 2 * word);
      indices.odd[line][4 * word + 3] = static_cast<uint8_t>(32 * line + 2 * word + 1);
    }
  }
  return indices;
}
static constexpr WidenIndices kWidenIndices = make_widen_indices();

// num_lines (even) lines of 32 codes.
SPATE_INLINE void widen_lines(const char* codes, int64_t num_lines, char* out) {
  constexpr __mmask64 kTopBytes = 0x8888888888888888u;
  const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int64_t line = 0; line < num_lines; line += 2, codes += 64, out += 128) {
    const __m512i all = _mm512_loadu_si512(codes);
    for (int i = 0; i < 2; ++i) {
      const __m512i even = _mm512_maskz_permutexvar_epi8(kTopBytes, _mm512_load_si512(kWidenIndices.even[i]), all);
      const __m512i odd = _mm512_maskz_permutexvar_epi8(kTopBytes, _mm512_load_si512(kWidenIndices.odd[i]), all);
      const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(even)), 16);
      const __m512i high = _mm512_castps_si512(_mm512_cvtepi32_ps(odd));
      _mm512_storeu_si512(out + i * 64,
                          _mm512_ternarylogic_epi32(high, upper_half, low, 0xea));  // (high & upper_half) | low
    }
  }
}

SPATE_INLINE void prefetch_lines(const char* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
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
      if (g < groups) widen_lines(tiles.group[g], group_bytes / 64, widened + g * group_bytes);
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
    widen_lines(codes, kNBlock / 2, out + half * kTileBytes / 2);
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
  const int64_t kv_block_size = item.layout.kv_block_size, value_blocks = ceil_div(item.layout.head_dim, kNBlock);
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

// --- more than 16 rows
// --------------------------------------------------------------------------------------------------------------------

// Two blocks of A rows from L1 by two B tiles a step from L2, which must not drive the rows out of L1: b(s, j), j =
// 0, 1. meanwhile() is vector work.
template <typename B, typename Meanwhile>
SPATE_INLINE void attention_2x2(const TileRows& a, const B& b, int64_t steps, float* c, int64_t c_stride,
                                bool accumulate, const Meanwhile& meanwhile) {
  float* lower = c + 16 * c_stride;
  if (accumulate) {
    _tile_loadd(0, c, c_stride * 4);
    _tile_loadd(1, c + 16, c_stride * 4);
    _tile_loadd(2, lower, c_stride * 4);
    _tile_loadd(3, lower + 16, c_stride * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t s = 0; s < steps; ++s) {
    const char* rows = a.base + s * a.step_stride;
    _tile_stream_loadd(6, b(s, 0), 64);
    _tile_loadd(4, rows, a.row_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stream_loadd(7, b(s, 1), 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, rows + a.block_stride, a.row_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    meanwhile();
  }
  _tile_stored(0, c, c_stride * 4);
  _tile_stored(1, c + 16, c_stride * 4);
  _tile_stored(2, lower, c_stride * 4);
  _tile_stored(3, lower + 16, c_stride * 4);
}

// One block of rows and one key tile.
struct Stage {
  int64_t first_row = -1;  // -1: no stage
  int64_t num_rows = 0;
  int64_t number = 0;    // its buffers are those of number % 2
  int64_t tile_idx = 0;  // in the span
  KeyTile tile = {};
  int64_t width = 0;    // keys up to the last one that a row sees, rounded up to kWidthStep
  bool masked = false;  // not every row sees all keys of the tile
  bool first = false;   // of these rows in this span
  bool exists() const { return first_row >= 0; }
};

template <bool kCodes>
class AmxPipeline {
 public:
  AmxPipeline(const AttentionItem& item, int64_t rows, const AmxScratch& scratch, const RowSums& sums)
      : item_(item),
        s_(scratch),
        sums_(sums),
        rows_(rows),
        q_steps_(ceil_div(item.layout.head_dim, kKStep)),
        value_pairs_(ceil_div(item.layout.head_dim, 2 * kNBlock)),
        value_width_(amx_value_width(item.layout.head_dim)) {}

  void run(const TileRange& range) {
    for (int64_t t = range.first; t < range.end; ++t) prepare(t - range.first, key_tile(item_, t));
    int64_t number = 0;
    for (int64_t row = 0; row < rows_; row += kBlockRows) {
      bool first = true;
      for (int64_t t = range.first; t < range.end; ++t) {
        Stage stage = stage_of(key_tile(item_, t), row);
        if (stage.width == 0) continue;
        stage.tile_idx = t - range.first;
        stage.number = number++;
        stage.first = first;
        first = false;
        advance(stage);
      }
    }
    advance(Stage{});
    advance(Stage{});
  }

 private:
  // Finds or makes the B tiles of a tile of keys.
  void prepare(int64_t tile_idx, const KeyTile& tile) {
    keys_[tile_idx] = key_tiles_of<kCodes>(item_, tile, s_.k + tile_idx * kTileGroups * q_steps_ * kTileBytes);
    values_[tile_idx] = value_tiles_of<kCodes>(item_, tile, s_.v + tile_idx * kKvTile * value_width_ * 2);
    if constexpr (kCodes) {
      load_scales(item_, tile, kWidenedUnit, s_.key_scales + tile_idx * kKvTile, s_.value_scales + tile_idx * kKvTile);
    }
  }

  Stage stage_of(const KeyTile& tile, int64_t row) const {
    Stage stage;
    stage.first_row = row;
    stage.num_rows = min_of(kBlockRows, rows_ - row);
    stage.tile = tile;
    const KeyRange first = visible_keys(item_, tile, row), last = visible_keys(item_, tile, row + stage.num_rows - 1);
    if (last.end > 0 && first.first < kKvTile) stage.width = round_up(last.end, kWidthStep);
    stage.masked = !(first.end == kKvTile && last.first == 0);
    return stage;
  }

  // The values of the stage before the current one, the softmax of the current one, and the scores of `next`.
  void advance(const Stage& next) {
    row_ = 0;
    num_rows_ = current_.exists() ? current_.num_rows : 0;
    any_factor_ = false;
    amx_fence();
    if (previous_.exists()) add_values(previous_);
    if (next.exists()) score(next);  // where the previous stage was
    while (row_ < num_rows_) softmax_next_row();
    amx_fence();
    if (any_factor_) {
      for (int64_t r = 0; r < num_rows_; ++r) {
        if (s_.factors[r] != 1)
          scale_row(sums_.accumulator + (current_.first_row + r) * value_width_, value_width_, s_.factors[r]);
      }
    }
    previous_ = current_;
    current_ = next;
  }

  float* scores_of(const Stage& stage) const { return s_.scores + stage.number % 2 * kBlockRows * kKvTile; }

  void score(const Stage& stage) {
    const KeyTiles& keys = keys_[stage.tile_idx];
    const TileRows q{.base = s_.q + stage.first_row / 16 * q_steps_ * kTileBytes,
                     .row_stride = 64,
                     .step_stride = kTileBytes,
                     .block_stride = q_steps_ * kTileBytes};
    for (int64_t g = 0; g * kNBlock < stage.width; g += 2) {
      const auto b = [&](int64_t s, int64_t j) { return keys.group[g + j] + s * kTileBytes; };
      attention_2x2(q, b, q_steps_, scores_of(stage) + g * kNBlock, kKvTile, false, [&] { softmax_next_row(); });
    }
  }

  void add_values(const Stage& stage) {
    const ValueTiles& values = values_[stage.tile_idx];
    const TileRows probs{.base = reinterpret_cast<const char*>(scores_of(stage)),
                         .row_stride = kKvTile * 4,
                         .step_stride = 64,
                         .block_stride = 16 * kKvTile * 4};
    float* sums = sums_.accumulator + stage.first_row * value_width_;
    const int64_t last = ceil_div(item_.layout.head_dim, kNBlock) - 1;
    const int64_t steps = ceil_div(min_of(stage.width, stage.tile.num_keys), kKStep);
    for (int64_t pair = 0; pair < value_pairs_; ++pair) {
      const int64_t block[2] = {2 * pair, min_of(2 * pair + 1, last)};
      const auto b = [&](int64_t s, int64_t j) { return values.step[s] + block[j] * values.stride[s]; };
      attention_2x2(probs, b, steps, sums + block[0] * kNBlock, value_width_, !stage.first,
                    [&] { softmax_next_row(); });
    }
  }

  __attribute__((always_inline)) void softmax_next_row() {
    if (row_ < num_rows_) softmax_current_row(row_++);
  }
  __attribute__((noinline)) void softmax_current_row(int64_t r) {
    const int64_t row = current_.first_row + r;
    float* row_scores = scores_of(current_) + r * kKvTile;
    const int64_t first_scale = current_.tile_idx * kKvTile;
    ScoreRow scores{row_scores, s_.key_scales + first_scale, s_.value_scales + first_scale, item_.scale_log2e, {}};
    bf16_t* probs = reinterpret_cast<bf16_t*>(row_scores);
    float& max = sums_.max[row];
    float* denominators = sums_.denominators + row * kLanes;
    float factor;
    if (current_.masked) {
      scores.visible = visible_keys(item_, current_.tile, row);
      factor = softmax_masked_row<kCodes>(scores, current_.width, probs, max, denominators);
    } else {
      factor = softmax_row<false, kKvTile, kCodes>(scores, probs, max, denominators);
    }
    s_.factors[r] = factor;
    any_factor_ |= factor != 1;
  }

  const AttentionItem& item_;
  const AmxScratch& s_;
  const RowSums& sums_;
  int64_t rows_, q_steps_, value_pairs_, value_width_;
  Stage current_, previous_;
  int64_t row_ = 0, num_rows_ = 0;  // of the current stage's softmax
  bool any_factor_ = false;
  KeyTiles keys_[kTilesPerSpan];  // of the tiles of the span
  ValueTiles values_[kTilesPerSpan];
};

// --- up to 16 rows
// ------------------------------------------------------------------------------------------------------------------------

// The keys to be read after a tile: those of the next tile, or of the next item.
struct KeysAhead {
  AttentionItem item;  // of these only kv, block_table and layout count
  KeyTile tile;
  bool exist;
};

static KeysAhead keys_ahead(const AttentionItem& item, const KeyTile& tile) {
  KeysAhead ahead{.item = item, .tile = {}, .exist = true};
  const int64_t end = min_of(last_position(item) + 1, item.end_span * kKvSpan);
  if (tile.begin + kKvTile < end) {
    ahead.tile = {tile.begin + kKvTile, min_of(kKvTile, end - tile.begin - kKvTile)};
    return ahead;
  }
  ahead.item.kv = item.next_kv;
  ahead.item.block_table = item.next_block_table;
  ahead.tile = {item.next_position, min_of(kKvTile, item.next_end - item.next_position)};
  ahead.exist = item.next_end > item.next_position;
  return ahead;
}

template <bool kCodes>
static void amx_few_rows(const AttentionItem& item, int64_t rows, const TileRange& range, const AmxScratch& s,
                         const RowSums& sums) {
  const int64_t q_steps = ceil_div(item.layout.head_dim, kKStep),
                value_blocks = ceil_div(item.layout.head_dim, kNBlock);
  const int64_t value_width = amx_value_width(item.layout.head_dim), group_bytes = q_steps * kTileBytes;
  const TileRows q{.base = s.q, .row_stride = 64, .step_stride = kTileBytes, .block_stride = 0};
  const TileRows probs{
      .base = reinterpret_cast<const char*>(s.scores), .row_stride = kKvTile * 4, .step_stride = 64, .block_stride = 0};
  for (int64_t t = range.first; t < range.end; ++t) {
    const KeyTile tile = key_tile(item, t);
    const KeysAhead ahead = keys_ahead(item, tile);
    const int64_t groups = ceil_div(tile.num_keys, kNBlock), steps = ceil_div(tile.num_keys, kKStep);
    for (int64_t first = 0; first < groups; first += 4) {
      const char* b[4];
      for (int64_t j = 0; j < 4; ++j) {
        b[j] = k_group(item, group_position(tile, first + j));
        if (ahead.exist && (first + j) * kNBlock < ahead.tile.num_keys) {
          prefetch_lines(k_group(ahead.item, ahead.tile.begin + (first + j) * kNBlock), item.layout.k_group_bytes);
        }
        if constexpr (kCodes) {
          char* out = s.k + j * group_bytes;
          if (first + j < groups) widen_lines(b[j], group_bytes / 64, out);
          b[j] = first + j < groups ? out : s.k;
        }
      }
      amx_fence();
      amx_1x4<false>(
          q, [&](int64_t step, int64_t j) { return b[j] + step * kTileBytes; }, q_steps, s.scores + first * kNBlock,
          kKvTile, false);
    }
    amx_fence();
    if constexpr (kCodes) load_scales(item, tile, kWidenedUnit, s.key_scales, s.value_scales);
    for (int64_t r = 0; r < rows; ++r) {
      const ScoreRow row{s.scores + r * kKvTile, s.key_scales, s.value_scales, item.scale_log2e,
                         visible_keys(item, tile, r)};
      bf16_t* row_probs = reinterpret_cast<bf16_t*>(s.scores + r * kKvTile);
      float* denominators = sums.denominators + r * kLanes;
      const bool all = row.visible.first == 0 && row.visible.end == kKvTile;
      const float factor = all ? softmax_row<false, kKvTile, kCodes>(row, row_probs, sums.max[r], denominators)
                               : softmax_masked_row<kCodes>(row, round_up(tile.num_keys, kWidthStep), row_probs,
                                                            sums.max[r], denominators);
      if (factor != 1) scale_row(sums.accumulator + r * value_width, value_width, factor);
    }
    ValueTiles values = {};
    if constexpr (!kCodes) values = value_tiles_of<false>(item, tile, s.v);
    for (int64_t first = 0; first < value_blocks; first += 4) {
      const char* b[4][kTileSteps];
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t d = min_of(first + j, value_blocks - 1);
        for (int64_t g = 0; ahead.exist && first + j == d && g * kNBlock < ahead.tile.num_keys; ++g) {
          prefetch_lines(v_at(ahead.item, ahead.tile.begin + g * kNBlock) + d * item.layout.v_n_block_bytes,
                         kNBlock * kNBlock * elem_bytes(item.layout.elem));
        }
        for (int64_t step = 0; step < steps; ++step) {
          if constexpr (kCodes) {
            char* out = s.v + (j * kTileSteps + step) * kTileBytes;
            widen_value_tile(item, tile, step, d, out);
            b[j][step] = out;
          } else {
            b[j][step] = values.step[step] + d * values.stride[step];
          }
        }
      }
      amx_fence();
      amx_1x4<false>(
          probs, [&](int64_t step, int64_t j) { return b[j][step]; }, steps, sums.accumulator + first * kNBlock,
          value_width, t > range.first);
    }
    amx_fence();
  }
}

// --- both
// ---------------------------------------------------------------------------------------------------------------------------------

template <bool kCodes>
static void attention_amx(const AttentionItem& item, char* scratch) {
  const int64_t rows = item.num_queries * item.group_size, head_dim = item.layout.head_dim;
  const bool few = rows <= kFewAttentionRows;
  const AmxScratch s = cut_amx_scratch(scratch, rows, head_dim);
  tile_q(item, rows, few ? rows : round_up(rows, kBlockRows), s.q);
  amx_begin(few ? rows : 16);
  attend_spans(item, rows, amx_value_width(head_dim), s.total, s.span, [&](int64_t span, const RowSums& sums) {
    const TileRange range = key_tiles(item, span);
    if (few) {
      amx_few_rows<kCodes>(item, rows, range, s, sums);
    } else {
      AmxPipeline<kCodes>(item, rows, s, sums).run(range);
    }
    amx_fence();
  });
  amx_end();
}

}  // namespace spate::cpu::SPATE_ISA
