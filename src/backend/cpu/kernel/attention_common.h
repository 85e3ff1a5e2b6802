// What the FMA and the AMX attention share: where keys lie, the online softmax, spans and their merging.
//
// A row is one query head of one query token; row r of an item is token r / group_size, head r % group_size. Keys are
// walked in tiles of kKvTile positions that start at multiples of kKvTile, and within a tile in order; masked keys have
// probability exactly 0 and leave every sum as it is. Each span of kKvSpan positions has sums of its own, which are
// merged in order. So a row's bits depend neither on the other rows of the item, nor on how a prompt was cut into
// chunks, nor on whether the spans were shared out among threads.
#pragma once

#include "backend/cpu/kernel/simd.h"
#include "backend/cpu/kernels.h"

namespace spate::cpu::SPATE_ISA {

constexpr float kMinusInfinity = -__builtin_inff();
constexpr int64_t kTilesPerSpan = kKvSpan / kKvTile;
constexpr int64_t kWidthStep = kKvTile / 4;  // the softmax of a tile of fewer keys works on a multiple of this many

// --- where keys lie
// -------------------------------------------------------------------------------------------------------------------

struct KeyTile {
  int64_t begin;     // position of its first key
  int64_t num_keys;  // up to the last query of the item
};

struct TileRange {
  int64_t first, end;
};

SPATE_INLINE int64_t last_position(const AttentionItem& item) { return item.first_position + item.num_queries - 1; }

// The tiles of a span that hold keys of the item.
SPATE_INLINE TileRange key_tiles(const AttentionItem& item, int64_t span) {
  const int64_t first_key = item.window > 0 ? max_of(0, item.first_position - item.window + 1) : 0;
  return {max_of(first_key / kKvTile, span * kTilesPerSpan),
          min_of(last_position(item) / kKvTile + 1, (span + 1) * kTilesPerSpan)};
}

SPATE_INLINE KeyTile key_tile(const AttentionItem& item, int64_t tile) {
  const int64_t begin = tile * kKvTile;
  return {begin, min_of(kKvTile, last_position(item) + 1 - begin)};
}

SPATE_INLINE const char* kv_block(const AttentionItem& item, int64_t position) {
  return item.kv + item.block_table[position / item.layout.kv_block_size] * item.block_bytes;
}

// The n-block of the 16 keys from `position` (a multiple of 16).
SPATE_INLINE const char* k_group(const AttentionItem& item, int64_t position) {
  return kv_block(item, position) + position % item.layout.kv_block_size / kNBlock * item.layout.k_group_bytes;
}

// V from `position` (even) on, in n-block 0; n-block d is d * v_n_block_bytes further.
SPATE_INLINE const char* v_at(const AttentionItem& item, int64_t position) {
  return kv_block(item, position) + item.layout.v_offset +
         position % item.layout.kv_block_size * kNBlock * elem_bytes(item.layout.elem);
}

// Scales of the tile's keys and values (kI8) times `unit`, those of the keys times scale_log2e, too. Of the last group
// some may not be written yet; what lies beyond it repeats it.
SPATE_INLINE void load_scales(const AttentionItem& item, const KeyTile& tile, float unit, float* key_scales,
                              float* value_scales) {
  const F scale = set1(item.scale_log2e * unit);
  for (int64_t i = 0; i < kKvTile; i += kNBlock) {
    const int64_t position = tile.begin + min_of(i, (tile.num_keys - 1) / kNBlock * kNBlock);
    const char* block = kv_block(item, position);
    const int64_t in_block = position % item.layout.kv_block_size;
    const float* k = reinterpret_cast<const float*>(block + item.layout.k_scales_offset) + in_block;
    const float* v = reinterpret_cast<const float*>(block + item.layout.v_scales_offset) + in_block;
    for (int64_t lane = 0; lane < kNBlock; lane += kLanes) {
      store(key_scales + i + lane, mul(load(k + lane), scale));
      store(value_scales + i + lane, mul(load(v + lane), set1(unit)));
    }
  }
}

// --- rows
// -----------------------------------------------------------------------------------------------------------------------------

// Element offsets of a row in q and in out.
SPATE_INLINE int64_t q_offset(const AttentionItem& item, int64_t row) {
  return row / item.group_size * item.q_token_stride + row % item.group_size * item.q_head_stride;
}
SPATE_INLINE int64_t out_offset(const AttentionItem& item, int64_t row) {
  return row / item.group_size * item.out_token_stride + row % item.group_size * item.out_head_stride;
}

// The keys of a tile that a row sees: [first, end), relative to the tile.
struct KeyRange {
  int32_t first, end;
};
SPATE_INLINE KeyRange visible_keys(const AttentionItem& item, const KeyTile& tile, int64_t row) {
  const int64_t position = item.first_position + row / item.group_size;
  return {static_cast<int32_t>(item.window > 0 ? max_of(0, position - item.window + 1 - tile.begin) : 0),
          static_cast<int32_t>(max_of(0, min_of(tile.num_keys, position + 1 - tile.begin)))};
}

// Sums of rows over a span. A row that saw no key has max -inf and denominator 0, and its accumulator holds anything.
struct RowSums {
  float* accumulator;   // [rows, value_width]: unnormalised probabilities by V
  float* max;           // [rows]: about the largest scaled score, in powers of two
  float* denominators;  // [rows, kLanes]: sums of probabilities, lane by lane; after finish_sums() all in lane 0
};

SPATE_INLINE void begin_sums(const RowSums& sums, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    sums.max[r] = kMinusInfinity;
    store(sums.denominators + r * kLanes, zero());
  }
}
SPATE_INLINE void finish_sums(const RowSums& sums, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) sums.denominators[r * kLanes] = sum(load(sums.denominators + r * kLanes));
}

