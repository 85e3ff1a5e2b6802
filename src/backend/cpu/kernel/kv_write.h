// K and V of new tokens into their blocks. Full groups of 16 tokens are written a cache line after the other; a single
// token touches a line of K for each pair of its elements, which shares that line with 15 other tokens.
//
// Elements of a row that are not there are zero: the cache is not cleared, and 0 times its old contents might be NaN.
#pragma once

#include "backend/cpu/kernel/code_scale.h"
#include "backend/cpu/kernels.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kMaxHeadDim = 256;

// k or v of up to 16 tokens, in the elements of the cache, zeros up to the padded width. Rows that need no change are
// not copied.
template <typename T>
struct HeadRow {
  alignas(64) T values[kMaxHeadDim];
  float scale;
};
template <typename T>
struct HeadRows {
  const T* row[kNBlock];
  HeadRow<T> copy[kNBlock];
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

SPATE_INLINE void store_codes(int8_t* codes, F scaled) { store_codes(codes, to_int(scaled)); }

template <typename Act>
SPATE_INLINE void load_head_row(const Act* x, int64_t head_dim, int64_t padded, HeadRow<int8_t>& row) {
  const CodeScale scale = code_scale(x, head_dim);
  row.scale = scale.scale;
  if (scale.inverse == 0) {
    for (int64_t d = 0; d < padded; ++d) row.values[d] = 0;
    return;
  }
  const F inverse = set1(scale.inverse);
  SPATE_FOR_LANES(d, count, head_dim) { store_codes(row.values + d, mul(load_up_to(x + d, count), inverse)); }
  for (int64_t d = head_dim; d < padded; ++d) row.values[d] = 0;
}

template <typename T>
constexpr Elem cache_elem() {
  return sizeof(T) == 4 ? Elem::kF32 : sizeof(T) == 2 ? Elem::kBf16 : Elem::kI8;
}

// Codes of a key in the order that they have in their rows.
SPATE_INLINE void order_key_codes(int8_t* codes, int64_t padded) {
#ifdef __aarch64__
  constexpr uint8_t kOrder[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
  for (int64_t d = 0; d < padded; d += 16) vst1q_s8(codes + d, vqtbl1q_s8(vld1q_s8(codes + d), vld1q_u8(kOrder)));
#else
  const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  for (int64_t d = 0; d < padded; d += 16) {
    __m128i* const quads = reinterpret_cast<__m128i*>(codes + d);
    _mm_storeu_si128(quads, _mm_shuffle_epi8(_mm_loadu_si128(quads), order));
  }
#endif
}

template <typename Act, typename T>
SPATE_INLINE void load_head_rows(const void* first, int64_t token_stride, int64_t num_tokens, int64_t head_dim,
                                 HeadRows<T>& rows) {
  const int64_t padded = round_up(head_dim, kKStep);
  for (int64_t i = 0; i < num_tokens; ++i) {
    const Act* x = static_cast<const Act*>(first) + i * token_stride;
    if constexpr (sizeof(Act) == sizeof(T)) {
      if (head_dim == padded) {
        rows.row[i] = reinterpret_cast<const T*>(x);
        continue;
      }
    }
    load_head_row(x, head_dim, padded, rows.copy[i]);
    rows.row[i] = rows.copy[i].values;
  }
}

#ifdef __AVX512F__
// Rows and columns of 16 x 16 words of 32 bits change places.
SPATE_INLINE void transpose_16x16(__m512i* x) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // x[i + c]: columns c of four rows, in each lane of four columns
    x[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88), b = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd), e = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
    t[c] = _mm512_shuffle_i32x4(a, b, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(a, b, 0xdd);
    t[4 + c] = _mm512_shuffle_i32x4(d, e, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(d, e, 0xdd);
  }
  for (int i = 0; i < 16; ++i) x[i] = t[i];
}

// Words [first_word, first_word + count) of 16 tokens' keys, a line of the n-block each; count is 8 or 16.
SPATE_INLINE void write_key_words(const uint32_t* const* rows, int64_t first_word, int64_t count, char* n_block) {
  const auto lanes = static_cast<__mmask16>((1u << count) - 1);
  __m512i x[16];
  for (int i = 0; i < 16; ++i) x[i] = _mm512_maskz_loadu_epi32(lanes, rows[i] + first_word);
  transpose_16x16(x);
  for (int i = 0; i < 8; ++i) _mm512_storeu_si512(n_block + (first_word + i) * 64, x[i]);
  if (count == 8) return;
  for (int i = 8; i < 16; ++i) _mm512_storeu_si512(n_block + (first_word + i) * 64, x[i]);
}
#endif

// Keys [first, first + count) of the group whose n-block is given.
template <typename T>
SPATE_INLINE void write_keys(const HeadRows<T>& rows, int64_t first, int64_t count, int64_t padded, char* n_block) {
  const int64_t words = padded / row_k(cache_elem<T>());  // all k of a row of one column; of every element 32 bits
  const uint32_t* row[kNBlock];
  for (int64_t i = 0; i < count; ++i) row[i] = reinterpret_cast<const uint32_t*>(rows.row[i]);
#ifdef __AVX512F__
  if (count == kNBlock) {
    for (int64_t w = 0; w < words; w += kNBlock) write_key_words(row, w, min_of(kNBlock, words - w), n_block);
    return;
  }
#endif
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t w = 0; w < words; ++w) {
      __builtin_memcpy(n_block + (w * kNBlock + first + i) * 4, row[i] + w, 4);
    }
  }
}

