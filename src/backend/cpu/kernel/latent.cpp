// Attention over latent vectors, on vector units: the heads of an item share each key, which becomes floats once.
//
// Keys pass in tiles of 16 from position 0, whatever else the step holds, so that a query's bits do not depend on it.
// A tile of 16 x 576 floats is 36 KB: it stays in L2, and with 8 heads each of its lines is read 16 times.
#include "backend/cpu/kernel/kernels_isa.h"
#include "backend/cpu/kernel/simd.h"

namespace spate::cpu::SPATE_ISA {
namespace {

// Floats, padded by zeros to whole vectors.
template <typename T>
SPATE_INLINE void widen(const T* x, int64_t width, float scale, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(out + i, mul(load(x + i), set1(scale)));
  if (i < width) {
    store(out + i, mul(load_n(x + i, width - i), set1(scale)));
    i += kLanes;
  }
  for (; i < round_up(width, 16); i += kLanes) store(out + i, zero());
}

SPATE_INLINE void widen(Elem elem, const void* x, int64_t width, float scale, float* out) {
  elem == Elem::kF32 ? widen(static_cast<const float*>(x), width, scale, out)
                     : widen(static_cast<const bf16_t*>(x), width, scale, out);
}

SPATE_INLINE int64_t element_bytes(Elem elem) { return elem == Elem::kF32 ? 4 : 2; }

SPATE_INLINE float exp2_of(float x) {
  alignas(64) float lanes[16];
  store(lanes, exp2(set1(x)));
  return lanes[0];
}

// Of one head: its running maximum and the sum of its weights.
struct HeadState {
  float largest;
  float sum;
};

// scores[k] = q . key k
SPATE_INLINE void score_keys(const float* q, const float* keys, int64_t width, int64_t num_keys, float* scores) {
  int64_t k = 0;
  for (; k + 4 <= num_keys; k += 4) {
    F dots[4] = {zero(), zero(), zero(), zero()};
    for (int64_t i = 0; i < width; i += kLanes) {
      const F query = load(q + i);
      for (int64_t j = 0; j < 4; ++j) dots[j] = fma(query, load(keys + (k + j) * width + i), dots[j]);
    }
    for (int64_t j = 0; j < 4; ++j) scores[k + j] = sum(dots[j]);
  }
  for (; k < num_keys; ++k) {
    F dot = zero();
    for (int64_t i = 0; i < width; i += kLanes) dot = fma(load(q + i), load(keys + k * width + i), dot);
    scores[k] = sum(dot);
  }
}

// The scores of a tile become weights, by which its keys join the sums.
SPATE_INLINE void add_tile(float* scores, const float* keys, int64_t width, int64_t rank, int64_t num_keys,
                           HeadState& state, float* sums) {
  float largest = state.largest;
  for (int64_t k = 0; k < num_keys; ++k) {
    // Not `scores[k] > largest`: a NaN must stay.
    if (!(scores[k] <= largest)) largest = scores[k];
  }
  const float factor = exp2_of(state.largest - largest);
  float total = 0;
  for (int64_t k = 0; k < num_keys; ++k) total += scores[k] = exp2_of(scores[k] - largest);
  state = {largest, state.sum * factor + total};
  for (int64_t i = 0; i < round_up(rank, 16); i += kLanes) {
    F value = mul(load(sums + i), set1(factor));
    for (int64_t k = 0; k < num_keys; ++k) value = fma(load(keys + k * width + i), set1(scores[k]), value);
    store(sums + i, value);
  }
}

template <typename T>
SPATE_INLINE void store_output(const float* sums, int64_t rank, float scale, T* out) {
  SPATE_FOR_LANES(i, count, rank) { store_up_to(out + i, mul(load(sums + i), set1(scale)), count); }
}

}  // namespace

void attention_latent(const LatentItem& item, char* scratch) {
  const int64_t rank = round_up(item.rank, 16), width = rank + round_up(item.rope_dim, 16);
  float* keys = reinterpret_cast<float*>(scratch);  // [kLatentKeys, width]
  float* queries = keys + kLatentKeys * width;      // [heads, width]
  float* sums = queries + kMaxLatentHeads * width;  // [heads, rank]
  HeadState states[kMaxLatentHeads];
  const int64_t act_bytes = element_bytes(item.act), key_bytes = element_bytes(item.elem);
  for (int64_t h = 0; h < item.num_heads; ++h) {
    const char* latent = static_cast<const char*>(item.q_latent) + h * item.q_latent_stride * act_bytes;
    const char* rope = static_cast<const char*>(item.q_rope) + h * item.q_rope_stride * act_bytes;
    widen(item.act, latent, item.rank, item.scale_log2e, queries + h * width);
    widen(item.act, rope, item.rope_dim, item.scale_log2e, queries + h * width + rank);
    for (int64_t i = 0; i < rank; i += kLanes) store(sums + h * rank + i, zero());
    states[h] = {-__builtin_inff(), 0};
  }
  for (int64_t first = 0; first < item.num_keys; first += kLatentKeys) {
    const int64_t num_keys = min_of(kLatentKeys, item.num_keys - first);
    const char* block = item.kv + item.block_table[first / item.kv_block_size] * item.block_bytes;
    for (int64_t k = 0; k < num_keys; ++k) {
      const char* key = block + (first % item.kv_block_size + k) * item.token_bytes;
      widen(item.elem, key, item.rank, 1.0f, keys + k * width);
      widen(item.elem, key + item.rank * key_bytes, item.rope_dim, 1.0f, keys + k * width + rank);
    }
    for (int64_t h = 0; h < item.num_heads; ++h) {
      float scores[kLatentKeys];
      score_keys(queries + h * width, keys, width, num_keys, scores);
      add_tile(scores, keys, width, rank, num_keys, states[h], sums + h * rank);
    }
  }
  for (int64_t h = 0; h < item.num_heads; ++h) {
    char* out = static_cast<char*>(item.out) + h * item.out_stride * act_bytes;
    const float scale = 1 / states[h].sum;
    item.act == Elem::kF32 ? store_output(sums + h * rank, item.rank, scale, reinterpret_cast<float*>(out))
                           : store_output(sums + h * rank, item.rank, scale, reinterpret_cast<bf16_t*>(out));
  }
}

template <typename From, typename To>
static void convert(const From* x, To* out, int64_t width) {
  SPATE_FOR_LANES(i, count, width) { store_up_to(out + i, load_up_to(x + i, count), count); }
}

void latent_row(const void* x, Elem act, void* out, Elem elem, int64_t width) {
  if (act == Elem::kBf16) return convert(static_cast<const bf16_t*>(x), static_cast<bf16_t*>(out), width);
  const float* from = static_cast<const float*>(x);
  elem == Elem::kF32 ? convert(from, static_cast<float*>(out), width) : convert(from, static_cast<bf16_t*>(out), width);
}

}  // namespace spate::cpu::SPATE_ISA
