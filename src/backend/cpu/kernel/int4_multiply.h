// INT4 with two-level scales (quant/weight_format.h) becomes int8 in the order of AMX tiles: multiplier * code, exactly.
//
// Two neighbours of 4 bits are the bytes of a 16-bit word: (code + 8) * multiplier is at most 240, so that one 16-bit
// product of the word multiplies both and nothing is carried from one byte into the other. Then 8 * multiplier less in
// each byte: for 128 codes a load, a shift, 2 AND, 2 products and 2 subtractions, and 2 stores.
#pragma once

#include "backend/cpu/kernel/int_simd.h"
#include "backend/cpu/weight_layout.h"

#ifdef __aarch64__
#include "backend/cpu/kernel/neon/int4_multiply.h"
#elif defined(__AVX512F__)

namespace spate::cpu::SPATE_ISA {

// The multipliers of 16 columns, ready for the four codes that each has in a row of a tile.
struct Multipliers {
  I words;        // the multiplier in both halves of each column's 32 bits
  I eight_times;  // 8 * multiplier in all four bytes
};

SPATE_INLINE Multipliers load_multipliers(const IntLayout& w, const char* n_block, int64_t group) {
  const I one = load_bytes(n_block + w.multipliers_offset() + group * kNBlock);
  const I words = _mm512_or_si512(one, _mm512_slli_epi32(one, 16));
  return {words, _mm512_or_si512(_mm512_slli_epi32(words, 3), _mm512_slli_epi32(words, 11))};
}

SPATE_INLINE I multiplied_codes(I nibbles, const Multipliers& by) {
  return _mm512_sub_epi8(_mm512_mullo_epi16(_mm512_and_si512(nibbles, _mm512_set1_epi8(15)), by.words),
                         by.eight_times);
}

// Rows [begin, end) of the 8 of a packed step (64 k) of an n-block: each is one row of either half of a B tile of 1 KB.
SPATE_INLINE void unpack_two_level_rows(const IntLayout& w, const char* n_block, int64_t step, int64_t begin,
                                        int64_t end, char* tile) {
  const char* packed = n_block + step * 512;
  const int64_t group = w.multiplier_of(step * kIntKStep);
  const Multipliers low = load_multipliers(w, n_block, group);
  const Multipliers high = w.multiplier_k == kIntHalfStep ? load_multipliers(w, n_block, group + 1) : low;
  for (int64_t row = begin; row < end; ++row) {
    const I codes = int_load(packed + row * 64);
    int_store(tile + row * 64, multiplied_codes(codes, low));
    int_store(tile + (row + 8) * 64, multiplied_codes(_mm512_srli_epi16(codes, 4), high));
  }
}
SPATE_INLINE void unpack_two_level_step(const IntLayout& w, const char* n_block, int64_t step, char* tile) {
  unpack_two_level_rows(w, n_block, step, 0, 8, tile);
}

}  // namespace spate::cpu::SPATE_ISA
#else

namespace spate::cpu::SPATE_ISA {

// The same, 8 columns after the others.
SPATE_INLINE void unpack_two_level_step(const IntLayout& w, const char* n_block, int64_t step, char* tile) {
  const I low_bits = _mm256_set1_epi8(15);
  const auto multiplied = [&](I nibbles, I words) __attribute__((always_inline)) {
    const I eight_times = _mm256_or_si256(_mm256_slli_epi32(words, 3), _mm256_slli_epi32(words, 11));
    return _mm256_sub_epi8(_mm256_mullo_epi16(int_and(nibbles, low_bits), words), eight_times);
  };
  const char* packed = n_block + step * 512;
  const int64_t group = w.multiplier_of(step * kIntKStep), to_high = w.multiplier_k == kIntHalfStep ? kNBlock : 0;
  for (int64_t column = 0; column < kNBlock; column += kLanes) {
    const char* multipliers = n_block + w.multipliers_offset() + group * kNBlock + column;
    const I low = load_bytes(multipliers), high = load_bytes(multipliers + to_high);
    const I low_words = _mm256_or_si256(low, _mm256_slli_epi32(low, 16));
    const I high_words = _mm256_or_si256(high, _mm256_slli_epi32(high, 16));
    for (int64_t row = 0; row < 8; ++row) {
      const I codes = int_load(packed + row * 64 + column * 4);
      int_store(tile + row * 64 + column * 4, multiplied(codes, low_words));
      int_store(tile + (row + 8) * 64 + column * 4, multiplied(_mm256_srli_epi16(codes, 4), high_words));
    }
  }
}

}  // namespace spate::cpu::SPATE_ISA
#endif
