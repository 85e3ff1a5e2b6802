// Paged attention on AMX tiles, for bf16 activations over bf16 and int8 caches: prefill and decode alike, so that their
// bits agree. Probabilities are rounded to bf16 for the product with V; the denominator sums them unrounded. int8 codes
// are exact in bf16 and are widened on their way to the tiles; the scale of a key multiplies its column of scores, the
// scale of a value its probabilities.
//
// More than 16 rows: blocks of 32 rows go through a pipeline over (key tile, block): while the tiles multiply the
// scores of the next stage and the values of the stage before, the vector units, idle otherwise, run the softmax of the
// current one, a row with each 2 x 2 step. Up to 16 rows (decode): tiles of as many rows, four n-blocks at a time, and
// the keys to come are asked for meanwhile: memory is the limit.
#pragma once

#include "backend/cpu/kernel/amx.h"
#include "backend/cpu/kernel/attention_common.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kTileGroups = kKvTile / kNBlock;  // of 16 keys
constexpr int64_t kTileSteps = kKvTile / kKStep;    // of 32 keys
constexpr int64_t kBlockRows = 32;
constexpr int64_t kFewAttentionRows = 16;
constexpr int64_t kMaxHeadBlocks = 16;  // head_dim up to 256

// Accumulator rows: a multiple of four n-blocks, so that products need no remainders. What lies beyond head_dim is not
// used.
SPATE_INLINE int64_t amx_value_width(int64_t head_dim) { return round_up(head_dim, 4 * kNBlock); }

struct AmxScratch {
  char* q;        // [rows / 16][head_dim / 32] tiles
  float* scores;  // [2][32, kKvTile]
  bf16_t* probs;  // [2][32, kKvTile]
  RowSums total, span;
  float* factors;       // [32]
  float* key_scales;    // [kKvTile]
  float* value_scales;  // [kKvTile]
  char* k;              // [kTileGroups][head_dim / 32] tiles, widened
  char* v;              // [value blocks][kTileSteps] tiles, widened or put together
};

static int64_t amx_attention_scratch_bytes(int64_t rows, int64_t head_dim) {
  const int64_t padded_rows = round_up(rows, kBlockRows), width = amx_value_width(head_dim);
  return padded_rows * round_up(head_dim, kKStep) * 2 + 2 * kBlockRows * kKvTile * 6 +
         2 * row_sums_bytes(padded_rows, width) + kBlockRows * 4 + 2 * kKvTile * 4 +
         kKvTile * (round_up(head_dim, kKStep) + width) * 2 + 16 * 64;
}

