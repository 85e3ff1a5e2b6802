// WHAT       attention_latent.cu's formula for few sequences of one token: latency is all that counts.
// SHAPES     As LatentShortKernelParams says, bf16, kv_lora_rank 512, qk_rope_head_dim 64; at most num_parts * 8 * 80
//            keys a sequence.
// LAYOUT     latent.h; every row of q at a multiple of 16 bytes.
// NUMERICS   Scores, maxima and sums in fp32; probabilities are rounded to bf16 for the product with the latent
//            vectors, their sum is not. A CTA's sums over that sum, no larger than the largest vector's elements, are
//            rounded to f16 for the others of its cluster, which add them in their order in fp32: vectors' elements are
//            65,504 at most. The split depends on the step's sizes.
// WORK       Nothing is looked up: a CTA of a cluster of 8 has one run of at most 80 keys of 64 rows, one copy of q and
//            one of the keys, which may begin while the kernel before still runs: all but the sixteen with the step's
//            key. Two warpgroups have the scores of half the keys each, then 256 columns of all. The CTAs send each
//            other their sums of 8 rows, of fewer where the item has few (st.async), so that a cluster leaves one
//            part; latent_short_combine merges the parts.
// ROOFLINE   Latency.
// WARM       1 s: fast, bf16, latent-bf16
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter attention_latent
#include "backend/cuda/kernel/latent/latent_short.h"

#include "backend/cuda/kernel/latent/latent_items.h"
#include "backend/cuda/kernel/latent/latent_short_merge.h"
#include "backend/cuda/kernel/primitive/cluster.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/wgmma.h"
#include "backend/cuda/kernel/primitive/wgmma_values.h"

namespace spate::cuda {

constexpr int kShortHalfKeys = kLatentShortKeys / 2, kShortEightKeysBytes = kLatentParts * 1024;

__device__ inline void send_two(uint32_t to, float a, float b, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
               "f"(a), "f"(b), "r"(barrier)
               : "memory");
}

// Two as f16.
__device__ inline uint32_t pack_half(float a, float b) {
  uint32_t two;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(b), "f"(a));
  return two;
}
__device__ inline float2 unpack_half(uint32_t two) {
  float2 value;
  asm("{ .reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
      : "=f"(value.x), "=f"(value.y)
      : "r"(two));
  return value;
}

