// Attention of bf16 over bf16 and int8 caches by VDPBF16PS or BFMMLA (dot_tile.h), for AVX-512 without AMX and for ARM.
// As on tiles, queries and probabilities are bf16 and sums f32; codes of an int8 cache become bf16, exactly, once for
// all rows of an item. AVX-512 without BF16 does the same in floats by FMA, with the order and the bits of
// attention_fma.h.
//
// Rows of queries and of scores are kDotRowBytes apart, known at compile time, so that a tile reads all its rows by one
// pointer. A row's probabilities take the place of its scores, as bf16 of the first half of them.
#pragma once

#include "backend/cpu/kernel/attention_common.h"
#include "backend/cpu/kernel/dot_tile.h"
#ifdef __x86_64__
#include "backend/cpu/kernel/kv_ahead.h"
#endif
#ifdef SPATE_FLOAT_WORDS
#include "backend/cpu/kernel/attention_fma.h"  // widen_codes()
#endif

namespace spate::cpu::SPATE_ISA {

#ifdef SPATE_FLOAT_WORDS
using DotElem = float;  // of queries and probabilities
constexpr Words kCacheWords = Words::kTwoFloats, kWidenedWords = Words::kFloat;
#else
using DotElem = bf16_t;
constexpr Words kCacheWords = Words::kBf16, kWidenedWords = Words::kBf16;
#endif
constexpr int64_t kDotRowBytes =
    256 * sizeof(DotElem) + 64;  // 256 elements or 128 scores, and a line more: an odd number of lines
constexpr int64_t kDotScoreStride = kDotRowBytes / 4;
// Elements of k in a word of weight.
constexpr int64_t word_k(Words words) { return words == Words::kFloat ? 1 : 2; }
static_assert(kKvTile / kNBlock <= kMaxSegments && kKvTile * 4 <= kDotRowBytes);

struct DotScratch {
  char* q;        // [padded rows, kDotRowBytes]
  float* scores;  // the same
  RowSums total, span;
  float* key_scales;    // [kKvTile]
  float* value_scales;  // [kKvTile]
  char* k;              // of a kI8 cache [kKvTile / 16] n-blocks of DotElem
  char* v;              // of a kI8 cache [head_dim / 16] n-blocks of kKvTile keys; else those of the last 16 keys
};

SPATE_INLINE int64_t padded_dot_rows(int64_t rows) { return panels_of(rows).count * panels_of(rows).rows; }
SPATE_INLINE int64_t widened_key_bytes(int64_t head_dim) {
  return kKvTile * round_up(head_dim, kKStep) * static_cast<int64_t>(sizeof(DotElem));
}
SPATE_INLINE int64_t widened_value_bytes(int64_t head_dim) {
  return kKvTile * round_up(head_dim, kNBlock) * static_cast<int64_t>(sizeof(DotElem));
}

static int64_t dot_scratch_bytes(int64_t rows, int64_t head_dim) {
  // Fewer rows than the most may take more panel rows, but not more than a panel.
  const int64_t padded = rows + kMaxPanelRows;
  return padded * 2 * kDotRowBytes + 2 * row_sums_bytes(padded, round_up(head_dim, kNBlock)) + 2 * kKvTile * 4 +
         widened_key_bytes(head_dim) + widened_value_bytes(head_dim) + 12 * 64;
}

static DotScratch cut_dot_scratch(char* scratch, int64_t padded_rows, int64_t head_dim) {
  DotScratch s;
  s.q = take<char>(scratch, padded_rows * kDotRowBytes);
  s.scores = take<float>(scratch, padded_rows * kDotScoreStride);
  s.total = take_row_sums(scratch, padded_rows, round_up(head_dim, kNBlock));
  s.span = take_row_sums(scratch, padded_rows, round_up(head_dim, kNBlock));
  s.key_scales = take<float>(scratch, kKvTile);
  s.value_scales = take<float>(scratch, kKvTile);
  s.k = take<char>(scratch, widened_key_bytes(head_dim));
  s.v = take<char>(scratch, widened_value_bytes(head_dim));
  return s;
}

// --- codes as bf16 or floats -----------------------------------------------------------------------------------------

#ifdef SPATE_FLOAT_WORDS
static void widen_code_lines(const char* codes, int64_t num_lines, char* out) {
  widen_codes(codes, num_lines * 4, reinterpret_cast<float*>(out));
}
#elif defined(__x86_64__)
// The bytes of the bf16 numbers 0 to 127.
struct Bf16Bytes {
  alignas(64) uint8_t low[128] = {}, high[128] = {};
};
static constexpr Bf16Bytes make_bf16_bytes() {
  Bf16Bytes bytes;
  for (int n = 0; n < 128; ++n) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, static_cast<float>(n)) >> 16;
    bytes.low[n] = static_cast<uint8_t>(bits);
    bytes.high[n] = static_cast<uint8_t>(bits >> 8);
  }
  return bytes;
}
static constexpr Bf16Bytes kBf16Bytes = make_bf16_bytes();

