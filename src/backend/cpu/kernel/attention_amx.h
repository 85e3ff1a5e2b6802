// Paged attention on AMX tiles, for bf16 activations over bf16 and int8 caches: prefill and decode alike, so that their
// bits agree. Probabilities are rounded to bf16 for the product with V; the denominator sums them unrounded. int8 codes
// are exact in bf16 and are widened on their way to the tiles; the scale of a key multiplies its column of scores, the
// scale of a value its probabilities.
//
// More than 16 rows: blocks of 32 rows pass over the keys of a span one after the other, so that a block's queries,
// scores and sums stay in L1 while keys and values stream from L2. While the tiles multiply the values of the tile
// before and the scores of the next one, the vector units run the softmax of the current one, a row with each 2 x 2
// step; beside tile operations they do one 512-bit operation a cycle, not two. Up to 16 rows (decode): tiles of as many
// rows, four n-blocks at a time; up to kVectorRows no tiles, but the vector units in the tiles' order of operations. Both
// ask for the keys to come meanwhile: memory is the limit.
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

// Lines of K and V that will be read soon, asked for a few with each B tile: those of the item from kKeysAhead keys on,
// then the first kKeysAhead of the next item. In bursts they would fill the 16 buffers of L1 for misses, and what
// follows would wait instead of running meanwhile.
class KvAhead {
 public:
  explicit KvAhead(const AttentionItem& item) : item_(item), value_blocks_(ceil_div(item.layout.head_dim, kNBlock)) {
    const int64_t begin = key_tiles(item, item.first_span).first * kKvTile,
                  end = min_of(last_position(item) + 1, item.end_span * kKvSpan);
    sources_[0] = {item.kv, item.block_table, begin + kKeysAhead, end};
    sources_[1] = {item.next_kv, item.next_block_table, item.next_position,
                   min_of(item.next_end, item.next_position + kKeysAhead)};
    int64_t keys = 0;
    for (const Source& source : sources_) keys += max_of(0, source.end - source.position);
    const int64_t group_lines = (item.layout.k_group_bytes + value_blocks_ * kNBlock * kNBlock * elem_bytes(item.layout.elem)) / 64;
    const int64_t tiles = ceil_div(end - begin, kNBlock) * ceil_div(item.layout.head_dim, kKStep) +
                          ceil_div(end - begin, kKStep) * value_blocks_;
    lines_per_tile_ = (ceil_div(keys, kNBlock) * group_lines << kFractionBits) / tiles + 1;
  }

  // Lines one behind the other.
  struct Lines {
    const char* first;
    int64_t count;
  };
  // Those that are due after num_tiles more B tiles; some may be left for the next call.
  __attribute__((always_inline)) Lines due(int64_t num_tiles) {
    credit_ += num_tiles * lines_per_tile_;
    if (num_lines_ == 0 && !next_run()) return {nullptr, 0};
    const Lines lines{line_, min_of(credit_ >> kFractionBits, num_lines_)};
    credit_ -= lines.count << kFractionBits;
    line_ += lines.count * 64;
    num_lines_ -= lines.count;
    return lines;
  }
  // All that are due, at once.
  __attribute__((always_inline)) void ask(int64_t num_tiles) {
    for (Lines lines = due(num_tiles); lines.count > 0; lines = due(0)) {
      for (int64_t i = 0; i < lines.count; ++i) _mm_prefetch(lines.first + i * 64, _MM_HINT_T1);
    }
  }

 private:
  static constexpr int64_t kKeysAhead = 2 * kKvTile;
  static constexpr int64_t kFractionBits = 16;
  struct Source {
    const char* kv;
    const int32_t* block_table;
    int64_t position, end;  // position is a multiple of 16
  };

