// WHAT       Attention of one query token a sequence over its paged cache, as attention_paged.cu, for decode: the keys
// of a sequence are
//            shared out over CTAs (attention_decode_*), then their results are merged (attention_decode_combine).
// SHAPES     q, out [num_seqs, num_heads, head_dim] bf16, outer strides free; cache bf16 or int8, head_dim 64 or 128,
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

// What a lane holds of a tile of 16 keys. With group = lane / 4 and pair = lane % 4: of keys `group` and `group` + 8
// the columns q_column(c) to q_column(c) + 7; of the 4 keys value_key(i) some columns of v.
__device__ inline int value_key(int i) { return 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2 + i / 2 * 8; }

template <int kHeadDim>
struct Bf16Tile {
  static constexpr bool kHasScales = false;
  static constexpr int kChunks = kHeadDim / 32, kSets = kHeadDim / 64;  // of k of a product pair; of 64 columns of V
  static constexpr int kRowBytes = kHeadDim * 2;

  __device__ static int q_column(int c) { return 32 * c + 8 * (static_cast<int>(threadIdx.x) % 4); }
  // The column of v that acc[s][j] has of operand B's column n.
  __device__ static int v_column(int s, int n, int j) { return 64 * s + 8 * n + j; }

  // rows: of k at the tile's first key; v `part_bytes` behind it.
  template <typename IsSeen>
  __device__ void load(const char* rows, int64_t part_bytes, IsSeen is_seen) {
    const int group = threadIdx.x % kWarpSize / 4;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) keys_[n][c] = load_quad(rows, 8 * n + group, q_column(c), is_seen);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int s = 0; s < kSets; ++s) {
        values_[i][s] = load_quad(rows + part_bytes, value_key(i), 64 * s + 8 * group, is_seen);
      }
    }
  }
  __device__ uint4 key(int n, int c) const { return keys_[n][c]; }
  // Operand B of columns v_column(s, .., j).
  __device__ void value(int s, int j, uint32_t (&b)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t first = word(values_[2 * i][s], j / 2), second = word(values_[2 * i + 1][s], j / 2);
      b[i] = j % 2 == 0 ? pair_low(first, second) : pair_high(first, second);
    }
  }

 private:
  __device__ static uint32_t word(const uint4& quad, int i) {
    return i == 0 ? quad.x : i == 1 ? quad.y : i == 2 ? quad.z : quad.w;
  }
  template <typename IsSeen>
  __device__ static uint4 load_quad(const char* rows, int key, int column, IsSeen is_seen) {
    return is_seen(key) ? *reinterpret_cast<const uint4*>(rows + key * kRowBytes + column * 2) : uint4{};
  }
  uint4 keys_[2][kChunks], values_[4][kSets];
};

// Codes, which become bf16 on their way to the tensor core, exactly: the low 7 bits behind the exponent of 128 are
// 128 + low, the sign bit there is 128 or 256, and the difference is the code.
__device__ inline uint32_t codes_to_bf16(uint32_t halves) {
  const uint32_t low = (halves & 0x007f007fu) | 0x43004300u, high = (halves & 0x00800080u) | 0x43004300u;
  uint32_t codes;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(codes) : "r"(low), "r"(high));
  return codes;
}

template <int kHeadDim>
struct Int8Tile {
  static constexpr bool kHasScales = true;
  static constexpr int kChunks = kHeadDim / 32, kSets = kHeadDim / 64;
  static constexpr int kRowBytes = kHeadDim;

  __device__ static int q_column(int c) { return c / 2 * 64 + 16 * (static_cast<int>(threadIdx.x) % 4) + c % 2 * 8; }
  __device__ static int v_column(int s, int n, int j) { return 8 * kSets * n + 8 * s + j; }