// A line of codes (layout.h: lower bytes are one row of bf16, upper bytes the next) as two of bf16.
struct CodesToBf16 {
  const I low[2] = {int_load(kBf16Bytes.low), int_load(kBf16Bytes.low + 64)};
  const I high[2] = {int_load(kBf16Bytes.high), int_load(kBf16Bytes.high + 64)};
  const I lower_bytes = _mm512_set1_epi16(0xff), sign = _mm512_set1_epi8(static_cast<char>(0x80));

  __attribute__((always_inline)) void operator()(I code, I& first, I& second) const {
    const I magnitude = _mm512_abs_epi8(code);
    const I lows = _mm512_permutex2var_epi8(low[0], magnitude, low[1]);
    const I highs = _mm512_or_si512(_mm512_permutex2var_epi8(high[0], magnitude, high[1]), int_and(code, sign));
    constexpr int kSelect = 0xca;  // the second where the first is set, else the third
    first = _mm512_ternarylogic_epi32(lower_bytes, lows, _mm512_slli_epi16(highs, 8), kSelect);
    second = _mm512_ternarylogic_epi32(lower_bytes, _mm512_srli_epi16(lows, 8), highs, kSelect);
  }
};

static void widen_code_lines(const char* codes, int64_t num_lines, char* out) {
  const CodesToBf16 to_bf16;
  for (int64_t line = 0; line < num_lines; ++line, codes += 64, out += 128) {
    I first, second;
    to_bf16(int_load(codes), first, second);
    int_store(out, first);
    int_store(out + 64, second);
  }
}
#endif

#ifdef __x86_64__
// Up to so many rows codes become bf16 or floats in registers, for each panel of rows anew: the way through memory
// would take longer than the products.
constexpr int64_t kRowsByCodes = 8;
constexpr int code_blocks_at_once(int rows) { return rows <= 4 ? 4 : 2; }

// Rows times kBlocks n-blocks of codes from block `first` on, in the order of multiply_tile(). Asks for `lines`
// meanwhile.
template <int kRows, int kBlocks>
static void multiply_code_tile(const DotTile& tile, int64_t first, int64_t sum_stride, const KvAhead::Lines& lines) {
#ifndef SPATE_FLOAT_WORDS
  const CodesToBf16 to_bf16;
#endif
  I sums[kRows][kBlocks];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      sums[r][j] = tile.accumulate ? int_load(tile.sums + r * sum_stride + (first + j) * kNBlock) : int_zero();
    }
  }
  constexpr int64_t kWordsInLine = 4 / word_k(kWidenedWords);
  const int64_t lines_at_once = ceil_div(lines.count, tile.num_segments * tile.num_words / kWordsInLine);
  const char *line = lines.first, *const end = lines.first + lines.count * 64;
  const char* x = tile.x;
  for (int64_t segment = 0; segment < tile.num_segments; ++segment) {
    const char* rows[kBlocks];
    for (int j = 0; j < kBlocks; ++j) rows[j] = tile.blocks[segment][first + j];
    for (int64_t word = 0; word < tile.num_words; word += kWordsInLine, x += kWordsInLine * 4) {
      for (int64_t i = 0; i < lines_at_once && line < end; ++i, line += 64) _mm_prefetch(line, _MM_HINT_T1);
#ifdef SPATE_FLOAT_WORDS
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j, rows[j - 1] += 64) {
        F w[4];
        load_codes(rows[j], w);
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) add_floats_by_word(sums[r][j], bits_of(w[k]), x + r * kDotRowBytes + k * 4);
        }
      }