  // The next contiguous piece: a block, or of a block with keys that are not wanted those of K, then of each n-block of V,
  // then the scales.
  __attribute__((noinline)) bool next_run() {
    const KvLayout& layout = item_.layout;
    for (; num_sources_ < 2; ++num_sources_) {
      Source& source = sources_[num_sources_];
      if (source.position >= source.end) continue;
      const int64_t first = source.position % layout.kv_block_size,
                    keys = min_of(layout.kv_block_size - first, source.end - source.position);
      const char* head =
          source.kv + source.block_table[source.position / layout.kv_block_size] * item_.block_bytes;
      if (keys == layout.kv_block_size) {
        line_ = head;
        num_lines_ = layout.head_bytes / 64;
        source.position += keys;
        return true;
      }
      if (run_ == 0) {
        line_ = head + first / kNBlock * layout.k_group_bytes;
        num_lines_ = ceil_div(keys, kNBlock) * layout.k_group_bytes / 64;
      } else if (run_ <= value_blocks_) {
        const int64_t key_bytes = kNBlock * elem_bytes(layout.elem);
        line_ = head + layout.v_offset + (run_ - 1) * layout.v_n_block_bytes + first * key_bytes;
        num_lines_ = round_up(keys, kNBlock) * key_bytes / 64;
      } else {
        line_ = head + layout.k_scales_offset;
        num_lines_ = (layout.head_bytes - layout.k_scales_offset) / 64;
      }
      if (++run_ > value_blocks_ + (layout.elem == Elem::kI8 ? 1 : 0)) {
        run_ = 0;
        source.position += keys;
      }
      return true;
    }
    return false;
  }

  const AttentionItem& item_;
  int64_t value_blocks_;
  Source sources_[2];
  int64_t num_sources_ = 0;  // that are done with
  int64_t run_ = 0;          // of the current block
  const char* line_ = nullptr;
  int64_t num_lines_ = 0;  // of the current run
  int64_t lines_per_tile_ = 0, credit_ = 0;  // in units of 2^-kFractionBits
};

// Lines that lie in another core's cache, or in memory: of row `row` of the output, to be written, and of the next item's
// queries.
SPATE_INLINE void ask_for_row(const AttentionItem& item, int64_t row) {
  const int64_t bytes = item.layout.head_dim * 2;
  const char* out = static_cast<const char*>(item.out) + out_offset(item, row) * 2;
  for (int64_t i = 0; i < bytes && item.partial == nullptr; i += 64) asm volatile("prefetchw %0" : : "m"(out[i]));
  if (row >= item.next_queries * item.group_size) return;
  const char* q = static_cast<const char*>(item.next_q) + q_offset(item, row) * 2;
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(q + i, _MM_HINT_T1);
}

// Keys and values of a tile, group by group; beyond the last group it is repeated.
struct GroupPointers {
  const char* k[kTileGroups];
  const char* v[kTileGroups];  // of n-block 0
};
static GroupPointers group_pointers(const AttentionItem& item, const KeyTile& tile) {
  GroupPointers pointers;
  for (int64_t g = 0; g < kTileGroups; ++g) {
    const int64_t position = group_position(tile, g), in_block = position % item.layout.kv_block_size;
    const char* head = kv_block(item, position);
    pointers.k[g] = head + in_block / kNBlock * item.layout.k_group_bytes;
    pointers.v[g] = head + item.layout.v_offset + in_block * kNBlock * elem_bytes(item.layout.elem);
  }
  return pointers;
}

