// Paged attention on AMX tiles, for bf16 activations and caches: prefill and decode alike, so that their bits agree. Probabilities
// are rounded to bf16 for the product with V; the denominator sums them unrounded.
#pragma once

#include "backend/cpu/kernel/amx.h"
#include "backend/cpu/kernel/attention_common.h"

namespace spate::cpu::SPATE_ISA {

constexpr int64_t kKvTileSteps = kKvTile / kKStep;
constexpr int64_t kAmxMaxValueBlocks = 16;

struct AmxScratch {
  char* q;             // [rows / 16][head_dim / 32] tiles
  float* scores;       // [rows, kKvTile]
  bf16_t* probs;       // [rows, kKvTile]
  float* accumulator;  // [rows, head_dim padded to 16]
  RowSoftmax* state;   // [rows]
  char* v;             // [kKvTileSteps][value blocks] tiles, for V that cannot be read in place
};

static int64_t amx_attention_scratch_bytes(int64_t rows, int64_t head_dim) {
  const int64_t rows16 = round_up(rows, 16);
  return rows16 * (round_up(head_dim, kKStep) * 2 + kKvTile * 6 + round_up(head_dim, kNBlock) * 4 + 8) +
         kKvTileSteps * kAmxMaxValueBlocks * kTileBytes + 6 * 64;
}

static void tile_q(const AttentionItem& item, int64_t rows, char* q) {
  const int64_t head_dim = item.layout.head_dim, steps = ceil_div(head_dim, kKStep);
  for (int64_t r = 0; r < round_up(rows, 16); ++r) {
    const bf16_t* src = static_cast<const bf16_t*>(item.q) + (r < rows ? q_offset(item, r) : 0);
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t count = r < rows ? min_of(kKStep, head_dim - s * kKStep) : 0;
      const auto lanes = static_cast<__mmask32>(count == kKStep ? ~0u : (1u << count) - 1);
      _mm512_storeu_si512(q + (r / 16 * steps + s) * kTileBytes + r % 16 * 64,
                          _mm512_maskz_loadu_epi16(lanes, src + s * kKStep));
    }
  }
}

struct ValueTiles {
  const char* step[kKvTileSteps];
  int64_t block_stride[kKvTileSteps];
};

// V of each 32 keys of the tile as B tiles: in place when the 32 lie in one block and are all written, else a copy with zeros for the rest.
static ValueTiles value_tiles(const AttentionItem& item, const KeyTile& tile, char* copy) {
  const int64_t kv_block_size = item.layout.kv_block_size, value_blocks = ceil_div(item.layout.head_dim, kNBlock);
  ValueTiles tiles;
  for (int64_t s = 0; s * kKStep < tile.num_keys; ++s) {
    const int64_t position = tile.begin + s * kKStep;
    const int64_t written = min_of(kKStep, item.seq_len - position);
    if (written == kKStep && position % kv_block_size + kKStep <= kv_block_size) {
      tiles.step[s] = v_at(item, position);
      tiles.block_stride[s] = item.layout.v_n_block_bytes;
      continue;
    }
    char* out = copy + s * value_blocks * kTileBytes;
    tiles.step[s] = out;
    tiles.block_stride[s] = kTileBytes;
    for (int64_t pair = 0; pair < kKStep / 2; ++pair) {
      const int64_t key = 2 * pair;
      const char* src = key < written ? v_at(item, position + key) : nullptr;
      const __m512i keep = _mm512_set1_epi32(key + 1 < written ? -1 : 0xffff);
      for (int64_t d = 0; d < value_blocks; ++d) {
        const __m512i line = src == nullptr ? _mm512_setzero_si512()
                                            : _mm512_and_si512(keep, _mm512_loadu_si512(src + d * item.layout.v_n_block_bytes));
        _mm512_storeu_si512(out + d * kTileBytes + pair * 64, line);
      }
    }
  }
  return tiles;
}

static void attention_amx(const AttentionItem& item, char* scratch) {
  const int64_t rows = item.num_queries * item.group_size, rows16 = round_up(rows, 16), head_dim = item.layout.head_dim;
  const int64_t q_steps = ceil_div(head_dim, kKStep), value_blocks = ceil_div(head_dim, kNBlock);
  const int64_t value_width = value_blocks * kNBlock;
  AmxScratch s;
  s.q = take<char>(scratch, rows16 * q_steps * 64);
  s.scores = take<float>(scratch, rows16 * kKvTile);
  s.probs = take<bf16_t>(scratch, rows16 * kKvTile);
  s.accumulator = take<float>(scratch, rows16 * value_width);
  s.state = take<RowSoftmax>(scratch, rows16);
  s.v = take<char>(scratch, kKvTileSteps * kAmxMaxValueBlocks * kTileBytes);

  tile_q(item, rows, s.q);
  for (int64_t i = 0; i < rows16 * value_width; i += kLanes) store(s.accumulator + i, zero());
  for (int64_t r = 0; r < rows; ++r) s.state[r] = RowSoftmax{};
  // Rows beyond the last are multiplied too: they must be numbers, or they would be slow.
  for (int64_t i = rows * kKvTile; i < rows16 * kKvTile; i += 32) _mm512_storeu_si512(s.probs + i, _mm512_setzero_si512());

  const TileRows q{.base = s.q, .row_stride = 64, .step_stride = kTileBytes, .block_stride = q_steps * kTileBytes};
  const TileRows probs{.base = reinterpret_cast<const char*>(s.probs),
                       .row_stride = kKvTile * 2,
                       .step_stride = 64,
                       .block_stride = 16 * kKvTile * 2};
  amx_begin(16);
  const TileRange range = key_tiles(item);
  for (int64_t t = range.first; t < range.end; ++t) {
    const KeyTile tile = key_tile(item, t);
    const int64_t groups = ceil_div(tile.num_keys, kNBlock);
    const char* k_groups[kKvTile / kNBlock];
    for (int64_t g = 0; g < groups; ++g) k_groups[g] = k_group(item, tile.begin + g * kNBlock);
    amx_product(q, rows16 / 16, [&](int64_t step, int64_t g) { return k_groups[g] + step * kTileBytes; }, groups, q_steps,
                s.scores, kKvTile, false);
    const int64_t steps = ceil_div(tile.num_keys, kKStep);
    for (int64_t r = 0; r < rows; ++r) {
      softmax_row(item, tile, r, s.scores + r * kKvTile, steps * kKStep, s.probs + r * kKvTile,
                  s.accumulator + r * value_width, value_width, s.state[r]);
    }
    const ValueTiles values = value_tiles(item, tile, s.v);
    amx_product(probs, rows16 / 16, [&](int64_t step, int64_t d) { return values.step[step] + d * values.block_stride[step]; },
                value_blocks, steps, s.accumulator, value_width, true);
  }
  amx_end();
  for (int64_t r = 0; r < rows; ++r) {
    store_attention_row(item, r, s.accumulator + r * value_width, s.state[r].denominator);
  }
}

}  // namespace spate::cpu::SPATE_ISA