  template <typename IsSeen>
  __device__ void load(const char* rows, int64_t part_bytes, IsSeen is_seen) {
    const int group = threadIdx.x % kWarpSize / 4;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int c = 0; c < kChunks; c += 2) {
        const uint4 quad = is_seen(8 * n + group)
                               ? *reinterpret_cast<const uint4*>(rows + (8 * n + group) * kRowBytes + q_column(c))
                               : uint4{};
        keys_[n][c] = make_uint2(quad.x, quad.y);
        keys_[n][c + 1] = make_uint2(quad.z, quad.w);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const char* row = rows + part_bytes + value_key(i) * kRowBytes + v_column(0, group, 0);
#pragma unroll
      for (int s = 0; s < kSets; ++s) {
        values_[i][s] = is_seen(value_key(i)) ? reinterpret_cast<const uint2*>(row)[s] : uint2{};
      }
    }
  }
  // scales: of k at the tile's first key; those of v `part_scales` behind them.
  template <typename IsSeen>
  __device__ void load_scales(const float* scales, int64_t part_scales, IsSeen is_seen) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      key_scales_[i] = is_seen(value_key(i)) ? scales[value_key(i)] : 0.0f;
      value_scales_[i] = is_seen(value_key(i)) ? scales[part_scales + value_key(i)] : 0.0f;
    }
  }
  __device__ float key_scale(int i) const { return key_scales_[i]; }  // of value_key(i)
  __device__ float value_scale(int i) const { return value_scales_[i]; }
  __device__ uint4 key(int n, int c) const {
    const uint2 codes = keys_[n][c];
    return {codes_to_bf16(__byte_perm(codes.x, 0, 0x4140)), codes_to_bf16(__byte_perm(codes.x, 0, 0x4342)),
            codes_to_bf16(__byte_perm(codes.y, 0, 0x4140)), codes_to_bf16(__byte_perm(codes.y, 0, 0x4342))};
  }
  __device__ void value(int s, int j, uint32_t (&b)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 first = values_[2 * i][s], second = values_[2 * i + 1][s];
      const uint32_t at = static_cast<uint32_t>(j % 4);  // bytes `at` of both, what is above them is masked
      b[i] = codes_to_bf16(__byte_perm(j < 4 ? first.x : first.y, j < 4 ? second.x : second.y,
                                       at | at << 4 | (at + 4) << 8 | (at + 4) << 12));
    }
  }

 private:
  uint2 keys_[2][kChunks], values_[4][kSets];
  float key_scales_[4], value_scales_[4];
};

// Keys that the query of a sequence sees: [begin, end), begin rounded down to a tile; none of a dummy.
struct KeyRange {
  int begin, end;
};
__device__ inline KeyRange seen_keys(const AttentionPagedKernelParams& p, int seq) {
  const int seq_len = p.seq_lens[seq];
  if (p.cu_seqlens_q[seq + 1] <= p.cu_seqlens_q[seq] || seq_len <= 0) return {};
  const int begin = p.window > 0 ? max(0, seq_len - p.window) : 0;
  return {begin / kTile * kTile, seq_len};
}

struct Item {
  int seq;  // -1: none
  int split;
  int num_splits;
};

// What the CTA computes. All threads call it; every CTA of the grid counts alike.
__device__ inline Item find_item(const AttentionDecodeKernelParams& params, int item) {
  __shared__ Item found;
  __shared__ int warp_items[kDecodeWarps];
  const AttentionPagedKernelParams& p = params.attention;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  int num_keys = 0;
  for (int seq = threadIdx.x; seq < p.num_seqs; seq += blockDim.x) {
    const KeyRange keys = seen_keys(p, seq);
    num_keys += keys.end - keys.begin;
  }
  num_keys = block_reduce(num_keys, Sum());
  const int split_keys = max(kDecodeSplitUnit, (num_keys + params.max_splits - 1) / params.max_splits);
  if (threadIdx.x == 0) found.seq = -1;
  int items_before = 0;
  for (int first = 0; first < p.num_seqs; first += blockDim.x) {
    const int seq = first + threadIdx.x;
    int num_splits = 0;
    if (seq < p.num_seqs) {
      const KeyRange keys = seen_keys(p, seq);
      num_splits = max(1, (keys.end - keys.begin + split_keys - 1) / split_keys);
    }
    int through = num_splits;  // items of the sequences up to this one, in the warp, then in the CTA
#pragma unroll
    for (int delta = 1; delta < kWarpSize; delta *= 2) {
      const int lower = __shfl_up_sync(0xffffffffu, through, delta);
      if (lane >= delta) through += lower;
    }
    __syncthreads();
    if (lane == kWarpSize - 1) warp_items[warp] = through;
    __syncthreads();
    for (int w = 0; w < warp; ++w) through += warp_items[w];
    const int first_item = items_before + through - num_splits;
    if (seq < p.num_seqs && first_item <= item && item < first_item + num_splits) {
      found = {seq, item - first_item, num_splits};
      if (item == first_item && blockIdx.y == 0) {
        params.first_item[seq] = first_item;
        params.first_item[p.num_seqs + seq] = num_splits;
      }
    }
    for (int w = 0; w < kDecodeWarps; ++w) items_before += warp_items[w];
  }
  __syncthreads();
  return found;
}