// One A tile by four B tiles; ask() runs after each.
template <typename Ask>
SPATE_INLINE void few_rows_step(const char* a, int64_t a_stride, const char* const* b, const Ask& ask) {
  _tile_loadd(4, a, a_stride);
  _tile_loadd(5, b[0], 64);
  _tile_dpbf16ps(0, 4, 5);
  ask();
  _tile_loadd(6, b[1], 64);
  _tile_dpbf16ps(1, 4, 6);
  ask();
  _tile_loadd(7, b[2], 64);
  _tile_dpbf16ps(2, 4, 7);
  ask();
  _tile_loadd(5, b[3], 64);
  _tile_dpbf16ps(3, 4, 5);
  ask();
}
SPATE_INLINE void few_rows_begin(const float* c, int64_t c_stride, bool accumulate) {
  if (accumulate) {
    _tile_loadd(0, c, c_stride * 4);
    _tile_loadd(1, c + 16, c_stride * 4);
    _tile_loadd(2, c + 32, c_stride * 4);
    _tile_loadd(3, c + 48, c_stride * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}
SPATE_INLINE void few_rows_end(float* c, int64_t c_stride) {
  _tile_stored(0, c, c_stride * 4);
  _tile_stored(1, c + 16, c_stride * 4);
  _tile_stored(2, c + 32, c_stride * 4);
  _tile_stored(3, c + 48, c_stride * 4);
}

// Up to this many rows are multiplied by the vector units, with the bits of the tiles: a tile load takes its 8 to 60 cycles
// (some cores of a shared host are that slow for hours, others not) whatever the rows that use it, and codes would go
// through memory.
constexpr int64_t kVectorRows = 4;

// Two rows of 16 pairs of k.
template <bool kCodes>
SPATE_INLINE void load_row_pair(const char* n_block, int64_t pair, __m512i* rows) {
  if constexpr (kCodes) {
    const __m512i both = _mm512_loadu_si512(n_block + pair * 64);
    rows[0] = widen_words(_mm512_slli_epi16(both, 8));
    rows[1] = widen_words(_mm512_and_si512(both, _mm512_set1_epi16(static_cast<int16_t>(0xff00))));
  } else {
    rows[0] = _mm512_loadu_si512(n_block + pair * 128);
    rows[1] = _mm512_loadu_si512(n_block + pair * 128 + 64);
  }
}

// kRows rows of floats times kBlocks n-blocks over a step of 32 k, half of it at halves[j][0] and half at halves[j][1]: as
// TDPBF16PS does it, the even k one after the other by fused multiply-add, the odd k too, both sums together, and that to
// c, with denormals as zeros (MXCSR). Asks for `lines` meanwhile.
template <bool kCodes, int kRows, int kBlocks>
SPATE_INLINE void vector_step(const float* a, int64_t a_stride, const char* const (*halves)[2], float* c, int64_t c_stride,
                              bool accumulate, const KvAhead::Lines& lines) {
  F even[kRows][kBlocks], odd[kRows][kBlocks];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) even[r][j] = odd[r][j] = zero();
  }
  const int64_t lines_a_pair = ceil_div(lines.count, 8);
  const char* line = lines.first;
  const char* const end = lines.first + lines.count * 64;
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t pair = 0; pair < 4; ++pair, a += 4) {
      for (int64_t i = 0; i < lines_a_pair && line < end; ++i, line += 64) _mm_prefetch(line, _MM_HINT_T1);
      F x[kRows][4];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) x[r][i] = set1(a[r * a_stride + i]);
      }
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) {
        __m512i rows[2];
        load_row_pair<kCodes>(halves[j][half], pair, rows);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
          const F low = _mm512_castsi512_ps(_mm512_slli_epi32(rows[i], 16));
          const F high = _mm512_castsi512_ps(_mm512_and_si512(rows[i], _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            even[r][j] = fma(low, x[r][2 * i], even[r][j]);
            odd[r][j] = fma(high, x[r][2 * i + 1], odd[r][j]);
          }
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      float* sums = c + r * c_stride + j * kNBlock;
      store(sums, add(accumulate ? load(sums) : zero(), add(even[r][j], odd[r][j])));
    }
  }
}

// Decode on the vector units. FMA takes denormals as zeros, as the tiles do, while one of these lives.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;
  unsigned before_;
};

template <bool kCodes, int kRows>
class VectorRows {
 public:
  VectorRows(const AttentionItem& item, const AmxScratch& scratch, const RowSums& sums, KvAhead& ahead)
      : item_(item),
        s_(scratch),
        sums_(sums),
        ahead_(ahead),
        q_width_(round_up(item.layout.head_dim, kKStep)),
        value_blocks_(ceil_div(item.layout.head_dim, kNBlock)),
        value_width_(amx_value_width(item.layout.head_dim)),
        q_(reinterpret_cast<float*>(scratch.k)),
        probs_(q_ + kRows * q_width_) {}

  void load_q() const {
    for (int64_t r = 0; r < kRows; ++r) {
      ask_for_row(item_, r);
      const bf16_t* src = static_cast<const bf16_t*>(item_.q) + q_offset(item_, r);
      SPATE_FOR_LANES(d, count, item_.layout.head_dim) { store(q_ + r * q_width_ + d, load_up_to(src + d, count)); }
      for (int64_t d = round_up(item_.layout.head_dim, kLanes); d < q_width_; ++d) q_[r * q_width_ + d] = 0;
    }
  }

