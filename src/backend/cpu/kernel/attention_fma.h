// Paged attention by fused multiply-add, in f32: every combination of activations and cache that the AMX tiles do not
// take. On AVX2 codes of a kI8 cache become floats in registers where rows are few, else in memory, once for all rows.
#pragma once

#include "backend/cpu/kernel/attention_common.h"
#include "backend/cpu/kernel/micro_gemm.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kMaxValueBlocks = 16;  // head_dim up to 256
constexpr int64_t kWidenedGroups =
    4;  // groups of 16 keys of a kI8 cache that are widened at a time: 32 KB at head_dim 128
constexpr int64_t kWidenedKeys = 32;  // the same for V

struct FmaScratch {
  float* q;       // [rows, head_dim padded to 32]
  float* scores;  // [rows, kKvTile], then the probabilities
  RowSums total, span;
  float* key_scales;    // [kKvTile]
  float* value_scales;  // [kKvTile]
  char* widened;        // n-blocks of f32, for a kI8 cache
  char* v_tail;         // an n-block row of 64 bytes for each value block
};

static int64_t widened_bytes(int64_t head_dim) {
  return max_of(kWidenedGroups * n_block_bytes(Elem::kF32, round_up(head_dim, kKStep)),
                ceil_div(head_dim, kNBlock) * n_block_bytes(Elem::kF32, kWidenedKeys));
}

static int64_t fma_scratch_bytes(int64_t rows, int64_t head_dim) {
  return rows * (round_up(head_dim, kKStep) + kKvTile) * 4 + 2 * row_sums_bytes(rows, round_up(head_dim, kNBlock)) +
         2 * kKvTile * 4 + widened_bytes(head_dim) + kMaxValueBlocks * 64 + 7 * 64;
}

static FmaScratch cut_scratch(char* scratch, int64_t rows, int64_t head_dim) {
  FmaScratch s;
  s.q = take<float>(scratch, rows * round_up(head_dim, kKStep));
  s.scores = take<float>(scratch, rows * kKvTile);
  s.total = take_row_sums(scratch, rows, round_up(head_dim, kNBlock));
  s.span = take_row_sums(scratch, rows, round_up(head_dim, kNBlock));
  s.key_scales = take<float>(scratch, kKvTile);
  s.value_scales = take<float>(scratch, kKvTile);
  s.widened = take<char>(scratch, widened_bytes(head_dim));
  s.v_tail = take<char>(scratch, kMaxValueBlocks * 64);
  return s;
}

template <typename Act>
static void widen_q(const AttentionItem& item, int64_t rows, float* q) {
  const int64_t head_dim = item.layout.head_dim, stride = round_up(head_dim, kKStep);
  for (int64_t r = 0; r < rows; ++r) {
    const Act* src = static_cast<const Act*>(item.q) + q_offset(item, r);
    SPATE_FOR_LANES(d, count, head_dim) { store_up_to(q + r * stride + d, load_up_to(src + d, count), count); }
    for (int64_t d = head_dim; d < stride; ++d) q[r * stride + d] = 0;
  }
}

// An n-block of codes, num_k (a multiple of 4) deep, as one of f32.
static void widen_codes(const char* codes, int64_t num_k, float* out) {
  for (int64_t k = 0; k < num_k; k += 4, codes += 4 * kNBlock, out += 4 * kNBlock) {
    for (int64_t column = 0; column < kNBlock; column += kLanes) {
      F values[4];
      load_codes(codes + 4 * column, values);
      for (int64_t i = 0; i < 4; ++i) store(out + i * kNBlock + column, values[i]);
    }
  }
}

// scores = q K^T of a tile.
template <typename W>
static void score_keys(const AttentionItem& item, const KeyTile& tile, int64_t rows, const FmaScratch& s) {
  const int64_t q_width = round_up(item.layout.head_dim, kKStep), groups = ceil_div(tile.num_keys, kNBlock);
  for (int64_t i = 0; i < rows * kKvTile; i += kLanes) store(s.scores + i, zero());
  const char* blocks[kKvTile / kNBlock];
  if (item.layout.elem != Elem::kI8) {
    for (int64_t g = 0; g < groups; ++g) blocks[g] = k_group(item, tile.begin + g * kNBlock);
    micro_gemm<W>(s.q, q_width, rows, blocks, groups, q_width, s.scores, kKvTile);
    return;
  }
#ifdef SPATE_CODE_TILES
  if (rows <= kFewCodeRows) {
    for (int64_t g = 0; g < groups; ++g) blocks[g] = k_group(item, tile.begin + g * kNBlock);
    return multiply_codes(s.q, q_width, rows, blocks, groups, q_width, s.scores, kKvTile);
  }
#endif
  for (int64_t first = 0; first < groups; first += kWidenedGroups) {
    const int64_t count = min_of(kWidenedGroups, groups - first);
    for (int64_t g = 0; g < count; ++g) {
      float* out = reinterpret_cast<float*>(s.widened) + g * q_width * kNBlock;
      widen_codes(k_group(item, tile.begin + (first + g) * kNBlock), q_width, out);
      blocks[g] = reinterpret_cast<const char*>(out);
    }
    micro_gemm<F32Weight>(s.q, q_width, rows, blocks, count, q_width, s.scores + first * kNBlock, kKvTile);
  }
}

