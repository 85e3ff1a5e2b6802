// latent_short.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/latent/latent_wgmma.h"

namespace spate::cuda {

constexpr int kLatentShortCtas = 8;      // of a cluster
constexpr int kLatentShortBoxKeys = 16;  // of a copy
constexpr int kLatentShortKeys = 80;     // of a CTA, at most
constexpr int kLatentShortThreads = 256;
constexpr int kLatentShortKeysBytes = kLatentShortKeys * kLatentWidth * 2;
// Room for q; over it sums of 8 rows from each CTA as f16, half of this.
constexpr int kLatentShortSumsBytes = kLatentRows * kLatentRank * 4;
// Keys; q and the sums; stats of all CTAs; the two warpgroups' largest scores and sums; barriers.
constexpr int kLatentShortStatsBytes = kLatentShortCtas * kLatentRows * 8;
constexpr int kLatentShortSharedBytes =
    kLatentShortKeysBytes + kLatentShortSumsBytes + kLatentShortStatsBytes + 2 * kLatentRows * 8 + 128;
constexpr int kLatentShortCombineWarps = 4;

// Few sequences of one query token and few keys: a cluster has an item (64 rows) and one of num_parts runs of its keys.
struct LatentShortKernelParams {
  TensorMap kv;  // as LatentWgmmaKernelParams, boxes of 16 keys
  AttentionLatentKernelParams attention;
  float* partial_sums;   // [num_seqs, num_items, num_parts][8 of eight rows][2][16][32] quads of four columns
  float* partial_stats;  // [num_seqs, num_items, num_parts][64][2] the largest score, the sum of 2^(score - it)
  int32_t num_items;     // of a sequence
  int32_t num_parts;
  int32_t reads_early;  // nothing that still runs writes lengths, the block table, or keys but the step's
};

}  // namespace spate::cuda
