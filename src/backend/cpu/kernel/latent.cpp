// Attention over latent vectors, on vector units: the heads of an item share each key, which becomes floats once. With
// AMX queries of bf16 over a cache of bf16 or codes are multiplied by tiles (latent_amx.h).
//
// Keys pass in tiles of 16 from position 0, whatever else the step holds, so that a query's bits do not depend on it. A
// tile lies as n-blocks of 16 elements: its values are the B of a small product whose rows are the heads, and its
// scores are dot products of a few heads by four keys, so that a loaded vector meets several others.
#include "backend/cpu/kernel/code_scale.h"
#include "backend/cpu/kernel/kernels_isa.h"
#include "backend/cpu/kernel/micro_gemm.h"
#ifdef __AMX_BF16__
#include "backend/cpu/kernel/latent_amx.h"
#endif

namespace spate::cpu::SPATE_ISA {
namespace {

constexpr int64_t kVectorHeads = 8;                   // of an item
constexpr int64_t kKeyBlock = kLatentKeys * kNBlock;  // floats of an n-block of a tile
constexpr int64_t kKeysAtOnce = 4;                    // that a few heads meet together
static_assert(kLatentKeys == 16 && kNBlock == 16);

// Floats, padded by zeros to 16; each 16 of them begin `stride` floats after those before.
template <typename T, typename Load>
SPATE_INLINE void widen_by(const T* x, int64_t width, float* out, int64_t stride, const Load& load_floats) {
  const auto at = [&](int64_t i) { return out + i / kNBlock * stride + i % kNBlock; };
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(at(i), load_floats(x + i));
  if (i < width) {
    T lanes[kLanes] = {};
    for (int64_t j = i; j < width; ++j) lanes[j - i] = x[j];
    store(at(i), load_floats(lanes));
    i += kLanes;
  }
  for (; i < round_up(width, kNBlock); i += kLanes) store(at(i), zero());
}

SPATE_INLINE void widen(Elem elem, const void* x, int64_t width, float scale, float* out, int64_t stride) {
  const auto load_floats = [&](const auto* from) { return mul(load(from), set1(scale)); };
  elem == Elem::kF32 ? widen_by(static_cast<const float*>(x), width, out, stride, load_floats)
                     : widen_by(static_cast<const bf16_t*>(x), width, out, stride, load_floats);
}

// Codes as floats.
SPATE_INLINE void widen(const int8_t* x, int64_t width, float scale, float* out, int64_t stride) {
  const I sign = int_set1(128);
  widen_by(x, width, out, stride, [&](const int8_t* codes) {
    return mul(to_float(int_sub(int_xor(load_bytes(codes), sign), sign)), set1(scale));
  });
}

SPATE_INLINE const char* block_of(const LatentItem& item, int64_t position) {
  return item.kv + item.block_table[position / item.kv_block_size] * item.block_bytes;
}

// The vector of the token at a position, to its place in a tile of width / 16 n-blocks.
SPATE_INLINE void widen_key(const LatentItem& item, int64_t position, float* out) {
  const char* block = block_of(item, position);
  const int64_t token = position % item.kv_block_size;
  const char* key = block + token * item.token_bytes;
  float* rope = out + ceil_div(item.rank, kNBlock) * kKeyBlock;
  if (item.elem != Elem::kI8) {
    widen(item.elem, key, item.rank, 1.0f, out, kKeyBlock);
    widen(item.elem, key + item.rank * elem_bytes(item.elem), item.rope_dim, 1.0f, rope, kKeyBlock);
    return;
  }
  const float* scales = reinterpret_cast<const float*>(block + item.scales_offset) + 2 * token;
  const int8_t* codes = reinterpret_cast<const int8_t*>(key);
  widen(codes, item.rank, scales[0], out, kKeyBlock);
  widen(codes + item.rank, item.rope_dim, scales[1], rope, kKeyBlock);
}

// The vectors from a position on are asked for in L2.
SPATE_INLINE void ask_for_keys(const LatentItem& item, int64_t position, int64_t count) {
  if (position + count > item.end_key) return;
  const char* first = block_of(item, position) + position % item.kv_block_size * item.token_bytes;
  for (int64_t line = 0; line < count * item.token_bytes; line += 64) prefetch_to_l2(first + line);
}

// scores[h * kLatentKeys + j] = q of head h . key j, for kHeads heads and kKeysAtOnce keys. A function of its own, so
// that GCC 12 keeps the sums in registers.
template <int kHeads>
static __attribute__((noinline)) void score_tile(const float* q, const float* keys, int64_t width, float* scores) {
  F dots[kHeads * kKeysAtOnce];
#pragma GCC unroll 16
  for (F& dot : dots) dot = zero();
  for (int64_t i = 0; i < width; i += kNBlock, keys += kKeyBlock) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kNBlock; v += kLanes) {
      F queries[kHeads];
#pragma GCC unroll 4
      for (int64_t h = 0; h < kHeads; ++h) queries[h] = load(q + h * width + i + v);
#pragma GCC unroll 4
      for (int64_t j = 0; j < kKeysAtOnce; ++j) {
        const F key = load(keys + j * kNBlock + v);
#pragma GCC unroll 4
        for (int64_t h = 0; h < kHeads; ++h)
          dots[h * kKeysAtOnce + j] = fma(queries[h], key, dots[h * kKeysAtOnce + j]);
      }
    }
  }
  alignas(64) float lanes[kHeads * kKeysAtOnce];
  if constexpr (kHeads * kKeysAtOnce % kLanes == 0) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < kHeads * kKeysAtOnce; i += kLanes) store(lanes + i, sums(dots + i));
  } else {
    for (int64_t i = 0; i < kHeads * kKeysAtOnce; ++i) lanes[i] = sum(dots[i]);
  }
  for (int64_t h = 0; h < kHeads; ++h)
    __builtin_memcpy(scores + h * kLatentKeys, lanes + h * kKeysAtOnce, kKeysAtOnce * sizeof(float));
}

