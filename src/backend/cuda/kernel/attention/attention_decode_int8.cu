// WHAT       As attention_decode.cu over an int8 cache; attention_decode_combine merges.
// SHAPES     q, out [num_seqs, num_heads, head_dim] bf16, outer strides free; cache int8, head_dim 64 or 128,
// kv_block_size
//            a power of two.
// NUMERICS   As attention_decode.cu: the codes become bf16 exactly. A key's scale meets its fp32 dot, a value's its
//            probability before that is rounded to bf16.
// WORK       As attention_decode.cu, but a lane has 16 neighbours of a key, and of V 8 or 16 columns of 4 keys.
// ROOFLINE   Bytes of K and V over 4.65 TB/s; two operations an element on the integer units come close to it.
// WARM       0.5 s: fast, older, int8-cache
// LIMITS     As attention_decode.cu.
// TESTS      spate-conformance --backend cuda --filter attention_paged
#include "backend/cuda/kernel/attention/attention_decode_work.h"

namespace spate::cuda {

// What a lane holds of a tile of 16 keys. With group = lane / 4 and pair = lane % 4: of keys `group` and `group` + 8
// the columns q_column(c) to q_column(c) + 7; of the 4 keys value_key(i) some columns of v.
__device__ inline int value_key(int i) { return 2 * (static_cast<int>(threadIdx.x) % 4) + i % 2 + i / 2 * 8; }

template <int kHeadDim>
struct Int8Tile {
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

template <int kHeadDim>
__device__ inline void attention_decode_int8(const AttentionDecodeKernelParams& params) {
  using Tile = Int8Tile<kHeadDim>;
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
    loaded.load_scales(p.kv.scales(block_of_tile) + p.kv.scale_idx(0, kv_head, first_key & (p.kv.kv_block_size - 1)),
                       p.kv.scale_idx(1, 0, 0), is_seen);

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
        dot[j] *= loaded.key_scale(2 * n + j);
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
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      a[2 * n] = pack_bf16(prob[n][0] * loaded.value_scale(2 * n), prob[n][1] * loaded.value_scale(2 * n + 1));
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

// 3 CTAs an SM: the next product's CTAs find registers beside them.
extern "C" __global__ void __launch_bounds__(kDecodeWarps* kWarpSize, 3)
    attention_decode_int8_d64(const __grid_constant__ AttentionDecodeKernelParams p) {
  attention_decode_int8<64>(p);
}
extern "C" __global__ void __launch_bounds__(kDecodeWarps* kWarpSize, 3)
    attention_decode_int8_d128(const __grid_constant__ AttentionDecodeKernelParams p) {
  attention_decode_int8<128>(p);
}

}  // namespace spate::cuda