#else
      I w[2][kBlocks];
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j, rows[j - 1] += 64) to_bf16(int_load(rows[j]), w[0][j], w[1][j]);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          int32_t word_of_row;
          __builtin_memcpy(&word_of_row, x + r * kDotRowBytes + half * 4, 4);
          const I all = int_set1(word_of_row);
#pragma GCC unroll 4
          for (int j = 0; j < kBlocks; ++j) add_products<Words::kBf16>(sums[r][j], w[half][j], all);
        }
      }
#endif
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) int_store(tile.sums + r * sum_stride + (first + j) * kNBlock, sums[r][j]);
  }
}

// Some n-blocks of codes; those that make no whole tile by twos and one by one.
template <int kRows>
static void multiply_codes(const DotTile& tile, int64_t num_blocks, int64_t sum_stride, const KvAhead::Lines& lines) {
  constexpr int kBlocks = code_blocks_at_once(kRows);
  int64_t j = 0;
  if (num_blocks == kBlocks) return multiply_code_tile<kRows, kBlocks>(tile, 0, sum_stride, lines);
  if (num_blocks >= 2) {
    multiply_code_tile<kRows, 2>(tile, 0, sum_stride, lines);
    j = 2;
  }
  for (; j < num_blocks; ++j)
    multiply_code_tile<kRows, 1>(tile, j, sum_stride, j == 0 ? lines : KvAhead::Lines{nullptr, 0});
}

#else
// num_lines lines of codes as twice as many of bf16; their magnitude is 128 at most, so that bf16 holds the upper half
// of a float.
static void widen_code_lines(const char* codes, int64_t num_lines, char* out) {
  const auto bf16_of = [](int16x8_t code) __attribute__((always_inline)) {
    const float32x4_t low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(code))), high = vcvtq_f32_s32(vmovl_high_s16(code));
    return vuzp2q_u16(vreinterpretq_u16_f32(low), vreinterpretq_u16_f32(high));
  };
  for (int64_t line = 0; line < num_lines; ++line, codes += 64, out += 128) {
    for (int64_t i = 0; i < 64; i += 16) {
      const int16x8_t words = vreinterpretq_s16_s8(vld1q_s8(reinterpret_cast<const int8_t*>(codes + i)));
      vst1q_u16(reinterpret_cast<uint16_t*>(out + i), bf16_of(vshrq_n_s16(vshlq_n_s16(words, 8), 8)));
      vst1q_u16(reinterpret_cast<uint16_t*>(out + 64 + i), bf16_of(vshrq_n_s16(words, 8)));
    }
  }
}
#endif

// --- one item --------------------------------------------------------------------------------------------------------

template <bool kCodes>
class DotAttention {
 public:
  DotAttention(const AttentionItem& item, char* scratch)
      : item_(item),
        rows_(item.num_queries * item.group_size),
        panels_(panels_of(rows_)),
#ifdef __x86_64__
        by_codes_(kCodes && rows_ <= kRowsByCodes),
        at_once_(by_codes_ ? code_blocks_at_once(static_cast<int>(rows_)) : blocks_at_once(panels_.rows)),
        ahead_(item),
#else
        at_once_(blocks_at_once(panels_.rows)),
#endif
        q_words_(round_up(item.layout.head_dim, kKStep) / word_k(kWords)),
        value_blocks_(ceil_div(item.layout.value_dim, kNBlock)),
        s_(cut_dot_scratch(scratch, padded_dot_rows(rows_), item.layout.head_dim)) {
  }

