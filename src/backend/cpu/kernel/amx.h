// AMX tiles: their configuration and blocks of tile products C += A B, bf16 by bf16 in fp32 or (kInts) 8-bit by 8-bit in
// i32; a tile is 16 rows of 64 bytes in both. Tile numbers must be literals.
//
// GCC 12 trap: _tile_loadconfig names only 8 bytes of the configuration as its input, and _tile_loadd names no memory at all. So
// configurations are static constants, and amx_fence() keeps earlier stores in front of the tile loads that read them.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "backend/cpu/kernel/simd.h"
#include "backend/cpu/layout.h"

namespace spate::cpu::SPATE_ISA {

SPATE_INLINE void amx_fence() { asm volatile("" ::: "memory"); }

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[8] = {}, reserved_cols[8] = {};
  uint8_t rows[8] = {}, reserved_rows[8] = {};
};

struct TileConfigs {
  TileConfig of_rows[17];
};

// Tiles 0-4 hold `rows` rows (sums, and A as tile 4), 5-7 sixteen; with 16 rows all are alike.
static constexpr TileConfigs make_tile_configs() {
  TileConfigs configs{};
  for (int rows = 1; rows <= 16; ++rows) {
    for (int tile = 0; tile < 8; ++tile) {
      configs.of_rows[rows].row_bytes[tile] = 64;
      configs.of_rows[rows].rows[tile] = static_cast<uint8_t>(tile < 5 ? rows : 16);
    }
  }
  return configs;
}
static constexpr TileConfigs kTileConfigs = make_tile_configs();

#define SPATE_TILE_PRODUCT(c, a, b) \
  if constexpr (kInts) {            \
    _tile_dpbssd(c, a, b);          \
  } else {                          \
    _tile_dpbf16ps(c, a, b);        \
  }

SPATE_INLINE void amx_begin(int64_t rows) { _tile_loadconfig(&kTileConfigs.of_rows[rows]); }
SPATE_INLINE void amx_end() { _tile_release(); }

// Where the tiles of A are: block i (16 rows), step s (32 k) at base + i * block_stride + s * step_stride, rows row_stride apart; all in bytes.
struct TileRows {
  const char* base;
  int64_t row_stride, step_stride, block_stride;
};

constexpr int64_t kTileBytes = 1024;
// Tiles ahead that memory is asked for in L2, and L2 in L1, while the current one is multiplied.
constexpr int64_t kTilesAheadInL2 = 6, kTilesAheadInL1 = 1;

SPATE_INLINE void prefetch_lines_l1(const char* tile) {
  for (int line = 0; line < 16; ++line) _mm_prefetch(tile + line * 64, _MM_HINT_T0);
}
template <bool kPrefetch>
SPATE_INLINE void prefetch_tile(const char* tile) {
  if constexpr (!kPrefetch) return;
  prefetch_lines_l1(tile + kTilesAheadInL1 * kTileBytes);
  for (int line = 0; line < 16; ++line) _mm_prefetch(tile + kTilesAheadInL2 * kTileBytes + line * 64, _MM_HINT_T1);
}

// Tiles 0-3 are sums: 16 columns each at c and at c + 16, at `lower` and at lower + 16.
SPATE_INLINE void load_sums(const float* c, const float* lower, int64_t c_stride, bool accumulate) {
  if (accumulate) {
    _tile_loadd(0, c, c_stride * 4);
    _tile_loadd(1, c + 16, c_stride * 4);
    _tile_loadd(2, lower, c_stride * 4);
    _tile_loadd(3, lower + 16, c_stride * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
}
SPATE_INLINE void store_sums(float* c, float* lower, int64_t c_stride) {
  _tile_stored(0, c, c_stride * 4);
  _tile_stored(1, c + 16, c_stride * 4);
  _tile_stored(2, lower, c_stride * 4);
  _tile_stored(3, lower + 16, c_stride * 4);
}
// Of one row block by four B blocks, and of two by two.
SPATE_INLINE void load_1x4(const float* c, int64_t c_stride, bool accumulate) { load_sums(c, c + 32, c_stride, accumulate); }
SPATE_INLINE void store_1x4(float* c, int64_t c_stride) { store_sums(c, c + 32, c_stride); }
SPATE_INLINE void load_2x2(const float* c, int64_t c_stride, bool accumulate) {
  load_sums(c, c + 16 * c_stride, c_stride, accumulate);
}
SPATE_INLINE void store_2x2(float* c, int64_t c_stride) { store_sums(c, c + 16 * c_stride, c_stride); }

// In all: b(step, j) is the address of a B tile, c has rows c_stride floats apart and 16 columns a B block.

template <bool kPrefetch, typename B>
SPATE_INLINE void amx_1x4(const TileRows& a, const B& b, int64_t steps, float* c, int64_t c_stride, bool accumulate) {
  load_1x4(c, c_stride, accumulate);
  for (int64_t s = 0; s < steps; ++s) {
    _tile_loadd(4, a.base + s * a.step_stride, a.row_stride);
    _tile_loadd(5, b(s, 0), 64);
    prefetch_tile<kPrefetch>(b(s, 0));
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, b(s, 1), 64);
    prefetch_tile<kPrefetch>(b(s, 1));
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, b(s, 2), 64);
    prefetch_tile<kPrefetch>(b(s, 2));
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, b(s, 3), 64);
    prefetch_tile<kPrefetch>(b(s, 3));
    _tile_dpbf16ps(3, 4, 5);
  }
  store_1x4(c, c_stride);
}

