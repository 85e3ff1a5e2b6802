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
// WORK       grid.x items (a sequence's keys or a part of them), grid.y kv heads times tiles of 8 query heads; 4 warps.
// Query heads are the rows of
//            operand A. A lane loads 16 bytes of a key: 8 neighbours along head_dim, which are the k of two products (q
//            is read the same way). Of V it loads 8 elements of 4 keys and pairs them byte-wise into operand B, so that
//            nothing goes through shared memory. 16 loads of 16 bytes a lane are in flight.
// ROOFLINE   Bytes of K and V over 4.65 TB/s.
// WARM       0.5 s: fast, older, head-64; fast, older, head-128
// TESTS      spate-conformance --backend cuda --filter attention_paged
#include "backend/cuda/kernel/attention/attention_decode_work.h"

namespace spate::cuda {

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
  const Item item = find_item(params, static_cast<int>(blockIdx.x));
  const int seq = item.seq;
  if (seq < 0) return;
  const int num_head_tiles = (p.heads_per_kv_head + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.y / num_head_tiles, first_in_group = blockIdx.y % num_head_tiles * kHeads;
  const int num_heads_here = min(kHeads, p.heads_per_kv_head - first_in_group);
  const int first_head = kv_head * p.heads_per_kv_head + first_in_group;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, group = lane / 4, pair = lane % 4;

  const int64_t token = p.cu_seqlens_q[seq];
  const KeyRange keys = seen_keys(p, seq);
  const bool exists = keys.end > 0;
  constexpr int kSplitUnit = kDecodeWarps * kTile;
  const int split_units = (keys.end - keys.begin + kSplitUnit * item.num_splits - 1) / (kSplitUnit * item.num_splits);
  const int window_begin = p.window > 0 ? max(0, keys.end - p.window) : 0;
  const int split_begin = keys.begin + item.split * split_units * kSplitUnit;
  const int begin = max(window_begin, split_begin), end = min(keys.end, split_begin + split_units * kSplitUnit);
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
    if (item.num_splits == 1) {
      if (!exists) continue;
      Bf16* out = static_cast<Bf16*>(p.out) + token * p.out_token_stride +
                  static_cast<int64_t>(first_head + h) * p.out_head_stride;
      out[d] = from_float<Bf16>(total / total_sum);
      continue;
    }
    float* partial =
        params.partial + (static_cast<int64_t>(blockIdx.x) * params.num_heads + first_head + h) * (kHeadDim + 2);
    partial[d] = total;
    if (d == 0) {
      partial[kHeadDim] = total_max;
      partial[kHeadDim + 1] = total_sum;
    }
  }
}

// grid.x sequences, grid.y runs of kCombineWarps heads, a warp each; a lane has two neighbours in 64 columns.
extern "C" __global__ void __launch_bounds__(kCombineWarps* kWarpSize)
    attention_decode_combine(const __grid_constant__ AttentionDecodeKernelParams params) {
  let_dependents_launch();
  wait_for_inputs();
  const AttentionPagedKernelParams& p = params.attention;
  const int seq = blockIdx.x, lane = threadIdx.x % kWarpSize, head_dim = p.kv.head_dim;
  const int head = blockIdx.y * kCombineWarps + threadIdx.x / kWarpSize;
  const int num_splits = params.first_item[p.num_seqs + seq];
  if (num_splits == 1 || head >= params.num_heads) return;  // one split is in `out` already
  const int64_t row = head_dim + 2, item_floats = params.num_heads * row;
  const float* partial = params.partial + params.first_item[seq] * item_floats + head * row;
  float total_max = -kInfinity;
  for (int s = lane; s < num_splits; s += kWarpSize) {
    total_max = fmaxf(total_max, partial[s * item_floats + head_dim]);
  }
  total_max = warp_reduce(total_max, Max());
  float total_sum = 0.0f;
  float2 totals[2] = {};
  for (int first = 0; first < num_splits; first += kWarpSize) {
    float weight = 0.0f;
    if (first + lane < num_splits) {
      const float* part = partial + (first + lane) * item_floats;
      weight = exp2f(part[head_dim] - total_max);  // 0 of a split without keys
      total_sum = __fmaf_rn(part[head_dim + 1], weight, total_sum);
    }
    const int count = min(kWarpSize, num_splits - first);
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      const float split_weight = __shfl_sync(0xffffffffu, weight, i);
      const float* part = partial + (first + i) * item_floats + 2 * lane;
#pragma unroll
      for (int set = 0; set < 2; ++set) {
        if (64 * set >= head_dim) break;
        const float2 values = *reinterpret_cast<const float2*>(part + 64 * set);
        totals[set].x = __fmaf_rn(values.x, split_weight, totals[set].x);
        totals[set].y = __fmaf_rn(values.y, split_weight, totals[set].y);
      }
    }
  }
  total_sum = warp_reduce(total_sum, Sum());
  Bf16* out = static_cast<Bf16*>(p.out) + p.cu_seqlens_q[seq] * p.out_token_stride + head * p.out_head_stride;
#pragma unroll
  for (int set = 0; set < 2; ++set) {
    if (64 * set >= head_dim) break;
    *reinterpret_cast<uint32_t*>(out + 64 * set + 2 * lane) =
        pack_bf16(totals[set].x / total_sum, totals[set].y / total_sum);
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