SPATE_INLINE float exp2_of(float x) {
  float lanes[kLanes];
  store(lanes, exp2(set1(x)));
  return lanes[0];
}

// A span's finished sums of one row into those of the spans before it.
SPATE_INLINE void merge_row(float* accumulator, float& max, float& denominator, const float* other, float other_max,
                            float other_denominator, int64_t width) {
  if (other_max == kMinusInfinity && other_denominator == 0) return;
  if (max == kMinusInfinity && denominator == 0) {
    for (int64_t d = 0; d < width; d += kLanes) store(accumulator + d, load(other + d));
    max = other_max;
    denominator = other_denominator;
    return;
  }
  const float largest = max > other_max ? max : other_max;
  const float factor = exp2_of(max - largest), other_factor = exp2_of(other_max - largest);
  for (int64_t d = 0; d < width; d += kLanes) {
    store(accumulator + d, fma(load(other + d), set1(other_factor), mul(load(accumulator + d), set1(factor))));
  }
  max = largest;
  denominator = denominator * factor + other_denominator * other_factor;
}

// --- softmax of a row and tile
// ----------------------------------------------------------------------------------------------------------

// 2^x for probabilities stored as P, 0 outside of `lanes`, where x may be anything.
template <bool kMasked, typename P>
SPATE_INLINE F prob_exp2(F x, Mask lanes) {
#ifdef __AVX512F__
  if constexpr (sizeof(P) == 2) {
    const F p = rough_exp2_fraction(x);  // they are rounded to 2^-9
    return kMasked ? _mm512_maskz_scalef_ps(lanes, p, x) : _mm512_scalef_ps(p, x);
  }
#endif
  return kMasked ? keep(lanes, exp2(x)) : exp2(x);
}

SPATE_INLINE void store_two(float* p, F low, F high) {
  store(p, low);
  store(p + kLanes, high);
}
SPATE_INLINE void store_two(bf16_t* p, F low, F high) {
#ifdef __AVX512BF16__
  _mm512_storeu_si512(p, __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(high, low)));
#else
  store(p, low);
  store(p + kLanes, high);
#endif
}

// One row's scores of a tile, raw dot products. key_scales (times scale_log2e) and value_scales of each key where the
// cache is kI8.
struct ScoreRow {
  const float* scores;
  const float* key_scales;
  const float* value_scales;
  float scale_log2e;
  KeyRange visible;
};