template <int kHeadDim, typename Tile>
__device__ inline void attention_decode(const AttentionDecodeKernelParams& params) {
  constexpr int kChunks = Tile::kChunks, kSets = Tile::kSets, kRowBytes = Tile::kRowBytes;
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
    q[c] = exists && group < num_heads_here ? *reinterpret_cast<const uint4*>(row + Tile::q_column(c)) : uint4{};
  }

  float acc[kSets][8][4] = {};
  float max_score = -kInfinity, sum = 0.0f;  // of head `group`; the sum of this lane's keys
  const int block_shift = 31 - __clz(p.kv.kv_block_size);
  const int64_t part_bytes = static_cast<int64_t>(p.kv.num_kv_heads) * p.kv.kv_block_size * kRowBytes;  // from k to v
  const char* head =
      static_cast<const char*>(p.kv.data) + static_cast<int64_t>(kv_head) * p.kv.kv_block_size * kRowBytes;
  const auto block_id = [&](int key) { return key < end ? blocks[key >> block_shift] : 0; };
  int tile = begin / kTile + warp;
  int id = block_id(tile * kTile);
  for (; begin < end && tile * kTile < end; tile += kDecodeWarps) {
    const int first_key = tile * kTile;  // a tile lies in one block
    const int block_of_tile = id;
    const char* rows = head + id * p.kv.block_bytes + (first_key & (p.kv.kv_block_size - 1)) * kRowBytes;
    id = block_id(first_key + kDecodeWarps * kTile);
    const auto is_seen = [&](int key_in_tile) {
      return first_key + key_in_tile >= begin && first_key + key_in_tile < end;
    };
    Tile loaded;
    loaded.load(rows, part_bytes, is_seen);
    if constexpr (Tile::kHasScales) {
      const int64_t first_scale =
          static_cast<int64_t>(kv_head) * p.kv.kv_block_size + (first_key & (p.kv.kv_block_size - 1));
      loaded.load_scales(p.kv.scales(block_of_tile) + first_scale,
                         static_cast<int64_t>(p.kv.num_kv_heads) * p.kv.kv_block_size, is_seen);
    }

    // Scores of keys 8 n + 2 pair and 8 n + 2 pair + 1.
    float score[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float dot[4] = {};
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint32_t a0[4] = {q[c].x, 0, q[c].y, 0}, a1[4] = {q[c].z, 0, q[c].w, 0};
        const uint4 key = loaded.key(n, c);
        const uint32_t b0[2] = {key.x, key.y}, b1[2] = {key.z, key.w};
        mma_m16n8k16_bf16(dot, a0, b0);
        mma_m16n8k16_bf16(dot, a1, b1);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (Tile::kHasScales) dot[j] *= loaded.key_scale(2 * n + j);
        score[n][j] = is_seen(8 * n + 2 * pair + j) ? dot[j] * p.softmax_scale_log2e : -kInfinity;
      }
    }
    float new_max = fmaxf(fmaxf(score[0][0], score[0][1]), fmaxf(score[1][0], score[1][1]));
    new_max = fmaxf(new_max, shuffle_xor(new_max, 1));
    new_max = fmaxf(max_score, fmaxf(new_max, shuffle_xor(new_max, 2)));
    float prob[2][2];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) prob[n][j] = exp2f(score[n][j] - new_max);
    }
    uint32_t a[4] = {pack_bf16(prob[0][0], prob[0][1]), 0, pack_bf16(prob[1][0], prob[1][1]), 0};
    const float shrink = exp2f(max_score - new_max);
    sum = sum * shrink + (low_float(a[0]) + high_float(a[0])) + (low_float(a[2]) + high_float(a[2]));
    max_score = new_max;
    if constexpr (Tile::kHasScales) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        a[2 * n] = pack_bf16(prob[n][0] * loaded.value_scale(2 * n), prob[n][1] * loaded.value_scale(2 * n + 1));
      }
    }

#pragma unroll
    for (int s = 0; s < kSets; ++s) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        acc[s][j][0] *= shrink;
        acc[s][j][1] *= shrink;
        uint32_t b[2];
        loaded.value(s, j, b);
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
      warp_acc[warp][group][Tile::v_column(s, 2 * pair, j)] = acc[s][j][0];
      warp_acc[warp][group][Tile::v_column(s, 2 * pair + 1, j)] = acc[s][j][1];
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
#define SPATE_DECODE_KERNEL(name, head_dim, Tile)                                      \
  extern "C" __global__ void __launch_bounds__(kDecodeWarps* kWarpSize, 2)             \
      attention_decode_##name(const __grid_constant__ AttentionDecodeKernelParams p) { \
    attention_decode<head_dim, Tile<head_dim>>(p);                                     \
  }
SPATE_DECODE_KERNEL(d64, 64, Bf16Tile)
SPATE_DECODE_KERNEL(d128, 128, Bf16Tile)
SPATE_DECODE_KERNEL(int8_d64, 64, Int8Tile)
SPATE_DECODE_KERNEL(int8_d128, 128, Int8Tile)

}  // namespace spate::cuda
