// What the kernels of attention_decode_ring*.cu make of a tile of 16 keys, for every format of the cache, and how they
// add what several warps or CTAs made of the tiles of a head. What a format must have:
//
//   kHeadDim, kWarps, kStages     warps of a CTA; stages of the ring of each
//   Stage                         what a tile of 16 keys takes in shared memory; its size a multiple of 1,024 bytes
//   kBytes                        of it that copies bring
//   copy(params, place, at, bar)  starts the copies of a tile
//   Query                         operand B of the scores: column `group` is query head first_head + `group`.
//     fetch(p, token, first_head, num_heads), prepare(p)
//                                 starts the loads of q; makes of them what the products take
//     scores(stage, score)        scores times softmax_scale_log2e: of keys group and group + 8 (rows) by heads 2 pair
//                                 and 2 pair + 1
//   out_column(m, i)              which column is row group + 8 i of product m
//   values(stage, m, a)           operand A: 16 columns by keys, of the products m to m + kValuesAtOnce - 1
//   add_product(acc, a, b)        acc += values by weights; pack(a, b): two weights of b
//   value_scale(stage, key)       if kHasScales
//   clear_value(stage, key)       if not kHasScales: makes a value zeros; all lanes call it
//   kHasMerger                    whether a warp beside the others adds their sums while they go on with the next piece
#pragma once

#include "backend/cuda/kernel/attention/attention_decode_ring_params.h"
#include "backend/cuda/kernel/attention/attention_decode_work.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {

// Swizzled rows of 128 bytes: where 16 bytes of one lie.
__device__ inline uint32_t swizzled(uint32_t rows, int row, int chunk) {
  return rows + static_cast<uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

// Within 2 ulp, as exp2f; but results below 2^-126 become 0. 0 of -infinity.
__device__ inline float fast_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// 2^-n of 2^n, -126 <= n <= 126; 2^127 of 0.
__device__ inline float inverse_of_power(float power) { return __uint_as_float(0x7f000000u - __float_as_uint(power)); }

// True in one lane, that the compiler knows to be one: operands of copies need no loop over lanes. All lanes call it.
__device__ inline bool elect_lane() {
  uint32_t is_elected;
  asm volatile(
      "{ .reg .pred elected; elect.sync _|elected, 0xffffffff; "
      "selp.u32 %0, 1, 0, elected; }"
      : "=r"(is_elected));
  return is_elected != 0;
}

// Brings a line that another kernel may still write to L2, where writes meet: no value is read.
__device__ inline void prefetch_line(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// What this thread wrote, or saw written, is seen by threads of other CTAs that see what it writes next.
__device__ inline void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ inline int decode_tiles(KeyRange keys) { return (keys.end - keys.begin + kTile - 1) / kTile; }

// A tile in the cache.
struct TilePlace {
  int block_id, kv_head, token_in_block;
};

// What the warps have summed of a piece.
template <typename Format>
struct WarpSums {
  float acc[Format::kWarps][kHeads][Format::kHeadDim + 4];  // 4: the lanes of a store hit different banks
  float max[Format::kWarps][kHeads], sum[Format::kWarps][kHeads];
};
// Weighted sums of parts of an item's keys, in order: part i has the largest score max(i), the sum of 2^ sum(i) and
// the sums of values(i).
template <int kAtOnce, typename MaxOf, typename SumOf, typename ValuesOf>
__device__ inline void merge_parts(int num_parts, MaxOf max_of, SumOf sum_of, ValuesOf values_of, float& total_max,
                                   float& total_sum, float4& total) {
  total_max = -kInfinity;
  total_sum = 0.0f;
  total = {};
#pragma unroll 1
  for (int first = 0; first < num_parts; first += kAtOnce) {
    float max[kAtOnce], sum[kAtOnce], base = total_max;
    float4 values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int part = min(first + i, num_parts - 1);
      max[i] = first + i < num_parts ? max_of(part) : -kInfinity;
      sum[i] = sum_of(part);
      values[i] = values_of(part);
      base = fmaxf(base, max[i]);
    }
    if (base == -kInfinity) continue;  // warps without keys
    const float shrink = fast_exp2(total_max - base);
    total_max = base;
    total_sum *= shrink;
    total = {total.x * shrink, total.y * shrink, total.z * shrink, total.w * shrink};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float weight = fast_exp2(max[i] - base);
      total_sum = __fmaf_rn(sum[i], weight, total_sum);
      total.x = __fmaf_rn(values[i].x, weight, total.x);
      total.y = __fmaf_rn(values[i].y, weight, total.y);
      total.z = __fmaf_rn(values[i].z, weight, total.z);
      total.w = __fmaf_rn(values[i].w, weight, total.w);
    }
  }
}

