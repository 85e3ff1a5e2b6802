// x of a product with an integer weight: its outliers are set aside (quant/outlier_rule.h), the others quantised to 8 bits
// in the groups of the weight, as quantize_activations() (quant/quantize.h) does it to the bit, and laid out for the
// kernel that reads it.
#pragma once

#include "backend/cpu/kernel/int_simd.h"
#include "backend/cpu/kernels.h"
#include "quant/outlier_rule.h"

namespace spate::cpu::SPATE_ISA {

// GemmParams::packed_x: the codes, then three arrays [rows / 16][groups][16]; of two-level scales the starts are for
// each multiplier. Then the outliers of each row.
struct IntX {
  int8_t* codes;
  float* scales;
  // What a dot starts with: kernels that multiply unsigned codes (code + 8, code + 128) take that much of the sum of x
  // away again.
  int32_t* starts;
  float* sums;  // scale times sum of codes: what an offset is multiplied with
  int32_t* num_outliers;  // [rows]
  Outlier* outliers;      // [rows][kMaxOutliers], in the order of k
};

// A line more a row for kernels whose rows are an odd number of lines apart.
SPATE_INLINE int64_t int_code_bytes(int64_t rows, const IntLayout& w) { return round_up(rows, 32) * (w.k_padded + 64); }
SPATE_INLINE int64_t int_num_starts(const IntLayout& w) { return w.two_level() ? w.num_multipliers() : w.num_groups; }
SPATE_INLINE int64_t int_x_bytes(int64_t rows, const IntLayout& w) {
  constexpr auto kOutlierBytes = static_cast<int64_t>(4 + kMaxOutliers * sizeof(Outlier));
  return int_code_bytes(rows, w) + round_up(rows, 32) * ((2 * w.num_groups + int_num_starts(w)) * 4 + kOutlierBytes);
}
SPATE_INLINE IntX int_x(const GemmParams& p) {
  const int64_t rows = round_up(p.m, 32), count = rows * p.weight_ints.num_groups;
  auto* scales = reinterpret_cast<float*>(p.packed_x + int_code_bytes(p.m, p.weight_ints));
  auto* starts = reinterpret_cast<int32_t*>(scales + 2 * count);
  auto* num_outliers = starts + rows * int_num_starts(p.weight_ints);
  return {reinterpret_cast<int8_t*>(p.packed_x),          scales, starts, scales + count, num_outliers,
          reinterpret_cast<Outlier*>(num_outliers + rows)};
}
// Index of a row's first group in an array; the next group is 16 further.
SPATE_INLINE int64_t int_row_idx(int64_t row, int64_t num_groups) { return row / 16 * num_groups * 16 + row % 16; }

// The bits of the largest |x|, which are above those of infinity when one of them is no number. few: at most so many
// lanes hold values above 1/8 of it, so that there may be no more of them than that; never false then.
struct Largest {
  uint32_t bits;
  bool few;
};
SPATE_INLINE F from_bits(I x) { return __builtin_bit_cast(F, x); }
template <typename T>
SPATE_INLINE Largest largest_of(const T* x, int64_t n, int64_t max_above) {
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 2) {
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
    const __m512i both = _mm512_max_epu16(largest, other);
    const I even = _mm512_slli_epi32(both, 16), odd = _mm512_andnot_si512(_mm512_set1_epi32(0xffff), both);
    const auto bits = static_cast<uint32_t>(int_max_lane(int_max(even, odd)));
    // An eighth has an exponent that is 3 less.
    const __m512i share = _mm512_set1_epi16(static_cast<int16_t>((bits >> 16) - (3u << 7)));
    const int above = __builtin_popcount(_mm512_cmpgt_epu16_mask(largest, share)) +
                      __builtin_popcount(_mm512_cmpgt_epu16_mask(other, share));
    return {bits, above <= max_above};
  }
#endif
  constexpr int kAtOnce = 64 / kLanes;  // vectors, so that there are more lanes than outliers
  const I magnitude = int_set1(0x7fffffff);
  I largest[kAtOnce];
  for (I& one : largest) one = int_zero();
  for (int64_t i = 0; i < n; i += kAtOnce * kLanes) {
    for (int64_t v = 0; v < kAtOnce; ++v) {
      const int64_t count = min_of(kLanes, n - i - v * kLanes);
      if (count <= 0) break;
      largest[v] = int_max(largest[v], int_and(bits_of(load_up_to(x + i + v * kLanes, count)), magnitude));
    }
  }
  I all = largest[0];
  for (int v = 1; v < kAtOnce; ++v) all = int_max(all, largest[v]);
  const auto bits = static_cast<uint32_t>(int_max_lane(all));
  const F share = set1(__builtin_bit_cast(float, bits) * kOutlierShare);
  int above = 0;
  for (const I& one : largest) above += __builtin_popcount(greater_bits(from_bits(one), share));
  return {bits, above <= max_above};
}
template <typename T>
SPATE_INLINE float largest_magnitude_of(const T* x, int64_t n) {
  return __builtin_bit_cast(float, largest_of(x, n, 0).bits);
}