// Keys of a tile that a row sees, a bit each.
struct SeenKeys {
  uint64_t bits[kKvTile / 64];
};
// Of the kLanes keys from `first` on.
SPATE_INLINE Mask lanes_from(const SeenKeys& seen, int64_t first) {
  return lanes_of(seen.bits[first / 64] >> (first % 64));
}
SPATE_INLINE uint64_t low_bits(int64_t n) { return n <= 0 ? 0 : n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }
SPATE_INLINE SeenKeys seen_keys(const KeyRange& visible) {
  SeenKeys seen;
  for (int64_t i = 0; i < kKvTile / 64; ++i) {
    seen.bits[i] = low_bits(visible.end - 64 * i) & ~low_bits(visible.first - 64 * i);
  }
  return seen;
}

// The maximum of a row moves where the sums of a tile's probabilities against it say that it should: a score lies up to 2^8
// above it, or (none is known yet, and 0 was tried) all lie far below. Such sums are there anyway, and probabilities of
// 2^8 or 2^-40 are as exact as those of 1.
constexpr float kLargestSum = 0x1p8f, kLeastFirstSum = 0x1p-40f;
SPATE_INLINE bool maximum_fits(float max, F sums) {
  return all_less_equal(sums, set1(kLargestSum)) && (max != kMinusInfinity || !all_less_equal(sums, set1(kLeastFirstSum)));
}
SPATE_INLINE F minus_maximum(float max) { return set1(max == kMinusInfinity ? 0 : -max); }

// Vector i of a row's probabilities.
template <bool kMasked, bool kScaled, typename P>
SPATE_INLINE F probability(const ScoreRow& row, int64_t i, F minus_max, Mask lanes) {
  const F scale = kScaled ? load(row.key_scales + i * kLanes) : set1(row.scale_log2e);
  return prob_exp2<kMasked, P>(fma(load(row.scores + i * kLanes), scale, minus_max), lanes);
}
// And as the values take it.
template <bool kMasked, bool kScaled>
SPATE_INLINE F times_value_scale(const ScoreRow& row, int64_t i, F p, Mask lanes) {
  if constexpr (!kScaled) return p;
  const F scale = load(row.value_scales + i * kLanes);
  return kMasked ? mul_in(lanes, p, scale) : mul(p, scale);
}

// Scores become probabilities against the row's maximum, which may move; the row's maximum and denominators are brought up
// to date, and the factor that its accumulator needs is returned: 1 when the maximum stays. With kMasked the keys
// outside `visible` count as -inf; else all are visible. kWidth: scores that are looked at, a multiple of 32. kScaled: of
// a kI8 cache. probs may be row.scores.
template <bool kMasked, int64_t kWidth, bool kScaled, typename P>
SPATE_INLINE float softmax_row(const ScoreRow& row, P* probs, float& max, float* denominators) {
  constexpr int64_t kVectors = kWidth / kLanes;
  const SeenKeys seen = kMasked ? seen_keys(row.visible) : SeenKeys{};
  const auto lanes_at = [&](int64_t i) { return kMasked ? lanes_from(seen, i * kLanes) : Mask{}; };
  float factor = 1;
  F p[kVectors], sums;
  for (bool moved = false;; moved = true) {
    const F minus_max = minus_maximum(max);
    F even_odd[2] = {zero(), zero()};  // one sum would be a chain of additions that takes longer than all the rest
#pragma GCC unroll 16
    for (int64_t i = 0; i < kVectors; ++i) {
      p[i] = probability<kMasked, kScaled, P>(row, i, minus_max, lanes_at(i));
      even_odd[i % 2] = add(even_odd[i % 2], p[i]);
    }
    sums = add(even_odd[0], even_odd[1]);
    if (moved) break;
    if (maximum_fits(max, sums)) {
      if (max == kMinusInfinity) max = 0;
      break;
    }
    F largest = set1(kMinusInfinity);
    for (int64_t i = 0; i < kVectors; ++i) {
      const F x = mul(load(row.scores + i * kLanes), kScaled ? load(row.key_scales + i * kLanes) : set1(row.scale_log2e));
      largest = kMasked ? max_in(lanes_at(i), largest, x) : spate::cpu::SPATE_ISA::max(largest, x);
    }
    const float tile_max = max_lane(largest);
    if (max != kMinusInfinity) factor = exp2_of(max - tile_max);
    max = tile_max;
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kVectors; i += 2) {
    store_two(probs + i * kLanes, times_value_scale<kMasked, kScaled>(row, i, p[i], lanes_at(i)),
              times_value_scale<kMasked, kScaled>(row, i + 1, p[i + 1], lanes_at(i + 1)));
  }
  store(denominators, fma(load(denominators), set1(factor), sums));
  return factor;
}

