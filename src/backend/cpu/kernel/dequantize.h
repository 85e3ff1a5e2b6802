// Codes become floats a little before a product reads them: for weights whose activations stay as they are
// (quant/weight_format.h). The product is then that of a float weight with the same values, to the bit.
#pragma once

#include "backend/cpu/kernel/gemm_int.h"
#ifdef __AVX512BF16__
#include "backend/cpu/kernel/split_pairs.h"
#endif

namespace spate::cpu::SPATE_ISA {

SPATE_INLINE bool dequantizes(const GemmParams& p) {
  return p.weight_ints.codes != CodeType::kNone && !p.quantizes_x;
}

// The four k of kLanes columns of a row of codes, as floats.
struct FourK {
  F k[4];
};
SPATE_INLINE FourK signed_bytes(const char* row) {
  F in_kv_order[4];  // the first, third, second and fourth
  load_codes(row, in_kv_order);
  return {{in_kv_order[0], in_kv_order[2], in_kv_order[1], in_kv_order[3]}};
}
template <bool kHigh>
SPATE_INLINE FourK nibbles(const char* row) {
  const I words = int_load(row), mask = int_set1(15), eight = int_set1(8);
  constexpr int kFirst = kHigh ? 4 : 0;
  return {{to_float(int_sub(int_and(int_shift_right<kFirst>(words), mask), eight)),
           to_float(int_sub(int_and(int_shift_right<kFirst + 8>(words), mask), eight)),
           to_float(int_sub(int_and(int_shift_right<kFirst + 16>(words), mask), eight)),
           to_float(int_sub(int_and(int_shift_right<kFirst + 24>(words), mask), eight))}};
}

// kLanes columns of a row of two k of bf16: element 2 i is the even k of column i. No value is a NaN whose bits are all
// ones: rounding would carry it away.
#ifdef __x86_64__
SPATE_INLINE void store_two_k(char* row, F even, F odd) {
#ifdef __AVX512BF16__
  int_store(row, _mm512_permutexvar_epi16(_mm512_load_si512(kSplitOrders.undo[1]), round_pair(even, odd)));
#elif defined(__AVX512F__)
  const auto rounded = [](F x) __attribute__((always_inline)) {
    const I u = bits_of(x), lsb = int_and(_mm512_srli_epi32(u, 16), int_set1(1));
    return int_add(u, int_add(lsb, int_set1(0x7fff)));
  };
  int_store(row, _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(rounded(even), 16), rounded(odd)));
#else
  const auto rounded = [](F x) __attribute__((always_inline)) {
    const I u = bits_of(x), lsb = int_and(_mm256_srli_epi32(u, 16), int_set1(1));
    return int_add(u, int_add(lsb, int_set1(0x7fff)));
  };
  int_store(row, _mm256_blend_epi16(_mm256_srli_epi32(rounded(even), 16), rounded(odd), 0xaa));
#endif
}
#endif

struct ScaleAndOffset {
  F scale[kVecs], offset[kVecs];
};
// Of the half step (32 k) at k, which no group cuts.
SPATE_INLINE ScaleAndOffset scales_at(const IntLayout& w, const char* n_block, int64_t k) {
  const int64_t g = w.two_level() ? 0 : k / w.group_k;
  ScaleAndOffset at;
  for (int v = 0; v < kVecs; ++v) {
    at.scale[v] = load_scales(n_block + w.scales_offset(), w.scale_bytes, g, v);
    at.offset[v] = w.has_offsets ? load_scales(n_block + w.offsets_offset(), w.scale_bytes, g, v) : zero();
    if (!w.two_level()) continue;
    const char* multipliers = n_block + w.multipliers_offset() + w.multiplier_of(k) * kNBlock;
    at.scale[v] = mul(at.scale[v], to_float(load_bytes(multipliers + v * kLanes)));
  }
  return at;
}

// The 8 rows of codes of a half step to rows of floats (kTo) at `out`.
template <CodeType kCodes, bool kHigh, Elem kTo>
SPATE_INLINE void dequantize_half_step(const char* rows, const ScaleAndOffset& by, char* out) {
  constexpr int64_t kOutBytes = 4 / row_k(kTo) * 64;  // of four k
  for (int r = 0; r < 8; ++r, rows += 64, out += kOutBytes) {
    for (int v = 0; v < kVecs; ++v) {
      const char* row = rows + v * kLanes * 4;
      FourK codes;
      if constexpr (kCodes == CodeType::kInt8) {
        codes = signed_bytes(row);
      } else {
        codes = nibbles<kHigh>(row);
      }
      F w[4];
      for (int i = 0; i < 4; ++i) w[i] = fma(codes.k[i], by.scale[v], by.offset[v]);
      if constexpr (kTo == Elem::kF32) {
        for (int i = 0; i < 4; ++i) store(reinterpret_cast<float*>(out + i * 64) + v * kLanes, w[i]);
      } else {
        store_two_k(out + v * kLanes * 4, w[0], w[1]);
        store_two_k(out + 64 + v * kLanes * 4, w[2], w[3]);
      }
    }
  }
}

// k [begin, begin + num_k) of an n-block, both multiples of 32, as a float n-block (layout.h) of that much k.
template <CodeType kCodes, Elem kTo>
static void dequantize_codes(const IntLayout& w, const char* n_block, int64_t begin, int64_t num_k, char* out) {
  for (int64_t k = begin; k < begin + num_k; k += kIntHalfStep, out += n_block_bytes(kTo, kIntHalfStep)) {
    const ScaleAndOffset by = scales_at(w, n_block, k);
    const char* rows = n_block + k / (kCodes == CodeType::kInt8 ? kIntHalfStep : kIntKStep) * 512;
    for (int line = 0; line < 8; ++line) prefetch(rows + kIntAhead + line * 64);
    if (kCodes == CodeType::kInt4 && k % kIntKStep != 0) {
      dequantize_half_step<kCodes, true, kTo>(rows, by, out);
    } else {
      dequantize_half_step<kCodes, false, kTo>(rows, by, out);
    }
  }
}
template <Elem kTo>
SPATE_INLINE void dequantize_n_block(const IntLayout& w, const char* n_block, int64_t begin, int64_t num_k, char* out) {
  if (w.codes == CodeType::kInt8) {
    dequantize_codes<CodeType::kInt8, kTo>(w, n_block, begin, num_k, out);
  } else {
    dequantize_codes<CodeType::kInt4, kTo>(w, n_block, begin, num_k, out);
  }
}

}  // namespace spate::cpu::SPATE_ISA
