// WHAT       out[h] = sum over keys of softmax(softmax_scale * (q_latent[h] . c + q_rope[h] . r)) c for every query
//            token over its sequence in the latent cache, causal; any mix of query lengths.
// SHAPES     As AttentionLatentKernelParams says.
// LAYOUT     latent.h.
// NUMERICS   Dots, softmax and sums in fp32; probabilities are not rounded. Online softmax over tiles of 32 keys that
//            start at absolute positions 0, 32, 64, ...; warp w takes tiles w, w + 4, ..., and the warps merge in
//            order. So a query's bits depend on its own position and keys only, never on the batch or on how the prompt
//            was chunked.
// WORK       grid.x query tokens, grid.y tiles of 2 heads; 4 warps. Scores: a lane is a key. Values: a lane has elements
//            lane, lane + 32, ... of the latent vector.
// ROOFLINE   Not tuned: for dtypes and widths that latent_decode.cu cannot take, and for deterministic devices.
// WARM       0.4 s: deterministic, latent; older, latent; f32, latent
// LIMITS     kv_lora_rank <= 512, with qk_rope_head_dim <= 640.
// TESTS      spate-conformance --backend cuda --filter attention_latent
#include "backend/cuda/kernel/latent/latent.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/codes.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

constexpr int kTileKeys = kWarpSize;
constexpr int kVec = kHeadDimUnit;  // elements of a key that are read at once
constexpr int kHeads = kLatentHeadTile;
constexpr int kWarps = kLatentWarps;
constexpr int kElems = kLatentMaxRank / kWarpSize;

// The softmax so far of the tiles one warp has seen: sum of c * 2^(score - max) and of 2^(score - max).
struct SharedMemory {
  float q[kHeads][kLatentMaxWidth];  // zero beyond the width
  float acc[kWarps][kHeads][kLatentMaxRank];
  float max[kWarps][kHeads];
  float sum[kWarps][kHeads];
};

