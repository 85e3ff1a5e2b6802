// Attention of up to 16 rows (decode) where AMX is: tiles of as many rows, four n-blocks at a time; up to kVectorRows
// no tiles, but the vector units in the tiles' order of operations, so that the bits are the same. Both ask for the
// keys to come meanwhile: memory is the limit.
#pragma once

#include "backend/cpu/kernel/attention_tiles.h"
#include "backend/cpu/kernel/kv_ahead.h"

namespace spate::cpu::SPATE_ISA {

// Lines that lie in another core's cache, or in memory: of row `row` of the output, to be written, and of the next
// item's queries.
SPATE_INLINE void ask_for_row(const AttentionItem& item, int64_t row) {
  const int64_t bytes = item.layout.head_dim * 2;
  const char* out = static_cast<const char*>(item.out) + out_offset(item, row) * 2;
  for (int64_t i = 0; i < bytes && item.partial == nullptr; i += 64) asm volatile("prefetchw %0" : : "m"(out[i]));
  if (row >= item.next_queries * item.group_size) return;
  const char* q = static_cast<const char*>(item.next_q) + q_offset(item, row) * 2;
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(q + i, _MM_HINT_T1);
}

// Keys and values of a tile, group by group; beyond the last group it is repeated.
struct GroupPointers {
  const char* k[kTileGroups];
  const char* v[kTileGroups];  // of n-block 0
};
static GroupPointers group_pointers(const AttentionItem& item, const KeyTile& tile) {
  GroupPointers pointers;
  for (int64_t g = 0; g < kTileGroups; ++g) {
    const int64_t position = group_position(tile, g), in_block = position % item.layout.kv_block_size;
    const char* head = kv_block(item, position);
    pointers.k[g] = head + in_block / kNBlock * item.layout.k_group_bytes;
    pointers.v[g] = head + item.layout.v_offset + in_block * kNBlock * elem_bytes(item.layout.elem);
  }
  return pointers;
}

// One A tile by four B tiles; ask() runs after each.
template <typename Ask>
SPATE_INLINE void few_rows_step(const char* a, int64_t a_stride, const char* const* b, const Ask& ask) {
  _tile_loadd(4, a, a_stride);
  _tile_loadd(5, b[0], 64);
  _tile_dpbf16ps(0, 4, 5);
  ask();
  _tile_loadd(6, b[1], 64);
  _tile_dpbf16ps(1, 4, 6);
  ask();
  _tile_loadd(7, b[2], 64);
  _tile_dpbf16ps(2, 4, 7);
  ask();
  _tile_loadd(5, b[3], 64);
  _tile_dpbf16ps(3, 4, 5);
  ask();
}

// Up to this many rows are multiplied by the vector units, with the bits of the tiles: a tile load takes its 8 to 60
// cycles (some cores of a shared host are that slow for hours, others not) whatever the rows that use it, and codes
// would go through memory.
constexpr int64_t kVectorRows = 4;

// Four k of 16 columns as floats: even, odd, even, odd. Codes as they are, which is kWidenedUnit times what tiles take.
template <bool kCodes>
SPATE_INLINE void load_quad(const char* n_block, int64_t quad, F* k) {
  if constexpr (kCodes) {
    const __m512i codes = _mm512_loadu_si512(n_block + quad * 64);
    // A dot with one byte of ones is that byte with its sign.
    const auto byte = [&](int i) {
      return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi32(1 << (8 * i)), codes));
    };
    k[0] = byte(0);
    k[1] = byte(2);
    k[2] = byte(1);
    k[3] = _mm512_cvtepi32_ps(_mm512_srai_epi32(codes, 24));
  } else {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512i pairs = _mm512_loadu_si512(n_block + quad * 128 + i * 64);
      k[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
      k[2 * i + 1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    }
  }
}

// kRows rows of floats times kBlocks n-blocks over a step of 32 k, half of it at halves[j][0] and half at halves[j][1]:
// as TDPBF16PS does it, the even k one after the other by fused multiply-add, the odd k too, both sums together, and
// that to c, with denormals as zeros (FlushDenormals). Asks for `lines` meanwhile.
template <bool kCodes, int kRows, int kBlocks>
SPATE_INLINE void vector_step(const float* a, int64_t a_stride, const char* const (*halves)[2], float* c,
                              int64_t c_stride, bool accumulate, const KvAhead::Lines& lines) {
  F even[kRows][kBlocks], odd[kRows][kBlocks];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) even[r][j] = odd[r][j] = zero();
  }
  const int64_t lines_a_quad = ceil_div(lines.count, 8);
  const char* line = lines.first;
  const char* const end = lines.first + lines.count * 64;
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t quad = 0; quad < 4; ++quad, a += 4) {
      for (int64_t i = 0; i < lines_a_quad && line < end; ++i, line += 64) _mm_prefetch(line, _MM_HINT_T1);
      F x[kRows][4];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) x[r][i] = set1(a[r * a_stride + i]);
      }