  void run(const TileRange& range) {
    const FlushDenormals flush;
    for (int64_t t = range.first; t < range.end; ++t) {
      tile_ = key_tile(item_, t);
      pointers_ = group_pointers(item_, tile_);
      score();
      if constexpr (kCodes) {
        load_scales(item_, tile_, kWidenedUnit, s_.key_scales, s_.value_scales);
      } else {
        values_ = value_tiles_of<false>(item_, tile_, s_.v);
      }
      for (int64_t r = 0; r < kRows; ++r) softmax(r);
      add_values(t > range.first);
    }
  }

 private:
  static constexpr int kBlocks = kRows <= 2 ? 4 : 2;  // sums in 16 registers

  template <int kCount>
  void step(const float* a, int64_t a_stride, const char* const (*halves)[2], float* c, int64_t c_stride, bool accumulate) {
    vector_step<kCodes, kRows, kCount>(a, a_stride, halves, c, c_stride, accumulate, ahead_.due(kCount));
    ahead_.ask(0);
  }

  void score() {
    const int64_t groups = ceil_div(tile_.num_keys, kNBlock), step_bytes = kKStep * kNBlock * elem_bytes(item_.layout.elem);
    for (int64_t first = 0; first < groups; first += kBlocks) {
      for (int64_t d = 0; d < q_width_; d += kKStep) {
        const char* halves[kBlocks][2];
        for (int64_t j = 0; j < kBlocks; ++j) {
          halves[j][0] = pointers_.k[first + j] + d / kKStep * step_bytes;
          halves[j][1] = halves[j][0] + step_bytes / 2;
        }
        float* c = s_.scores + first * kNBlock;
        if (kBlocks == 4 && groups - first <= 2) {
          step<2>(q_ + d, q_width_, halves, c, kKvTile, d > 0);
        } else {
          step<kBlocks>(q_ + d, q_width_, halves, c, kKvTile, d > 0);
        }
      }
    }
  }

  void softmax(int64_t r) {
    const ScoreRow row{s_.scores + r * kKvTile, s_.key_scales, s_.value_scales, item_.scale_log2e,
                       visible_keys(item_, tile_, r)};
    bf16_t probs[kKvTile];
    const float factor = softmax_masked_row<kCodes>(row, round_up(tile_.num_keys, kWidthStep), probs, sums_.max[r],
                                                    sums_.denominators + r * kLanes);
    if (factor != 1) scale_row(sums_.accumulator + r * value_width_, value_width_, factor);
    for (int64_t i = 0; i < round_up(tile_.num_keys, kWidthStep); i += kLanes) {
      store(probs_ + r * kKvTile + i, load(probs + i));
    }
  }

  void add_values(bool accumulate) {
    const int64_t half_bytes = kKStep / 2 * kNBlock * elem_bytes(item_.layout.elem);
    for (int64_t first = 0; first < value_blocks_; first += kBlocks) {
      for (int64_t key = 0; key < tile_.num_keys; key += kKStep) {
        const char* halves[kBlocks][2];
        for (int64_t j = 0; j < kBlocks; ++j) {
          const int64_t d = min_of(first + j, value_blocks_ - 1);
          if constexpr (kCodes) {
            for (int64_t half = 0; half < 2; ++half) {
              halves[j][half] = pointers_.v[key / kNBlock + half] + d * item_.layout.v_n_block_bytes;
            }
          } else {
            halves[j][0] = values_.step[key / kKStep] + d * values_.stride[key / kKStep];
            halves[j][1] = halves[j][0] + half_bytes;
          }
        }
        step<kBlocks>(probs_ + key, kKvTile, halves, sums_.accumulator + first * kNBlock, value_width_, accumulate || key > 0);
      }
    }
  }

  const AttentionItem& item_;
  const AmxScratch& s_;
  const RowSums& sums_;
  KvAhead& ahead_;
  int64_t q_width_, value_blocks_, value_width_;
  float* q_;      // [kRows, q_width], where widened keys lie else
  float* probs_;  // [kRows, kKvTile]
  KeyTile tile_ = {};
  GroupPointers pointers_;
  ValueTiles values_;
};