// The last sequence that starts at or before a token.
__device__ inline int find_seq(const AttentionLatentKernelParams& p, int token) {
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

template <typename Act, typename Kv>
__device__ inline void attention_latent(const AttentionLatentKernelParams& p) {
  __shared__ SharedMemory smem;
  let_dependents_launch();
  wait_for_inputs();
  const int token = blockIdx.x, first_head = blockIdx.y * kHeads;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int seq = find_seq(p, token);
  const int first_token = p.cu_seqlens_q[seq], end_token = p.cu_seqlens_q[seq + 1];
  if (token >= end_token || p.seq_lens[seq] == 0) return;  // a dummy
  const int position = p.seq_lens[seq] - (end_token - first_token) + (token - first_token);
  const int32_t* blocks = p.block_table + p.seq_rows[seq] * p.block_table_stride;
  const int rank = p.kv.kv_lora_rank;

  // Phase 1: q to shared memory as fp32, heads and elements that do not exist as zeros.
  for (int i = threadIdx.x; i < kHeads * kLatentMaxWidth; i += blockDim.x) {
    const int h = i / kLatentMaxWidth, d = i % kLatentMaxWidth;
    const int64_t head = first_head + h;
    float value = 0.0f;
    if (head < p.num_heads && d < p.kv.width) {
      const Act* latent = static_cast<const Act*>(p.q_latent) + token * p.q_latent_strides[0] + head * p.q_latent_strides[1];
      const Act* rope = static_cast<const Act*>(p.q_rope) + token * p.q_rope_strides[0] + head * p.q_rope_strides[1];
      value = to_float(d < rank ? latent[d] : rope[d - rank]);
    }
    smem.q[h][d] = value;
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
  // Of codes: what the compressed and the rotated elements of a key are multiplied with.
  const auto scales_of = [&](int key) {
    if constexpr (sizeof(Kv) > 1) return make_float2(1.0f, 1.0f);
    char* block = static_cast<char*>(p.kv.data) + blocks[key / p.kv.kv_block_size] * p.kv.block_bytes;
    const float* scales = p.kv.scales(block, key % p.kv.kv_block_size);
    return make_float2(scales[0], scales[1]);
  };
  const auto row_of = [&](int key) {
    const char* block = static_cast<const char*>(p.kv.data) + blocks[key / p.kv.kv_block_size] * p.kv.block_bytes;
    return reinterpret_cast<const Kv*>(block) + key % p.kv.kv_block_size * p.kv.padded_width;
  };
  for (int tile = warp; tile <= position / kTileKeys; tile += kWarps) {
    const int key = tile * kTileKeys + lane;
    const bool is_seen = key <= position;
    float score[kHeads] = {};
    if (is_seen) {
      const Kv* row = row_of(key);
      const float2 scales = scales_of(key);
      for (int d = 0; d < p.kv.padded_width; d += kVec) {
        const Vec<Kv, kVec> k = *reinterpret_cast<const Vec<Kv, kVec>*>(row + d);
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          float k_value = to_float(k.elems[j]);
          if constexpr (sizeof(Kv) == 1) k_value *= d + j < rank ? scales.x : scales.y;
#pragma unroll
          for (int h = 0; h < kHeads; ++h) score[h] = __fmaf_rn(smem.q[h][d + j], k_value, score[h]);
        }
      }
    }
    float prob[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float scaled = is_seen ? score[h] * p.softmax_scale_log2e : -kInfinity;
      const float new_max = fmaxf(max_score[h], warp_reduce(scaled, Max()));
      const float shrink = exp2f(max_score[h] - new_max);
      prob[h] = exp2f(scaled - new_max);
      sum[h] = sum[h] * shrink + warp_reduce(prob[h], Sum());
      max_score[h] = new_max;
#pragma unroll
      for (int e = 0; e < kElems; ++e) acc[h][e] *= shrink;
    }
    const int num_keys = min(kTileKeys, position + 1 - tile * kTileKeys);
    for (int i = 0; i < num_keys; ++i) {
      const Kv* row = row_of(tile * kTileKeys + i);
      const float scale = scales_of(tile * kTileKeys + i).x;
      float key_prob[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) key_prob[h] = __shfl_sync(0xffffffffu, prob[h], i);
#pragma unroll
      for (int e = 0; e < kElems; ++e) {
        const int d = e * kWarpSize + lane;
        float value = d < rank ? to_float(row[d]) : 0.0f;
        if constexpr (sizeof(Kv) == 1) value *= scale;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) acc[h][e] = __fmaf_rn(key_prob[h], value, acc[h][e]);
      }
    }
  }

  // Phase 3: the warps merge in order.
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int e = 0; e < kElems; ++e) smem.acc[warp][h][e * kWarpSize + lane] = acc[h][e];
    if (lane == 0) {
      smem.max[warp][h] = max_score[h];
      smem.sum[warp][h] = sum[h];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kHeads * rank; i += blockDim.x) {
    const int h = i / rank, d = i % rank;
    const int64_t head = first_head + h;
    if (head >= p.num_heads) break;
    float largest = -kInfinity, total = 0.0f, value = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, smem.max[w][h]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2f(smem.max[w][h] - largest);
      total += weight * smem.sum[w][h];
      value += weight * smem.acc[w][h][d];
    }
    Act* out = static_cast<Act*>(p.out) + token * p.out_strides[0] + head * p.out_strides[1];
    out[d] = from_float<Act>(value / total);
  }
}

extern "C" __global__ void __launch_bounds__(kWarps* kWarpSize)
    attention_latent_bf16_bf16(const __grid_constant__ AttentionLatentKernelParams p) {
  attention_latent<Bf16, Bf16>(p);
}
extern "C" __global__ void __launch_bounds__(kWarps* kWarpSize)
    attention_latent_f32_bf16(const __grid_constant__ AttentionLatentKernelParams p) {
  attention_latent<float, Bf16>(p);
}
extern "C" __global__ void __launch_bounds__(kWarps* kWarpSize)
    attention_latent_f32_f32(const __grid_constant__ AttentionLatentKernelParams p) {
  attention_latent<float, float>(p);
}
extern "C" __global__ void __launch_bounds__(kWarps* kWarpSize)
    attention_latent_bf16_int8(const __grid_constant__ AttentionLatentKernelParams p) {
  attention_latent<Bf16, int8_t>(p);
}
extern "C" __global__ void __launch_bounds__(kWarps* kWarpSize)
    attention_latent_f32_int8(const __grid_constant__ AttentionLatentKernelParams p) {
  attention_latent<float, int8_t>(p);
}

}  // namespace spate::cuda