#pragma GCC unroll 4
      for (int j = 0; j < kBlocks; ++j) {
        F k[4];
        load_quad<kCodes>(halves[j][half], quad, k);
#pragma GCC unroll 2
        for (int i = 0; i < 4; i += 2) {
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            even[r][j] = fma(k[i], x[r][i], even[r][j]);
            odd[r][j] = fma(k[i + 1], x[r][i + 1], odd[r][j]);
          }
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlocks; ++j) {
      float* sums = c + r * c_stride + j * kNBlock;
      store(sums, add(accumulate ? load(sums) : zero(), add(even[r][j], odd[r][j])));
    }
  }
}

// While one of these lives, sums on the vector units that are denormal become zeros, as they do in tiles, and with
// `inputs` what they are made of too. Rows of floats for codes are kWidenedUnit times smaller than those of tiles,
// since codes are as many times larger: there a denormal stands for a number that tiles take as it is.
class FlushDenormals {
 public:
  explicit FlushDenormals(bool inputs) : before_(_mm_getcsr()) {
    _mm_setcsr(before_ | kFlushToZero | (inputs ? kDenormalsAreZero : 0));
  }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;
  unsigned before_;
};

// Decode on the vector units.
template <bool kCodes, int kRows>
class VectorRows {
 public:
  VectorRows(const AttentionItem& item, const AmxScratch& scratch, const RowSums& sums, KvAhead& ahead)
      : item_(item),
        s_(scratch),
        sums_(sums),
        ahead_(ahead),
        q_width_(round_up(item.layout.head_dim, kKStep)),
        value_blocks_(ceil_div(item.layout.value_dim, kNBlock)),
        value_width_(amx_value_width(item.layout.value_dim)),
        q_(reinterpret_cast<float*>(scratch.k)),
        probs_(q_ + kRows * q_width_) {}

  void load_q() const {
    for (int64_t r = 0; r < kRows; ++r) {
      ask_for_row(item_, r);
      const bf16_t* src = static_cast<const bf16_t*>(item_.q) + q_offset(item_, r);
      SPATE_FOR_LANES(d, count, item_.layout.head_dim) {
        store(q_ + r * q_width_ + d, mul(load_up_to(src + d, count), set1(kRowScale)));
      }
      for (int64_t d = round_up(item_.layout.head_dim, kLanes); d < q_width_; ++d) q_[r * q_width_ + d] = 0;
    }
  }

  void run(const TileRange& range) {
    for (int64_t t = range.first; t < range.end; ++t) {
      tile_ = key_tile(item_, t);
      pointers_ = group_pointers(item_, tile_);
      score();
      if constexpr (kCodes) {
        load_scales(item_, tile_, kWidenedUnit, s_.key_scales, s_.value_scales);
      } else {
        values_ = value_tiles_of<false>(item_, tile_, s_.v);
      }
      for (int64_t r = 0; r < kRows; ++r) softmax(r);
      add_values(t > range.first);
    }
  }

 private:
  static constexpr int kBlocks = kRows <= 2 ? 4 : 2;  // sums in 16 registers
  static constexpr float kRowScale = kCodes ? 1 / kWidenedUnit : 1;

  template <int kCount>
  void step(const float* a, int64_t a_stride, const char* const (*halves)[2], float* c, int64_t c_stride,
            bool accumulate) {
    vector_step<kCodes, kRows, kCount>(a, a_stride, halves, c, c_stride, accumulate, ahead_.due(kCount));
    ahead_.ask(0);
  }

  void score() {
    const FlushDenormals flush(/*inputs=*/!kCodes);
    const int64_t groups = ceil_div(tile_.num_keys, kNBlock),
                  step_bytes = kKStep * kNBlock * elem_bytes(item_.layout.elem);
    for (int64_t first = 0; first < groups; first += kBlocks) {
      for (int64_t d = 0; d < q_width_; d += kKStep) {
        const char* halves[kBlocks][2];
        for (int64_t j = 0; j < kBlocks; ++j) {
          halves[j][0] = pointers_.k[first + j] + d / kKStep * step_bytes;
          halves[j][1] = halves[j][0] + step_bytes / 2;
        }
        float* c = s_.scores + first * kNBlock;
        if (kBlocks == 4 && groups - first <= 2) {
          step<2>(q_ + d, q_width_, halves, c, kKvTile, d > 0);
        } else {
          step<kBlocks>(q_ + d, q_width_, halves, c, kKvTile, d > 0);
        }
      }
    }
  }

