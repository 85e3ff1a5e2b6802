// WHAT       Attention of one query token a sequence over its paged cache, as attention_paged.cu, for decode: the keys
// of a sequence are
//            shared out over CTAs (attention_decode_*), then their results are merged (attention_decode_combine).
// SHAPES     q, out [num_seqs, num_heads, head_dim] bf16, outer strides free; cache bf16, head_dim 64 or 128,
// kv_block_size a power
//            of two.
// NUMERICS   Dots and sums in fp32 on the tensor core; probabilities are rounded to bf16, their sum is of the rounded
// ones. Each warp
//            keeps a softmax of its own over its tiles of 16 keys; warps, then splits, are merged in order. The number
//            of splits depends on the step's sizes, so a deterministic device does not use this kernel.
// WORK       grid.x sequences, grid.y kv heads times tiles of 8 query heads, grid.z splits; 4 warps. Query heads are
// the rows of
//            operand A. A lane loads 16 bytes of a key: 8 neighbours along head_dim, which are the k of two products (q
//            is read the same way). Of V it loads 8 elements of 4 keys and pairs them byte-wise into operand B, so that
//            nothing goes through shared memory. 16 loads of 16 bytes a lane are in flight.
// ROOFLINE   Bytes of K and V over 4.65 TB/s.
// TESTS      spate-conformance --backend cuda --filter attention_paged
#include "backend/cuda/kernel/attention/attention_decode.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

constexpr int kTile = kDecodeTileKeys, kHeads = kDecodeHeadTile;

