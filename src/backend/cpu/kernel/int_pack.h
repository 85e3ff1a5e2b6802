// x of a product with an integer weight: quantised to 8 bits in the groups of the weight, as quantize_activations()
// (quant/quantize.h) does it to the bit, and laid out for the kernel that reads it.
#pragma once

#include "backend/cpu/kernel/int_simd.h"
#include "backend/cpu/kernels.h"

namespace spate::cpu::SPATE_ISA {

// GemmParams::packed_x: the codes, then three arrays [rows / 16][groups][16]; of two-level scales the starts are for each
// multiplier.
struct IntX {
  int8_t* codes;
  float* scales;
  // What a dot starts with: kernels that multiply unsigned codes (code + 8, code + 128) take that much of the sum of x
  // away again.
  int32_t* starts;
  float* sums;  // scale times sum of codes: what an offset is multiplied with
};

// A line more a row for kernels whose rows are an odd number of lines apart.
SPATE_INLINE int64_t int_code_bytes(int64_t rows, const IntLayout& w) { return round_up(rows, 32) * (w.k_padded + 64); }
SPATE_INLINE int64_t int_num_starts(const IntLayout& w) { return w.two_level() ? w.num_multipliers() : w.num_groups; }
SPATE_INLINE int64_t int_x_bytes(int64_t rows, const IntLayout& w) {
  return int_code_bytes(rows, w) + round_up(rows, 32) * (2 * w.num_groups + int_num_starts(w)) * 4;
}
SPATE_INLINE IntX int_x(const GemmParams& p) {
  const int64_t count = round_up(p.m, 32) * p.weight_ints.num_groups;
  auto* scales = reinterpret_cast<float*>(p.packed_x + int_code_bytes(p.m, p.weight_ints));
  return {reinterpret_cast<int8_t*>(p.packed_x), scales, reinterpret_cast<int32_t*>(scales + 2 * count),
          scales + count};
}
// Index of a row's first group in an array; the next group is 16 further.
SPATE_INLINE int64_t int_row_idx(int64_t row, int64_t num_groups) { return row / 16 * num_groups * 16 + row % 16; }

// The bits of the largest |x|, which are above those of infinity when one of them is no number.
SPATE_INLINE uint32_t largest_bits(const float* x, int64_t n) {
  const I magnitude = int_set1(0x7fffffff);
  I largest = int_zero();
  SPATE_FOR_LANES(i, count, n) { largest = int_max(largest, int_and(bits_of(load_up_to(x + i, count)), magnitude)); }
  return static_cast<uint32_t>(int_max_lane(largest));
}
SPATE_INLINE uint32_t largest_bits(const bf16_t* x, int64_t n) {
#ifdef __AVX512F__
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  __m512i largest = _mm512_setzero_si512(), other = largest;
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    largest = _mm512_max_epu16(largest, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
    other = _mm512_max_epu16(other, _mm512_and_si512(_mm512_loadu_si512(x + i + 32), magnitude));
  }
  for (; i < n; i += 32) {
    const __mmask32 lanes = n - i >= 32 ? ~0u : (1u << (n - i)) - 1;
    largest = _mm512_max_epu16(largest, _mm512_and_si512(_mm512_maskz_loadu_epi16(lanes, x + i), magnitude));
  }
  largest = _mm512_max_epu16(largest, other);
  const I even = _mm512_slli_epi32(largest, 16), odd = _mm512_andnot_si512(_mm512_set1_epi32(0xffff), largest);
  return static_cast<uint32_t>(int_max_lane(int_max(even, odd)));
#else
  const I magnitude = int_set1(0x7fffffff);
  I largest = int_zero();
  SPATE_FOR_LANES(i, count, n) { largest = int_max(largest, int_and(bits_of(load_up_to(x + i, count)), magnitude)); }
  return static_cast<uint32_t>(int_max_lane(largest));
#endif
}

// For up to 16 groups: the scale of each and what its values are multiplied with; largest holds their largest_bits().
struct GroupScales {
  float largest[16], scale[16], inverse[16];
};
SPATE_INLINE void scales_of_groups(GroupScales& at, int64_t num_groups) {
  for (int64_t g = 0; g < num_groups; g += kLanes) {
    const F largest = load(at.largest + g);
    store(at.scale + g, div(largest, set1(127.0f)));
    store(at.inverse + g, div(set1(127.0f), largest));
  }
}

#ifdef __AVX512VBMI__
struct CodeOrder {
  alignas(64) uint8_t from[64];
};
// Of the two packs in codes_of_64(): in each lane 4 even and 4 odd elements of the first 32, then of the others.
static constexpr CodeOrder make_code_order() {
  CodeOrder order{};
  for (int i = 0; i < 64; ++i) {
    order.from[i] = static_cast<uint8_t>(i % 32 / 8 * 16 + i / 32 * 8 + i % 2 * 4 + i % 8 / 2);
  }
  return order;
}
static constexpr CodeOrder kCodeOrder = make_code_order();

// The codes of 64 elements: to_int(mul(x, inverse)) of each, half the operations of 16 at a time.
SPATE_INLINE __m512i codes_of_64(const bf16_t* x, F inverse) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  __m512i words[2];
  for (int i = 0; i < 2; ++i) {
    const __m512i pair = _mm512_loadu_si512(x + i * 32);
    const I even = to_int(mul(_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), inverse));
    const I odd = to_int(mul(_mm512_castsi512_ps(_mm512_and_si512(pair, upper)), inverse));
    words[i] = _mm512_packs_epi32(even, odd);
  }
  return _mm512_permutexvar_epi8(_mm512_load_si512(kCodeOrder.from), _mm512_packs_epi16(words[0], words[1]));
}
#endif