// What a warp sums of the keys of a piece.
template <typename Format>
struct HeadSums {
  static constexpr int kProducts = Format::kHeadDim / 16;  // along k of scores; along the columns of the sums
  float acc[kProducts][4];                                 // columns of v by heads 2 pair, 2 pair + 1
  float base[2], sum[2];                                   // of both heads; sums of this lane's keys
  float per_unit;                                          // if kHasScales: 2^-n; acc is in units of 2^n

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[m][i] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      base[j] = -kInfinity;
      sum[j] = 0.0f;
    }
    per_unit = 0x1p126f;
  }

  // The tile of keys first_key to first_key + 15, of which the query sees [begin, end).
  __device__ void add(typename Format::Stage& tile, const typename Format::Query& q, int first_key, int begin,
                      int end) {
    const int group = threadIdx.x % kWarpSize / 4;
    const bool is_cut = first_key < begin || first_key + kTile > end;
    const auto is_seen = [&](int key) { return first_key + key >= begin && first_key + key < end; };

    float score[4], value_scale[2] = {1.0f, 1.0f};
    q.scores(tile, score);
    if constexpr (Format::kHasScales) {
#pragma unroll
      for (int i = 0; i < 2; ++i) value_scale[i] = Format::value_scale(tile, group + 8 * i);
    }
    if (is_cut) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!is_seen(group + i / 2 * 8)) score[i] = -kInfinity;
      }
      if constexpr (Format::kHasScales) {
#pragma unroll
        for (int i = 0; i < 2; ++i) value_scale[i] = is_seen(group + 8 * i) ? value_scale[i] : 0.0f;
      } else {  // values that no sequence has may be NaN
#pragma unroll 1
        for (int key = 0; key < kTile; ++key) {
          if (!is_seen(key)) Format::clear_value(tile, key);
        }
        fence_async_proxy();
        __syncwarp();
      }
    }

    // Sums are scaled down only when a maximum grows by 2^8, or a value's scale by 2^6: weights stay below 2^15.
    const float highest[2] = {fmaxf(score[0], score[2]), fmaxf(score[1], score[3])};
    bool has_grown = highest[0] > base[0] + 8.0f || highest[1] > base[1] + 8.0f;
    const float largest_scale = fmaxf(value_scale[0], value_scale[1]);
    if constexpr (Format::kHasScales) has_grown = has_grown || largest_scale * per_unit >= 64.0f;
    if (__any_sync(0xffffffffu, has_grown)) {
      float unit_shrink = 1.0f;
      if constexpr (Format::kHasScales) {
        float largest = fmaxf(largest_scale, shuffle_xor(largest_scale, 4));
        largest = fmaxf(largest, shuffle_xor(largest, 8));
        largest = fminf(fmaxf(largest, shuffle_xor(largest, 16)), 0x1p126f);
        const float grown = fminf(per_unit, inverse_of_power(__uint_as_float(__float_as_uint(largest) & 0x7f800000u)));
        unit_shrink = grown * inverse_of_power(per_unit);
        per_unit = grown;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float new_base = fmaxf(highest[j], shuffle_xor(highest[j], 4));
        new_base = fmaxf(new_base, shuffle_xor(new_base, 8));
        new_base = fmaxf(base[j], fmaxf(new_base, shuffle_xor(new_base, 16)));
        const float shrink = fast_exp2(base[j] - new_base);
        base[j] = new_base;
        sum[j] *= shrink;
        const float acc_shrink = Format::kHasScales ? shrink * unit_shrink : shrink;
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
          acc[m][j] *= acc_shrink;
          acc[m][2 + j] *= acc_shrink;
        }
      }
    }
    float prob[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) prob[i] = fast_exp2(score[i] - base[i % 2]);
    uint32_t rows[2];
    if constexpr (Format::kHasScales) {
      sum[0] += prob[0] + prob[2];
      sum[1] += prob[1] + prob[3];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float weight = value_scale[i] * per_unit;
        rows[i] = Format::pack(prob[2 * i] * weight, prob[2 * i + 1] * weight);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) rows[i] = Format::pack(prob[2 * i], prob[2 * i + 1]);
      sum[0] += low_float(rows[0]) + low_float(rows[1]);
      sum[1] += high_float(rows[0]) + high_float(rows[1]);
    }
    const uint32_t b[2] = {transpose_8x8(rows[0]), transpose_8x8(rows[1])};
