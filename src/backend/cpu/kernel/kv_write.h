// K and V of new tokens into their blocks. Full groups of 16 tokens are written a cache line after the other; a single
// token touches a line of K for each pair of its elements, which shares that line with 15 other tokens.
//
// Elements of a row that are not there are zero: the cache is not cleared, and 0 times its old contents might be NaN.
#pragma once

#include "backend/cpu/kernel/simd.h"
#include "backend/cpu/kernels.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kMaxHeadDim = 256;

// One token's k or v, in the elements of the cache, zeros up to the padded width.
template <typename T>
struct HeadRow {
  alignas(64) T values[kMaxHeadDim];
  float scale;
};

template <typename Act>
SPATE_INLINE void load_head_row(const Act* x, int64_t head_dim, int64_t padded, HeadRow<float>& row) {
  SPATE_FOR_LANES(d, count, head_dim) { store_up_to(row.values + d, load_up_to(x + d, count), count); }
  for (int64_t d = head_dim; d < padded; ++d) row.values[d] = 0;
}
template <typename Act>
SPATE_INLINE void load_head_row(const Act* x, int64_t head_dim, int64_t padded, HeadRow<bf16_t>& row) {
  if constexpr (sizeof(Act) == 2) {
    __builtin_memcpy(row.values, x, static_cast<size_t>(head_dim) * 2);
  } else {
    SPATE_FOR_LANES(d, count, head_dim) { store_up_to(row.values + d, load_up_to(x + d, count), count); }
  }
  for (int64_t d = head_dim; d < padded; ++d) row.values[d] = 0;
}

SPATE_INLINE void store_codes(int8_t* codes, F scaled) {
#ifdef __AVX512F__
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(scaled)));
#else
  const __m256i words = _mm256_cvtps_epi32(scaled);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(codes), _mm_packs_epi16(halves, halves));
#endif
}

// As quantize_activations() (quant/quantize.h) with one group: scale max|x| / 127, codes round(x * (127 / max|x|)),
// ties to even.
template <typename Act>
SPATE_INLINE void load_head_row(const Act* x, int64_t head_dim, int64_t padded, HeadRow<int8_t>& row) {
  F largest = zero();
  uint32_t not_finite = 0;
  const F infinity = set1(__builtin_inff());
  SPATE_FOR_LANES(d, count, head_dim) {
    const F value = load_up_to(x + d, count), magnitude = max(value, sub(zero(), value));
    largest = max(largest, magnitude);
    not_finite |= ~greater_bits(infinity, magnitude);  // NaN is not less than infinity either
  }
  constexpr uint32_t kAllLanes = kLanes == 16 ? 0xffffu : 0xffu;
  const float max_abs = max_lane(largest);
  if ((not_finite & kAllLanes) != 0 || max_abs < 0x1p-120f) {
    row.scale = (not_finite & kAllLanes) != 0 ? __builtin_nanf("") : 0.0f;
    for (int64_t d = 0; d < padded; ++d) row.values[d] = 0;
    return;
  }
  row.scale = max_abs / 127.0f;
  const F inverse = set1(127.0f / max_abs);
  SPATE_FOR_LANES(d, count, head_dim) { store_codes(row.values + d, mul(load_up_to(x + d, count), inverse)); }
  for (int64_t d = head_dim; d < padded; ++d) row.values[d] = 0;
}

// k in a row of 16 columns of an n-block.
template <typename T>
constexpr int64_t row_k() {
  return sizeof(T) == 4 ? 1 : 2;
}
// The unit that moves: all k of a row of one column.
template <typename T>
struct KeyWordOf {
  using Word = uint32_t;
};
template <>
struct KeyWordOf<int8_t> {
  using Word = uint16_t;
};

// Keys [first, first + count) of the group whose n-block is given.
template <typename T>
SPATE_INLINE void write_keys(const HeadRow<T>* rows, int64_t first, int64_t count, int64_t padded, char* n_block) {
  using Word = typename KeyWordOf<T>::Word;
  const int64_t words = padded / row_k<T>();
  Word* out = reinterpret_cast<Word*>(n_block);
  if (count == kNBlock) {
    for (int64_t w = 0; w < words; ++w) {
      for (int64_t i = 0; i < kNBlock; ++i) {
        __builtin_memcpy(out + w * kNBlock + i,
                         reinterpret_cast<const char*>(rows[i].values) + w * static_cast<int64_t>(sizeof(Word)),
                         sizeof(Word));
      }
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t w = 0; w < words; ++w) {
      __builtin_memcpy(out + w * kNBlock + first + i,
                       reinterpret_cast<const char*>(rows[i].values) + w * static_cast<int64_t>(sizeof(Word)),
                       sizeof(Word));
    }
  }
}

// Values of tokens [first, first + count) of the block. Pairs of tokens share a row; the partner of a token that comes
// alone is left as it is.
template <typename T>
SPATE_INLINE void write_values(const HeadRow<T>* rows, int64_t first, int64_t count, const KvLayout& layout, char* v) {
  constexpr int64_t kRowK = row_k<T>();
  const int64_t padded = round_up(layout.head_dim, kNBlock);
  for (int64_t i = 0; i < count;) {
    const int64_t token = first + i;
    char* row = v + token / kRowK * kRowK * kNBlock * static_cast<int64_t>(sizeof(T));
    const bool pair = kRowK == 2 && token % 2 == 0 && i + 1 < count;
    for (int64_t d = 0; d < padded; d += kNBlock, row += layout.v_n_block_bytes) {
      T* out = reinterpret_cast<T*>(row);
      if (pair) {
        for (int64_t c = 0; c < kNBlock; ++c) {
          out[2 * c] = rows[i].values[d + c];
          out[2 * c + 1] = rows[i + 1].values[d + c];
        }
      } else {
        for (int64_t c = 0; c < kNBlock; ++c) out[c * kRowK + token % kRowK] = rows[i].values[d + c];
      }
    }
    i += pair ? 2 : 1;
  }
}

template <typename Act, typename T>
static void write_head_run(const KvWriteRun& run) {
  const KvLayout& layout = run.layout;
  const int64_t head_dim = layout.head_dim, padded = round_up(head_dim, kKStep), group = run.token_in_block / kNBlock;
  const int64_t first = run.token_in_block % kNBlock;
  HeadRow<T> rows[kNBlock];
  for (int64_t i = 0; i < run.num_tokens; ++i) {
    load_head_row(static_cast<const Act*>(run.k) + i * run.k_token_stride, head_dim, padded, rows[i]);
  }
  write_keys(rows, first, run.num_tokens, padded, run.head + group * layout.k_group_bytes);
  if constexpr (sizeof(T) == 1) {
    for (int64_t i = 0; i < run.num_tokens; ++i) {
      reinterpret_cast<float*>(run.head + layout.k_scales_offset)[run.token_in_block + i] = rows[i].scale;
    }
  }
  for (int64_t i = 0; i < run.num_tokens; ++i) {
    load_head_row(static_cast<const Act*>(run.v) + i * run.v_token_stride, head_dim, padded, rows[i]);
  }
  write_values(rows, run.token_in_block, run.num_tokens, layout, run.head + layout.v_offset);
  if constexpr (sizeof(T) == 1) {
    for (int64_t i = 0; i < run.num_tokens; ++i) {
      reinterpret_cast<float*>(run.head + layout.v_scales_offset)[run.token_in_block + i] = rows[i].scale;
    }
  }
}

}  // namespace spate::cpu::SPATE_ISA