  void run() {
    load_q();
    const int64_t value_width = value_blocks_ * kNBlock;
    attend_spans(item_, rows_, value_width, s_.total, s_.span, [&](int64_t span, const RowSums& sums) {
      for (int64_t i = 0; i < padded_dot_rows(rows_) * value_width; i += kLanes) store(sums.accumulator + i, zero());
      const TileRange range = key_tiles(item_, span);
      for (int64_t t = range.first; t < range.end; ++t) {
        const KeyTile tile = key_tile(item_, t);
        score(tile);
        if constexpr (kCodes) load_scales(item_, tile, 1.0f, s_.key_scales, s_.value_scales);
        for (int64_t r = 0; r < rows_; ++r) softmax(tile, r, sums);
        add(tile, sums.accumulator);
      }
    });
  }

 private:
  static constexpr Words kWords = kCodes ? kWidenedWords : kCacheWords;  // of K and V as products read them
  static constexpr int64_t kGroupWords = kNBlock / word_k(kWords);       // of 16 keys

  // Up to kKStep elements, and zeros behind them.
  static inline __attribute__((always_inline)) void load_q_step(const char* from, int64_t count, char* to) {
#ifdef SPATE_FLOAT_WORDS
    for (int64_t i = 0; i < kKStep; i += kLanes) {
      const auto* elements = reinterpret_cast<const bf16_t*>(from) + i;
      store(reinterpret_cast<float*>(to) + i, count - i >= kLanes ? load(elements)
                                              : count > i         ? load_n(elements, count - i)
                                                                  : zero());
    }
#elif defined(__x86_64__)
    const auto lanes = static_cast<__mmask32>(count >= kKStep ? ~0u : (1u << count) - 1);
    int_store(to, _mm512_maskz_loadu_epi16(lanes, from));
#else
    if (count < kKStep) __builtin_memset(to + count * 2, 0, static_cast<size_t>(kKStep - count) * 2);
    __builtin_memcpy(to, from, static_cast<size_t>(count) * 2);
#endif
  }

  void load_q() const {
    const int64_t head_dim = item_.layout.head_dim;
    for (int64_t r = 0; r < padded_dot_rows(rows_); ++r) {
      char* to = s_.q + r * kDotRowBytes;
      const char* from = static_cast<const char*>(item_.q) + (r < rows_ ? q_offset(item_, r) * 2 : 0);
      for (int64_t d = 0; d < head_dim; d += kKStep) {
        const int64_t count = r < rows_ ? min_of(kKStep, head_dim - d) : 0;
        load_q_step(from + d * 2, count, to + d * static_cast<int64_t>(sizeof(DotElem)));
      }
    }
  }

  // All panels of rows, kDotRowBytes apart from x on, by some n-blocks. num_tiles: of B, as KvAhead counts them.
  void multiply(DotTile tile, const char* x, int64_t num_blocks, float* sums, int64_t stride,
                [[maybe_unused]] int64_t num_tiles) {
#ifdef __x86_64__
    if (panels_.rows <= kFewPanelRows) ask_ahead(tile, num_blocks, num_tiles);
#endif
    for (int64_t i = 0; i < panels_.count; ++i) {
      tile.x = x + i * panels_.rows * kDotRowBytes;
      tile.sums = sums + i * panels_.rows * stride;
      multiply_rows(tile, num_blocks, stride);
    }
  }
  void multiply_rows(const DotTile& tile, int64_t num_blocks, int64_t stride) const {
    for_panel_rows(panels_.rows, [&](auto panel) {
      constexpr int kRows = panel.kCount;
      constexpr int64_t kWordStride = kUnitWords * x_word_bytes(kWords);
      multiply_blocks<kWords, kRows, kDotRowBytes, kWordStride, (kRows <= kFewPanelRows)>(tile, num_blocks, stride);
    });
  }