// 16 elements of the tokens that share a row.
#ifdef __aarch64__
SPATE_INLINE void interleave(const bf16_t* const* rows, int64_t d, char* out) {
  for (int64_t c = 0; c < kNBlock; c += 8) {
    vst2q_u16(reinterpret_cast<uint16_t*>(out + c * 4),
              uint16x8x2_t{vld1q_u16(rows[0] + d + c), vld1q_u16(rows[1] + d + c)});
  }
}
SPATE_INLINE void interleave(const int8_t* const* rows, int64_t d, char* out) {
  const auto of = [&](int i) { return vld1q_s8(rows[i] + d); };
  vst4q_s8(reinterpret_cast<int8_t*>(out), int8x16x4_t{of(0), of(2), of(1), of(3)});
}
#else
SPATE_INLINE void interleave(const bf16_t* const* rows, int64_t d, char* out) {
#ifdef __AVX512F__
  const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[0] + d)));
  const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[1] + d)));
  _mm512_storeu_si512(out, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
#else
  for (int64_t c = 0; c < kNBlock; c += 8) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[0] + d + c)),
                  high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[1] + d + c));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + c * 4), _mm_unpacklo_epi16(low, high));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + c * 4 + 16), _mm_unpackhi_epi16(low, high));
  }
#endif
}
SPATE_INLINE void interleave(const int8_t* const* rows, int64_t d, char* out) {
  __m128i codes[4];
  for (int64_t i = 0; i < 4; ++i) codes[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + d));
  __m128i* const to = reinterpret_cast<__m128i*>(out);
  const __m128i even_low = _mm_unpacklo_epi8(codes[0], codes[2]), odd_low = _mm_unpacklo_epi8(codes[1], codes[3]);
  const __m128i even_high = _mm_unpackhi_epi8(codes[0], codes[2]), odd_high = _mm_unpackhi_epi8(codes[1], codes[3]);
  _mm_storeu_si128(to, _mm_unpacklo_epi16(even_low, odd_low));
  _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(even_low, odd_low));
  _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(even_high, odd_high));
  _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(even_high, odd_high));
}
#endif
SPATE_INLINE void interleave(const float* const* rows, int64_t d, char* out) {
  __builtin_memcpy(out, rows[0] + d, 64);
}