// Of all heads and num_keys keys; the scores of the others are not set, or meaningless.
SPATE_INLINE void score_keys(const LatentItem& item, const float* queries, const float* keys, int64_t width,
                             int64_t first, float* scores) {
  constexpr int kMostHeads = kLanes == 16 ? 4 : 2;  // their sums fill half of the registers
  const int64_t num_keys = min_of(kLatentKeys, item.end_key - first);
  int64_t h = 0, asked = first + kLatentKeys;
  const int64_t asked_at_once = ceil_div(kKeysAtOnce * kMostHeads, item.num_heads);
  const auto score = [&](auto* tile, int64_t heads) {
    for (int64_t k = 0; k < num_keys; k += kKeysAtOnce) {
      const int64_t count = min_of(asked_at_once, first + 2 * kLatentKeys - asked);
      if (count > 0) ask_for_keys(item, asked, count);
      asked += count;
      tile(queries + h * width, keys + k * kNBlock, width, scores + h * kLatentKeys + k);
    }
    h += heads;
  };
  while (h + kMostHeads <= item.num_heads) score(score_tile<kMostHeads>, kMostHeads);
  if (h + 2 <= item.num_heads) score(score_tile<2>, 2);
  if (h < item.num_heads) score(score_tile<1>, 1);
}

// Of one head: its running maximum and the sums of its weights, by lanes.
struct HeadState {
  float largest;
  F sums;
};

