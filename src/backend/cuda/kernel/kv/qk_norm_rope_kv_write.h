#pragma once

#include <cstdint>

#include "backend/cuda/kernel/kv/kv_layout.h"

namespace spate::cuda {

constexpr int kQkvThreads = 128;
constexpr int kQkvMaxHeadDim = 256;  // a piece of 8 elements a lane of one warp
constexpr int kQkvRotaryUnit = 16;   // rotary_dim is a multiple: the partners of a piece's elements are one piece

// qk_norm_rope_kv_write_many.cu: heads of so many elements, how many lanes they take, and how many heads a thread has.
constexpr int kQkvManyHeadDim = 128, kQkvManyLanes = 16;
constexpr int kQkvManyThreads = 128, kQkvManyHeads = 3;

struct QkNormRopeKvWriteKernelParams {
  void* q;        // [num_tokens, num_heads, head_dim], in-out
  const void* k;  // [num_tokens, num_kv_heads, head_dim]
  const void* v;
  const void* q_norm;  // [head_dim] or null
  const void* k_norm;
  const int32_t* positions;     // [num_tokens]
  const float* cos_sin;         // [max_positions, rotary_dim], rows at multiples of 16 bytes
  const int32_t* slot_mapping;  // [num_tokens], -1: skip
  int64_t q_token_stride;
  int64_t q_head_stride;
  int64_t k_token_stride;
  int64_t k_head_stride;
  int64_t v_token_stride;
  int64_t v_head_stride;
  int64_t cos_sin_stride;
  KvLayout kv;
  int32_t num_heads;
  int32_t rotary_dim;
  int32_t lanes_per_head;  // a power of two: 8 * lanes_per_head >= head_dim
  float eps;
  int32_t is_interleaved;
  int32_t is_aligned;     // every row of q, k, v and the norm weights starts at a multiple of 16 bytes
  int32_t launches_late;  // the next kernel's CTAs may start when this one has its inputs, else with it
  int32_t reads_early;    // nothing that still runs writes positions and slot_mapping
};

}  // namespace spate::cuda
