// WHAT       out = softmax(q K^T * softmax_scale) V for every query token over its sequence in the paged cache, causal,
//            with an optional window; any mix of query lengths.
// SHAPES     q, out [num_tokens, num_heads, head_dim] act, outer strides free; block_table [max_num_seqs, ...] i32;
//            seq_rows, seq_lens [num_seqs], cu_seqlens_q [num_seqs + 1] i32.
// LAYOUT     The cache as kv_layout.h says.
// NUMERICS   Dots, softmax and sums in fp32; probabilities are not rounded. Online softmax over tiles of 32 keys that
//            start at absolute positions 0, 32, 64, ...; warp w takes tiles w, w + 4, ..., and the warps merge in
//            order. So a query's bits depend on its own position and keys only, never on the batch or on how the prompt
//            was chunked.
// WORK       grid.x query tokens, grid.y kv heads times tiles of 4 query heads; 4 warps. Scores: a lane is a key.
//            Values: a lane is kElems neighbouring elements of the head.
// ROOFLINE   Decode: bytes of K and V once a tile of 4 heads. Prefill re-reads K and V for each token from L2, about
//            4 bytes * head_dim * seq_len / 2 a token and kv head: not tuned, correct first.
// WARM       2.2 s: deterministic, heads; f32, heads; other-heads
// LIMITS     head_dim <= 256.
// TESTS      spate-conformance --backend cuda --filter attention_paged
#include "backend/cuda/kernel/attention/attention_paged.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/codes.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

constexpr int kTileKeys = kWarpSize;
constexpr int kDotVec = kHeadDimUnit;  // elements of a key that are read at once
constexpr int kHeads = kAttentionHeadTile;
constexpr int kWarps = kAttentionNumWarps;

// The softmax so far of the tiles one warp has seen: sum of v * 2^(score - max) and of 2^(score - max).
template <int kHeadDim>
struct SharedMemory {
  float q[kHeads][kHeadDim];  // zero beyond head_dim
  float acc[kWarps][kHeads][kHeadDim];
  float max[kWarps][kHeads];
  float sum[kWarps][kHeads];
};

// The last sequence that starts at or before a token.
__device__ inline int find_seq(const AttentionPagedKernelParams& p, int token) {
  int low = 0, high = p.num_seqs - 1;
  while (low < high) {
    const int mid = (low + high + 1) / 2;
    if (p.cu_seqlens_q[mid] <= token) {
      low = mid;
    } else {
      high = mid - 1;
    }
  }
  return low;
}

template <typename Act, typename Kv, int kElems>
__device__ inline void attention_paged(const AttentionPagedKernelParams& p) {
  __shared__ SharedMemory<kElems * kWarpSize> smem;
  let_dependents_launch();
  wait_for_inputs();
  const int token = blockIdx.x;
  const int num_head_tiles = (p.heads_per_kv_head + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.y / num_head_tiles;
  const int first_in_group = blockIdx.y % num_head_tiles * kHeads;
  const int num_heads_here = min(kHeads, p.heads_per_kv_head - first_in_group);
  const int64_t first_head = static_cast<int64_t>(kv_head) * p.heads_per_kv_head + first_in_group;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;

  const int seq = find_seq(p, token);
  const int first_token = p.cu_seqlens_q[seq], end_token = p.cu_seqlens_q[seq + 1];
  if (token >= end_token || p.seq_lens[seq] == 0) return;  // a dummy
  const int position = p.seq_lens[seq] - (end_token - first_token) + (token - first_token);
  const int first_key = p.window > 0 ? max(0, position - p.window + 1) : 0;
  const int32_t* blocks = p.block_table + p.seq_rows[seq] * p.block_table_stride;

  // Phase 1: q to shared memory as fp32, heads and elements that do not exist as zeros.
  for (int i = threadIdx.x; i < kHeads * kElems * kWarpSize; i += blockDim.x) {
    const int head = i / (kElems * kWarpSize), d = i % (kElems * kWarpSize);
    const bool exists = head < num_heads_here && d < p.kv.head_dim;
    const Act* q = static_cast<const Act*>(p.q) + token * p.q_token_stride + (first_head + head) * p.q_head_stride;
    smem.q[head][d] = exists ? to_float(q[d]) : 0.0f;
  }
  __syncthreads();

  // Phase 2: each warp over its tiles of keys.
  float max_score[kHeads], sum[kHeads], acc[kHeads][kElems];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    max_score[h] = -kInfinity;
    sum[h] = 0.0f;
#pragma unroll
    for (int e = 0; e < kElems; ++e) acc[h][e] = 0.0f;
  }
  const bool has_elems = lane * kElems < p.kv.padded_head_dim;
  for (int tile = first_key / kTileKeys; tile <= position / kTileKeys; ++tile) {
    if (tile % kWarps != warp) continue;
    const int key = tile * kTileKeys + lane;
    const bool is_seen = key >= first_key && key <= position;
    const Kv* k_row = nullptr;
    const Kv* v_row = nullptr;
    float k_scale = 1.0f, v_scale = 1.0f;  // of codes
    if (is_seen) {
      const int block_id = blocks[key / p.kv.kv_block_size];
      const char* block = static_cast<const char*>(p.kv.data) + block_id * p.kv.block_bytes;
      k_row = reinterpret_cast<const Kv*>(block) + p.kv.row_offset(0, kv_head, key % p.kv.kv_block_size);
      v_row = reinterpret_cast<const Kv*>(block) + p.kv.row_offset(1, kv_head, key % p.kv.kv_block_size);
      if constexpr (sizeof(Kv) == 1) {
        k_scale = p.kv.scales(block_id)[p.kv.scale_idx(0, kv_head, key % p.kv.kv_block_size)];
        v_scale = p.kv.scales(block_id)[p.kv.scale_idx(1, kv_head, key % p.kv.kv_block_size)];
      }
    }

    float score[kHeads] = {};
    for (int d = 0; is_seen && d < p.kv.padded_head_dim; d += kDotVec) {
      const Vec<Kv, kDotVec> k = *reinterpret_cast<const Vec<Kv, kDotVec>*>(k_row + d);
#pragma unroll
      for (int j = 0; j < kDotVec; ++j) {
        const float k_value = to_float(k.elems[j]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) score[h] = __fmaf_rn(smem.q[h][d + j], k_value, score[h]);
      }
    }

    float prob[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if constexpr (sizeof(Kv) == 1) score[h] *= k_scale;
      const float scaled = is_seen ? score[h] * p.softmax_scale_log2e : -kInfinity;
      const float new_max = fmaxf(max_score[h], warp_reduce(scaled, Max()));
      const float shrink = exp2f(max_score[h] - new_max);
      prob[h] = exp2f(scaled - new_max);
      sum[h] = sum[h] * shrink + warp_reduce(prob[h], Sum());
      if constexpr (sizeof(Kv) == 1) prob[h] = is_seen ? prob[h] * v_scale : 0.0f;
      max_score[h] = new_max;
#pragma unroll
      for (int e = 0; e < kElems; ++e) acc[h][e] *= shrink;
    }

    const int first_in_tile = max(first_key - tile * kTileKeys, 0);
    const int last_in_tile = min(position - tile * kTileKeys, kTileKeys - 1);
    for (int j = first_in_tile; j <= last_in_tile; ++j) {
      const Kv* v =
          reinterpret_cast<const Kv*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(v_row), j));
      float prob_j[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) prob_j[h] = __shfl_sync(0xffffffffu, prob[h], j);
      if (!has_elems) continue;
      const Vec<Kv, kElems> values = *reinterpret_cast<const Vec<Kv, kElems>*>(v + lane * kElems);
#pragma unroll
      for (int e = 0; e < kElems; ++e) {
        const float value = to_float(values.elems[e]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) acc[h][e] = __fmaf_rn(prob_j[h], value, acc[h][e]);
      }
    }
  }

  // Phase 3: the warps' parts to shared memory, then merged in the order of the warps.
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (lane == 0) {
      smem.max[warp][h] = max_score[h];
      smem.sum[warp][h] = sum[h];
    }