// The scores of a tile become weights. What the sums of before are multiplied with is returned.
SPATE_INLINE float make_weights(float* scores, int64_t num_keys, HeadState& state) {
  for (int64_t k = num_keys; k < kLatentKeys; ++k) scores[k] = -__builtin_inff();
  F most = load(scores);
  for (int64_t v = kLanes; v < kLatentKeys; v += kLanes) most = max(most, load(scores + v));
  const float of_tile = max_lane(most);
  float largest = of_tile > state.largest ? of_tile : state.largest;
  bool ordered = true;
  for (int64_t v = 0; v < kLatentKeys; v += kLanes) ordered &= all_less_equal(load(scores + v), set1(largest));
  if (__builtin_expect(!ordered, 0)) {
    largest = state.largest;
    for (int64_t k = 0; k < num_keys; ++k) {
      // Not `scores[k] > largest`: a NaN must stay.
      if (!(scores[k] <= largest)) largest = scores[k];
    }
  }
  float factor = 1;
  if (largest != state.largest) {
    alignas(64) float lanes[kLanes];
    store(lanes, exp2(set1(state.largest - largest)));
    factor = lanes[0];
    state = {largest, mul(state.sums, set1(factor))};
  }
  for (int64_t v = 0; v < kLatentKeys; v += kLanes) {
    const F weights = exp2(sub(load(scores + v), set1(largest)));
    store(scores + v, weights);
    state.sums = add(state.sums, weights);
  }
  return factor;
}

template <typename T>
SPATE_INLINE void store_output(const float* sums, int64_t rank, float scale, T* out) {
  SPATE_FOR_LANES(i, count, rank) { store_up_to(out + i, mul(load(sums + i), set1(scale)), count); }
}

#ifdef __AMX_BF16__
bool tiles_take(Elem act, Elem cache) { return act == Elem::kBf16 && cache != Elem::kF32; }
#endif

}  // namespace

LatentPlan latent_plan([[maybe_unused]] Elem act, [[maybe_unused]] Elem cache, int64_t rank, int64_t rope_dim) {
#ifdef __AMX_BF16__
  if (tiles_take(act, cache)) return latent_tiles_plan(rank, rope_dim);
#endif
  // A tile of keys, the queries and the sums of all heads.
  const int64_t value_width = round_up(rank, kNBlock), width = value_width + round_up(rope_dim, kNBlock);
  return {kVectorHeads, ((kLatentKeys + kVectorHeads) * width + kVectorHeads * value_width) * 4};
}

void attention_latent(const LatentItem& item, char* scratch) {
#ifdef __AMX_BF16__
  if (tiles_take(item.act, item.elem)) return LatentTiles(item, scratch).run();
#endif
  const int64_t rank = round_up(item.rank, kNBlock), width = rank + round_up(item.rope_dim, kNBlock);
  float* keys = reinterpret_cast<float*>(scratch);     // [width / 16][kLatentKeys][16]
  float* queries = keys + kLatentKeys * width;         // [heads, width]
  float* outputs = queries + kVectorHeads * width;     // [heads, rank]
  HeadState states[kVectorHeads];
  const int64_t act_bytes = elem_bytes(item.act);
  for (int64_t h = 0; h < item.num_heads; ++h) {
    const char* latent = static_cast<const char*>(item.q_latent) + h * item.q_latent_stride * act_bytes;
    const char* rope = static_cast<const char*>(item.q_rope) + h * item.q_rope_stride * act_bytes;
    widen(item.act, latent, item.rank, item.scale_log2e, queries + h * width, kNBlock);
    widen(item.act, rope, item.rope_dim, item.scale_log2e, queries + h * width + rank, kNBlock);
    for (int64_t i = 0; i < rank; i += kLanes) store(outputs + h * rank + i, zero());
    states[h] = {-__builtin_inff(), zero()};
  }
  alignas(64) float scores[kVectorHeads * kLatentKeys];
  for (int64_t first = 0; first < item.end_key; first += kLatentKeys) {
    const int64_t num_keys = min_of(kLatentKeys, item.end_key - first);
    for (int64_t k = 0; k < num_keys; ++k) widen_key(item, first + k, keys + k * kNBlock);
    score_keys(item, queries, keys, width, first, scores);
    for (int64_t h = 0; h < item.num_heads; ++h) {
      const float factor = make_weights(scores + h * kLatentKeys, num_keys, states[h]);
      if (factor == 1) continue;
      float* head = outputs + h * rank;
      for (int64_t i = 0; i < rank; i += kLanes) store(head + i, mul(load(head + i), set1(factor)));
    }
    constexpr int64_t kBlocksAtOnce = 8;
    for (int64_t i = 0; i < rank; i += kBlocksAtOnce * kNBlock) {
      const int64_t num_blocks = min_of(kBlocksAtOnce, (rank - i) / kNBlock);
      const char* blocks[kBlocksAtOnce];
      for (int64_t j = 0; j < num_blocks; ++j)
        blocks[j] = reinterpret_cast<const char*>(keys + i / kNBlock * kKeyBlock + j * kKeyBlock);
      micro_gemm<F32Weight>(scores, kLatentKeys, item.num_heads, blocks, num_blocks, num_keys, outputs + i, rank);
    }
  }
  for (int64_t h = 0; h < item.num_heads; ++h) {
    char* out = static_cast<char*>(item.out) + h * item.out_stride * act_bytes;
    const float scale = 1 / sum(states[h].sums);
    item.act == Elem::kF32 ? store_output(outputs + h * rank, item.rank, scale, reinterpret_cast<float*>(out))
                           : store_output(outputs + h * rank, item.rank, scale, reinterpret_cast<bf16_t*>(out));
  }
}