  void softmax(int64_t r) {
    const ScoreRow row{s_.scores + r * kKvTile, s_.key_scales, s_.value_scales, item_.scale_log2e,
                       visible_keys(item_, tile_, r)};
    bf16_t probs[kKvTile];
    s_.factors[r] = softmax_masked_row<kCodes>(row, round_up(tile_.num_keys, kWidthStep), probs, sums_.max[r],
                                               sums_.denominators + r * kLanes);
    for (int64_t i = 0; i < round_up(tile_.num_keys, kWidthStep); i += kLanes) {
      store(probs_ + r * kKvTile + i, mul(load(probs + i), set1(kRowScale)));
    }
  }

  void add_values(bool accumulate) {
    const FlushDenormals flush(/*inputs=*/!kCodes);
    for (int64_t r = 0; r < kRows; ++r) {
      if (s_.factors[r] != 1) scale_row(sums_.accumulator + r * value_width_, value_width_, s_.factors[r]);
    }
    const int64_t half_bytes = kKStep / 2 * kNBlock * elem_bytes(item_.layout.elem);
    for (int64_t first = 0; first < value_blocks_; first += kBlocks) {
      for (int64_t key = 0; key < tile_.num_keys; key += kKStep) {
        const char* halves[kBlocks][2];
        for (int64_t j = 0; j < kBlocks; ++j) {
          const int64_t d = min_of(first + j, value_blocks_ - 1);
          if constexpr (kCodes) {
            for (int64_t half = 0; half < 2; ++half) {
              halves[j][half] = pointers_.v[key / kNBlock + half] + d * item_.layout.v_n_block_bytes;
            }
          } else {
            halves[j][0] = values_.step[key / kKStep] + d * values_.stride[key / kKStep];
            halves[j][1] = halves[j][0] + half_bytes;
          }
        }
        step<kBlocks>(probs_ + key, kKvTile, halves, sums_.accumulator + first * kNBlock, value_width_,
                      accumulate || key > 0);
      }
    }
  }

  const AttentionItem& item_;
  const AmxScratch& s_;
  const RowSums& sums_;
  KvAhead& ahead_;
  int64_t q_width_, value_blocks_, value_width_;
  float* q_;      // [kRows, q_width] times kRowScale, where widened keys lie else
  float* probs_;  // [kRows, kKvTile] times kRowScale
  KeyTile tile_ = {};
  GroupPointers pointers_;
  ValueTiles values_;
};

// Work goes in units of four B tiles: one step of four n-blocks. Codes are widened a unit ahead of their product, since
// a tile load waits until the stores of what it reads have left the store buffer.
template <bool kCodes>
class AmxFewRows {
 public:
  AmxFewRows(const AttentionItem& item, int64_t rows, const AmxScratch& scratch, const RowSums& sums, KvAhead& ahead)
      : item_(item),
        s_(scratch),
        sums_(sums),
        ahead_(ahead),
        rows_(rows),
        q_steps_(ceil_div(item.layout.head_dim, kKStep)),
        value_blocks_(ceil_div(item.layout.value_dim, kNBlock)),
        value_width_(amx_value_width(item.layout.value_dim)) {}

  void run(const TileRange& range) {
    for (int64_t t = range.first; t < range.end; ++t) {
      tile_ = key_tile(item_, t);
      groups_ = ceil_div(tile_.num_keys, kNBlock);
      steps_ = ceil_div(tile_.num_keys, kKStep);
      pointers_ = group_pointers(item_, tile_);
      score();
      if constexpr (kCodes) {
        load_scales(item_, tile_, kWidenedUnit, s_.key_scales, s_.value_scales);
        make_value_unit(Unit());  // the vector units have little else to do between the scores and their softmax
      } else {
        values_ = value_tiles_of<false>(item_, tile_, s_.v);
      }
      for (int64_t r = 0; r < rows_; ++r) softmax(r);
      add_values(t > range.first);
    }
  }

 private:
  static constexpr int64_t kUnitTiles = 4;
  struct Unit {
    int64_t number = 0;
    int64_t first = 0;  // n-block
    int64_t step = 0;
    Unit next(int64_t num_steps) const {
      const bool last = step + 1 == num_steps;
      return {number + 1, last ? first + kUnitTiles : first, last ? 0 : step + 1};
    }
  };

