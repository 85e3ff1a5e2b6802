// Rows of integer weights: quantised on the way in, looked up as embeddings.
#include "backend/cpu/kernel/int_simd.h"
#include "backend/cpu/kernel/kernels_isa.h"
#include "quant/two_level.h"

namespace spate::cpu::SPATE_ISA {
namespace {

struct half_t {
  uint16_t bits;
};

SPATE_INLINE F load(const half_t* p) { return load_halves(p); }
SPATE_INLINE F load_n(const half_t* p, int64_t n) {
  half_t lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return load_halves(lanes);
}
SPATE_INLINE F load_some(const half_t* p, int64_t n) { return n == kLanes ? load(p) : load_n(p, n); }
template <typename T>
SPATE_INLINE F load_some(const T* p, int64_t n) {
  return load_up_to(p, n);
}

constexpr float kMaxHalf = 65504.0f;
constexpr float kSmallest = 0x1p-120f;

template <typename T>
SPATE_INLINE float largest_magnitude(const T* w, int64_t n) {
  F largest = zero();
  SPATE_FOR_LANES(i, count, n) { largest = max(absolute(load_some(w + i, count)), largest); }
  return max_lane(largest);
}

SPATE_INLINE F clamped_code(F code, F low, F high) { return min(max(round_int(code), low), high); }

// As code_group() in quant/quantize.cpp: the squared error in 16 parts; the codes go nowhere.
template <typename T>
SPATE_INLINE float loss_of_group(const T* w, int64_t n, float scale) {
  const F inverse = set1(1.0f / scale), minus_scale = set1(-scale), low = set1(-8.0f), high = set1(7.0f);
  F sums[16 / kLanes];
  for (F& sum : sums) sum = zero();
  for (int64_t begin = 0; begin < n; begin += 16) {
    for (int64_t part = 0; part < 16 / kLanes; ++part) {
      const int64_t i = begin + part * kLanes, count = min_of(n - i, kLanes);
      if (count <= 0) break;
      const F x = load_some(w + i, count), code = clamped_code(mul(x, inverse), low, high);
      const F error = fma(minus_scale, code, x);
      sums[part] = fma(error, error, sums[part]);
    }
  }
  float lanes[16], total = 0;
  for (int64_t part = 0; part < 16 / kLanes; ++part) store(lanes + part * kLanes, sums[part]);
  for (const float lane : lanes) total += lane;
  return total;
}

template <typename T>
SPATE_INLINE void code_group(const T* w, int64_t n, float scale, F low, F high, int8_t* codes) {
  const F inverse = set1(scale >= kSmallest ? 1.0f / scale : 0.0f);
  SPATE_FOR_LANES(i, count, n) {
    store_codes_up_to(codes + i, to_int(clamped_code(mul(load_some(w + i, count), inverse), low, high)), count);
  }
}

// As quantize_row_two_level() there.
template <typename T>
void quantize_row_two_level(const IntLayout& layout, const T* row, int64_t width, int8_t* codes, float* scales) {
  const float row_scale = two_level_row_scale(largest_magnitude(row, width));
  const int64_t num_scales = ceil_div(width, layout.multiplier_k);
  for (int64_t g = 0; g < num_scales; ++g) {
    const int64_t begin = g * layout.multiplier_k, n = min_of(layout.multiplier_k, width - begin);
    scales[g] = 0;
    if (row_scale == 0) {
      for (int64_t i = 0; i < n; ++i) codes[begin + i] = 0;
      continue;
    }
    const int largest = largest_multiplier(largest_magnitude(row + begin, n), row_scale);
    int best = largest;
    float least = 0;
    for (int m = largest; m >= smallest_multiplier(largest); --m) {
      const float loss = loss_of_group(row + begin, n, row_scale * static_cast<float>(m));
      if (m < largest && !(loss < least)) continue;
      best = m;
      least = loss;
    }
    scales[g] = row_scale * static_cast<float>(best);
    code_group(row + begin, n, scales[g], set1(-8.0f), set1(7.0f), codes + begin);
  }
}

// As quantize_group() in quant/quantize.cpp.
template <typename T>
void quantize_rows_of(const IntLayout& layout, const T* row, int64_t width, int8_t* codes, float* scales) {
  if (layout.two_level()) return quantize_row_two_level(layout, row, width, codes, scales);
  const float limit = layout.codes == CodeType::kInt8 ? 127.0f : 7.0f;
  for (int64_t g = 0; g < layout.num_groups; ++g) {
    const int64_t begin = g * layout.group_k, n = min_of(layout.group_k, width - begin);
    float scale = largest_magnitude(row + begin, n) / limit;
    if (layout.scale_bytes == 2) {
      scale = half_to_float(float_to_half(scale < kMaxHalf ? scale : kMaxHalf));
    }
    scales[g] = scale;
    code_group(row + begin, n, scale, set1(-limit), set1(limit), codes + begin);
  }
}

SPATE_INLINE float scale_at(const char* scales, int64_t bytes, int64_t idx) {
  if (bytes == 4) return reinterpret_cast<const float*>(scales)[idx];
  return half_to_float(reinterpret_cast<const uint16_t*>(scales)[idx]);
}

SPATE_INLINE void put(float* out, float x) { *out = x; }
SPATE_INLINE void put(bf16_t* out, float x) {
  const uint32_t u = __builtin_bit_cast(uint32_t, x);
  *out = x != x ? static_cast<bf16_t>((u >> 16) | 0x40) : static_cast<bf16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

template <typename T>
void embed(const char* table, const IntLayout& layout, int64_t row, int64_t width, T* out) {
  const char* n_block = table + row / kNBlock * layout.block_bytes;
  const int64_t column = row % kNBlock;
  const int64_t group_k = layout.two_level() ? layout.multiplier_k : layout.group_k;
  for (int64_t g = 0; g * group_k < width; ++g) {
    const int64_t idx = (layout.two_level() ? 0 : g * kNBlock) + column;
    float scale = scale_at(n_block + layout.scales_offset(), layout.scale_bytes, idx);
    if (layout.two_level()) {
      const char multiplier = n_block[layout.multipliers_offset() + g * kNBlock + column];
      scale *= static_cast<float>(static_cast<uint8_t>(multiplier));
    }
    const float offset =
        layout.has_offsets ? scale_at(n_block + layout.offsets_offset(), layout.scale_bytes, idx) : 0.0f;
    for (int64_t k = g * group_k; k < min_of(width, (g + 1) * group_k); ++k) {
      int code = 0;
      if (layout.codes == CodeType::kInt8) {
        code = static_cast<int8_t>(n_block[int8_offset(k / 4 * 4, column) + k % 4]);
      } else {
        const auto byte = static_cast<uint8_t>(n_block[int4_offset(k / 4 * 4, column) + k % 4]);
        code = (k % kIntKStep < kIntHalfStep ? byte & 15 : byte >> 4) - 8;
      }
      put(out + k, __builtin_fmaf(scale, static_cast<float>(code), offset));
    }
  }
}

}  // namespace

void quantize_weight_row(const IntLayout& layout, const void* row, SourceElem elem, int64_t width, int8_t* codes,
                         float* scales) {
  switch (elem) {
    case SourceElem::kF32:
      return quantize_rows_of(layout, static_cast<const float*>(row), width, codes, scales);
    case SourceElem::kF16:
      return quantize_rows_of(layout, static_cast<const half_t*>(row), width, codes, scales);
    case SourceElem::kBf16:
      return quantize_rows_of(layout, static_cast<const bf16_t*>(row), width, codes, scales);
  }
}

void int_embedding_row(const char* table, const IntLayout& layout, int64_t row, int64_t width, void* out, Elem act) {
  if (act == Elem::kF32) {
    embed(table, layout, row, width, static_cast<float*>(out));
  } else {
    embed(table, layout, row, width, static_cast<bf16_t*>(out));
  }
}

}  // namespace spate::cpu::SPATE_ISA