#pragma unroll
    for (int m = 0; m < kProducts; m += Format::kValuesAtOnce) {
      uint32_t a[Format::kValuesAtOnce][4];
      Format::values(tile, m, a);
#pragma unroll
      for (int n = 0; n < Format::kValuesAtOnce; ++n) Format::add_product(acc[m + n], a[n], b);
    }
  }

  __device__ void store(WarpSums<Format>& sums) {
    const int warp = threadIdx.x / kWarpSize, group = threadIdx.x % kWarpSize / 4, pair = threadIdx.x % 4;
    if constexpr (Format::kHasScales) {
      const float unit = inverse_of_power(per_unit);
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[m][i] *= unit;
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int mask = 4; mask < kWarpSize; mask *= 2) sum[j] += shuffle_xor(sum[j], mask);
      if (group == 0) {
        sums.max[warp][2 * pair + j] = base[j];
        sums.sum[warp][2 * pair + j] = sum[j];
      }
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
        sums.acc[warp][2 * pair + j][Format::out_column(m, 0)] = acc[m][j];
        sums.acc[warp][2 * pair + j][Format::out_column(m, 1)] = acc[m][2 + j];
      }
    }
  }
};

// Of 4 columns of a head.
template <typename Format>
__device__ inline void merge_warps(const WarpSums<Format>& sums, int head, int quad, float& max, float& sum,
                                   float4& total) {
  merge_parts<4>(
      Format::kWarps, [&](int w) { return sums.max[w][head]; }, [&](int w) { return sums.sum[w][head]; },
      [&](int w) { return *reinterpret_cast<const float4*>(&sums.acc[w][head][4 * quad]); }, max, sum, total);
}

__device__ inline void store_out(const AttentionPagedKernelParams& p, int token, int head, int quad, float4 total,
                                 float sum) {
  const float scale = __fdividef(1.0f, sum);  // 1 <= sum < 2^126: within 2 ulp
  Bf16* out = static_cast<Bf16*>(p.out) + token * p.out_token_stride + static_cast<int64_t>(head) * p.out_head_stride;
  *reinterpret_cast<uint2*>(out + 4 * quad) =
      make_uint2(pack_bf16(total.x * scale, total.y * scale), pack_bf16(total.z * scale, total.w * scale));
}

template <typename Shared>
__device__ inline Shared& aligned_shared(char* dynamic_shared) {
  const uint32_t begin = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared));
  return *reinterpret_cast<Shared*>(dynamic_shared + (1024 - begin % 1024) % 1024);
}

// Before the inputs are waited for. The kernel before may still write them.
template <bool kHasScales>
__device__ inline void prefetch_inputs(const AttentionDecodeRingParams& params, int first_seq) {
  const AttentionPagedKernelParams& p = params.attention;
  if (threadIdx.x == 0) prefetch_map(params.kv);
  if (threadIdx.x == 1) prefetch_line(p.seq_lens + first_seq);
  if (threadIdx.x == 2) prefetch_line(p.cu_seqlens_q + first_seq);
  if (threadIdx.x == 3) prefetch_line(p.seq_rows + first_seq);
  if constexpr (kHasScales) {
    if (threadIdx.x == 4) prefetch_map(params.scales);
  }
}
}  // namespace spate::cuda
