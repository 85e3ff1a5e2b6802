// Attention over latent vectors of bf16 or codes by queries of bf16, on AMX tiles. Up to 16 heads share each key.
//
// Scores: vectors of 16 keys are an A tile as they lie in the cache, 32 elements a step; queries are arranged once as B
// tiles, a column a head. So the 16 lanes of a vector of scores are the heads of one key, and the softmax of all heads
// has no sums or maxima over lanes. Values: the heads' weights, rounded to bf16, are the A tile, and 32 vectors are B
// tiles whose words are pairs of keys. Two unpacks of 16-bit elements make a row of two such tiles from two vectors;
// their columns are in an order of their own until store_outputs(). They are made beside the scores'
// products, from the lines that these have brought to L1.
//
// Keys pass in chunks of 128 from position 0, whatever else the step holds: a maximum and factors a chunk, and each
// tile of sums is loaded and stored once for it. The sums of each span of 512 keys are made apart and merged in order,
// so that threads without a sequence of their own share one. Groups of 32 keys that are not complete, and those of
// codes, are copied first; what is beyond the last key is zero. Scales of codes join the scores, and the weights before
// they are rounded.
//
// By cycles, a group of 32 keys of 512 + 64 elements takes 68 products of 16 each at best, and 512 unpacks and as many
// stores beside those of scores. Memory brings its 37 KB in some 6,000 (two threads, 26 GB/s).
#pragma once

#include "backend/cpu/kernel/amx.h"
#include "backend/cpu/kernel/split_pairs.h"
#include "backend/cpu/kernels.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kTileHeads = 16;
constexpr int64_t kGroupKeys = 32;
constexpr int64_t kChunkKeys = 128;
constexpr int64_t kSpanKeys = 512;
constexpr int64_t kKeysAhead = 64;  // that are asked for in L2: two groups
constexpr int64_t kChunkGroups = kChunkKeys / kGroupKeys;

// Elements of a vector in steps of 32: those of `rank`, then those of rope.
struct LatentSteps {
  int64_t values, all;
};
SPATE_INLINE LatentSteps latent_steps(int64_t rank, int64_t rope_dim) {
  const int64_t values = ceil_div(rank, kKStep);
  return {values, values + ceil_div(rope_dim, kKStep)};
}
// Of a copied key: an odd number of lines.
SPATE_INLINE int64_t copied_key_bytes(const LatentSteps& steps) { return (steps.all | 1) * 64; }

// What a span gives: tiles of sums of 16 heads by 16 elements, the largest score and the sum of the weights of each head.
struct SpanSums {
  float *outputs, *largest, *weights;
};
SPATE_INLINE int64_t span_floats(const LatentSteps& steps) {
  return steps.values * 2 * kTileBytes / 4 + 2 * kTileHeads;
}
SPATE_INLINE SpanSums span_sums(const LatentSteps& steps, float* memory) {
  float* largest = memory + steps.values * 2 * kTileBytes / 4;
  return {memory, largest, largest + kTileHeads};
}

SPATE_INLINE LatentPlan latent_tiles_plan(int64_t rank, int64_t rope_dim) {
  const LatentSteps steps = latent_steps(rank, rope_dim);
  const int64_t bytes = steps.all * kTileBytes + 2 * kChunkKeys * kTileHeads * 4 + kChunkGroups * kTileBytes +
                        kChunkGroups * steps.values * 2 * kTileBytes + 2 * span_floats(steps) * 4 +
                        kGroupKeys * copied_key_bytes(steps);
  return {
      .max_heads = kTileHeads, .scratch_bytes = bytes, .span_keys = kSpanKeys, .partial_floats = span_floats(steps)};
}