// Where a row's group goes in the arrays of IntX.
struct GroupPlace {
  int64_t idx;        // in scales and sums
  int64_t start_idx;  // in the starts
};

// Elements [begin, end) of a row, and zeros up to padded_end: group g of those in `scales`. codes_at(k) is where the 32
// codes of k .. k + 31 go; start_factor: see IntX::starts. kSums: starts and sums are wanted. `place` goes on to the
// row's next group.
template <bool kSums, typename T, typename CodesAt>
SPATE_INLINE void quantize_group(const T* x, int64_t begin, int64_t end, int64_t padded_end, const GroupScales& scales,
                                 int64_t g, const IntLayout& w, int32_t start_factor, const IntX& out,
                                 GroupPlace& place, const CodesAt codes_at) {
  const bool finite = __builtin_bit_cast(uint32_t, scales.largest[g]) < 0x7f800000u;
  const bool usable = finite && scales.largest[g] >= 0x1p-120f;
  const F inverse = set1(scales.inverse[g]);
  I sum = int_zero();
  int64_t at = begin;
#ifdef __AVX512VBMI__
  if constexpr (!kSums && sizeof(T) == 2) {
    for (; usable && at + 64 <= end; at += 64) {
      const __m512i codes = codes_of_64(x + at, inverse);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes_at(at)), _mm512_castsi512_si256(codes));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes_at(at + 32)), _mm512_extracti64x4_epi64(codes, 1));
    }
  }
#endif
  for (; at < padded_end; at += kIntHalfStep) {
    int8_t* codes = codes_at(at);
    for (int64_t i = 0; i < kIntHalfStep; i += kLanes) {
      const int64_t count = end - at - i;
      I code = int_zero();
      if (usable && count >= kLanes) {
        code = to_int(mul(load(x + at + i), inverse));
      } else if (usable && count > 0) {
        code = to_int(mul(load_n(x + at + i, count), inverse));
      }
      store_codes(codes + i, code);
      if constexpr (kSums) sum = int_add(sum, code);
    }
    if constexpr (kSums) {
      const int64_t next = at + kIntHalfStep;
      if (w.two_level() && (next % w.multiplier_k == 0 || next == padded_end)) {
        out.starts[place.start_idx] = int_sum(sum) * start_factor;
        place.start_idx += 16;
        sum = int_zero();
      }
    }
  }
  const float scale = usable ? scales.scale[g] : finite ? 0.0f : __builtin_nanf("");
  out.scales[place.idx] = scale;
  if (kSums && !w.two_level()) {
    const int32_t total = int_sum(sum);
    out.starts[place.start_idx] = total * start_factor;
    place.start_idx += 16;
    out.sums[place.idx] = scale * static_cast<float>(total);
  }
  place.idx += 16;
}