template <bool kPrefetch, typename B>
SPATE_INLINE void amx_1x1(const TileRows& a, const B& b, int64_t j, int64_t steps, float* c, int64_t c_stride,
                          bool accumulate) {
  if (accumulate) {
    _tile_loadd(0, c, c_stride * 4);
  } else {
    _tile_zero(0);
  }
  for (int64_t s = 0; s < steps; ++s) {
    _tile_loadd(4, a.base + s * a.step_stride, a.row_stride);
    _tile_loadd(5, b(s, j), 64);
    prefetch_tile<kPrefetch>(b(s, j));
    _tile_dpbf16ps(0, 4, 5);
  }
  _tile_stored(0, c, c_stride * 4);
}

// Two blocks of A by blocks j and j + 1 of B: each tile that is loaded is used twice. Needs the configuration of 16 rows.
template <typename B>
SPATE_INLINE void amx_2x2(const TileRows& a, const B& b, int64_t j, int64_t steps, float* c, int64_t c_stride,
                          bool accumulate) {
  load_2x2(c, c_stride, accumulate);
  for (int64_t s = 0; s < steps; ++s) {
    const char* rows = a.base + s * a.step_stride;
    _tile_loadd(6, b(s, j), 64);
    _tile_loadd(4, rows, a.row_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b(s, j + 1), 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, rows + a.block_stride, a.row_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  store_2x2(c, c_stride);
}

template <bool kInts = false, typename B>
SPATE_INLINE void amx_2x1(const TileRows& a, const B& b, int64_t j, int64_t steps, float* c, int64_t c_stride,
                          bool accumulate) {
  float* lower = c + 16 * c_stride;
  if (accumulate) {
    _tile_loadd(0, c, c_stride * 4);
    _tile_loadd(2, lower, c_stride * 4);
  } else {
    _tile_zero(0);
    _tile_zero(2);
  }
  for (int64_t s = 0; s < steps; ++s) {
    const char* rows = a.base + s * a.step_stride;
    _tile_loadd(6, b(s, j), 64);
    _tile_loadd(4, rows, a.row_stride);
    SPATE_TILE_PRODUCT(0, 4, 6)
    _tile_loadd(5, rows + a.block_stride, a.row_stride);
    SPATE_TILE_PRODUCT(2, 5, 6)
  }
  _tile_stored(0, c, c_stride * 4);
  _tile_stored(2, lower, c_stride * 4);
}

// One block of rows by any number of B blocks.
template <bool kPrefetch, typename B>
SPATE_INLINE void amx_row_product(const TileRows& a, const B& b, int64_t num_blocks, int64_t steps, float* c,
                                  int64_t c_stride, bool accumulate) {
  int64_t j = 0;
  for (; j + 4 <= num_blocks; j += 4) {
    const auto from_j = [&](int64_t s, int64_t block) { return b(s, j + block); };
    amx_1x4<kPrefetch>(a, from_j, steps, c + j * 16, c_stride, accumulate);
  }
  for (; j < num_blocks; ++j) amx_1x1<kPrefetch>(a, b, j, steps, c + j * 16, c_stride, accumulate);
}

// Any number of blocks on both sides, all of 16 rows.
template <typename B>
SPATE_INLINE void amx_product(TileRows a, int64_t row_blocks, const B& b, int64_t num_blocks, int64_t steps, float* c,
                              int64_t c_stride, bool accumulate) {
  amx_fence();
  int64_t i = 0;
  for (; i + 2 <= row_blocks; i += 2) {
    int64_t j = 0;
    for (; j + 2 <= num_blocks; j += 2) amx_2x2(a, b, j, steps, c + j * 16, c_stride, accumulate);
    if (j < num_blocks) amx_2x1(a, b, j, steps, c + j * 16, c_stride, accumulate);
    a.base += 2 * a.block_stride;
    c += 32 * c_stride;
  }
  if (i < row_blocks) amx_row_product<false>(a, b, num_blocks, steps, c, c_stride, accumulate);
  amx_fence();
}

}  // namespace spate::cpu::SPATE_ISA