// All |x| above the limit are outliers; infinity: there are none.
constexpr float kNoLimit = __builtin_inff();

SPATE_INLINE F within(F x, F limit) { return keep(lanes_of(~uint64_t{greater_bits(absolute(x), limit)}), x); }

template <typename T>
static float largest_within(const T* x, int64_t n, float limit) {
  const F at_most = set1(limit);
  F largest = zero();
  SPATE_FOR_LANES(i, count, n) { largest = max(absolute(within(load_up_to(x + i, count), at_most)), largest); }
  return max_lane(largest);
}

// The limit of a row whose largest is finite and large enough, as take_outliers() (quant/outliers.h) finds it.
template <typename T>
static __attribute__((noinline)) float find_outlier_limit(const T* x, int64_t n, float largest) {
  float limit = kNoLimit, top = largest;
  while (top >= kSmallestScaled) {
    const F share = set1(top * kOutlierShare);
    int64_t num_above = 0;
    F below = zero();
    SPATE_FOR_LANES(i, count, n) {
      const F magnitude = absolute(load_up_to(x + i, count));
      const uint64_t above = greater_bits(magnitude, share);
      num_above += __builtin_popcountll(above);
      below = max(keep(lanes_of(~above), magnitude), below);
    }
    if (num_above > max_outliers(n)) break;
    limit = top * kOutlierShare;
    top = max_lane(below);
  }
  return limit;
}

// What a row is quantised by.
struct RowRange {
  float largest;  // |x| of all that is no outlier
  float limit;
};
template <typename T>
SPATE_INLINE RowRange range_of_row(const T* x, int64_t n) {
  const Largest of_all = largest_of(x, n, max_outliers(n));
  const auto largest = __builtin_bit_cast(float, of_all.bits);
  if (__builtin_expect(!of_all.few, 1) || of_all.bits >= 0x7f800000u || largest < kSmallestScaled)
    return {largest, kNoLimit};
  const float limit = find_outlier_limit(x, n, largest);
  return {limit == kNoLimit ? largest : largest_within(x, n, limit), limit};
}

// Lists the outliers of row r.
template <typename T>
SPATE_INLINE void list_outliers(const T* x, int64_t n, float limit, const IntX& out, int64_t r) {
  int32_t num = 0;
  if (__builtin_expect(limit != kNoLimit, 0)) {
    Outlier* list = out.outliers + r * kMaxOutliers;
    const F at_most = set1(limit);
    SPATE_FOR_LANES(i, count, n) {
      const F values = load_up_to(x + i, count);
      uint64_t above = greater_bits(absolute(values), at_most);
      if (above == 0) continue;
      float lanes[kLanes];
      store(lanes, values);
      for (; above != 0; above &= above - 1) {
        const int lane = __builtin_ctzll(above);
        list[num++] = {static_cast<int32_t>(i + lane), lanes[lane]};
      }
    }
  }
  out.num_outliers[r] = num;
}