// One row, of any groups.
template <bool kSums, typename T, typename CodesAt>
static void quantize_x_row(const T* x, int64_t k, const IntLayout& w, int32_t start_factor, const IntX& out,
                           GroupPlace place, const CodesAt& codes_at) {
  GroupScales scales;
  for (int i = 0; i < 16; ++i) scales.largest[i] = 1;
  for (int64_t g0 = 0; g0 < w.num_groups; g0 += 16) {
    const int64_t num_groups = min_of(16, w.num_groups - g0);
    for (int64_t g = 0; g < num_groups; ++g) {
      const int64_t begin = (g0 + g) * w.group_k;
      scales.largest[g] = __builtin_bit_cast(float, largest_bits(x + begin, min_of(k - begin, w.group_k)));
    }
    scales_of_groups(scales, num_groups);
    for (int64_t g = 0; g < num_groups; ++g) {
      const int64_t begin = (g0 + g) * w.group_k, end = min_of(k, begin + w.group_k);
      const int64_t padded_end = g0 + g + 1 == w.num_groups ? w.k_padded : begin + w.group_k;
      quantize_group<kSums>(x, begin, end, padded_end, scales, g, w, start_factor, out, place, codes_at);
    }
  }
}

// Up to 16 rows of bf16, each one group, without starts and sums: the rows' scales are divided out together, so that no
// row waits for those of another. codes_at(row, k); ask_for(row): before the row is read.
template <typename CodesAt, typename AskFor>
SPATE_INLINE void quantize_whole_rows(const bf16_t* x, int64_t stride, int64_t first_row, int64_t num_rows, int64_t k,
                                      const IntLayout& w, const IntX& out, const CodesAt codes_at,
                                      const AskFor& ask_for) {
  GroupScales scales;
  for (int i = 0; i < 16; ++i) scales.largest[i] = 1;
  for (int64_t i = 0; i < num_rows; ++i) {
    ask_for(first_row + i);
    scales.largest[i] = __builtin_bit_cast(float, largest_bits(x + (first_row + i) * stride, k));
  }
  scales_of_groups(scales, num_rows);
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t row = first_row + i;
    GroupPlace place{int_row_idx(row, 1), 0};
    const auto of_row = [row, codes_at](int64_t at) { return codes_at(row, at); };
    quantize_group<false>(x + row * stride, 0, k, w.k_padded, scales, i, w, 0, out, place, of_row);
  }
}

// What a dot of this weight starts with, times the sum of x. With unsigned codes as one side of a product and x as the
// other they are code + 128 of int8 (VNNI) and code + 8 of int4. AVX2 has no such sum of int8, so there the sign of the
// weight goes to x, which is never -128.
static constexpr int32_t int_start_factor(CodeType codes) {
  if (codes == CodeType::kInt4) return -8;
#ifdef __AVX512VNNI__
  return -128;
#else
  return 0;
#endif
}

// Row r of x, or zeros behind the last one. kSums: unless no kernel that reads it needs them; offsets always do.
template <bool kSums, typename CodesAt>
static void pack_int_row(const GemmParams& p, const IntX& out, int64_t r, const CodesAt& codes_at) {
  const IntLayout& w = p.weight_ints;
  const GroupPlace place{int_row_idx(r, w.num_groups), int_row_idx(r, int_num_starts(w))};
  const int32_t factor = int_start_factor(w.codes);
  if (r >= p.m) {
    const float nothing = 0;
    quantize_x_row<kSums>(&nothing, 0, w, 0, out, place, codes_at);
  } else if (p.x_elem == Elem::kF32) {
    const float* x = static_cast<const float*>(p.x) + r * p.x_stride;
    quantize_x_row<kSums>(x, p.k, w, factor, out, place, codes_at);
  } else {
    const bf16_t* x = static_cast<const bf16_t*>(p.x) + r * p.x_stride;
    quantize_x_row<kSums>(x, p.k, w, factor, out, place, codes_at);
  }
}

}  // namespace spate::cpu::SPATE_ISA
