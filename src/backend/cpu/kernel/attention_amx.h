// Paged attention on AMX tiles, for bf16 activations over bf16 and int8 caches: prefill and decode alike, so that their
// bits agree. Probabilities are rounded to bf16 for the product with V; the denominator sums them unrounded. int8 codes
// are exact in bf16 and are widened on their way to the tiles; the scale of a key multiplies its column of scores, the
// scale of a value its probabilities.
//
// More than 16 rows: blocks of 32 rows pass over the keys of a span one after the other, so that a block's queries,
// scores and sums stay in L1 while keys and values stream from L2. While the tiles multiply the values of the tile
// before and the scores of the next one, the vector units run the softmax of the current one, a row with each 2 x 2
// step; beside tile operations they do one 512-bit operation a cycle, not two. Up to 16 rows: attention_few_rows.h.
#pragma once

#include "backend/cpu/kernel/attention_few_rows.h"

namespace spate::cpu::SPATE_ISA {

// Two blocks of A rows from L1 by two B tiles a step from L2, which must not drive the rows out of L1: b(s, j), j =
// 0, 1. meanwhile() is vector work.
template <typename B, typename Meanwhile>
SPATE_INLINE void attention_2x2(const TileRows& a, const B& b, int64_t steps, float* c, int64_t c_stride,
                                bool accumulate, const Meanwhile& meanwhile) {
  load_2x2(c, c_stride, accumulate);
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
  store_2x2(c, c_stride);
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

// --- all -------------------------------------------------------------------------------------------------------------

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