extern "C" __global__ void __cluster_dims__(kLatentShortCtas, 1, 1) __launch_bounds__(kLatentShortThreads, 1)
    latent_short(const __grid_constant__ LatentShortKernelParams p) {
  extern __shared__ __align__(1024) char smem[];
  const AttentionLatentKernelParams& a = p.attention;
  const uint32_t keys = shared_address(smem), q = keys + kLatentShortKeysBytes;  // sums arrive over q
  const uint32_t stats = q + kLatentShortSumsBytes, halves = stats + kLatentShortStatsBytes;
  const uint32_t loaded = halves + 2 * kLatentRows * 8, stats_sent = loaded + 8, sums_sent = loaded + 16,
                 scores_done = loaded + 24;
  let_dependents_launch();
  const int rank = cluster_rank(), cluster = static_cast<int>(blockIdx.x) / kLatentShortCtas;
  const int part = cluster % p.num_parts, item = cluster / p.num_parts % p.num_items,
            seq = cluster / p.num_parts / p.num_items;
  // A CTA adds up to 8 rows, and where the item has few all CTAs as many.
  const int num_rows = min(kLatentRows, a.num_heads - item * kLatentRows);
  const int rows_shift = num_rows <= 16 ? 1 : num_rows <= 32 ? 2 : 3, own_rows = 1 << rows_shift;
  const bool has_rows = rank * own_rows < num_rows;
  if (threadIdx.x == 0) {
    prefetch_map(p.kv);
    init_barrier(loaded, 1);
    init_barrier(stats_sent, 1);
    init_barrier(sums_sent, 1);
    init_barrier(scores_done, kLatentShortCtas);
    fence_barrier_init();
    arrive_expecting(stats_sent, kLatentShortStatsBytes);
    if (has_rows) arrive_expecting(sums_sent, static_cast<uint32_t>(own_rows) * (kLatentShortSumsBytes / 16));
  }
  cluster_arrive_relaxed();  // fence_barrier_init() was for the cluster
  if (!p.reads_early) wait_for_inputs();
  const int first_token = a.cu_seqlens_q[seq], next_token = a.cu_seqlens_q[seq + 1];
  const bool is_dummy = next_token <= first_token;
  const int seq_len = is_dummy ? 0 : a.seq_lens[seq];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int num_runs = p.num_parts * kLatentShortCtas, run = part * kLatentShortCtas + rank;
  // Blocks of 16 keys, spread evenly.
  const int num_sixteens = (seq_len + 15) / 16;
  const int first_sixteen = num_sixteens * run / num_runs, end_sixteen = num_sixteens * (run + 1) / num_runs;
  const int first_key = first_sixteen * 16, num_keys = max(min(end_sixteen * 16, seq_len) - first_key, 0);
  const int num_boxes = end_sixteen - first_sixteen;
  if (threadIdx.x == 0) arrive_expecting(loaded, static_cast<uint32_t>(num_boxes) * 16 * kLatentWidth * 2);
  __syncwarp();
  const bool has_box = warp == 0 && lane < num_boxes;
  const bool is_fresh = first_sixteen + lane == num_sixteens - 1;  // it has the step's key
  const auto copy_box = [&] {
    const int key = first_key + lane * 16, block_size = a.kv.kv_block_size;
    const int32_t block = a.block_table[a.seq_rows[seq] * a.block_table_stride + key / block_size];
    copy_box_4d(keys + static_cast<uint32_t>(lane) * 16 * kLatentWidth * 2, p.kv, 0, 0, 0,
                (block * block_size + key % block_size) / 8, loaded);
  };
  if (has_box && !is_fresh) copy_box();
  wait_for_inputs();
  if (has_box && is_fresh) copy_box();
  __syncwarp();
  const int thread = static_cast<int>(threadIdx.x) % 128, half = __shfl_sync(kAllLanes, warp / 4, 0);
  const int group = lane / 4, pair = lane % 4, row = thread / 32 * 16 + group;
  Segment segment{};
  segment.first_token = first_token;
  segment.first_row = item * kLatentRows;
  segment.num_rows = is_dummy ? 0 : num_rows;
  load_q(a, q, segment, static_cast<int>(threadIdx.x));
  wait_barrier(loaded, 0);

  // Scores of this warpgroup's half of the keys.
  float scores[kShortHalfKeys / 2];
#pragma unroll
  for (int i = 0; i < kShortHalfKeys / 2; ++i) scores[i] = 0.0f;
  wgmma_fence();
  const uint64_t q_rows = wgmma_descriptor(q),
                 columns =
                     wgmma_descriptor(keys + static_cast<uint32_t>(half * kShortHalfKeys / 8 * kShortEightKeysBytes),
                                      kShortEightKeysBytes);
#pragma unroll
  for (int i = 0; i < kLatentParts; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_bf16<kShortHalfKeys>(scores, next_wgmma_k(q_rows + i * (kLatentPartBytes >> 4), k),
                                 next_wgmma_k(columns + i * (1024 >> 4), k));
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  const float scale_log2e = a.softmax_scale_log2e;
  float2 own[2];  // largest, total
#pragma unroll
  for (int i = 0; i < kShortHalfKeys / 2; ++i) {
    if (half * kShortHalfKeys + i / 4 * 8 + 2 * pair + i % 2 >= num_keys) scores[i] = -kInfinity;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float largest = -kInfinity;
#pragma unroll
    for (int i = 0; i < kShortHalfKeys / 4; ++i) largest = fmaxf(largest, scores[i / 2 * 4 + 2 * h + i % 2]);
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    own[h].x = largest * scale_log2e;
    if (pair == 0) {
      asm volatile(
          "st.shared.f32 [%0], %1;" ::"r"(halves + static_cast<uint32_t>((half * kLatentRows + row + 8 * h) * 8)),
          "f"(own[h].x)
          : "memory");
    }
  }
  sync_consumers();  // also: nobody reads q or the rotated elements of the keys any more
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float other = load_shared_two(halves + static_cast<uint32_t>(((1 - half) * kLatentRows + row + 8 * h) * 8)).x;
    own[h].x = fmaxf(own[h].x, other);
    const float offset = own[h].x == -kInfinity ? 0.0f : own[h].x;
    own[h].y = 0.0f;
#pragma unroll
    for (int i = 0; i < kShortHalfKeys / 4; ++i) {
      float& score = scores[i / 2 * 4 + 2 * h + i % 2];
      score = exp2_approx(__fmaf_rn(score, scale_log2e, -offset));
      own[h].y += score;
    }
    own[h].y += __shfl_xor_sync(kAllLanes, own[h].y, 1);
    own[h].y += __shfl_xor_sync(kAllLanes, own[h].y, 2);
    if (pair == 0) {
      asm volatile(
          "st.shared.f32 [%0], %1;" ::"r"(halves + static_cast<uint32_t>((half * kLatentRows + row + 8 * h) * 8 + 4)),
          "f"(own[h].y)
          : "memory");
    }
  }
#pragma unroll
  for (int j = 0; j < kShortHalfKeys / 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t to =
          keys + static_cast<uint32_t>((half * kShortHalfKeys / 8 + j) * kShortEightKeysBytes +
                                       (kLatentParts - 1) * 1024 + (thread / 32 * 2 + h) * 128 + group * 16 + pair * 4);
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(pack_bf16(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]))
                   : "memory");
    }
  }
  // The values behind the last key, of its sixteen: a probability of zero times what lies there may be NaN.
  if (num_keys % 16 != 0) {
    const int pieces_of_part = (16 - num_keys % 16) * 8;
    for (int j = static_cast<int>(threadIdx.x); j < pieces_of_part * (kLatentRank / 64); j += kLatentShortThreads) {
      const int key = num_keys + j % pieces_of_part / 8;
      const uint32_t to = keys + static_cast<uint32_t>(j / pieces_of_part * 1024 + key / 8 * kShortEightKeysBytes +
                                                       key % 8 * 128 + j % 8 * 16);
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
  }
  fence_async_proxy();
  sync_consumers();
  cluster_wait();  // the others' barriers are there
  if (threadIdx.x < kLatentShortCtas) arrive_at_cta(scores_done, static_cast<int>(threadIdx.x));
  // A row's stats to all CTAs: four threads a row, two CTAs each.
  {
    const int of = static_cast<int>(threadIdx.x) / 4;
    const float2 first = load_shared_two(halves + static_cast<uint32_t>(of * 8)),
                 second = load_shared_two(halves + static_cast<uint32_t>((kLatentRows + of) * 8));
    const uint32_t to = stats + static_cast<uint32_t>((rank * kLatentRows + of) * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int cta = static_cast<int>(threadIdx.x) % 4 * 2 + i;
      send_two(shared_of(to, cta), fmaxf(first.x, second.x), first.y + second.y, shared_of(stats_sent, cta));
    }
  }
  float sums[kHalf / 2];
#pragma unroll
  for (int i = 0; i < kHalf / 2; ++i) sums[i] = 0.0f;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kLatentShortKeys / 16; ++k) {
    if (k >= num_boxes) break;
    const uint32_t at = keys + static_cast<uint32_t>(2 * k * kShortEightKeysBytes);
    wgmma_values<kHalf>(
        sums, wgmma_plain_descriptor(at + (kLatentParts - 1) * 1024, kShortEightKeysBytes, 128),
        wgmma_columns(at + static_cast<uint32_t>(half * (kHalf / 64) * 1024), 1024, kShortEightKeysBytes));
  }
  wgmma_commit();
  // A row's sum over this CTA's keys, while its values are multiplied.
  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t other = halves + static_cast<uint32_t>(((1 - half) * kLatentRows + row + 8 * h) * 8);
    const float all = own[h].y + load_shared_two(other).y;
    inverse[h] = all > 0.0f ? 1.0f / all : 0.0f;
  }
  wgmma_wait<0>();
  wait_cluster_barrier(scores_done, 0);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int to_cta = (row + 8 * h) >> rows_shift;
    if (to_cta * own_rows >= num_rows) break;
    const int place = (((rank * 2 + half) * 8) << rows_shift) + (row & (own_rows - 1));
    const uint32_t to = shared_of(q + static_cast<uint32_t>((place * 4 + pair) * 16), to_cta),
                   barrier = shared_of(sums_sent, to_cta), step = static_cast<uint32_t>(own_rows) * 4 * 16;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t packed[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int at = 16 * i + 4 * j + 2 * h;
        packed[j] = pack_half(sums[at] * inverse[h], sums[at + 1] * inverse[h]);
      }
      send_four(to + static_cast<uint32_t>(i) * step, __uint_as_float(packed[0]), __uint_as_float(packed[1]),
                __uint_as_float(packed[2]), __uint_as_float(packed[3]), barrier);
    }
  }
  wait_cluster_barrier(stats_sent, 0);
  if (has_rows) {
    // A piece is two quads of a row; the largest of a CTA's part becomes its weight.
    const int num_pieces = own_rows * (kLatentRank / 8), first_row = rank * own_rows;
    if (static_cast<int>(threadIdx.x) < own_rows) {
      const uint32_t of = stats + static_cast<uint32_t>((first_row + static_cast<int>(threadIdx.x)) * 8);
      float largest = -kInfinity, total = 0.0f;
#pragma unroll
      for (int i = 0; i < kLatentShortCtas; ++i) {
        largest = fmaxf(largest, load_shared_two(of + static_cast<uint32_t>(i * kLatentRows * 8)).x);
      }
#pragma unroll
      for (int i = 0; i < kLatentShortCtas; ++i) {
        const float2 one = load_shared_two(of + static_cast<uint32_t>(i * kLatentRows * 8));
        const float weight = one.x == -kInfinity ? 0.0f : exp2_approx(one.x - largest) * one.y;
        total += weight;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(of + static_cast<uint32_t>(i * kLatentRows * 8)), "f"(weight)
                     : "memory");
      }
      reinterpret_cast<float2*>(p.partial_stats)[cluster * kLatentRows + first_row + static_cast<int>(threadIdx.x)] =
          make_float2(largest, total);
    }
    wait_cluster_barrier(sums_sent, 0);
    sync_consumers();
    float4* out = reinterpret_cast<float4*>(p.partial_sums) +
                  (static_cast<int64_t>(cluster) * kLatentShortCtas + first_row / 8) * (8 * kLatentRank / 4);
