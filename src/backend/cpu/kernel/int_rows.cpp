// Rows of integer weights: quantised on the way in, looked up as embeddings.
#include "backend/cpu/kernel/int_simd.h"
#include "backend/cpu/kernel/kernels_isa.h"

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

// As quantize_group() in quant/quantize.cpp.
template <typename T>
void quantize_rows_of(const IntLayout& layout, const T* row, int64_t width, int8_t* codes, float* scales) {
  const float limit = layout.codes == CodeType::kInt8 ? 127.0f : 7.0f;
  for (int64_t g = 0; g < layout.num_groups; ++g) {
    const int64_t begin = g * layout.group_k, n = min_of(layout.group_k, width - begin);
    F largest = zero();
    SPATE_FOR_LANES(i, count, n) { largest = max(absolute(load_some(row + begin + i, count)), largest); }
    float scale = max_lane(largest) / limit;
    if (layout.scale_bytes == 2) {
      scale = _cvtsh_ss(_cvtss_sh(scale < kMaxHalf ? scale : kMaxHalf, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    scales[g] = scale;
    const F inverse = set1(scale >= kSmallest ? 1.0f / scale : 0.0f), high = set1(limit), low = set1(-limit);
    SPATE_FOR_LANES(i, count, n) {
      const F code = round_int(mul(load_some(row + begin + i, count), inverse));
      store_codes_up_to(codes + begin + i, to_int(min(max(code, low), high)), count);
    }
  }
}

SPATE_INLINE float scale_at(const char* scales, int64_t bytes, int64_t idx) {
  if (bytes == 4) return reinterpret_cast<const float*>(scales)[idx];
  return _cvtsh_ss(reinterpret_cast<const uint16_t*>(scales)[idx]);
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
  for (int64_t g = 0; g < layout.num_groups; ++g) {
    const int64_t idx = g * kNBlock + column;
    const float scale = scale_at(n_block + layout.scales_offset(), layout.scale_bytes, idx);
    const float offset =
        layout.has_offsets ? scale_at(n_block + layout.offsets_offset(), layout.scale_bytes, idx) : 0.0f;
    for (int64_t k = g * layout.group_k; k < min_of(width, (g + 1) * layout.group_k); ++k) {
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
