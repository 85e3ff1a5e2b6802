// Norms, rotary embedding, activation, embedding look-up: a row a call.
#include "backend/cpu/kernel/kernels_isa.h"
#include "backend/cpu/kernel/simd.h"

namespace spate::cpu::SPATE_ISA {
namespace {

template <typename T>
void rms_norm(const RmsNormRow& p) {
  const T* x = static_cast<const T*>(p.x);
  T* residual = static_cast<T*>(p.residual);
  const T* weight = static_cast<const T*>(p.weight);
  T* out = static_cast<T*>(p.out);
  F squares = zero();
  SPATE_FOR_LANES(i, count, p.width) {
    F value = load_up_to(x + i, count);
    if (residual != nullptr) {
      value = round_as<T>(add(load_up_to(residual + i, count), value));
      store_up_to(residual + i, value, count);
    }
    squares = fma(value, value, squares);
  }
  const float mean = sum(squares) / static_cast<float>(p.width);
  const F scale = set1(1.0f / __builtin_sqrtf(mean + p.eps));
  const T* normed = residual != nullptr ? residual : x;
  SPATE_FOR_LANES(i, count, p.width) {
    const F value = round_as<T>(mul(load_up_to(normed + i, count), scale));
    store_up_to(out + i, mul(value, load_up_to(weight + i, count)), count);
  }
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
    store_up_to(out + i, mul(round_as<T>(silu(load_up_to(gate + i, count))), load_up_to(up + i, count)), count);
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

// Two heads at a time of 2 * kHalf vectors, all of which is rotated: they stay in registers, and their chains of sums overlap.
template <typename T, int kHalf>
void norm_rope_pairs(const NormRopeHeads& p) {
  constexpr int kVectors = 2 * kHalf;
  T* x = static_cast<T*>(p.x);
  for (int64_t h = 0; h + 2 <= p.num_heads; h += 2, x += 2 * p.head_stride) {
    T* head[2] = {x, x + p.head_stride};
    F value[2][kVectors], squares[2] = {zero(), zero()}, scale[2];
    for (int i = 0; i < kVectors; ++i) {
      for (int j = 0; j < 2; ++j) {
        value[j][i] = load(head[j] + i * kLanes);
        squares[j] = fma(value[j][i], value[j][i], squares[j]);
      }
    }
    for (int j = 0; j < 2; ++j) {
      scale[j] = set1(1.0f / __builtin_sqrtf(sum(squares[j]) / static_cast<float>(p.head_dim) + p.eps));
    }
    for (int i = 0; i < kHalf; ++i) {
      const T* weight = static_cast<const T*>(p.weight) + i * kLanes;
      const F weight_a = load(weight), weight_b = load(weight + kHalf * kLanes);
      const F c = load(p.cos_sin + i * kLanes), s = load(p.cos_sin + (kHalf + i) * kLanes);
      for (int j = 0; j < 2; ++j) {
        const F a = round_as<T>(mul(round_as<T>(mul(value[j][i], scale[j])), weight_a));
        const F b = round_as<T>(mul(round_as<T>(mul(value[j][kHalf + i], scale[j])), weight_b));
        store(head[j] + i * kLanes, sub(mul(a, c), mul(b, s)));
        store(head[j] + (kHalf + i) * kLanes, add(mul(b, c), mul(a, s)));
      }
    }
  }
}

template <typename T>
void norm_rope(const NormRopeHeads& p) {
  const bool whole = p.weight != nullptr && p.rotary_dim == p.head_dim && !p.interleaved;
  int64_t done = 0;
  if (whole && p.head_dim == 8 * kLanes) {
    norm_rope_pairs<T, 4>(p);
    done = p.num_heads / 2 * 2;
  } else if (whole && p.head_dim == 4 * kLanes) {
    norm_rope_pairs<T, 2>(p);
    done = p.num_heads / 2 * 2;
  }
  T* x = static_cast<T*>(p.x) + done * p.head_stride;
  for (int64_t h = done; h < p.num_heads; ++h, x += p.head_stride) {
    if (p.weight != nullptr) {
      rms_norm<T>({.x = x, .residual = nullptr, .weight = p.weight, .out = x, .width = p.head_dim, .eps = p.eps});
    }
    rope(x, p.cos_sin, p.rotary_dim, p.interleaved);
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

void rms_norm_row(const RmsNormRow& p, Elem act) {
  act == Elem::kF32 ? rms_norm<float>(p) : rms_norm<bf16_t>(p);
}

void add_row(const void* a, const void* b, void* out, int64_t width, Elem act) {
  if (act == Elem::kF32) {
    add_rows(static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(out), width);
  } else {
    add_rows(static_cast<const bf16_t*>(a), static_cast<const bf16_t*>(b), static_cast<bf16_t*>(out), width);
  }
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
