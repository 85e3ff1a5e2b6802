// Norms, rotary embedding, activation, embedding look-up: some rows a call.
#include "backend/cpu/kernel/kernels_isa.h"
#include "backend/cpu/kernel/simd.h"
#include "backend/cpu/kernel/split_pairs.h"

namespace spate::cpu::SPATE_ISA {
namespace {

// Sums of squares of kRows rows, each of them one chain of sums; chains of several rows overlap. With kAdd the rows are x + residual, which
// become the residual.
template <typename T, int kRows, bool kAdd>
SPATE_INLINE void sum_squares(const RmsNormRows& p, int64_t row, F* squares) {
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride;
  T* residual = static_cast<T*>(p.residual) + row * p.residual_stride;
  int64_t begin = 0;
#ifdef __AVX512BF16__
  if constexpr (kAdd && sizeof(T) == 2) {
    for (; begin + 32 <= p.width; begin += 32) {
      for (int r = 0; r < kRows; ++r) {
        bf16_t* sum = residual + r * p.residual_stride + begin;
        const __m512i bits = round_in_order<1>(add(split(sum), split(x + r * p.x_stride + begin)));
        _mm512_storeu_si512(sum, bits);
        const F low = bf16_to_f32(_mm512_castsi512_si256(bits)), high = bf16_to_f32(_mm512_extracti64x4_epi64(bits, 1));
        squares[r] = fma(high, high, fma(low, low, squares[r]));
      }
    }
  }
#endif
  SPATE_FOR_LANES(offset, count, p.width - begin) {
    const int64_t i = begin + offset;
    for (int r = 0; r < kRows; ++r) {
      F value = load_up_to(x + r * p.x_stride + i, count);
      if constexpr (kAdd) {
        value = round_as<T>(add(load_up_to(residual + r * p.residual_stride + i, count), value));
        store_up_to(residual + r * p.residual_stride + i, value, count);
      }
      squares[r] = fma(value, value, squares[r]);
    }
  }
}

template <typename T, int kRows>
SPATE_INLINE void rms_norm_rows_at(const RmsNormRows& p, int64_t row) {
  F squares[kRows], scale[kRows];
  for (int r = 0; r < kRows; ++r) squares[r] = zero();
  if (p.residual != nullptr) {
    sum_squares<T, kRows, true>(p, row, squares);
  } else {
    sum_squares<T, kRows, false>(p, row, squares);
  }
  for (int r = 0; r < kRows; ++r) {
    scale[r] = set1(1.0f / __builtin_sqrtf(sum(squares[r]) / static_cast<float>(p.width) + p.eps));
  }
  const bool added = p.residual != nullptr;
  const int64_t stride = added ? p.residual_stride : p.x_stride;
  const T* normed = static_cast<const T*>(added ? p.residual : p.x) + row * stride;
  const T* weight = static_cast<const T*>(p.weight);
  T* out = static_cast<T*>(p.out) + row * p.out_stride;
  int64_t begin = 0;
#ifdef __AVX512BF16__
  if constexpr (sizeof(T) == 2) {
    for (; begin + 32 <= p.width; begin += 32) {
      const PairOfVectors weights = after_two_splits(weight + begin);
      for (int r = 0; r < kRows; ++r) {
        const PairOfVectors unit = split(round_pair(mul(split(normed + r * stride + begin), scale[r])));
        _mm512_storeu_si512(out + r * p.out_stride + begin, round_in_order<2>(mul(unit, weights)));
      }
    }
  }
#endif
  SPATE_FOR_LANES(offset, count, p.width - begin) {
    const int64_t i = begin + offset;
    const F weights = load_up_to(weight + i, count);
    for (int r = 0; r < kRows; ++r) {
      const F value = round_as<T>(mul(load_up_to(normed + r * stride + i, count), scale[r]));
      store_up_to(out + r * p.out_stride + i, mul(value, weights), count);
    }
  }
}

template <typename T>
void rms_norm(const RmsNormRows& p) {
  constexpr int kRows = 4;
  int64_t row = 0;
  for (; row + kRows <= p.num_rows; row += kRows) rms_norm_rows_at<T, kRows>(p, row);
  for (; row < p.num_rows; ++row) rms_norm_rows_at<T, 1>(p, row);
}

template <typename T>
void add_rows(const T* a, const T* b, T* out, int64_t width) {
  SPATE_FOR_LANES(i, count, width) {
    store_up_to(out + i, add(load_up_to(a + i, count), load_up_to(b + i, count)), count);
  }
}

template <typename T>
void silu_and_mul(const T* gate, const T* up, T* out, int64_t width) {
  SPATE_FOR_LANES(i, count, width) {
    store_up_to(out + i, mul(silu_as<T>(load_up_to(gate + i, count)), load_up_to(up + i, count)), count);
  }
}

template <typename T, typename Out>
void add_weighted(const WeightedRows& p) {
  const T* shared = static_cast<const T*>(p.shared);
  Out* out = static_cast<Out*>(p.out);
  SPATE_FOR_LANES(i, count, p.width) {
    F sum = p.sums == nullptr ? zero() : load_up_to(p.sums + i, count);
    if (shared != nullptr) sum = fma(load_up_to(shared + i, count), set1(p.shared_factor), sum);
    for (int64_t r = 0; r < p.num_rows; ++r) {
      const float* row = p.rows + (p.row_ids[r] - p.first_row) * p.width;
      sum = fma(load_up_to(row + i, count), set1(p.weights[p.row_ids[r]]), sum);
    }
    store_up_to(out + i, sum, count);
  }
}

SPATE_INLINE float to_float(float x) { return x; }
SPATE_INLINE float to_float(bf16_t x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
}
SPATE_INLINE void from_float(float& out, float x) { out = x; }
SPATE_INLINE void from_float(bf16_t& out, float x) {
  uint32_t u = __builtin_bit_cast(uint32_t, x);
  out = x != x ? static_cast<bf16_t>((u >> 16) | 0x40) : static_cast<bf16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

template <typename T>
void rope(T* x, const float* cos_sin, int64_t rotary_dim, bool interleaved) {
  const int64_t half = rotary_dim / 2;
  if (interleaved) {
    for (int64_t j = 0; j < half; ++j) {
      const float a = to_float(x[2 * j]), b = to_float(x[2 * j + 1]), c = cos_sin[j], s = cos_sin[half + j];
      from_float(x[2 * j], a * c - b * s);
      from_float(x[2 * j + 1], b * c + a * s);
    }
    return;
  }
  SPATE_FOR_LANES(j, count, half) {
    const F a = load_up_to(x + j, count), b = load_up_to(x + half + j, count);
    const F c = load_up_to(cos_sin + j, count), s = load_up_to(cos_sin + half + j, count);
    store_up_to(x + j, sub(mul(a, c), mul(b, s)), count);
    store_up_to(x + half + j, add(mul(b, c), mul(a, s)), count);
  }
}

// 1 / rms of rows x + i * stride, i < count <= kLanes. A row's squares are summed as rms_norm() sums them; their means share a square root
// and a division, which take longer than a row of 128.
template <typename T>
SPATE_INLINE void rms_scales(const T* x, int64_t stride, int64_t count, int64_t width, float eps, float* scales) {
  F squares[kLanes];
  for (int64_t row = 0; row < kLanes; ++row) squares[row] = zero();
  for (int64_t row = 0; row < count; ++row, x += stride) {
    F chain = zero();
    SPATE_FOR_LANES(i, lanes, width) {
      const F value = load_up_to(x + i, lanes);
      chain = fma(value, value, chain);
    }
    squares[row] = chain;
  }
  const F mean = div(sums(squares), set1(static_cast<float>(width)));
  store(scales, div(set1(1.0f), sqrt(add(mean, set1(eps)))));
}

// Normed, where there is a weight, and rotated in full: rotary_dim is head_dim, half of which is whole vectors. scales: of the heads.
template <typename T, bool kNorm>
SPATE_INLINE void rotate_heads(NormRopeHeads p, const T* x, T* out, int64_t count, const float* scales) {
  const int64_t half = p.head_dim / 2;
  const T* weight = static_cast<const T*>(p.weight);
  for (int64_t i = 0; i < half; i += kLanes) {
    const F c = load(p.cos_sin + i), s = load(p.cos_sin + half + i);
    const F weight_a = kNorm ? load(weight + i) : zero(), weight_b = kNorm ? load(weight + half + i) : zero();
    for (int64_t h = 0; h < count; ++h) {
      F a = load(x + h * p.head_stride + i), b = load(x + h * p.head_stride + half + i);
      if constexpr (kNorm) {
        const F scale = set1(scales[h]);
        a = round_as<T>(mul(round_as<T>(mul(a, scale)), weight_a));
        b = round_as<T>(mul(round_as<T>(mul(b, scale)), weight_b));
      }
      store(out + h * p.out_head_stride + i, sub(mul(a, c), mul(b, s)));
      store(out + h * p.out_head_stride + half + i, add(mul(b, c), mul(a, s)));
    }
  }
}

#ifdef __AVX512BF16__
SPATE_INLINE void norm_rotate_pairs(NormRopeHeads p, const bf16_t* x, bf16_t* out, int64_t count, const float* scales) {
  const int64_t half = p.head_dim / 2;
  const bf16_t* weight = static_cast<const bf16_t*>(p.weight);
  for (int64_t i = 0; i < half; i += 32) {
    const PairOfVectors weight_a = after_two_splits(weight + i), weight_b = after_two_splits(weight + half + i);
    const PairOfVectors c = after_three_splits(p.cos_sin + i), s = after_three_splits(p.cos_sin + half + i);
    for (int64_t h = 0; h < count; ++h) {
      const F scale = set1(scales[h]);
      const bf16_t* head = x + h * p.head_stride + i;
      bf16_t* rotated = out + h * p.out_head_stride + i;
      const PairOfVectors a = split(round_pair(mul(split(round_pair(mul(split(head), scale))), weight_a)));
      const PairOfVectors b = split(round_pair(mul(split(round_pair(mul(split(head + half), scale))), weight_b)));
      _mm512_storeu_si512(rotated, round_in_order<3>(sub(mul(a, c), mul(b, s))));
      _mm512_storeu_si512(rotated + half, round_in_order<3>(add(mul(b, c), mul(a, s))));
    }
  }
}
#endif

template <typename T>
void norm_rope(const NormRopeHeads& p) {
  const T* x = static_cast<const T*>(p.x);
  T* out = static_cast<T*>(p.out);
  if (p.rotary_dim != p.head_dim || p.interleaved || p.head_dim % (2 * kLanes) != 0) {
    for (int64_t h = 0; h < p.num_heads; ++h, x += p.head_stride, out += p.out_head_stride) {
      if (p.weight != nullptr) {
        rms_norm<T>({.x = x, .residual = nullptr, .weight = p.weight, .out = out, .num_rows = 1, .width = p.head_dim, .eps = p.eps});
      } else if (out != x) {
        __builtin_memcpy(out, x, static_cast<size_t>(p.head_dim) * sizeof(T));  // every bit, of denormals too
      }
      rope(out, p.cos_sin, p.rotary_dim, p.interleaved);
    }
    return;
  }
  for (int64_t h = 0; h < p.num_heads; h += kLanes, x += kLanes * p.head_stride, out += kLanes * p.out_head_stride) {
    const int64_t count = min_of(kLanes, p.num_heads - h);
    if (p.weight == nullptr) {
      rotate_heads<T, false>(p, x, out, count, nullptr);
      continue;
    }
    alignas(64) float scales[kLanes];
    rms_scales(x, p.head_stride, count, p.head_dim, p.eps, scales);
#ifdef __AVX512BF16__
    if constexpr (sizeof(T) == 2) {
      if (p.head_dim % 64 == 0) {
        norm_rotate_pairs(p, x, out, count, scales);
        continue;
      }
    }
#endif
    rotate_heads<T, true>(p, x, out, count, scales);
  }
}

template <typename T>
void embed(const char* table, Elem table_elem, int64_t row, int64_t width, T* out) {
  const char* n_block = table + row / kNBlock * n_block_bytes(table_elem, round_up(width, kKStep));
  for (int64_t k = 0; k < width; ++k) {
    const char* element = n_block + n_block_offset(table_elem, k, row % kNBlock);
    const float value = table_elem == Elem::kF32 ? *reinterpret_cast<const float*>(element)
                                                 : to_float(*reinterpret_cast<const bf16_t*>(element));
    from_float(out[k], value);
  }
}

}  // namespace

void rms_norm_rows(const RmsNormRows& p, Elem act) {
  act == Elem::kF32 ? rms_norm<float>(p) : rms_norm<bf16_t>(p);
}

void add_row(const void* a, const void* b, void* out, int64_t width, Elem act) {
  if (act == Elem::kF32) {
    add_rows(static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(out), width);
  } else {
    add_rows(static_cast<const bf16_t*>(a), static_cast<const bf16_t*>(b), static_cast<bf16_t*>(out), width);
  }
}

void add_weighted_rows(const WeightedRows& p, Elem act) {
  if (act == Elem::kF32) return add_weighted<float, float>(p);
  p.out_elem == Elem::kF32 ? add_weighted<bf16_t, float>(p) : add_weighted<bf16_t, bf16_t>(p);
}

void silu_and_mul_row(const void* gate, const void* up, void* out, int64_t width, Elem act) {
  if (act == Elem::kF32) {
    silu_and_mul(static_cast<const float*>(gate), static_cast<const float*>(up), static_cast<float*>(out), width);
  } else {
    silu_and_mul(static_cast<const bf16_t*>(gate), static_cast<const bf16_t*>(up), static_cast<bf16_t*>(out), width);
  }
}

void rope_row(void* x, const float* cos_sin, int64_t rotary_dim, bool interleaved, Elem act) {
  if (act == Elem::kF32) {
    rope(static_cast<float*>(x), cos_sin, rotary_dim, interleaved);
  } else {
    rope(static_cast<bf16_t*>(x), cos_sin, rotary_dim, interleaved);
  }
}

void norm_rope_heads(const NormRopeHeads& p, Elem act) {
  if (act == Elem::kF32) {
    norm_rope<float>(p);
  } else {
    norm_rope<bf16_t>(p);
  }
}

void embedding_row(const char* table, Elem table_elem, int64_t row, int64_t width, void* out, Elem act) {
  if (act == Elem::kF32) {
    embed(table, table_elem, row, width, static_cast<float*>(out));
  } else {
    embed(table, table_elem, row, width, static_cast<bf16_t*>(out));
  }
}

}  // namespace spate::cpu::SPATE_ISA