// rows[i] lane j becomes rows[j] lane i.
SPATE_INLINE void transpose_words(__m512i* rows) {
  __m512i a[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  // Of each four rows, lane group l holds column 4 l + c of them, in rows[i + c].
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(rows[c], rows[c + 4], 0x88);  // lane groups 0 and 2
    const __m512i odd_low = _mm512_shuffle_i32x4(rows[c], rows[c + 4], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(rows[c + 8], rows[c + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(rows[c + 8], rows[c + 12], 0xdd);
    a[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    a[c + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    a[c + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    a[c + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = a[i];
}

SPATE_INLINE __mmask32 first_words(int64_t count) {
  return static_cast<__mmask32>(count >= 32 ? ~0u : count <= 0 ? 0 : (1u << count) - 1);
}

// The largest of two by lanes; a NaN of either stays.
SPATE_INLINE F largest_of_two(F a, F b) {
  return _mm512_mask_mov_ps(max(a, b), _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q), set1(__builtin_nanf("")));
}

// The sums of another span join those of the ones before.
static void merge_span(int64_t num_heads, const LatentSteps& steps, const SpanSums& all, const SpanSums& span) {
  const F before = load(all.largest), largest = largest_of_two(before, load(span.largest));
  const F factor = exp2(sub(before, largest)), span_factor = exp2(sub(load(span.largest), largest));
  store(all.largest, largest);
  store(all.weights, fma(load(span.weights), span_factor, mul(load(all.weights), factor)));
  alignas(64) float factors[2][kTileHeads];
  store(factors[0], factor);
  store(factors[1], span_factor);
  for (int64_t j = 0; j < 2 * steps.values; ++j) {
    for (int64_t h = 0; h < num_heads; ++h) {
      const int64_t at = j * kTileBytes / 4 + h * kNBlock;
      const F sum = mul(load(all.outputs + at), set1(factors[0][h]));
      store(all.outputs + at, fma(load(span.outputs + at), set1(factors[1][h]), sum));
    }
  }
}

static void store_outputs(const LatentItem& item, const LatentSteps& steps, const SpanSums& sums) {
  // Lane group l of the first tile of a pair holds elements 8 l to 8 l + 3, of the second the four behind them.
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  alignas(64) float factors[kTileHeads];
  store(factors, div(set1(1.0f), load(sums.weights)));
  for (int64_t h = 0; h < item.num_heads; ++h) {
    bf16_t* out = static_cast<bf16_t*>(item.out) + h * item.out_stride;
    const F factor = set1(factors[h]);
    for (int64_t s = 0; s < steps.values; ++s) {
      const float* row = sums.outputs + 2 * s * kTileBytes / 4 + h * kNBlock;
      const F a = mul(load(row), factor), b = mul(load(row + kTileBytes / 4), factor);
      const __m512i words = round_pair(_mm512_permutex2var_ps(a, low, b), _mm512_permutex2var_ps(a, high, b));
      _mm512_mask_storeu_epi16(out + s * kKStep, first_words(item.rank - s * kKStep), words);
    }
  }
}

static void merge_spans(const LatentItem& item, float* partials, int64_t num_partials) {
  const LatentSteps steps = latent_steps(item.rank, item.rope_dim);
  const SpanSums all = span_sums(steps, partials);
  for (int64_t i = 1; i < num_partials; ++i) {
    merge_span(item.num_heads, steps, all, span_sums(steps, partials + i * span_floats(steps)));
  }
  store_outputs(item, steps, all);
}

// Of one item.
class LatentTiles {
 public:
  LatentTiles(const LatentItem& item, char* scratch)
      : item_(item),
        steps_(latent_steps(item.rank, item.rope_dim)),
        in_place_(item.elem == Elem::kBf16 && item.rank % kKStep == 0 && item.rope_dim % kKStep == 0),
        queries_(scratch),
        scores_(reinterpret_cast<float*>(queries_ + steps_.all * kTileBytes)),
        rope_scores_(scores_ + kChunkKeys * kTileHeads),
        weights_(reinterpret_cast<char*>(rope_scores_ + kChunkKeys * kTileHeads)),
        values_(weights_ + kChunkGroups * kTileBytes),
        spans_(reinterpret_cast<float*>(values_ + kChunkGroups * steps_.values * 2 * kTileBytes)),
        copied_(reinterpret_cast<char*>(spans_ + 2 * span_floats(steps_))) {}

  void run() {
    arrange_queries();
    if (item_.partial != nullptr) return run_span(item_.first_key, item_.end_key, span_sums(steps_, item_.partial));
    const SpanSums all = span_sums(steps_, spans_), span = span_sums(steps_, spans_ + span_floats(steps_));
    for (int64_t first = item_.first_key; first < item_.end_key; first += kSpanKeys) {
      const bool is_first = first == item_.first_key;
      run_span(first, min_of(first + kSpanKeys, item_.end_key), is_first ? all : span);
      if (!is_first) merge_span(item_.num_heads, steps_, all, span);
    }
    store_outputs(item_, steps_, all);
  }

 private:
  const char* key_at(int64_t position) const {
    return item_.kv + item_.block_table[position / item_.kv_block_size] * item_.block_bytes +
           position % item_.kv_block_size * item_.token_bytes;
  }
  const float* scales_at(int64_t position) const {
    const char* block = item_.kv + item_.block_table[position / item_.kv_block_size] * item_.block_bytes;
    return reinterpret_cast<const float*>(block + item_.scales_offset) + 2 * (position % item_.kv_block_size);
  }
  void run_span(int64_t begin, int64_t end, const SpanSums& sums) {
    outputs_ = sums.outputs;
    largest_ = set1(-__builtin_inff());
    sums_ = zero();
    for (int64_t first = begin; first < end; first += kChunkKeys) {
      const int64_t num_keys = min_of(kChunkKeys, end - first);
      amx_fence();
      amx_begin(16);
      for (int64_t k = 0; k < num_keys; k += kGroupKeys) score_group(first + k, k, min_of(kGroupKeys, num_keys - k));
      amx_fence();
      make_weights(first, num_keys, first > begin);
      amx_fence();
      if (item_.num_heads < kTileHeads) amx_begin(item_.num_heads);
      add_values(ceil_div(num_keys, kGroupKeys), first > begin);
      amx_fence();
    }
    amx_end();
    store(sums.largest, largest_);
    store(sums.weights, sums_);
  }

  bool has_codes() const { return item_.elem == Elem::kI8; }

  void arrange_queries() const {
    for (int64_t s = 0; s < steps_.all; ++s) {
      const bool of_rope = s >= steps_.values;
      const int64_t at = (of_rope ? s - steps_.values : s) * kKStep;
      const __mmask32 words = first_words((of_rope ? item_.rope_dim : item_.rank) - at);
      const bf16_t* q = static_cast<const bf16_t*>(of_rope ? item_.q_rope : item_.q_latent) + at;
      const int64_t stride = of_rope ? item_.q_rope_stride : item_.q_latent_stride;
      __m512i rows[16];
      for (int64_t h = 0; h < 16; ++h) {
        rows[h] = h < item_.num_heads ? _mm512_maskz_loadu_epi16(words, q + h * stride) : _mm512_setzero_si512();
      }
      transpose_words(rows);
      for (int64_t r = 0; r < 16; ++r) _mm512_store_si512(queries_ + s * kTileBytes + r * 64, rows[r]);
    }
  }

  // The vectors from a position on, as rows of 32 keys with zeros behind them.
  void copy_keys(int64_t position, int64_t count) const {
    const int64_t stride = copied_key_bytes(steps_);
    for (int64_t k = 0; k < kGroupKeys; ++k) {
      char* out = copied_ + k * stride;
      if (k >= count) {
        for (int64_t s = 0; s < steps_.all; ++s) _mm512_store_si512(out + s * 64, _mm512_setzero_si512());
        continue;
      }
      const char* key = key_at(position + k);
      if (position + k + kKeysAhead < item_.end_key) {
        const char* ahead = key_at(position + k + kKeysAhead);
        for (int64_t line = 0; line < item_.token_bytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T1);
      }
      for (int64_t s = 0; s < steps_.all; ++s) {
        const bool of_rope = s >= steps_.values;
        const int64_t at = (of_rope ? s - steps_.values : s) * kKStep;
        const __mmask32 elements = first_words((of_rope ? item_.rope_dim : item_.rank) - at);
        const int64_t element = (of_rope ? item_.rank : 0) + at;
        __m512i words;
        if (has_codes()) {
          const __m256i codes = _mm256_maskz_loadu_epi8(elements, key + element);
          const F low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
          const F high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)));
          words = round_pair(low, high);
        } else {
          words = _mm512_maskz_loadu_epi16(elements, key + element * 2);
        }
        _mm512_store_si512(out + s * 64, words);
      }
    }
  }

  // Two rows of B tiles of values, which lie behind each other, from two keys.
  static __attribute__((always_inline)) void pair_keys(const char* even, const char* odd, char* row) {
    const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
    _mm512_store_si512(row, _mm512_unpacklo_epi16(a, b));
    _mm512_store_si512(row + kTileBytes, _mm512_unpackhi_epi16(a, b));
  }

  // Scores and B tiles of values of a group, whose first key is number k of the chunk.
  void score_group(int64_t position, int64_t k, int64_t count) const {
    const char* keys[2] = {copied_, copied_ + 16 * copied_key_bytes(steps_)};
    int64_t stride = copied_key_bytes(steps_);
    const char* ahead[2] = {};
    if (in_place_ && count == kGroupKeys) {
      for (int64_t half = 0; half < 2; ++half) keys[half] = key_at(position + half * 16);
      stride = item_.token_bytes;
      if (position + kKeysAhead + kGroupKeys <= item_.end_key) {
        for (int64_t half = 0; half < 2; ++half) ahead[half] = key_at(position + kKeysAhead + half * 16);
      }
    } else {
      copy_keys(position, count);
      amx_fence();
    }
    char* values = values_ + k / kGroupKeys * steps_.values * 2 * kTileBytes;
    float* scores = scores_ + k * kTileHeads;
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t s = 0; s < steps_.all; ++s, values += 2 * kTileBytes) {
      if (s == steps_.values && has_codes()) {  // rope has a scale of its own
        _tile_stored(0, scores, 64);
        _tile_stored(1, scores + 16 * kTileHeads, 64);
        _tile_zero(0);
        _tile_zero(1);
        scores = rope_scores_ + k * kTileHeads;
      }
      _tile_loadd(4, queries_ + s * kTileBytes, 64);
      _tile_loadd(5, keys[0] + s * 64, stride);
      _tile_dpbf16ps(0, 5, 4);
      _tile_loadd(6, keys[1] + s * 64, stride);
      _tile_dpbf16ps(1, 6, 4);
      if (ahead[0] != nullptr) {
        for (int64_t half = 0; half < 2; ++half) {
          for (int64_t line = 0; line < 16; ++line) _mm_prefetch(ahead[half] + (s * 16 + line) * 64, _MM_HINT_T1);
        }
      }
      if (s >= steps_.values) continue;
      for (int64_t half = 0; half < 2; ++half) {
        const char* key = keys[half] + s * 64;
#pragma GCC unroll 8
        for (int64_t r = 0; r < 8; ++r) {
          pair_keys(key + 2 * r * stride, key + (2 * r + 1) * stride, values + (half * 8 + r) * 64);
        }
      }
    }
    _tile_stored(0, scores, 64);
    _tile_stored(1, scores + 16 * kTileHeads, 64);
  }

  // The scores of a chunk become weights, those of each group an A tile; the sums of before are multiplied.
  void make_weights(int64_t first, int64_t num_keys, bool has_outputs) {
    const F scale = set1(item_.scale_log2e);
    F most = largest_;
    __mmask16 no_numbers = _mm512_cmp_ps_mask(most, most, _CMP_UNORD_Q);
    for (int64_t k = 0; k < num_keys; ++k) {
      float* of_key = scores_ + k * kTileHeads;
      F score = load(of_key);
      if (has_codes()) {
        const float* scales = scales_at(first + k);
        score = fma(score, set1(scales[0]), mul(load(rope_scores_ + k * kTileHeads), set1(scales[1])));
      }
      score = mul(score, scale);
      store(of_key, score);
      most = max(most, score);
      no_numbers |= _mm512_cmp_ps_mask(score, score, _CMP_UNORD_Q);
    }
    most = _mm512_mask_mov_ps(most, no_numbers, set1(__builtin_nanf("")));
    const auto changed = static_cast<__mmask16>(_mm512_cmp_ps_mask(most, largest_, _CMP_NEQ_UQ));
    if (changed != 0) {
      const F factors = _mm512_mask_mov_ps(set1(1.0f), changed, exp2(sub(largest_, most)));
      sums_ = mul(sums_, factors);
      if (has_outputs) scale_outputs(factors);
      largest_ = most;
    }
    const __m512i in_pairs = _mm512_load_si512(kSplitOrders.undo[1]);
    for (int64_t k = 0; k < num_keys; k += kGroupKeys) {
      __m512i rows[16];
      for (int64_t r = 0; r < 16; ++r) {
        const F even = weight_of(first, k + 2 * r, num_keys), odd = weight_of(first, k + 2 * r + 1, num_keys);
        rows[r] = _mm512_permutexvar_epi16(in_pairs, round_pair(even, odd));
      }
      transpose_words(rows);
      for (int64_t h = 0; h < 16; ++h) {
        _mm512_store_si512(weights_ + k / kGroupKeys * kTileBytes + h * 64, rows[h]);
      }
    }
  }

  // Of all heads for a key of the chunk; joins the sums. With codes times the scale of what it is multiplied with.
  F weight_of(int64_t first, int64_t k, int64_t num_keys) {
    if (k >= num_keys) return zero();
    const F weight = exp2(sub(load(scores_ + k * kTileHeads), largest_));
    sums_ = add(sums_, weight);
    return has_codes() ? mul(weight, set1(scales_at(first + k)[0])) : weight;
  }

  void scale_outputs(F factors) const {
    alignas(64) float of_head[kTileHeads];
    store(of_head, factors);
    for (int64_t h = 0; h < item_.num_heads; ++h) {
      if (of_head[h] == 1) continue;
      for (int64_t j = 0; j < 2 * steps_.values; ++j) {
        float* row = outputs_ + j * 256 + h * kNBlock;
        store(row, mul(load(row), set1(of_head[h])));
      }
    }
  }

  // Weights of some groups by their values.
  void add_values(int64_t num_groups, bool accumulate) const {
    const int64_t group_bytes = steps_.values * 2 * kTileBytes;
    for (int64_t j = 0; j < 2 * steps_.values; j += 2) {
      float* c = outputs_ + j * 256;
      if (accumulate) {
        _tile_loadd(0, c, 64);
        _tile_loadd(1, c + 256, 64);
      } else {
        _tile_zero(0);
        _tile_zero(1);
      }
      const char* values = values_ + j * kTileBytes;
      for (int64_t g = 0; g < num_groups; ++g, values += group_bytes) {
        _tile_loadd(4, weights_ + g * kTileBytes, 64);
        _tile_loadd(5, values, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, values + kTileBytes, 64);
        _tile_dpbf16ps(1, 4, 6);
      }
      _tile_stored(0, c, 64);
      _tile_stored(1, c + 256, 64);
    }
  }

  const LatentItem& item_;
  const LatentSteps steps_;
  const bool in_place_;       // whole groups of keys are A tiles where they are
  char* const queries_;       // [steps] B tiles
  float* const scores_;       // [kChunkKeys][kTileHeads]
  float* const rope_scores_;  // of codes
  char* const weights_;       // [kChunkGroups] A tiles
  char* const values_;        // [kChunkGroups][2 * value steps] B tiles
  float* const spans_;        // sums of all spans and of one
  char* const copied_;        // [kGroupKeys], copied_key_bytes() apart
  float* outputs_ = nullptr;  // [2 * value steps] tiles of sums of the span
  F largest_, sums_;          // of the heads
};

}  // namespace spate::cpu::SPATE_ISA