  void score(const KeyTile& tile) {
#ifdef __x86_64__
    if constexpr (kCodes) {
      if (by_codes_) return score_codes(tile);
    }
#endif
    score_keys(tile);
  }
  void add(const KeyTile& tile, float* accumulator) {
#ifdef __x86_64__
    if constexpr (kCodes) {
      if (by_codes_) return add_codes(tile, accumulator);
    }
#endif
    add_values(tile, accumulator);
  }

#ifdef __x86_64__
  // Lets a tile of few rows ask for the lines that are due, a part of them beside each n-block.
  void ask_ahead(DotTile& tile, int64_t num_blocks, int64_t num_tiles) {
    const KvAhead::Lines lines = ahead_.due(num_tiles);
    const int64_t lines_of_block = ceil_div(lines.count, num_blocks), words = tile.num_segments * tile.num_words;
    for (int64_t j = 0; j < num_blocks; ++j) {
      tile.ahead.first[j] = lines.count > 0 ? lines.first + j * lines_of_block * 64 : s_.q;
    }
    tile.ahead.bytes_a_word = ceil_div(lines_of_block * 64, words);
    ahead_.ask(0);
  }

  // num_tiles: of B, as KvAhead counts them.
  void multiply_by_codes(DotTile tile, const char* x, int64_t num_blocks, float* sums, int64_t stride,
                         int64_t num_tiles) {
    tile.x = x;
    tile.sums = sums;
    const KvAhead::Lines lines = ahead_.due(num_tiles);
    switch (rows_) {
      case 1:
        multiply_codes<1>(tile, num_blocks, stride, lines);
        break;
      case 2:
        multiply_codes<2>(tile, num_blocks, stride, lines);
        break;
      case 3:
        multiply_codes<3>(tile, num_blocks, stride, lines);
        break;
      case 4:
        multiply_codes<4>(tile, num_blocks, stride, lines);
        break;
      case 5:
        multiply_codes<5>(tile, num_blocks, stride, lines);
        break;
      case 6:
        multiply_codes<6>(tile, num_blocks, stride, lines);
        break;
      case 7:
        multiply_codes<7>(tile, num_blocks, stride, lines);
        break;
      default:
        multiply_codes<8>(tile, num_blocks, stride, lines);
        break;
    }
    ahead_.ask(0);
  }

  void score_codes(const KeyTile& tile) {
    const int64_t groups = ceil_div(tile.num_keys, kNBlock);
    for (int64_t first = 0; first < groups; first += at_once_) {
      const int64_t count = min_of(at_once_, groups - first);
      DotTile product{.num_words = q_words_, .accumulate = false};
      for (int64_t j = 0; j < count; ++j) product.blocks[0][j] = k_group(item_, tile.begin + (first + j) * kNBlock);
      multiply_by_codes(product, s_.q, count, s_.scores + first * kNBlock, kDotScoreStride,
                        count * q_words_ * word_k(kWords) / kKStep);
    }
  }

  void add_codes(const KeyTile& tile, float* accumulator) {
    const int64_t groups = ceil_div(tile.num_keys, kNBlock);
    for (int64_t first = 0; first < value_blocks_; first += at_once_) {
      const int64_t count = min_of(at_once_, value_blocks_ - first);
      DotTile product{.num_segments = groups, .num_words = kGroupWords, .accumulate = true};
      for (int64_t g = 0; g < groups; ++g) {
        const char* v = v_at(item_, tile.begin + g * kNBlock);
        for (int64_t j = 0; j < count; ++j) product.blocks[g][j] = v + (first + j) * item_.layout.v_n_block_bytes;
      }
      multiply_by_codes(product, reinterpret_cast<const char*>(s_.scores), count, accumulator + first * kNBlock,
                        value_blocks_ * kNBlock, count * ceil_div(groups, 2));
    }
  }
#endif

