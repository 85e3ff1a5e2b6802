// Attention over latent vectors, on vector units: the heads of an item share each key, which becomes floats once.
//
// Keys pass in tiles of 16 from position 0, whatever else the step holds, so that a query's bits do not depend on it.
// A tile of 16 x 576 floats is 36 KB: it stays in L2, and with 8 heads each of its lines is read 16 times.
#include "backend/cpu/kernel/code_scale.h"
#include "backend/cpu/kernel/kernels_isa.h"

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

// Codes as floats.
SPATE_INLINE void widen(const int8_t* x, int64_t width, float scale, float* out) {
  const I sign = int_set1(128);
  const auto from_bytes = [&](const int8_t* codes) {
    return mul(to_float(int_sub(int_xor(load_bytes(codes), sign), sign)), set1(scale));
  };
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(out + i, from_bytes(x + i));
  if (i < width) {
    int8_t lanes[kLanes] = {};
    for (int64_t j = i; j < width; ++j) lanes[j - i] = x[j];
    store(out + i, from_bytes(lanes));
    i += kLanes;
  }
  for (; i < round_up(width, 16); i += kLanes) store(out + i, zero());
}

// The vector of a token.
SPATE_INLINE void widen_key(const LatentItem& item, const char* block, int64_t token, float* latent, float* rope) {
  const char* key = block + token * item.token_bytes;
  if (item.elem != Elem::kI8) {
    widen(item.elem, key, item.rank, 1.0f, latent);
    widen(item.elem, key + item.rank * elem_bytes(item.elem), item.rope_dim, 1.0f, rope);
    return;
  }
  const float* scales = reinterpret_cast<const float*>(block + item.scales_offset) + 2 * token;
  const int8_t* codes = reinterpret_cast<const int8_t*>(key);
  widen(codes, item.rank, scales[0], latent);
  widen(codes + item.rank, item.rope_dim, scales[1], rope);
}

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
  const int64_t act_bytes = elem_bytes(item.act);
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
      widen_key(item, block, first % item.kv_block_size + k, keys + k * width, keys + k * width + rank);
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
