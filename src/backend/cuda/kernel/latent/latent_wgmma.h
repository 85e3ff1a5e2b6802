// latent_wgmma.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/latent/latent.h"
#include "backend/cuda/kernel/primitive/host_device.h"
#include "backend/cuda/kernel/primitive/tensor_map.h"

namespace spate::cuda {

constexpr int kLatentRank = 512, kLatentWidth = 576;
constexpr int kLatentRows = 64;  // pairs of query token and head that a CTA takes at once
constexpr int kLatentKeys = 64;  // of a tile
constexpr int kLatentParts = kLatentWidth / 64;
constexpr int kLatentConsumers = 2;                           // warpgroups
constexpr int kLatentThreads = 128 * (kLatentConsumers + 1);  // and one that loads
constexpr int kLatentPartBytes = 64 * 128;                    // 64 rows or keys, 64 elements
constexpr int kLatentTileBytes = kLatentParts * kLatentPartBytes;
// At a multiple of 1,024 bytes q, two tiles of keys and the probabilities; then barriers, segments and row scales.
constexpr int kLatentSharedBytes = 1024 + 3 * kLatentTileBytes + kLatentPartBytes + 512;
constexpr int kLatentKeyScalesBytes = 1024;  // of two tiles of codes, behind that
constexpr int64_t kLatentMaxTeam = 8;
constexpr int kLatentCombineWarps = 8;
constexpr int kLatentCombineCtas = 2;  // of an SM

// Partial sums of 64 rows, four columns of a row in a quad, in the order in which threads have them: they store and
// read whole lines. With group = lane / 4 and pair = lane % 4, quad i of a thread of warp w has row 16 w + group + 8 h,
// columns 16 i + 2 pair, the next, and those 8 behind them, of half the columns.
struct LatentSums {
  static constexpr int kQuads = 16;  // of a thread, half and h
  SPATE_HOST_DEVICE static constexpr int64_t quad_of(int64_t slot, int half, int h, int i, int thread) {
    return (((slot * 2 + half) * 2 + h) * kQuads + i) * 128 + thread;
  }
};

// What a CTA notes if it has the second part of an item: the item's rows, and how many parts follow the first one.
struct LatentCut {
  int32_t first_token, first_row, num_rows, num_more;  // num_rows 0: it has not
};

// Rows of a sequence are its pairs (query token, head), the heads innermost; 64 of them are an item. A unit is an
// item's tile of keys. team_size neighbouring CTAs are a team that takes as many items of a sequence at once, so that
// their tiles are read once; it counts as one item. With `splits` all units, those of an item one behind the other, are
// cut into a run for each team (latent_split.h); an item that several teams share leaves partial sums: slot 2 c + 1 if
// CTA c has its first tile, else 2 c. Without, team_size is 1 and CTA c takes the whole items c, c + grid, ...
struct LatentWgmmaKernelParams {
  TensorMap kv;  // [blocks * kv_block_size / 8][9][8][64]; a box is box_keys whole keys
  AttentionLatentKernelParams attention;
  float* partial_sums;   // [2 * grid][64 * 512], LatentSums
  float* partial_stats;  // [2 * grid][64][2] offset, close to the largest score, and sum of 2^(score - offset)
  int32_t* first_unit;   // [num_seqs] units of the sequences before it
  LatentCut* cuts;       // [grid]
  int32_t* split;        // [2] run and reach of LatentSplit
  int32_t box_keys;      // 16, 32 or 64: divides kv_block_size
  int32_t num_ctas;  // a multiple of team_size
  int32_t team_size;
  int32_t splits;
  int32_t reads_early;  // nothing that still runs writes lengths, the block table, or keys but the step's
  uint32_t* arrivals;   // [grid] of an item's parts, at the CTA that has the first one; 0 between kernels
};

}  // namespace spate::cuda