// Of a run-time width, a multiple of kWidthStep.
template <bool kScaled, typename P>
SPATE_INLINE float softmax_masked_row(const ScoreRow& row, int64_t width, P* probs, float& max, float* denominators) {
  switch (width / kWidthStep) {
    case 1:
      return softmax_row<true, kWidthStep, kScaled>(row, probs, max, denominators);
    case 2:
      return softmax_row<true, 2 * kWidthStep, kScaled>(row, probs, max, denominators);
    case 3:
      return softmax_row<true, 3 * kWidthStep, kScaled>(row, probs, max, denominators);
    default:
      return softmax_row<true, 4 * kWidthStep, kScaled>(row, probs, max, denominators);
  }
}

SPATE_INLINE void scale_row(float* accumulator, int64_t width, float factor) {
  for (int64_t d = 0; d < width; d += kLanes) store(accumulator + d, mul(load(accumulator + d), set1(factor)));
}

// --- results
// --------------------------------------------------------------------------------------------------------------------------

template <typename Act>
SPATE_INLINE void store_attention_row(const AttentionItem& item, int64_t row, const float* accumulator,
                                      float denominator) {
  Act* out = static_cast<Act*>(item.out) + out_offset(item, row);
  const F inverse = set1(1 / denominator);  // a division of 16 lanes takes 16 cycles
  SPATE_FOR_LANES(d, count, item.layout.value_dim) { store_up_to(out + d, mul(load(accumulator + d), inverse), count); }
}

SPATE_INLINE void store_attention_row(const AttentionItem& item, int64_t row, const float* accumulator,
                                      float denominator) {
  if (item.act == Elem::kF32) {
    store_attention_row<float>(item, row, accumulator, denominator);
  } else {
    store_attention_row<bf16_t>(item, row, accumulator, denominator);
  }
}

// Runs attend(span, sums) for the item's spans, and gives out the result or the partial sums. `total` and `span_sums`
// are scratch.
template <typename Attend>
SPATE_INLINE void attend_spans(const AttentionItem& item, int64_t rows, int64_t value_width, const RowSums& total,
                               const RowSums& span_sums, const Attend& attend) {
  for (int64_t span = item.first_span; span < item.end_span; ++span) {
    const RowSums& sums = span == item.first_span ? total : span_sums;
    begin_sums(sums, rows);
    attend(span, sums);
    finish_sums(sums, rows);
    if (span == item.first_span) continue;
    for (int64_t r = 0; r < rows; ++r) {
      merge_row(total.accumulator + r * value_width, total.max[r], total.denominators[r * kLanes],
                sums.accumulator + r * value_width, sums.max[r], sums.denominators[r * kLanes], value_width);
    }
  }
  const int64_t partial_width = round_up(item.layout.value_dim, kNBlock);
  for (int64_t r = 0; r < rows; ++r) {
    const float* accumulator = total.accumulator + r * value_width;
    if (item.partial == nullptr) {
      store_attention_row(item, r, accumulator, total.denominators[r * kLanes]);
      continue;
    }
    float* partial = item.partial + r * attention_partial_floats(item.layout.value_dim);
    for (int64_t d = 0; d < partial_width; d += kLanes) store(partial + d, load(accumulator + d));
    partial[partial_width] = total.max[r];
    partial[partial_width + 1] = total.denominators[r * kLanes];
  }
}

// Cuts the next 64-byte aligned array out of the scratch.
template <typename T>
SPATE_INLINE T* take(char*& scratch, int64_t count) {
  T* array = reinterpret_cast<T*>(scratch);
  scratch += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
  return array;
}
SPATE_INLINE RowSums take_row_sums(char*& scratch, int64_t rows, int64_t value_width) {
  RowSums sums;
  sums.accumulator = take<float>(scratch, rows * value_width);
  sums.max = take<float>(scratch, rows);
  sums.denominators = take<float>(scratch, rows * kLanes);
  return sums;
}
SPATE_INLINE int64_t row_sums_bytes(int64_t rows, int64_t value_width) {
  return rows * (value_width + 1 + kLanes) * 4 + 3 * 64;
}

}  // namespace spate::cpu::SPATE_ISA
