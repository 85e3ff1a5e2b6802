// What the FMA and the AMX attention share: where the keys of a tile lie, and the online softmax.
//
// A row is one query head of one query token; row r of an item is token r / group_size, head r % group_size. Keys are walked in
// tiles of kKvTile positions that start at multiples of kKvTile, and within a tile in order; masked keys have probability exactly 0
// and leave every sum as it is. So a row's bits do not depend on the other rows of the item, nor on how a prompt was cut into chunks.
#pragma once

#include "backend/cpu/kernel/simd.h"
#include "backend/cpu/kernels.h"

namespace spate::cpu::SPATE_ISA {

constexpr float kMinusInfinity = -__builtin_inff();

// 2^x for probabilities stored as P; what it gives at -inf or NaN does not matter: those lanes are masked.
template <typename P>
SPATE_INLINE F prob_exp2(F x) {
#ifdef __AVX512F__
  if constexpr (sizeof(P) == 2) {  // they are rounded to 2^-9: degree 4 gives 3e-6, and scalef underflows by itself
    const F n = round_int(x);
    const F r = sub(x, n);
    F p = set1(0.00958285f);
    p = fma(p, r, set1(0.05590642f));
    p = fma(p, r, set1(0.24024099f));
    p = fma(p, r, set1(0.69312419f));
    p = fma(p, r, set1(1.0f));
    return _mm512_scalef_ps(p, n);
  }
#endif
  return exp2(x);
}

struct KeyTile {
  int64_t begin;     // position of its first key
  int64_t num_keys;  // up to the last query of the item
};

struct TileRange {
  int64_t first, end;
};

SPATE_INLINE int64_t last_position(const AttentionItem& item) { return item.first_position + item.num_queries - 1; }

SPATE_INLINE TileRange key_tiles(const AttentionItem& item) {
  const int64_t first_key = item.window > 0 ? max_of(0, item.first_position - item.window + 1) : 0;
  return {first_key / kKvTile, last_position(item) / kKvTile + 1};
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

// Element offsets of a row in q and in out.
SPATE_INLINE int64_t q_offset(const AttentionItem& item, int64_t row) {
  return row / item.group_size * item.q_token_stride + row % item.group_size * item.q_head_stride;
}
SPATE_INLINE int64_t out_offset(const AttentionItem& item, int64_t row) {
  return row / item.group_size * item.out_token_stride + row % item.group_size * item.out_head_stride;
}

// Running softmax of a row.
struct RowSoftmax {
  float max = kMinusInfinity;  // of scaled scores, in powers of two
  float denominator = 0;
};

// The two passes of a row's tile: the largest raw score, then the probabilities and their sum. kMasked: some of the `width` scores are not
// this row's, and count as -inf. kWidth: `width` where it is known (0 where not), so that the loop unrolls.
template <bool kMasked, int64_t kWidth>
SPATE_INLINE float max_score(const float* scores, int64_t width, int32_t first, int32_t end) {
  if constexpr (kWidth > 0) width = kWidth;
  F largest = set1(kMinusInfinity);
  for (int32_t i = 0; i < width; i += kLanes) {
    F x = load(scores + i);
    if constexpr (kMasked) x = keep_range(x, i, first, end, set1(kMinusInfinity));
    largest = max(largest, x);
  }
  return max_lane(largest);
}
template <bool kMasked, int64_t kWidth, typename P>
SPATE_INLINE float write_probs(const float* scores, int64_t width, int32_t first, int32_t end, float scale, float offset, P* probs) {
  if constexpr (kWidth > 0) width = kWidth;
  F total = zero();
  for (int32_t i = 0; i < width; i += kLanes) {
    F p = prob_exp2<P>(fma(load(scores + i), set1(scale), set1(-offset)));
    if constexpr (kMasked) p = keep_range(p, i, first, end, zero());
    store(probs + i, p);
    total = add(total, p);
  }
  return sum(total);
}

template <bool kMasked, int64_t kWidth, typename P>
SPATE_INLINE void softmax_passes(const AttentionItem& item, const float* scores, int64_t width, int32_t first, int32_t end, P* probs,
                                 float* accumulator, int64_t value_width, RowSoftmax& state) {
  const float tile_max = max_score<kMasked, kWidth>(scores, width, first, end) * item.scale_log2e;
  if (tile_max > state.max) {
    if (state.max != kMinusInfinity) {
      const F factor = exp2(set1(state.max - tile_max));
      for (int64_t d = 0; d < value_width; d += kLanes) store(accumulator + d, mul(load(accumulator + d), factor));
      float factors[kLanes];
      store(factors, factor);
      state.denominator *= factors[0];
    }
    state.max = tile_max;
  }
  const float offset = state.max == kMinusInfinity ? 0 : state.max;
  state.denominator += write_probs<kMasked, kWidth>(scores, width, first, end, item.scale_log2e, offset, probs);
}

// Scores of one row and tile (raw dot products, `width` of them: num_keys rounded up) become probabilities against the new maximum, in
// place or as bf16; the row's accumulator (`value_width` floats) and its denominator are rescaled.
template <typename P>
SPATE_INLINE void softmax_row(const AttentionItem& item, const KeyTile& tile, int64_t row, const float* scores, int64_t width,
                              P* probs, float* accumulator, int64_t value_width, RowSoftmax& state) {
  const int64_t position = item.first_position + row / item.group_size;
  const auto first = static_cast<int32_t>(item.window > 0 ? max_of(0, position - item.window + 1 - tile.begin) : 0);
  const auto end = static_cast<int32_t>(max_of(0, min_of(tile.num_keys, position + 1 - tile.begin)));
  if (first == 0 && end == kKvTile) {
    softmax_passes<false, kKvTile>(item, scores, width, first, end, probs, accumulator, value_width, state);
  } else {
    softmax_passes<true, 0>(item, scores, width, first, end, probs, accumulator, value_width, state);
  }
}

template <typename Act>
SPATE_INLINE void store_attention_row(const AttentionItem& item, int64_t row, const float* accumulator,
                                      float denominator) {
  Act* out = static_cast<Act*>(item.out) + out_offset(item, row);
  const F divisor = set1(denominator);
  SPATE_FOR_LANES(d, count, item.layout.head_dim) { store_up_to(out + d, div(load(accumulator + d), divisor), count); }
}

SPATE_INLINE void store_attention_row(const AttentionItem& item, int64_t row, const float* accumulator,
                                      float denominator) {
  if (item.act == Elem::kF32) {
    store_attention_row<float>(item, row, accumulator, denominator);
  } else {
    store_attention_row<bf16_t>(item, row, accumulator, denominator);
  }
}

// Cuts the next 64-byte aligned array out of the scratch.
template <typename T>
SPATE_INLINE T* take(char*& scratch, int64_t count) {
  T* array = reinterpret_cast<T*>(scratch);
  scratch += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
  return array;
}

}  // namespace spate::cpu::SPATE_ISA