static AmxScratch cut_amx_scratch(char* scratch, int64_t rows, int64_t head_dim) {
  const int64_t padded_rows = round_up(rows, kBlockRows), width = amx_value_width(head_dim);
  AmxScratch s;
  s.q = take<char>(scratch, padded_rows * round_up(head_dim, kKStep) * 2);
  s.scores = take<float>(scratch, 2 * kBlockRows * kKvTile);
  s.probs = take<bf16_t>(scratch, 2 * kBlockRows * kKvTile);
  s.total = take_row_sums(scratch, padded_rows, width);
  s.span = take_row_sums(scratch, padded_rows, width);
  s.factors = take<float>(scratch, kBlockRows);
  s.key_scales = take<float>(scratch, kKvTile);
  s.value_scales = take<float>(scratch, kKvTile);
  s.k = take<char>(scratch, kKvTile * round_up(head_dim, kKStep) * 2);
  s.v = take<char>(scratch, kKvTile * width * 2);
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

// 32 codes of a row of an n-block, as bf16.
SPATE_INLINE void widen_line(const char* codes, char* out) {
  const F low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
  const F high =
      _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16))));
  store_two(reinterpret_cast<bf16_t*>(out), low, high);
}
SPATE_INLINE void widen_lines(const char* codes, int64_t num_lines, char* out) {
  for (int64_t line = 0; line < num_lines; ++line) widen_line(codes + line * 32, out + line * 64);
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

// Two blocks of A rows (from L1) by two B tiles a step: b(s, j), j = 0, 1. `ahead(s)` asks for what comes next;
// meanwhile() is vector work.
template <typename B, typename Ahead, typename Meanwhile>
SPATE_INLINE void attention_2x2(const TileRows& a, const B& b, int64_t steps, float* c, int64_t c_stride,
                                bool accumulate, const Ahead& ahead, const Meanwhile& meanwhile) {
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
    _tile_loadd(6, b(s, 0), 64);
    _tile_loadd(4, rows, a.row_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b(s, 1), 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, rows + a.block_stride, a.row_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    ahead(s);
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
  int64_t number = 0;  // its buffers are those of number % 2
  KeyTile tile = {};
  int64_t width = 0;    // keys up to the last one that a row sees, rounded up to 32
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
    int64_t number = 0, started = 0;  // bit of each block
    for (int64_t t = range.first; t < range.end; ++t) {
      const KeyTile tile = key_tile(item_, t);
      for (int64_t row = 0; row < rows_; row += kBlockRows) {
        Stage stage = stage_of(tile, row);
        if (stage.width == 0) continue;
        stage.number = number++;
        stage.first = (started >> row / kBlockRows & 1) == 0;
        started |= int64_t{1} << row / kBlockRows;
        advance(stage);
      }
    }
    advance(Stage{});
    advance(Stage{});
  }

 private:
  Stage stage_of(const KeyTile& tile, int64_t row) const {
    Stage stage;
    stage.first_row = row;
    stage.num_rows = min_of(kBlockRows, rows_ - row);
    stage.tile = tile;
    const KeyRange first = visible_keys(item_, tile, row), last = visible_keys(item_, tile, row + stage.num_rows - 1);
    if (last.end > 0 && first.first < kKvTile) stage.width = round_up(last.end, kKStep);
    stage.masked = !(first.end == kKvTile && last.first == 0);
    return stage;
  }

  // The scores of `next`, the softmax of the current stage, and the values of the one before it.
  void advance(const Stage& next) {
    row_ = 0;
    num_rows_ = current_.exists() ? current_.num_rows : 0;
    if (num_rows_ > 0) {
      if constexpr (kCodes) {
        if (scales_of_ != current_.tile.begin) load_scales(item_, current_.tile, s_.key_scales, s_.value_scales);
        scales_of_ = current_.tile.begin;
      }
    }
    any_factor_ = false;
    amx_fence();
    if (next.exists()) score(next);
    if (previous_.exists()) add_values(previous_);
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
  bf16_t* probs_of(const Stage& stage) const { return s_.probs + stage.number % 2 * kBlockRows * kKvTile; }

  void score(const Stage& stage) {
    if (keys_of_ != stage.tile.begin) keys_ = key_tiles_of<kCodes>(item_, stage.tile, s_.k);
    keys_of_ = stage.tile.begin;
    amx_fence();
    const TileRows q{.base = s_.q + stage.first_row / 16 * q_steps_ * kTileBytes,
                     .row_stride = 64,
                     .step_stride = kTileBytes,
                     .block_stride = q_steps_ * kTileBytes};
    float* scores = scores_of(stage);
    for (int64_t g = 0; g * kNBlock < stage.width; g += 2) {
      const char* b0 = keys_.group[g];
      const char* b1 = keys_.group[g + 1];
      const char* next0 = keys_.group[min_of(g + 2, kTileGroups - 2)];
      const char* next1 = keys_.group[min_of(g + 3, kTileGroups - 1)];
      attention_2x2(
          q, [&](int64_t s, int64_t j) { return (j == 0 ? b0 : b1) + s * kTileBytes; }, q_steps_, scores + g * kNBlock,
          kKvTile, false, [&](int64_t s) { prefetch_tile_pair(next0 + s * kTileBytes, next1 + s * kTileBytes); },
          [&] { softmax_next_row(); });
    }
  }

  void add_values(const Stage& stage) {
    if (values_of_ != stage.tile.begin) values_ = value_tiles_of<kCodes>(item_, stage.tile, s_.v);
    values_of_ = stage.tile.begin;
    amx_fence();
    const TileRows probs{.base = reinterpret_cast<const char*>(probs_of(stage)),
                         .row_stride = kKvTile * 2,
                         .step_stride = 64,
                         .block_stride = 16 * kKvTile * 2};
    float* sums = sums_.accumulator + stage.first_row * value_width_;
    const int64_t last = ceil_div(item_.layout.head_dim, kNBlock) - 1;
    for (int64_t pair = 0; pair < value_pairs_; ++pair) {
      const int64_t d0 = 2 * pair, d1 = min_of(d0 + 1, last), next0 = min_of(d0 + 2, last),
                    next1 = min_of(d0 + 3, last);
      attention_2x2(
          probs, [&](int64_t s, int64_t j) { return values_.step[s] + (j == 0 ? d0 : d1) * values_.stride[s]; },
          stage.width / kKStep, sums + d0 * kNBlock, value_width_, !stage.first,
          [&](int64_t s) {
            prefetch_tile_pair(values_.step[s] + next0 * values_.stride[s],
                               values_.step[s] + next1 * values_.stride[s]);
          },
          [&] { softmax_next_row(); });
    }
  }

  SPATE_INLINE void prefetch_tile_pair(const char* a, const char* b) {
    for (int64_t line = 0; line < kTileBytes; line += 64) {
      _mm_prefetch(a + line, _MM_HINT_T0);
      _mm_prefetch(b + line, _MM_HINT_T0);
    }
  }

  __attribute__((always_inline)) void softmax_next_row() {
    if (row_ < num_rows_) softmax_current_row(row_++);
  }
  __attribute__((noinline)) void softmax_current_row(int64_t r) {
    const int64_t row = current_.first_row + r;
    ScoreRow scores{scores_of(current_) + r * kKvTile, s_.key_scales, s_.value_scales, item_.scale_log2e, {}};
    bf16_t* probs = probs_of(current_) + r * kKvTile;
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
  // What lies in the scratch, or is pointed to: of the tile that begins there.
  int64_t keys_of_ = -1, values_of_ = -1, scales_of_ = -1;
  KeyTiles keys_;
  ValueTiles values_;
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
      .base = reinterpret_cast<const char*>(s.probs), .row_stride = kKvTile * 2, .step_stride = 64, .block_stride = 0};
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
    if constexpr (kCodes) load_scales(item, tile, s.key_scales, s.value_scales);
    for (int64_t r = 0; r < rows; ++r) {
      const ScoreRow row{s.scores + r * kKvTile, s.key_scales, s.value_scales, item.scale_log2e,
                         visible_keys(item, tile, r)};
      bf16_t* row_probs = s.probs + r * kKvTile;
      float* denominators = sums.denominators + r * kLanes;
      const bool all = row.visible.first == 0 && row.visible.end == kKvTile;
      const float factor = all ? softmax_row<false, kKvTile, kCodes>(row, row_probs, sums.max[r], denominators)
                               : softmax_masked_row<kCodes>(row, steps * kKStep, row_probs, sums.max[r], denominators);
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
  // Rows beyond the last are multiplied too: they must be numbers.
  if (!few) {
    for (int64_t i = 0; i < 2 * kBlockRows * kKvTile; i += 32) _mm512_storeu_si512(s.probs + i, _mm512_setzero_si512());
  }
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