// {low half of a, low half of b} and {high half of a, high half of b}.
__device__ inline uint32_t pair_low(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ inline uint32_t pair_high(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

template <int kHeadDim>
__device__ inline void attention_decode(const AttentionDecodeKernelParams& params) {
  constexpr int kChunks = kHeadDim / 32, kSets = kHeadDim / 64;  // of k of a product pair; of 64 columns of V
  __shared__ float warp_acc[kDecodeWarps][kHeads][kHeadDim];
  __shared__ float warp_max[kDecodeWarps][kHeads], warp_sum[kDecodeWarps][kHeads];
  let_dependents_launch();
  wait_for_inputs();
  const AttentionPagedKernelParams& p = params.attention;
  const int seq = blockIdx.x, split = blockIdx.z;
  const int num_head_tiles = (p.heads_per_kv_head + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.y / num_head_tiles, first_in_group = blockIdx.y % num_head_tiles * kHeads;
  const int num_heads_here = min(kHeads, p.heads_per_kv_head - first_in_group);
  const int first_head = kv_head * p.heads_per_kv_head + first_in_group;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, group = lane / 4, pair = lane % 4;

  const int position = p.seq_lens[seq] - 1;
  const int64_t token = p.cu_seqlens_q[seq];
  const bool exists = p.cu_seqlens_q[seq + 1] > token;
  const int window_begin = p.window > 0 ? max(0, position - p.window + 1) : 0;
  const int begin = max(window_begin, split * params.split_keys);
  const int end = exists ? min(position + 1, (split + 1) * params.split_keys) : 0;  // half-open
  const int32_t* blocks = p.block_table + p.seq_rows[seq] * p.block_table_stride;

  // Row `group` of operand A is query head `group`; rows 8 to 15 are zeros.
  uint4 q[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const Bf16* row = static_cast<const Bf16*>(p.q) + token * p.q_token_stride +
                      static_cast<int64_t>(first_head + group) * p.q_head_stride;
    q[c] = exists && group < num_heads_here ? *reinterpret_cast<const uint4*>(row + 32 * c + 8 * pair) : uint4{};
  }

  float acc[kSets][8][4] = {};
  float max_score = -kInfinity, sum = 0.0f;  // of head `group`; the sum of this lane's keys
  const int block_shift = 31 - __clz(p.kv.kv_block_size);
  constexpr int kRowBytes = kHeadDim * static_cast<int>(sizeof(Bf16));
  const int64_t part_bytes = static_cast<int64_t>(p.kv.num_kv_heads) * p.kv.kv_block_size * kRowBytes;  // from k to v
  const char* head =
      static_cast<const char*>(p.kv.data) + static_cast<int64_t>(kv_head) * p.kv.kv_block_size * kRowBytes;
  const auto block_id = [&](int key) { return key < end ? blocks[key >> block_shift] : 0; };
  int tile = begin / kTile + warp;
  int id = block_id(tile * kTile);
  for (; begin < end && tile * kTile < end; tile += kDecodeWarps) {
    const int first_key = tile * kTile;  // a tile lies in one block
    const char* rows = head + id * p.kv.block_bytes + (first_key & (p.kv.kv_block_size - 1)) * kRowBytes;
    id = block_id(first_key + kDecodeWarps * kTile);
    const auto is_seen = [&](int key_in_tile) {
      return first_key + key_in_tile >= begin && first_key + key_in_tile < end;
    };
    const auto load = [&](int64_t part, int key_in_tile, int column) {
      return is_seen(key_in_tile) ? *reinterpret_cast<const uint4*>(rows + part + key_in_tile * kRowBytes + column * 2)
                                  : uint4{};
    };
    uint4 k[2][kChunks], v[4][kSets];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) k[n][c] = load(0, 8 * n + group, 32 * c + 8 * pair);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // keys 2 pair, 2 pair + 1, 2 pair + 8, 2 pair + 9
#pragma unroll
      for (int s = 0; s < kSets; ++s) v[i][s] = load(part_bytes, 2 * pair + i % 2 + i / 2 * 8, 64 * s + 8 * group);
    }

    // Scores of keys 8 n + 2 pair and 8 n + 2 pair + 1.
    float score[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float dot[4] = {};
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint32_t a0[4] = {q[c].x, 0, q[c].y, 0}, a1[4] = {q[c].z, 0, q[c].w, 0};
        const uint32_t b0[2] = {k[n][c].x, k[n][c].y}, b1[2] = {k[n][c].z, k[n][c].w};
        mma_m16n8k16_bf16(dot, a0, b0);
        mma_m16n8k16_bf16(dot, a1, b1);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
        score[n][j] = is_seen(8 * n + 2 * pair + j) ? dot[j] * p.softmax_scale_log2e : -kInfinity;
    }
    float new_max = fmaxf(fmaxf(score[0][0], score[0][1]), fmaxf(score[1][0], score[1][1]));
    new_max = fmaxf(new_max, shuffle_xor(new_max, 1));
    new_max = fmaxf(max_score, fmaxf(new_max, shuffle_xor(new_max, 2)));
    const uint32_t prob0 = pack_bf16(exp2f(score[0][0] - new_max), exp2f(score[0][1] - new_max));
    const uint32_t prob1 = pack_bf16(exp2f(score[1][0] - new_max), exp2f(score[1][1] - new_max));
    const float shrink = exp2f(max_score - new_max);
    sum = sum * shrink + (low_float(prob0) + high_float(prob0)) + (low_float(prob1) + high_float(prob1));
    max_score = new_max;

    const uint32_t a[4] = {prob0, 0, prob1, 0};
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      const uint32_t words[4][4] = {{v[0][s].x, v[0][s].y, v[0][s].z, v[0][s].w},
                                    {v[1][s].x, v[1][s].y, v[1][s].z, v[1][s].w},
                                    {v[2][s].x, v[2][s].y, v[2][s].z, v[2][s].w},
                                    {v[3][s].x, v[3][s].y, v[3][s].z, v[3][s].w}};
#pragma unroll
      for (int j = 0; j < 8; ++j) {  // columns 64 s + 8 n + j, n = 0 .. 7
        acc[s][j][0] *= shrink;
        acc[s][j][1] *= shrink;
        const int w = j / 2;
        const uint32_t b[2] = {j % 2 == 0 ? pair_low(words[0][w], words[1][w]) : pair_high(words[0][w], words[1][w]),
                               j % 2 == 0 ? pair_low(words[2][w], words[3][w]) : pair_high(words[2][w], words[3][w])};
        mma_m16n8k16_bf16(acc[s][j], a, b);
      }
    }
  }

  sum += shuffle_xor(sum, 1);
  sum += shuffle_xor(sum, 2);
  if (pair == 0) {
    warp_max[warp][group] = max_score;
    warp_sum[warp][group] = sum;
  }
#pragma unroll
  for (int s = 0; s < kSets; ++s) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      warp_acc[warp][group][64 * s + 16 * pair + j] = acc[s][j][0];
      warp_acc[warp][group][64 * s + 16 * pair + 8 + j] = acc[s][j][1];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_heads_here * kHeadDim; i += kDecodeWarps * kWarpSize) {
    const int h = i / kHeadDim, d = i % kHeadDim;
    float total_max = warp_max[0][h];
    for (int w = 1; w < kDecodeWarps; ++w) total_max = fmaxf(total_max, warp_max[w][h]);
    float total_sum = 0.0f, total = 0.0f;
    for (int w = 0; w < kDecodeWarps; ++w) {
      if (warp_max[w][h] == -kInfinity) continue;  // a warp without keys
      const float weight = exp2f(warp_max[w][h] - total_max);
      total_sum = __fmaf_rn(warp_sum[w][h], weight, total_sum);
      total = __fmaf_rn(warp_acc[w][h][d], weight, total);
    }
    if (params.num_splits == 1) {
      if (!exists) continue;
      Bf16* out = static_cast<Bf16*>(p.out) + token * p.out_token_stride +
                  static_cast<int64_t>(first_head + h) * p.out_head_stride;
      out[d] = from_float<Bf16>(total / total_sum);
      continue;
    }
    float* partial =
        params.partial +
        ((static_cast<int64_t>(seq) * params.num_heads + first_head + h) * params.num_splits + split) * (kHeadDim + 2);
    partial[d] = total;
    if (d == 0) {
      partial[kHeadDim] = total_max;
      partial[kHeadDim + 1] = total_sum;
    }
  }
}