void merge_latent([[maybe_unused]] const LatentItem& item, [[maybe_unused]] float* partials,
                  [[maybe_unused]] int64_t num_partials) {
#ifdef __AMX_BF16__
  merge_spans(item, partials, num_partials);
#endif
}

template <typename From, typename To>
static void convert(const From* x, To* out, int64_t width) {
  SPATE_FOR_LANES(i, count, width) { store_up_to(out + i, load_up_to(x + i, count), count); }
}

template <typename From>
static float to_codes(const From* x, int8_t* out, int64_t width) {
  const CodeScale scale = code_scale(x, width);
  SPATE_FOR_LANES(i, count, width) {
    const I codes = scale.inverse == 0 ? int_zero() : to_int(mul(load_up_to(x + i, count), set1(scale.inverse)));
    store_codes_up_to(out + i, codes, count);
  }
  return scale.scale;
}

template <typename From>
static void write_row(const LatentRow& row) {
  const From* x = static_cast<const From*>(row.x);
  const int64_t width = row.rank + row.rope_dim;
  switch (row.elem) {
    case Elem::kF32:
      return convert(x, static_cast<float*>(row.out), width);
    case Elem::kBf16:
      return convert(x, static_cast<bf16_t*>(row.out), width);
    case Elem::kI8:
      row.scales[0] = to_codes(x, static_cast<int8_t*>(row.out), row.rank);
      row.scales[1] = to_codes(x + row.rank, static_cast<int8_t*>(row.out) + row.rank, row.rope_dim);
  }
}

void latent_row(const LatentRow& row) { row.act == Elem::kF32 ? write_row<float>(row) : write_row<bf16_t>(row); }

template <typename To>
static void from_codes(const int8_t* codes, int64_t width, float scale, To* out) {
  alignas(64) float values[kLanes];
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t count = min_of(kLanes, width - i);
    for (int64_t j = 0; j < count; ++j) values[j] = static_cast<float>(codes[i + j]);
    store_up_to(out + i, mul(load_up_to(values, count), set1(scale)), count);
  }
}

template <typename To>
static void read_vector(const LatentVector& vector) {
  To* out = static_cast<To*>(vector.out);
  const int64_t width = vector.rank + vector.rope_dim;
  switch (vector.elem) {
    case Elem::kF32:
      return convert(static_cast<const float*>(vector.vector), out, width);
    case Elem::kBf16:
      return convert(static_cast<const bf16_t*>(vector.vector), out, width);
    case Elem::kI8:
      const int8_t* codes = static_cast<const int8_t*>(vector.vector);
      from_codes(codes, vector.rank, vector.scales[0], out);
      from_codes(codes + vector.rank, vector.rope_dim, vector.scales[1], out + vector.rank);
  }
}

void latent_vector(const LatentVector& vector) {
  vector.act == Elem::kF32 ? read_vector<float>(vector) : read_vector<bf16_t>(vector);
}

}  // namespace spate::cpu::SPATE_ISA
