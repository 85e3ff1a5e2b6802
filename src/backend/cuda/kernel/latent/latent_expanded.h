// latent_gather.cu and latent_expanded_wgmma.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/attention/attention_prefill_wgmma.h"
#include "backend/cuda/kernel/latent/latent.h"
#include "backend/cuda/kernel/latent/latent_wgmma.h"

namespace spate::cuda {

// The widths of the kernel.
constexpr int kExpandedNopeDim = 128, kExpandedRopeDim = kLatentWidth - kLatentRank, kExpandedValueDim = 128;
constexpr int kExpandedKeyDim = kExpandedNopeDim + kExpandedRopeDim;
constexpr int kExpandedHeadWidth = kExpandedNopeDim + kExpandedValueDim;  // of a row: what a head has of a key
constexpr int kExpandedQStages = 1;                                       // two do not fit beside two of keys

// Stages at a multiple of 1,024 bytes, then their barriers.
constexpr int kLatentExpandedSharedBytes =
    1024 + (kExpandedQStages * kPrefillWgmmaRows + kPrefillWgmmaStages * kPrefillWgmmaKeys) * kExpandedKeyDim * 2 +
    kPrefillWgmmaStages * (kPrefillWgmmaKeys * kExpandedValueDim * 2 + 6 * 8);

// From so many new tokens of a sequence on. With as many operations a second in both forms it would be 171: 512 * 256
// multiplications to expand a key for a head against 768 that a pair of query and key saves.
constexpr int kExpandedMinQueryLen = 256;

constexpr int kLatentGatherWarps = 8;  // a key each

struct LatentGatherKernelParams {
  void* out;                   // [num_keys, padded width] bf16
  const int32_t* block_table;  // [max_num_seqs, block_table_stride]
  const int32_t* seq_rows;     // [num_seqs]
  const int32_t* seq_lens;     // [num_seqs]
  int64_t block_table_stride;
  LatentLayout kv;
  int32_t num_seqs;
  int32_t num_keys;
  int32_t is_codes;  // of the cache
};

// Keys of all sequences follow each other in the rows of both matrices.
struct LatentExpandedKernelParams {
  AttentionPagedKernelParams attention;  // of the launch's heads; without block tables and cache
  TensorMap q;                           // make_heads_map: boxes of kPrefillWgmmaRows tokens by 1
  TensorMap heads;                       // [num_keys, num_heads * kExpandedHeadWidth], boxes of kPrefillWgmmaKeys
  TensorMap latents;                     // [num_keys, kLatentWidth], boxes of kPrefillWgmmaKeys
  uint32_t* work_counters;               // [2] 0; the kernel leaves them so
  int32_t packed_heads;                  // 1
  int32_t num_head_tiles;                // num_heads
  int32_t section_heads;                 // whose keys and values stay in L2 while all their queries read them
};

}  // namespace spate::cuda