#pragma unroll
    for (int e = 0; e < kElems; ++e) smem.acc[warp][h][lane * kElems + e] = acc[h][e];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_heads_here * p.kv.head_dim; i += blockDim.x) {
    const int head = i / p.kv.head_dim, d = i % p.kv.head_dim;
    float total_max = smem.max[0][head];
    for (int w = 1; w < kWarps; ++w) total_max = fmaxf(total_max, smem.max[w][head]);
    float total_sum = 0.0f, total_acc = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2f(smem.max[w][head] - total_max);
      total_sum = __fmaf_rn(smem.sum[w][head], weight, total_sum);
      total_acc = __fmaf_rn(smem.acc[w][head][d], weight, total_acc);
    }
    Act* out = static_cast<Act*>(p.out) + token * p.out_token_stride + (first_head + head) * p.out_head_stride;
    out[d] = from_float<Act>(total_acc / total_sum);
  }
}

// One kernel for each pair of dtypes and each width of a head, rounded up to 64, 128 or 256.
#define SPATE_ATTENTION_KERNEL(name, Act, Kv, elems)                                 \
  extern "C" __global__ void __launch_bounds__(kWarps* kWarpSize)                    \
      attention_paged_##name(const __grid_constant__ AttentionPagedKernelParams p) { \
    attention_paged<Act, Kv, elems>(p);                                              \
  }
SPATE_ATTENTION_KERNEL(bf16_bf16_d64, Bf16, Bf16, 2)
SPATE_ATTENTION_KERNEL(bf16_bf16_d128, Bf16, Bf16, 4)
SPATE_ATTENTION_KERNEL(bf16_bf16_d256, Bf16, Bf16, 8)
SPATE_ATTENTION_KERNEL(f32_bf16_d64, float, Bf16, 2)
SPATE_ATTENTION_KERNEL(f32_bf16_d128, float, Bf16, 4)
SPATE_ATTENTION_KERNEL(f32_bf16_d256, float, Bf16, 8)
SPATE_ATTENTION_KERNEL(f32_f32_d64, float, float, 2)
SPATE_ATTENTION_KERNEL(f32_f32_d128, float, float, 4)
SPATE_ATTENTION_KERNEL(f32_f32_d256, float, float, 8)
SPATE_ATTENTION_KERNEL(bf16_int8_d64, Bf16, int8_t, 2)
SPATE_ATTENTION_KERNEL(bf16_int8_d128, Bf16, int8_t, 4)
SPATE_ATTENTION_KERNEL(bf16_int8_d256, Bf16, int8_t, 8)
SPATE_ATTENTION_KERNEL(f32_int8_d64, float, int8_t, 2)
SPATE_ATTENTION_KERNEL(f32_int8_d128, float, int8_t, 4)
SPATE_ATTENTION_KERNEL(f32_int8_d256, float, int8_t, 8)

}  // namespace spate::cuda