// grid.x sequences, grid.y heads; a thread an element.
extern "C" __global__ void __launch_bounds__(128)
    attention_decode_combine(const __grid_constant__ AttentionDecodeKernelParams params) {
  let_dependents_launch();
  wait_for_inputs();
  const AttentionPagedKernelParams& p = params.attention;
  const int seq = blockIdx.x, head = blockIdx.y, head_dim = p.kv.head_dim;
  const int64_t token = p.cu_seqlens_q[seq];
  if (p.cu_seqlens_q[seq + 1] <= token) return;
  const float* partial =
      params.partial + (static_cast<int64_t>(seq) * params.num_heads + head) * params.num_splits * (head_dim + 2);
  float total_max = -kInfinity;
  for (int s = 0; s < params.num_splits; ++s) total_max = fmaxf(total_max, partial[s * (head_dim + 2) + head_dim]);
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float total_sum = 0.0f, total = 0.0f;
    for (int s = 0; s < params.num_splits; ++s) {
      const float* part = partial + s * (head_dim + 2);
      if (part[head_dim] == -kInfinity) continue;  // a split without keys
      const float weight = exp2f(part[head_dim] - total_max);
      total_sum = __fmaf_rn(part[head_dim + 1], weight, total_sum);
      total = __fmaf_rn(part[d], weight, total);
    }
    Bf16* out = static_cast<Bf16*>(p.out) + token * p.out_token_stride + head * p.out_head_stride;
    out[d] = from_float<Bf16>(total / total_sum);
  }
}

// 2 CTAs an SM: 3 spill and are 2 to 30 % slower on an H200, but for 128 sequences and more (3 % faster).
extern "C" __global__ void __launch_bounds__(kDecodeWarps* kWarpSize, 2)
    attention_decode_d64(const __grid_constant__ AttentionDecodeKernelParams p) {
  attention_decode<64>(p);
}
extern "C" __global__ void __launch_bounds__(kDecodeWarps* kWarpSize, 2)
    attention_decode_d128(const __grid_constant__ AttentionDecodeKernelParams p) {
  attention_decode<128>(p);
}

}  // namespace spate::cuda
