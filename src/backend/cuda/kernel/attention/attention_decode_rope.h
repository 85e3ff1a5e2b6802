// Decode attention that makes the step's keys itself (kRopes of a format): rms_norm and rope of q, k and v to the
// cache.
//
// Each warp ropes its own copy of q. The warp that adds makes k and v of the step's token of a head while the others
// multiply, writes them to the cache and to shared memory. From there they go into the tile that the last key is of.
// What a format must have then:
//
//   rope(rope, token)             of Query: after fetch(), before prepare()
//   Fresh                         a key and its value in shared memory, and whether there are such (`exists`)
//   put(fresh, params, part, l, words, place)
//                                 lane l's 4 columns of k or v, to shared memory and to the cache
//   take(stage, key, fresh)       copies both to row `key` of a tile; all lanes call it
#pragma once

#include "backend/cuda/kernel/attention/attention_decode_ring_params.h"
#include "backend/cuda/kernel/attention/attention_decode_tile.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

// rms_norm, if there is a norm, and rope of a head. Word i of a lane has columns column_of(i) and the next; the pairs
// of those of the first half of the words are the same words of the second half, kHeadDim / 2 columns behind. All lanes
// call it.
template <int kHeadDim, int kWords, typename ColumnOf>
__device__ inline void norm_and_rope(uint32_t (&words)[kWords], const DecodeRopeParams& rope, const void* norm,
                                     int token, ColumnOf column_of) {
  constexpr int kLanes = kHeadDim / (2 * kWords), kHalf = kWords / 2;
  const float* angles = rope.cos_sin + rope.positions[token] * rope.cos_sin_stride;
  float2 cos[kHalf], sin[kHalf];
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    cos[i] = *reinterpret_cast<const float2*>(angles + column_of(i));
    sin[i] = *reinterpret_cast<const float2*>(angles + kHeadDim / 2 + column_of(i));
  }
  if (norm != nullptr) {
    uint32_t weight[kWords];
    float sum_of_squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      weight[i] = *reinterpret_cast<const uint32_t*>(static_cast<const Bf16*>(norm) + column_of(i));
      sum_of_squares = __fmaf_rn(low_float(words[i]), low_float(words[i]), sum_of_squares);
      sum_of_squares = __fmaf_rn(high_float(words[i]), high_float(words[i]), sum_of_squares);
    }
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) sum_of_squares += shuffle_xor(sum_of_squares, mask);
    const float inv_rms = inv_rms_of(sum_of_squares, kHeadDim, rope.eps);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = pack_bf16(round_to<Bf16>(low_float(words[i]) * inv_rms) * low_float(weight[i]),
                           round_to<Bf16>(high_float(words[i]) * inv_rms) * high_float(weight[i]));
    }
  }
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float first[2] = {low_float(words[i]), high_float(words[i])};
    const float second[2] = {low_float(words[kHalf + i]), high_float(words[kHalf + i])};
    words[i] = pack_bf16(first[0] * cos[i].x - second[0] * sin[i].x, first[1] * cos[i].y - second[1] * sin[i].y);
    words[kHalf + i] =
        pack_bf16(second[0] * cos[i].x + first[0] * sin[i].x, second[1] * cos[i].y + first[1] * sin[i].y);
  }
}

// Brings to L2 what a CTA's first rope reads. One warp; where the step's inputs may be read before they are waited for.
template <int kHeadDim>
__device__ inline void prefetch_rope(const DecodeRopeParams& rope, int token) {
  constexpr int kLineFloats = 32;
  const int lane = threadIdx.x % kWarpSize;
  const float* angles = rope.cos_sin + rope.positions[token] * rope.cos_sin_stride;
  if (lane < kHeadDim / kLineFloats) prefetch_line(angles + lane * kLineFloats);
  if (lane == 30 && rope.k_norm != nullptr) prefetch_line(rope.k_norm);
  if (lane == 31 && rope.q_norm != nullptr) prefetch_line(rope.q_norm);
  if (lane == 29) prefetch_line(rope.slot_mapping + token);
}

// Where the step's token of a sequence goes in the cache.
struct FreshPlace {
  int kv_head, slot;
  bool is_written;  // by this CTA
};

// Makes k and v of a token and a kv head. One warp.
template <typename Format>
__device__ inline void make_fresh(typename Format::Fresh& fresh, const AttentionDecodeRingParams& params, int token,
                                  int kv_head, bool is_first_of_kv_head) {
  constexpr int kHeadDim = Format::kHeadDim, kLanes = kHeadDim / 4;
  const DecodeRopeParams& rope = params.rope;
  const int l = static_cast<int>(threadIdx.x) % kLanes;
  const int slot = rope.slot_mapping[token];
  const FreshPlace place{kv_head, slot, slot >= 0 && is_first_of_kv_head};
  uint32_t words[2][2];  // of k and v: columns 2 l and the next, and those kHeadDim / 2 behind them
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const Bf16* row = static_cast<const Bf16*>(part == 0 ? rope.k : rope.v) +
                      token * (part == 0 ? rope.k_token_stride : rope.v_token_stride) +
                      kv_head * (part == 0 ? rope.k_head_stride : rope.v_head_stride);
#pragma unroll
    for (int i = 0; i < 2; ++i) words[part][i] = *reinterpret_cast<const uint32_t*>(row + kHeadDim / 2 * i + 2 * l);
  }
  norm_and_rope<kHeadDim>(words[0], rope, rope.k_norm, token, [&](int i) { return kHeadDim / 2 * i + 2 * l; });
  if (threadIdx.x % kWarpSize == 0) fresh.exists = slot >= 0;
#pragma unroll
  for (int part = 0; part < 2; ++part) Format::put(fresh, params, part, l, words[part], place);
}

}  // namespace spate::cuda