// 16 elements of a token whose neighbours in the row are left as they are, and may be written by another thread meanwhile.
template <typename T>
SPATE_INLINE void store_apart(const T* x, int64_t place, T* row) {
  constexpr int64_t kRowK = row_k(cache_elem<T>());
#ifdef __AVX512F__
  if constexpr (sizeof(T) == 2) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
    if (place == 0) {
      _mm512_mask_storeu_epi16(row, 0x55555555u, words);
    } else {
      _mm512_mask_storeu_epi16(row, 0xaaaaaaaau, _mm512_slli_epi32(words, 16));
    }
    return;
  }
  if constexpr (sizeof(T) == 1) {
    const __m512i words = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    _mm512_mask_storeu_epi8(row, 0x1111111111111111u << place, _mm512_slli_epi32(words, static_cast<unsigned>(8 * place)));
    return;
  }
#endif
  for (int64_t c = 0; c < kNBlock; ++c) row[c * kRowK + place] = x[c];
}

// Values of tokens [first, first + count) of the block. Two (bf16) or four (codes) tokens share a row; of a row that is
// not written as a whole the others' elements are left as they are.
template <typename T>
SPATE_INLINE void write_values(const HeadRows<T>& rows, int64_t first, int64_t count, const KvLayout& layout, char* v) {
  constexpr Elem kElem = cache_elem<T>();
  constexpr int64_t kRowK = row_k(kElem);
  for (int64_t i = 0; i < count;) {
    const int64_t token = first + i, place = place_in_row(kElem, token);
    char* row = v + token / kRowK * kRowK * kNBlock * static_cast<int64_t>(sizeof(T));
    const bool whole = token % kRowK == 0 && i + kRowK <= count;
    for (int64_t d = 0; d < layout.value_dim; d += kNBlock, row += layout.v_n_block_bytes) {
      if (whole) {
        interleave(rows.row + i, d, row);
      } else {
        store_apart(rows.row[i] + d, place, reinterpret_cast<T*>(row));
      }
    }
    i += whole ? kRowK : 1;
  }
}

// The lines that write_head_run() will write, which lie in memory or in another core's cache: stores alone would ask for
// them one after the other.
static void prefetch_head_run(const KvWriteRun& run) {
  const KvLayout& layout = run.layout;
  const auto prefetch = [](const char* begin, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) prefetch_to_write(begin + i);
  };
  prefetch(run.head + run.token_in_block / kNBlock * layout.k_group_bytes, layout.k_group_bytes);
  const int64_t row_tokens = row_k(layout.elem), v_begin = run.token_in_block / row_tokens * 64,
                v_end = ceil_div(run.token_in_block + run.num_tokens, row_tokens) * 64;  // a row is a line
  for (int64_t d = 0; d < layout.value_dim; d += kNBlock) {
    prefetch(run.head + layout.v_offset + d / kNBlock * layout.v_n_block_bytes + v_begin, v_end - v_begin);
  }
}

template <typename Act, typename T>
static void write_head_run(const KvWriteRun& run) {
  const KvLayout& layout = run.layout;
  const int64_t head_dim = layout.head_dim, group = run.token_in_block / kNBlock;
  HeadRows<T> rows;
  const auto write_scales = [&](int64_t offset) {
    if constexpr (sizeof(T) == 1) {
      float* scales = reinterpret_cast<float*>(run.head + offset) + run.token_in_block;
      for (int64_t i = 0; i < run.num_tokens; ++i) scales[i] = rows.copy[i].scale;
    }
  };
  load_head_rows<Act>(run.k, run.k_token_stride, run.num_tokens, head_dim, rows);
  if constexpr (sizeof(T) == 1) {
    for (int64_t i = 0; i < run.num_tokens; ++i) order_key_codes(rows.copy[i].values, round_up(head_dim, kKStep));
  }
  write_keys(rows, run.token_in_block % kNBlock, run.num_tokens, round_up(head_dim, kKStep),
             run.head + group * layout.k_group_bytes);
  write_scales(layout.k_scales_offset);
  load_head_rows<Act>(run.v, run.v_token_stride, run.num_tokens, layout.value_dim, rows);
  write_values(rows, run.token_in_block, run.num_tokens, layout, run.head + layout.v_offset);
  write_scales(layout.v_scales_offset);
}

}  // namespace spate::cpu::SPATE_ISA
