// Paged attention on AMX tiles, for bf16 activations over bf16 and int8 caches: prefill and decode alike, so that their
// bits agree. Probabilities are rounded to bf16 for the product with V; the denominator sums them unrounded. int8 codes
// are exact in bf16 and are widened on their way to the tiles; the scale of a key multiplies its column of scores, the
// scale of a value its probabilities.
//
// More than 16 rows: blocks of 32 rows pass over the keys of a span one after the other, so that a block's queries,
// scores and sums stay in L1 while keys and values stream from L2. While the tiles multiply the values of the tile
// before and the scores of the next one, the vector units run the softmax of the current one, 32 scores after each product:
// beside products they do one 512-bit floating-point operation a cycle, not two, and what comes in longer bursts waits.
// Up to 16 rows: attention_few_rows.h.
#pragma once

#include "backend/cpu/kernel/attention_few_rows.h"

namespace spate::cpu::SPATE_ISA {

#define SPATE_NEXT_SUMS(tile, row, column)                                                                             \
  if (stored_ != nullptr) _tile_stored(tile, stored_ + (row)*stored_stride_ + (column), stored_stride_ * 4);           \
  if (accumulate) {                                                                                                    \
    _tile_loadd(tile, c + (row)*c_stride + (column), c_stride * 4);                                                    \
  } else {                                                                                                             \
    _tile_zero(tile);                                                                                                  \
  }

// Products of two blocks of A rows from L1 by two blocks of B from L2, which must not drive the rows out of L1. A store of
// sums waits for their last product, so those of one call are stored among the first products of the next one, and at last
// by finish().
class Products2x2 {
 public:
  // b(s, j), j = 0, 1: B tiles of step s. Beside the four products of a step: work.begin(), piece<0>() to piece<3>(), end().
  template <typename B, typename Work>
  __attribute__((always_inline)) void run(const TileRows& a, const B& b, int64_t steps, float* c, int64_t c_stride,
                                          bool accumulate, Work& work) {
    work.begin();
    SPATE_NEXT_SUMS(0, 0, 0)
    _tile_stream_loadd(6, b(0, 0), 64);
    _tile_loadd(4, a.base, a.row_stride);
    _tile_dpbf16ps(0, 4, 6);
    work.template piece<0>();
    SPATE_NEXT_SUMS(1, 0, 16)
    _tile_stream_loadd(7, b(0, 1), 64);
    _tile_dpbf16ps(1, 4, 7);
    work.template piece<1>();
    SPATE_NEXT_SUMS(2, 16, 0)
    _tile_loadd(5, a.base + a.block_stride, a.row_stride);
    _tile_dpbf16ps(2, 5, 6);
    work.template piece<2>();
    SPATE_NEXT_SUMS(3, 16, 16)
    _tile_dpbf16ps(3, 5, 7);
    work.template piece<3>();
    work.end();
    for (int64_t s = 1; s < steps; ++s) {
      const char* rows = a.base + s * a.step_stride;
      work.begin();
      _tile_stream_loadd(6, b(s, 0), 64);
      _tile_loadd(4, rows, a.row_stride);
      _tile_dpbf16ps(0, 4, 6);
      work.template piece<0>();
      _tile_stream_loadd(7, b(s, 1), 64);
      _tile_dpbf16ps(1, 4, 7);
      work.template piece<1>();
      _tile_loadd(5, rows + a.block_stride, a.row_stride);
      _tile_dpbf16ps(2, 5, 6);
      work.template piece<2>();
      _tile_dpbf16ps(3, 5, 7);
      work.template piece<3>();
      work.end();
    }
    stored_ = c;
    stored_stride_ = c_stride;
  }
  __attribute__((always_inline)) void finish() const {
    if (stored_ != nullptr) store_2x2(stored_, stored_stride_);
  }