  void score_keys(const KeyTile& tile) {
    const int64_t groups = ceil_div(tile.num_keys, kNBlock), group_bytes = q_words_ * 64;
    for (int64_t first = 0; first < groups; first += at_once_) {
      const int64_t count = min_of(at_once_, groups - first);
      DotTile product{.num_words = q_words_, .accumulate = false};
      for (int64_t j = 0; j < count; ++j) {
        const char* group = k_group(item_, tile.begin + (first + j) * kNBlock);
        product.blocks[0][j] = group;
        if constexpr (kCodes) {
          char* widened = s_.k + j * group_bytes;
          widen_code_lines(group, q_words_ * word_k(kWords) / 4, widened);
          product.blocks[0][j] = widened;
        }
      }
      multiply(product, s_.q, count, s_.scores + first * kNBlock, kDotScoreStride,
               count * q_words_ * word_k(kWords) / kKStep);
    }
  }

  void softmax(const KeyTile& tile, int64_t r, const RowSums& sums) const {
    const ScoreRow row{s_.scores + r * kDotScoreStride, s_.key_scales, s_.value_scales, item_.scale_log2e,
                       visible_keys(item_, tile, r)};
    auto* probs = reinterpret_cast<DotElem*>(s_.scores + r * kDotScoreStride);
    const bool all = row.visible.first == 0 && row.visible.end == kKvTile;
    float* denominators = sums.denominators + r * kLanes;
    const float factor =
        all ? softmax_row<false, kKvTile, kCodes>(row, probs, sums.max[r], denominators)
            : softmax_masked_row<kCodes>(row, round_up(tile.num_keys, kWidthStep), probs, sums.max[r], denominators);
    const int64_t value_width = value_blocks_ * kNBlock;
    if (factor != 1) scale_row(sums.accumulator + r * value_width, value_width, factor);
  }

  // The values of 16 keys of which not all are written: zeros for these.
  void copy_written(int64_t position) const {
    const int64_t written = item_.seq_len - position;
    for (int64_t d = 0; d < value_blocks_; ++d) {
      const char* from = v_at(item_, position) + d * item_.layout.v_n_block_bytes;
      for (int64_t word = 0; word < kGroupWords; ++word) {
        const int64_t keys = written - 2 * word;
        const I keep = int_set1(keys >= 2 ? -1 : keys == 1 ? 0xffff : 0);
        char* to = s_.v + (d * kGroupWords + word) * 64;
        for (int64_t i = 0; i < 64; i += kLanes * 4) int_store(to + i, int_and(int_load(from + word * 64 + i), keep));
      }
    }
  }

  void add_values(const KeyTile& tile, float* accumulator) {
    const int64_t groups = ceil_div(tile.num_keys, kNBlock), last = tile.begin + (groups - 1) * kNBlock;
    const bool copies = !kCodes && item_.seq_len - last < kNBlock;
    if (copies) copy_written(last);
    for (int64_t first = 0; first < value_blocks_; first += at_once_) {
      const int64_t count = min_of(at_once_, value_blocks_ - first);
      DotTile product{.num_segments = groups, .num_words = kGroupWords, .accumulate = true};
      for (int64_t g = 0; g < groups; ++g) {
        const char* v = v_at(item_, tile.begin + g * kNBlock);
        for (int64_t j = 0; j < count; ++j) {
          const char* from = v + (first + j) * item_.layout.v_n_block_bytes;
          if (kCodes) {
            char* widened = s_.v + (j * kMaxSegments + g) * kGroupWords * 64;
            widen_code_lines(from, kNBlock / 4, widened);
            from = widened;
          } else if (copies && g + 1 == groups) {
            from = s_.v + (first + j) * kGroupWords * 64;
          }
          product.blocks[g][j] = from;
        }
      }
      multiply(product, reinterpret_cast<const char*>(s_.scores), count, accumulator + first * kNBlock,
               value_blocks_ * kNBlock, count * ceil_div(groups, 2));
    }
  }

  const AttentionItem& item_;
  const int64_t rows_;
  const Panels panels_;
#ifdef __x86_64__
  const bool by_codes_;  // few rows over codes that become bf16 in registers
#endif
  const int64_t at_once_;
#ifdef __x86_64__
  KvAhead ahead_;
#endif
  const int64_t q_words_, value_blocks_;
  const DotScratch s_;
};

}  // namespace spate::cpu::SPATE_ISA