// accumulator += probabilities of the tile times its V, block by block of the cache.
template <typename W>
static void add_values(const AttentionItem& item, const KeyTile& tile, int64_t rows, const FmaScratch& s,
                       float* accumulator) {
  const int64_t value_blocks = ceil_div(item.layout.value_dim, kNBlock), kv_block_size = item.layout.kv_block_size;
  const bool codes = item.layout.elem == Elem::kI8;
#ifdef SPATE_CODE_TILES
  const bool in_registers = rows <= kFewCodeRows;
#else
  constexpr bool in_registers = false;
#endif
  const char* blocks[kMaxValueBlocks];
  for (int64_t key = 0; key < tile.num_keys;) {
    const int64_t position = tile.begin + key;
    int64_t in_block = min_of(tile.num_keys - key, kv_block_size - position % kv_block_size);
    if (codes && !in_registers) in_block = min_of(in_block, kWidenedKeys);
    const char* v = v_at(item, position);
    for (int64_t d = 0; d < value_blocks; ++d) blocks[d] = v + d * item.layout.v_n_block_bytes;
#ifdef SPATE_CODE_TILES
    if (codes && in_registers) {
      multiply_codes(s.scores + key, kKvTile, rows, blocks, value_blocks, round_up(in_block, 4), accumulator,
                     value_blocks * kNBlock);
      key += in_block;
      continue;
    }
#endif
    if (codes) {
      for (int64_t d = 0; d < value_blocks; ++d) {
        float* out = reinterpret_cast<float*>(s.widened) + d * kWidenedKeys * kNBlock;
        widen_codes(blocks[d], round_up(in_block, 4), out);
        blocks[d] = reinterpret_cast<const char*>(out);
      }
      micro_gemm<F32Weight>(s.scores + key, kKvTile, rows, blocks, value_blocks, in_block, accumulator,
                            value_blocks * kNBlock);
      key += in_block;
      continue;
    }
    const int64_t whole = in_block / W::kRowK * W::kRowK;
    micro_gemm<W>(s.scores + key, kKvTile, rows, blocks, value_blocks, whole, accumulator, value_blocks * kNBlock);
    if (whole < in_block) {  // the partner of the last key may not be written yet: it counts as zero, whatever it holds
      for (int64_t d = 0; d < value_blocks; ++d) {
        const auto* src = reinterpret_cast<const uint32_t*>(blocks[d] + whole / W::kRowK * W::kRowBytes);
        auto* dst = reinterpret_cast<uint32_t*>(s.v_tail + d * 64);
        for (int64_t i = 0; i < kNBlock; ++i) dst[i] = src[i] & 0xffffu;
        blocks[d] = s.v_tail + d * 64;
      }
      micro_gemm<W>(s.scores + key + whole, kKvTile, rows, blocks, value_blocks, W::kRowK, accumulator,
                    value_blocks * kNBlock);
    }
    key += in_block;
  }
}

// W: of a cache that is not kI8.
template <typename W, bool kScaled>
static void attention_fma(const AttentionItem& item, char* scratch) {
  const int64_t rows = item.num_queries * item.group_size, head_dim = item.layout.head_dim;
  const int64_t value_width = round_up(item.layout.value_dim, kNBlock);
  const FmaScratch s = cut_scratch(scratch, rows, head_dim);
  item.act == Elem::kF32 ? widen_q<float>(item, rows, s.q) : widen_q<bf16_t>(item, rows, s.q);
  attend_spans(item, rows, value_width, s.total, s.span, [&](int64_t span, const RowSums& sums) {
    for (int64_t i = 0; i < rows * value_width; i += kLanes) store(sums.accumulator + i, zero());
    const TileRange range = key_tiles(item, span);
    for (int64_t t = range.first; t < range.end; ++t) {
      const KeyTile tile = key_tile(item, t);
      score_keys<W>(item, tile, rows, s);
      if constexpr (kScaled) load_scales(item, tile, 1.0f, s.key_scales, s.value_scales);
      for (int64_t r = 0; r < rows; ++r) {
        float* scores = s.scores + r * kKvTile;
        const ScoreRow row{scores, s.key_scales, s.value_scales, item.scale_log2e, visible_keys(item, tile, r)};
        const bool all = row.visible.first == 0 && row.visible.end == kKvTile;
        float& max = sums.max[r];
        float* denominators = sums.denominators + r * kLanes;
        const float factor =
            all ? softmax_row<false, kKvTile, kScaled>(row, scores, max, denominators)
                : softmax_masked_row<kScaled>(row, round_up(tile.num_keys, kWidthStep), scores, max, denominators);
        if (factor != 1) scale_row(sums.accumulator + r * value_width, value_width, factor);
      }
      add_values<W>(item, tile, rows, s, sums.accumulator);
    }
  });
}

}  // namespace spate::cpu::SPATE_ISA