 private:
  float* stored_ = nullptr;  // where the sums in the tiles belong
  int64_t stored_stride_ = 0;
};
#undef SPATE_NEXT_SUMS

SPATE_INLINE __m512i two_bf16(F low, F high) { return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high, low)); }

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
        value_pairs_(ceil_div(item.layout.value_dim, 2 * kNBlock)),
        value_width_(amx_value_width(item.layout.value_dim)) {}

  void run(const TileRange& range) {
    for (int64_t r = 0; r < kBlockRows; ++r) s_.factors[r] = 1;
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
    any_factor_ = false;
    if (current_.masked) {
      advance_rows<true>(next);
    } else {
      advance_rows<false>(next);
    }
    if (any_factor_) {
      for (int64_t r = 0; r < current_.num_rows; ++r) {
        if (s_.factors[r] != 1)
          scale_row(sums_.accumulator + (current_.first_row + r) * value_width_, value_width_, s_.factors[r]);
        s_.factors[r] = 1;
      }
    }
    previous_ = current_;
    current_ = next;
  }

  template <bool kMasked>
  __attribute__((noinline)) void advance_rows(const Stage& next) {
    Softmax<kMasked> work(*this);
    Products2x2 products;
    amx_fence();
    if (previous_.exists()) add_values(previous_, products, work);
    if (next.exists()) score(next, products, work);  // where the previous stage was
    products.finish();
    while (!work.done()) {
      work.begin();
      work.template piece<0>();
      work.template piece<1>();
      work.template piece<2>();
      work.template piece<3>();
      work.end();
    }
    amx_fence();
  }

  // softmax_row() of the current stage's rows, one after the other, each in four pieces, with its bits.
  template <bool kMasked>
  class Softmax {
   public:
    explicit Softmax(AmxPipeline& pipeline)
        : pipeline_(pipeline),
          stage_(pipeline.current_),
          max_(pipeline.sums_.max + stage_.first_row),
          denominators_(pipeline.sums_.denominators + stage_.first_row * kLanes),
          scores_(pipeline.row_of(stage_, 0)),
          num_rows_(stage_.exists() ? stage_.num_rows : 0) {}

    __attribute__((always_inline)) bool done() const { return row_ >= num_rows_; }
    __attribute__((always_inline)) void begin() {
      if (done()) return;
      if constexpr (kMasked) seen_ = seen_keys(visible_keys(pipeline_.item_, stage_.tile, stage_.first_row + row_));
      minus_max_ = minus_maximum(max_[row_]);
      even_ = odd_ = zero();
    }
    template <int kPiece>
    __attribute__((always_inline)) void piece() {
      if (done() || (kMasked && kPiece * kWidthStep >= stage_.width)) return;
      const F even = vector(2 * kPiece, even_), odd = vector(2 * kPiece + 1, odd_);
      probs_[kPiece] = two_bf16(even, odd);
      asm volatile("" : "+v"(probs_[kPiece]), "+v"(even_), "+v"(odd_));  // here, not where they are used
    }
    __attribute__((always_inline)) void end() {
      if (done()) return;
      const F sums = add(even_, odd_);
      if (__builtin_expect(maximum_fits(max_[row_], sums), 1)) {
        if (max_[row_] == kMinusInfinity) max_[row_] = 0;
        store_piece<0>();
        store_piece<1>();
        store_piece<2>();
        store_piece<3>();
        store(denominators_ + row_ * kLanes, add(load(denominators_ + row_ * kLanes), sums));
      } else {
        pipeline_.softmax_moving_maximum(row_);
      }
      ++row_;
      scores_.scores += kScoreStride;
    }

   private:
    __attribute__((always_inline)) F vector(int64_t i, F& sums) {
      const Mask lanes = kMasked ? lanes_from(seen_, i * kLanes) : Mask{};
      const F p = probability<kMasked, kCodes, bf16_t>(scores_, i, minus_max_, lanes);
      sums = add(sums, p);
      return times_value_scale<kMasked, kCodes>(scores_, i, p, lanes);
    }
    template <int kPiece>
    __attribute__((always_inline)) void store_piece() const {
      if (kMasked && kPiece * kWidthStep >= stage_.width) return;
      char* probs = reinterpret_cast<char*>(const_cast<float*>(scores_.scores));
      _mm512_storeu_si512(probs + kPiece * 64, probs_[kPiece]);
    }

    static_assert(kWidthStep == 2 * kLanes && kKvTile == 4 * kWidthStep);
    AmxPipeline& pipeline_;
    const Stage& stage_;
    float* max_;
    float* denominators_;
    ScoreRow scores_;
    int64_t num_rows_, row_ = 0;
    SeenKeys seen_;
    F minus_max_, even_, odd_;  // sums of the even and of the odd vectors
    __m512i probs_[4];
  };

  float* scores_of(const Stage& stage) const { return s_.scores + stage.number % 2 * kBlockRows * kScoreStride; }

  template <typename Work>
  __attribute__((always_inline)) void score(const Stage& stage, Products2x2& products, Work& work) {
    const KeyTiles& keys = keys_[stage.tile_idx];
    const TileRows q{.base = s_.q + stage.first_row / 16 * q_steps_ * kTileBytes,
                     .row_stride = 64,
                     .step_stride = kTileBytes,
                     .block_stride = q_steps_ * kTileBytes};
    for (int64_t g = 0; g * kNBlock < stage.width; g += 2) {
      const auto b = [&](int64_t s, int64_t j) { return keys.group[g + j] + s * kTileBytes; };
      products.run(q, b, q_steps_, scores_of(stage) + g * kNBlock, kScoreStride, false, work);
    }
  }

  template <typename Work>
  __attribute__((always_inline)) void add_values(const Stage& stage, Products2x2& products, Work& work) {
    const ValueTiles& values = values_[stage.tile_idx];
    const TileRows probs{.base = reinterpret_cast<const char*>(scores_of(stage)),
                         .row_stride = kScoreStride * 4,
                         .step_stride = 64,
                         .block_stride = 16 * kScoreStride * 4};
    float* sums = sums_.accumulator + stage.first_row * value_width_;
    const int64_t last = ceil_div(item_.layout.value_dim, kNBlock) - 1;
    const int64_t steps = ceil_div(min_of(stage.width, stage.tile.num_keys), kKStep);
    for (int64_t pair = 0; pair < value_pairs_; ++pair) {
      const int64_t block[2] = {2 * pair, min_of(2 * pair + 1, last)};
      const auto b = [&](int64_t s, int64_t j) { return values.step[s] + block[j] * values.stride[s]; };
      products.run(probs, b, steps, sums + block[0] * kNBlock, value_width_, !stage.first, work);
    }
  }

  ScoreRow row_of(const Stage& stage, int64_t r) const {
    const int64_t first_scale = stage.tile_idx * kKvTile;
    return {scores_of(stage) + r * kScoreStride, s_.key_scales + first_scale, s_.value_scales + first_scale, item_.scale_log2e,
            {}};
  }

  // A row of the current stage whose maximum does not fit.
  __attribute__((noinline)) void softmax_moving_maximum(int64_t r) {
    const int64_t row = current_.first_row + r;
    ScoreRow scores = row_of(current_, r);
    bf16_t* probs = reinterpret_cast<bf16_t*>(const_cast<float*>(scores.scores));
    float& max = sums_.max[row];
    float* denominators = sums_.denominators + row * kLanes;
    if (current_.masked) {
      scores.visible = visible_keys(item_, current_.tile, row);
      s_.factors[r] = softmax_masked_row<kCodes>(scores, current_.width, probs, max, denominators);
    } else {
      s_.factors[r] = softmax_row<false, kKvTile, kCodes>(scores, probs, max, denominators);
    }
    any_factor_ |= s_.factors[r] != 1;
  }

  const AttentionItem& item_;
  const AmxScratch& s_;
  const RowSums& sums_;
  int64_t rows_, q_steps_, value_pairs_, value_width_;
  Stage current_, previous_;
  bool any_factor_ = false;
  KeyTiles keys_[kTilesPerSpan];  // of the tiles of the span
  ValueTiles values_[kTilesPerSpan];
};

// --- all -------------------------------------------------------------------------------------------------------------

template <bool kCodes, int kRows>
static void attend_vector_rows(const AttentionItem& item, const AmxScratch& s) {
  KvAhead ahead(item);
  VectorRows<kCodes, kRows>(item, s, s.total, ahead).load_q();
  attend_spans(item, kRows, amx_value_width(item.layout.value_dim), s.total, s.span, [&](int64_t span, const RowSums& sums) {
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
  attend_spans(item, rows, amx_value_width(item.layout.value_dim), s.total, s.span, [&](int64_t span, const RowSums& sums) {
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