// Work goes in units of four B tiles: one step of four n-blocks. Codes are widened a unit ahead of their product, since
// a tile load waits until the stores of what it reads have left the store buffer.
template <bool kCodes>
class AmxFewRows {
 public:
  AmxFewRows(const AttentionItem& item, int64_t rows, const AmxScratch& scratch, const RowSums& sums, KvAhead& ahead)
      : item_(item),
        s_(scratch),
        sums_(sums),
        ahead_(ahead),
        rows_(rows),
        q_steps_(ceil_div(item.layout.head_dim, kKStep)),
        value_blocks_(ceil_div(item.layout.head_dim, kNBlock)),
        value_width_(amx_value_width(item.layout.head_dim)) {}

  void run(const TileRange& range) {
    for (int64_t t = range.first; t < range.end; ++t) {
      tile_ = key_tile(item_, t);
      groups_ = ceil_div(tile_.num_keys, kNBlock);
      steps_ = ceil_div(tile_.num_keys, kKStep);
      pointers_ = group_pointers(item_, tile_);
      score();
      if constexpr (kCodes) {
        load_scales(item_, tile_, kWidenedUnit, s_.key_scales, s_.value_scales);
        make_value_unit(Unit());  // the vector units have little else to do between the scores and their softmax
      } else {
        values_ = value_tiles_of<false>(item_, tile_, s_.v);
      }
      for (int64_t r = 0; r < rows_; ++r) softmax(r);
      add_values(t > range.first);
    }
  }

 private:
  static constexpr int64_t kUnitTiles = 4;
  struct Unit {
    int64_t number = 0;
    int64_t first = 0;  // n-block
    int64_t step = 0;
    Unit next(int64_t num_steps) const {
      const bool last = step + 1 == num_steps;
      return {number + 1, last ? first + kUnitTiles : first, last ? 0 : step + 1};
    }
  };

  void score() {
    if constexpr (kCodes) make_key_unit(Unit());
    for (Unit unit; unit.first < groups_;) {
      const Unit next = unit.next(q_steps_);
      if constexpr (kCodes) {
        if (next.first < groups_) make_key_unit(next);
      }
      const char* b[kUnitTiles];
      for (int64_t j = 0; j < kUnitTiles; ++j) {
        b[j] = kCodes ? ring(unit, min_of(j, groups_ - 1 - unit.first))
                      : pointers_.k[unit.first + j] + unit.step * kTileBytes;
      }
      amx_fence();
      if (unit.step == 0) few_rows_begin(nullptr, 0, false);
      few_rows_step(s_.q + unit.step * kTileBytes, 64, b, [&] { ask_for_float(); });
      if (next.step == 0) few_rows_end(s_.scores + unit.first * kNBlock, kKvTile);
      amx_fence();
      unit = next;
    }
  }

  void add_values(bool accumulate) {
    const char* probs = reinterpret_cast<const char*>(s_.scores);
    for (Unit unit; unit.first < value_blocks_;) {
      const Unit next = unit.next(steps_);
      if constexpr (kCodes) {
        if (next.first < value_blocks_) make_value_unit(next);
      }
      const char* b[kUnitTiles];
      for (int64_t j = 0; j < kUnitTiles; ++j) {
        const int64_t d = min_of(unit.first + j, value_blocks_ - 1);
        b[j] = kCodes ? ring(unit, d - unit.first) : values_.step[unit.step] + d * values_.stride[unit.step];
      }
      float* sums = sums_.accumulator + unit.first * kNBlock;
      amx_fence();
      if (unit.step == 0) few_rows_begin(sums, value_width_, accumulate);
      few_rows_step(probs + unit.step * 64, kKvTile * 4, b, [&] { ask_for_float(); });
      if (next.step == 0) few_rows_end(sums, value_width_);
      amx_fence();
      unit = next;
    }
  }