// For up to 16 groups: the scale of each and what its values are multiplied with.
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
// codes of k .. k + 31 go; start_factor: see IntX::starts. kSums: starts and sums are wanted. kOutliers: values above
// the limit are zeros here. `place` goes on to the row's next group.
template <bool kSums, bool kOutliers, typename T, typename CodesAt>
SPATE_INLINE void quantize_group(const T* x, int64_t begin, int64_t end, int64_t padded_end, const GroupScales& scales,
                                 int64_t g, [[maybe_unused]] float limit, const IntLayout& w, int32_t start_factor,
                                 const IntX& out, GroupPlace& place, const CodesAt codes_at) {
  const bool finite = __builtin_bit_cast(uint32_t, scales.largest[g]) < 0x7f800000u;
  const bool usable = finite && scales.largest[g] >= 0x1p-120f;
  const F inverse = set1(scales.inverse[g]);
  [[maybe_unused]] const F at_most = set1(limit);
  const auto code_of = [&](F value) __attribute__((always_inline)) {
    if constexpr (kOutliers) value = within(value, at_most);
    return to_int(mul(value, inverse));
  };
  I sum = int_zero();
  int64_t at = begin;
#ifdef __AVX512VBMI__
  if constexpr (!kSums && !kOutliers && sizeof(T) == 2) {
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
        code = code_of(load(x + at + i));
      } else if (usable && count > 0) {
        code = code_of(load_n(x + at + i, count));
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
template <bool kSums, bool kOutliers, typename T, typename CodesAt>
SPATE_INLINE void quantize_groups(const T* x, int64_t k, const RowRange& range, const IntLayout& w,
                                  int32_t start_factor, const IntX& out, GroupPlace place, const CodesAt& codes_at) {
  GroupScales scales;
  for (int i = 0; i < 16; ++i) scales.largest[i] = 1;
  for (int64_t g0 = 0; g0 < w.num_groups; g0 += 16) {
    const int64_t num_groups = min_of(16, w.num_groups - g0);
    for (int64_t g = 0; g < num_groups; ++g) {
      const int64_t begin = (g0 + g) * w.group_k, n = min_of(k - begin, w.group_k);
      scales.largest[g] = w.num_groups == 1 ? range.largest
                          : kOutliers       ? largest_within(x + begin, n, range.limit)
                                            : largest_magnitude_of(x + begin, n);
    }
    scales_of_groups(scales, num_groups);
    for (int64_t g = 0; g < num_groups; ++g) {
      const int64_t begin = (g0 + g) * w.group_k, end = min_of(k, begin + w.group_k);
      const int64_t padded_end = g0 + g + 1 == w.num_groups ? w.k_padded : begin + w.group_k;
      quantize_group<kSums, kOutliers>(x, begin, end, padded_end, scales, g, range.limit, w, start_factor, out, place,
                                       codes_at);
    }
  }
}

// Row r of x.
template <bool kSums, typename T, typename CodesAt>
static void quantize_x_row(const T* x, int64_t k, const IntLayout& w, int32_t start_factor, const IntX& out, int64_t r,
                           const CodesAt& codes_at) {
  const GroupPlace place{int_row_idx(r, w.num_groups), int_row_idx(r, int_num_starts(w))};
  const RowRange range = range_of_row(x, k);
  list_outliers(x, k, range.limit, out, r);
  if (range.limit == kNoLimit) {
    quantize_groups<kSums, false>(x, k, range, w, start_factor, out, place, codes_at);
  } else {
    quantize_groups<kSums, true>(x, k, range, w, start_factor, out, place, codes_at);
  }
}

// Up to 16 rows of bf16, each one group, without starts and sums: the rows' scales are divided out together, so that no
// row waits for those of another. codes_at(row, k); ask_for(row): before the row is read.
template <typename CodesAt, typename AskFor>
SPATE_INLINE void quantize_whole_rows(const bf16_t* x, int64_t stride, int64_t first_row, int64_t num_rows, int64_t k,
                                      const IntLayout& w, const IntX& out, const CodesAt codes_at,
                                      const AskFor& ask_for) {
  GroupScales scales;
  float limits[16];
  for (int i = 0; i < 16; ++i) scales.largest[i] = 1;
  for (int64_t i = 0; i < num_rows; ++i) {
    ask_for(first_row + i);
    const RowRange range = range_of_row(x + (first_row + i) * stride, k);
    scales.largest[i] = range.largest;
    limits[i] = range.limit;
  }
  scales_of_groups(scales, num_rows);
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t row = first_row + i;
    const bf16_t* values = x + row * stride;
    GroupPlace place{int_row_idx(row, 1), 0};
    const auto of_row = [row, codes_at](int64_t at) { return codes_at(row, at); };
    list_outliers(values, k, limits[i], out, row);
    if (limits[i] == kNoLimit) {
      quantize_group<false, false>(values, 0, k, w.k_padded, scales, i, kNoLimit, w, 0, out, place, of_row);
    } else {
      quantize_group<false, true>(values, 0, k, w.k_padded, scales, i, limits[i], w, 0, out, place, of_row);
    }
  }
}

// What a dot of this weight starts with, times the sum of x. With unsigned codes as one side of a product and x as the
// other they are code + 128 of int8 (VNNI) and code + 8 of int4. AVX2 has no such sum of int8, so there the sign of the
// weight goes to x, which is never -128.
static constexpr int32_t int_start_factor(CodeType codes) {
  if (codes == CodeType::kInt4) return -8;
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  return -128;
#else
  return 0;
#endif
}

// Row r of x, or zeros behind the last one. kSums: unless no kernel that reads it needs them; offsets always do.
template <bool kSums, typename CodesAt>
static void pack_int_row(const GemmParams& p, const IntX& out, int64_t r, const CodesAt& codes_at) {
  const IntLayout& w = p.weight_ints;
  const int32_t factor = int_start_factor(w.codes);
  if (r >= p.m) {
    const float nothing = 0;
    quantize_x_row<kSums>(&nothing, 0, w, 0, out, r, codes_at);
  } else if (p.x_elem == Elem::kF32) {
    const float* x = static_cast<const float*>(p.x) + r * p.x_stride;
    quantize_x_row<kSums>(x, p.k, w, factor, out, r, codes_at);
  } else {
    const bf16_t* x = static_cast<const bf16_t*>(p.x) + r * p.x_stride;
    quantize_x_row<kSums>(x, p.k, w, factor, out, r, codes_at);
  }
}

}  // namespace spate::cpu::SPATE_ISA
