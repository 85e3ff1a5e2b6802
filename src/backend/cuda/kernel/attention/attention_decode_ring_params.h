// attention_decode_ring*.cu, for host and device.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/attention/attention_decode.h"
#include "backend/cuda/kernel/primitive/tensor_map.h"

namespace spate::cuda {

constexpr int kDecodeRingStages = 2;
constexpr int kDecodeRingMinRun = 16;  // tiles of a CTA at least: fewer cost more to merge than they balance
constexpr int kDecodeRingMinCut = 16;  // tiles of a head tile on both sides of a cut between CTAs

// More bytes in flight are slower; INT8 takes the warps for its arithmetic. Of an INT8 cache only steps of more than
// kDecodeRingFewSeqs sequences, and those that rope, have a merging warp.
constexpr int kDecodeRingFewSeqs = 16;
constexpr int decode_ring_warps(int head_dim) { return 512 / head_dim; }
constexpr int kDecodeRingInt8Warps = 8;

// Stages at a multiple of 1,024 bytes, the sums of the warps, barriers.
constexpr int decode_ring_stage_bytes(int head_dim, bool is_int8) {
  return 2 * kDecodeTileKeys * head_dim * (is_int8 ? 1 : 2) + (is_int8 ? 1024 : 0);
}
constexpr int decode_ring_shared_bytes(int head_dim, bool is_int8, int num_warps, int num_stages = kDecodeRingStages) {
  const int ring_bytes = num_stages * (decode_ring_stage_bytes(head_dim, is_int8) + 8);
  return 1024 + num_warps * (ring_bytes + kDecodeHeadTile * (head_dim + 4 + 2) * 4) + 1024;
}
constexpr int decode_ring_shared_bytes(int head_dim) {
  return decode_ring_shared_bytes(head_dim, false, decode_ring_warps(head_dim));
}
constexpr int decode_ring_int8_shared_bytes(int head_dim) {
  return decode_ring_shared_bytes(head_dim, true, kDecodeRingInt8Warps);
}

// Steps whose attention ropes, over an INT8 cache, but for those that take clusters.
constexpr int kDecodeRopeMinSeqs = 2, kDecodeRopeMaxSeqs = 256;

// Of the kernels that rope: two keys and values of the step besides.
constexpr int decode_rope_shared_bytes(int head_dim) { return decode_ring_int8_shared_bytes(head_dim) + 2048; }

// Steps of few head tiles: a cluster each. One CTA takes an SM, and a cluster lies in one GPC, so of 132 SMs not all
// can be had: an H200 was seen to hold 15 clusters of 8 at once. More would be right, but wait for a second turn.
constexpr int kDecodeClusterCtas = 8;
constexpr int kDecodeMaxClusters = 14;
constexpr int kDecodeClusterMaxKeys = 8192;  // a sequence has more: its head tiles are cut over all SMs
constexpr int decode_cluster_stages(bool is_int8) { return is_int8 ? 2 : 3; }
constexpr int decode_cluster_warps(int head_dim, bool is_int8) {
  return is_int8 ? kDecodeRingInt8Warps : decode_ring_warps(head_dim);
}
constexpr int decode_cluster_shared_bytes(int head_dim, bool is_int8) {
  return decode_ring_shared_bytes(head_dim, is_int8, decode_cluster_warps(head_dim, is_int8),
                                  decode_cluster_stages(is_int8)) +
         kDecodeClusterCtas * (head_dim + 2) * 4;
}

// For the kernels that rope q and k and write the step's keys and values themselves (attention_decode_rope.h). q too is
// as it was before the norm. Every row starts at a multiple of 16 bytes; pairs are halves of a head.
struct DecodeRopeParams {
  const void* k;  // [num_tokens, num_kv_heads, head_dim]
  const void* v;
  const void* q_norm;  // [head_dim] or null
  const void* k_norm;
  const int32_t* positions;     // [num_tokens]
  const float* cos_sin;         // [max_positions, head_dim]
  const int32_t* slot_mapping;  // [num_tokens], -1: no key
  int64_t k_token_stride;
  int64_t k_head_stride;
  int64_t v_token_stride;
  int64_t v_head_stride;
  int64_t cos_sin_stride;
  float eps;
};

struct AttentionDecodeRingParams {
  AttentionPagedKernelParams attention;
  TensorMap kv;        // make_kv_map or make_kv_codes_map: boxes of kDecodeTileKeys
  TensorMap scales;    // of an INT8 cache: make_kv_scales_map
  float* partial;      // of the ring: [2 * grid][8][head_dim] sums, then [2 * grid][8][2] largest score and sum of 2^
  uint32_t* num_done;  // of the ring: [grid] 0; the kernel leaves them so
  // Nothing that still runs writes what is read here but q and the keys of the step's tokens: the others may be read
  // early.
  int32_t reads_early;
  DecodeRopeParams rope;  // of the kernels that rope
};

}  // namespace spate::cuda