  void softmax(int64_t r) {
    const ScoreRow row{s_.scores + r * kKvTile, s_.key_scales, s_.value_scales, item_.scale_log2e,
                       visible_keys(item_, tile_, r)};
    bf16_t* probs = reinterpret_cast<bf16_t*>(s_.scores + r * kKvTile);
    float* denominators = sums_.denominators + r * kLanes;
    const bool all = row.visible.first == 0 && row.visible.end == kKvTile;
    const float factor = all ? softmax_row<false, kKvTile, kCodes>(row, probs, sums_.max[r], denominators)
                             : softmax_masked_row<kCodes>(row, round_up(tile_.num_keys, kWidthStep), probs,
                                                          sums_.max[r], denominators);
    if (factor != 1) scale_row(sums_.accumulator + r * value_width_, value_width_, factor);
  }

  // Widened tiles of the unit and of the one before: 8 KB, so that they stay in L1.
  char* ring(const Unit& unit, int64_t j) const { return s_.k + (unit.number % 2 * kUnitTiles + j) * kTileBytes; }

  void make_key_unit(const Unit& unit) {
    for (int64_t j = 0; j < min_of(kUnitTiles, groups_ - unit.first); ++j) {
      widen_rows(pointers_.k[unit.first + j] + unit.step * kTileBytes / 2, kTileBytes / 64, ring(unit, j));
      ahead_.ask(1);
    }
  }
  void make_value_unit(const Unit& unit) {
    for (int64_t j = 0; j < min_of(kUnitTiles, value_blocks_ - unit.first); ++j) {
      for (int64_t half = 0; half < 2; ++half) {
        widen_rows(pointers_.v[2 * unit.step + half] + (unit.first + j) * item_.layout.v_n_block_bytes, kNBlock / 2,
                    ring(unit, j) + half * kTileBytes / 2);
      }
      ahead_.ask(1);
    }
  }
  // bf16 has no widening among which lines could be asked for.
  __attribute__((always_inline)) void ask_for_float() {
    if constexpr (!kCodes) ahead_.ask(1);
  }

  const AttentionItem& item_;
  const AmxScratch& s_;
  const RowSums& sums_;
  KvAhead& ahead_;
  int64_t rows_, q_steps_, value_blocks_, value_width_;
  KeyTile tile_ = {};
  int64_t groups_ = 0, steps_ = 0;  // of 16 and of 32 keys that hold keys of the tile
  GroupPointers pointers_;
  ValueTiles values_;
};

// --- both
// ---------------------------------------------------------------------------------------------------------------------------------

template <bool kCodes, int kRows>
static void attend_vector_rows(const AttentionItem& item, const AmxScratch& s) {
  KvAhead ahead(item);
  VectorRows<kCodes, kRows>(item, s, s.total, ahead).load_q();
  attend_spans(item, kRows, amx_value_width(item.layout.head_dim), s.total, s.span, [&](int64_t span, const RowSums& sums) {
    VectorRows<kCodes, kRows>(item, s, sums, ahead).run(key_tiles(item, span));
  });
}

template <bool kCodes>
static void attention_amx(const AttentionItem& item, char* scratch) {
  const int64_t rows = item.num_queries * item.group_size, head_dim = item.layout.head_dim;
  const AmxScratch s = cut_amx_scratch(scratch, rows, head_dim);
  static_assert(kVectorRows == 4);
  switch (rows) {
    case 1:
      return attend_vector_rows<kCodes, 1>(item, s);
    case 2:
      return attend_vector_rows<kCodes, 2>(item, s);
    case 3:
      return attend_vector_rows<kCodes, 3>(item, s);
    case 4:
      return attend_vector_rows<kCodes, 4>(item, s);
    default:
      break;
  }
  const bool few = rows <= kFewAttentionRows;
  for (int64_t r = 0; few && r < rows; ++r) ask_for_row(item, r);
  tile_q(item, rows, few ? rows : round_up(rows, kBlockRows), s.q);
  amx_begin(few ? rows : 16);
  KvAhead ahead(item);
  attend_spans(item, rows, amx_value_width(head_dim), s.total, s.span, [&](int64_t span, const RowSums& sums) {
    const TileRange range = key_tiles(item, span);
    if (few) {
      AmxFewRows<kCodes>(item, rows, s, sums, ahead).run(range);
    } else {
      AmxPipeline<kCodes>(item, rows, s, sums).run(range);
    }
    amx_fence();
  });
  amx_end();
}

}  // namespace spate::cpu::SPATE_ISA