#pragma unroll
    for (int j = 0; j < 8 * kLatentRank / 8 / kLatentShortThreads; ++j) {
      const int piece = j * kLatentShortThreads + static_cast<int>(threadIdx.x);
      if (piece >= num_pieces) break;
      const int in_eight = piece & (4 * own_rows - 1), group2 = piece >> (rows_shift + 2);
      const uint32_t weights = stats + static_cast<uint32_t>((first_row + in_eight / 4) * 8);
      float sum[8] = {};
#pragma unroll
      for (int i = 0; i < kLatentShortCtas; ++i) {
        uint32_t more[4];
        float weight;
        asm volatile("ld.shared.f32 %0, [%1];"
                     : "=f"(weight)
                     : "r"(weights + static_cast<uint32_t>(i * kLatentRows * 8))
                     : "memory");
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(more[0]), "=r"(more[1]), "=r"(more[2]), "=r"(more[3])
                     : "r"(q + static_cast<uint32_t>((i * num_pieces + piece) * 16))
                     : "memory");
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float2 two = unpack_half(more[k]);
          sum[2 * k] = __fmaf_rn(weight, two.x, sum[2 * k]);
          sum[2 * k + 1] = __fmaf_rn(weight, two.y, sum[2 * k + 1]);
        }
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        out[(group2 * 2 + k) * kWarpSize + first_row % 8 * 4 + in_eight] =
            make_float4(sum[4 * k], sum[4 * k + 1], sum[4 * k + 2], sum[4 * k + 3]);
      }
    }
  }
  // Nobody ends while others send.
  cluster_arrive_relaxed();
  cluster_wait();
}

// A warp has 16 columns of 8 rows.
extern "C" __global__ void __launch_bounds__(kLatentShortCombineWarps* kWarpSize)
    latent_short_combine(const __grid_constant__ LatentShortKernelParams p) {
  let_dependents_launch();
  const AttentionLatentKernelParams& a = p.attention;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int unit = static_cast<int>(blockIdx.x) * kLatentShortCombineWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int column_group = unit % 32, eight = unit / 32 % kLatentShortCtas, item = unit / (32 * kLatentShortCtas);
  const int head = item % p.num_items * kLatentRows + eight * 8 + lane / 4, seq = item / p.num_items;
  wait_for_inputs();
  if (head >= a.num_heads) return;
  const int token = a.cu_seqlens_q[seq], next_token = a.cu_seqlens_q[seq + 1], seq_len = a.seq_lens[seq];
  const float4 four = merge_short_parts(p, item, eight * 8 + lane / 4, column_group * 4 + lane % 4);
  if (seq_len <= 0 || next_token <= token) return;  // a dummy
  store_quad(static_cast<Bf16*>(a.out) + token * a.out_strides[0] + head * a.out_strides[1],
             column_group * 4 + lane % 4, four);
}

}  // namespace spate::cuda