  void score() {
    if constexpr (kCodes) make_key_unit(Unit());
    for (Unit unit; unit.first < groups_;) {
      const Unit next = unit.next(q_steps_);
      if constexpr (kCodes) {
        if (next.first < groups_) make_key_unit(next);
      }
      const char* b[kUnitTiles];
      for (int64_t j = 0; j < kUnitTiles; ++j) {
        b[j] = kCodes ? ring(unit, min_of(j, groups_ - 1 - unit.first))
                      : pointers_.k[unit.first + j] + unit.step * kTileBytes;
      }
      amx_fence();
      if (unit.step == 0) load_1x4(nullptr, 0, false);
      few_rows_step(s_.q + unit.step * kTileBytes, 64, b, [&] { ask_for_float(); });
      if (next.step == 0) store_1x4(s_.scores + unit.first * kNBlock, kKvTile);
      amx_fence();
      unit = next;
    }
  }

  void add_values(bool accumulate) {
    const char* probs = reinterpret_cast<const char*>(s_.scores);
    for (Unit unit; unit.first < value_blocks_;) {
      const Unit next = unit.next(steps_);
      if constexpr (kCodes) {
        if (next.first < value_blocks_) make_value_unit(next);
      }
      const char* b[kUnitTiles];
      for (int64_t j = 0; j < kUnitTiles; ++j) {
        const int64_t d = min_of(unit.first + j, value_blocks_ - 1);
        b[j] = kCodes ? ring(unit, d - unit.first) : values_.step[unit.step] + d * values_.stride[unit.step];
      }
      float* sums = sums_.accumulator + unit.first * kNBlock;
      amx_fence();
      if (unit.step == 0) load_1x4(sums, value_width_, accumulate);
      few_rows_step(probs + unit.step * 64, kKvTile * 4, b, [&] { ask_for_float(); });
      if (next.step == 0) store_1x4(sums, value_width_);
      amx_fence();
      unit = next;
    }
  }

  void softmax(int64_t r) {
    const ScoreRow row{s_.scores + r * kKvTile, s_.key_scales, s_.value_scales, item_.scale_log2e,
                       visible_keys(item_, tile_, r)};
    bf16_t* probs = reinterpret_cast<bf16_t*>(s_.scores + r * kKvTile);
    float* denominators = sums_.denominators + r * kLanes;
    const bool all = row.visible.first == 0 && row.visible.end == kKvTile;
    const float factor =
        all ? softmax_row<false, kKvTile, kCodes>(row, probs, sums_.max[r], denominators)
            : softmax_masked_row<kCodes>(row, round_up(tile_.num_keys, kWidthStep), probs, sums_.max[r], denominators);
    if (factor != 1) scale_row(sums_.accumulator + r * value_width_, value_width_, factor);
  }

  // Widened tiles of the unit and of the one before: 8 KB, so that they stay in L1.
  char* ring(const Unit& unit, int64_t j) const { return s_.k + (unit.number % 2 * kUnitTiles + j) * kTileBytes; }

  void make_key_unit(const Unit& unit) {
    for (int64_t j = 0; j < min_of(kUnitTiles, groups_ - unit.first); ++j) {
      widen_rows(pointers_.k[unit.first + j] + unit.step * kTileBytes / 2, kTileBytes / 64, ring(unit, j));
      ahead_.ask(1);
    }
  }
  void make_value_unit(const Unit& unit) {
    for (int64_t j = 0; j < min_of(kUnitTiles, value_blocks_ - unit.first); ++j) {
      for (int64_t half = 0; half < 2; ++half) {
        widen_rows(pointers_.v[2 * unit.step + half] + (unit.first + j) * item_.layout.v_n_block_bytes, kNBlock / 2,
                   ring(unit, j) + half * kTileBytes / 2);
      }
      ahead_.ask(1);
    }
  }
  // bf16 has no widening among which lines could be asked for.
  __attribute__((always_inline)) void ask_for_float() {
    if constexpr (!kCodes) ahead_.ask(1);
  }

  const AttentionItem& item_;
  const AmxScratch& s_;
  const RowSums& sums_;
  KvAhead& ahead_;
  int64_t rows_, q_steps_, value_blocks_, value_width_;
  KeyTile tile_ = {};
  int64_t groups_ = 0, steps_ = 0;  // of 16 and of 32 keys that hold keys of the tile
  GroupPointers pointers_;
  ValueTiles values_;
};

}  // namespace spate::cpu::SPATE_ISA
