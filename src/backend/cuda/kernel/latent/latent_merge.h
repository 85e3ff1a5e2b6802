// The CTAs of latent_wgmma.cu that have parts of an item merge it: each has as many columns of it.
#pragma once

#include "backend/cuda/kernel/latent/latent_combine_row.h"
#include "backend/cuda/kernel/latent/latent_items.h"
#include "backend/cuda/kernel/primitive/flag.h"

namespace spate::cuda {

// An item of which this CTA has a part. num_parts 0: none.
struct CutItem {
  int32_t first_token, first_row, num_rows, first_team, num_parts;
};

constexpr int kMergeWarps = kConsumerThreads / kWarpSize;
constexpr int kUnitBytes = kWarpSize * 16;  // of 16 columns of 8 rows, a quad a lane
constexpr int kStatsBytes = kLatentRows * 8;

// A consumer's thread, found again as find_thread() does.
__device__ inline int find_consumer() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % kConsumerThreads;
}

// Of the stats of all parts: the largest becomes the part's weight. Four threads a row.
__device__ inline void make_weights(uint32_t stage, int num_parts, int thread) {
  const uint32_t stats = stage + static_cast<uint32_t>(thread / 4 * 8);
  float largest = -kInfinity, total = 0.0f;
#pragma unroll 1
  for (int part = thread % 4; part < num_parts; part += 4) {
    const float2 one = load_shared_two(stats + static_cast<uint32_t>(part * kStatsBytes));
    const float new_largest = fmaxf(largest, one.x);
    if (one.x == -kInfinity) continue;
    total = total * exp2f(largest - new_largest) + one.y * exp2f(one.x - new_largest);
    largest = new_largest;
  }
  float all = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
  all = fmaxf(all, __shfl_xor_sync(kAllLanes, all, 2));
  total *= largest == -kInfinity ? 0.0f : exp2f(largest - all);
  total += __shfl_xor_sync(kAllLanes, total, 1);
  total += __shfl_xor_sync(kAllLanes, total, 2);
#pragma unroll 1
  for (int part = thread % 4; part < num_parts; part += 4) {
    const uint32_t at = stats + static_cast<uint32_t>(part * kStatsBytes);
    const float weight = exp2f(load_shared_two(at).x - all) / total;
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(weight) : "memory");
  }
}

// All consumers. A unit is as a warp has it (LatentSums); those of an item are in the order of its partial sums, but
// for rows that it has not. `stage` has the stats of all parts, then the own units of each.
__device__ inline void merge_item(const LatentWgmmaKernelParams& p, const CutItem& item, uint32_t stage) {
  const int thread = find_consumer(), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const int num_parts = item.num_parts, row_groups = (item.num_rows + 15) / 16;
  const int own = static_cast<int>(blockIdx.x) / p.team_size - item.first_team;
  const int all_units = 4 * LatentSums::kQuads * row_groups;
  const int first_unit = all_units * own / num_parts, num_units = all_units * (own + 1) / num_parts - first_unit;
  const auto slot_of = [&](int part) {
    return 2 * ((item.first_team + part) * p.team_size + static_cast<int>(blockIdx.x) % p.team_size) + (part == 0);
  };
  if (num_units == 0) return;
#pragma unroll 1
  for (int part = warp; part < num_parts; part += kMergeWarps) {
    copy_async_16(stage + static_cast<uint32_t>(part * kStatsBytes + lane * 16),
                  p.partial_stats + slot_of(part) * (2 * kLatentRows) + lane * 4, true);
  }
  commit_copies();
  const uint32_t units = stage + static_cast<uint32_t>(num_parts * kStatsBytes);
  const int units_at_once = min(num_units, 3 * kLatentTileBytes / kUnitBytes / num_parts - 1);
#pragma unroll 1
  for (int begin = 0; begin < num_units; begin += units_at_once) {
    const int count = min(units_at_once, num_units - begin);
    // Of few units several warps have one, of other parts.
    const int unit_warps = count < kMergeWarps ? kMergeWarps / count : 1;
    const int own_part = count < kMergeWarps ? warp / count : 0;
#pragma unroll 1
    for (int unit = warp - own_part * count; unit < count && own_part < unit_warps; unit += kMergeWarps) {
      const int chunk = (first_unit + begin + unit) / row_groups, group = (first_unit + begin + unit) % row_groups;
      const float* from = p.partial_sums + (chunk * 128 + group * kWarpSize + lane) * 4;
#pragma unroll 2
      for (int part = own_part; part < num_parts; part += unit_warps) {
        copy_async_16(units + static_cast<uint32_t>((part * count + unit) * kUnitBytes + lane * 16),
                      from + static_cast<int64_t>(slot_of(part)) * (kLatentRows * kLatentRank), true);
      }
    }
    commit_copies();
    if (begin == 0) {
      wait_copies<1>();
      sync_consumers();
      make_weights(stage, num_parts, thread);
    }
    wait_copies<0>();
    sync_consumers();
#pragma unroll 1
    for (int unit = warp; unit < count; unit += kMergeWarps) {
      const int chunk = (first_unit + begin + unit) / row_groups, group = (first_unit + begin + unit) % row_groups;
      const int row = group * 16 + chunk / LatentSums::kQuads % 2 * 8 + lane / 4;
      float4 sum = {};
#pragma unroll 4
      for (int part = 0; part < num_parts; ++part) {
        float weight;
        float4 four;
        asm volatile("ld.shared.f32 %0, [%1];"
                     : "=f"(weight)
                     : "r"(stage + static_cast<uint32_t>(part * kStatsBytes + row * 8)));
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                     : "r"(units + static_cast<uint32_t>((part * count + unit) * kUnitBytes + lane * 16)));
        add_part(sum, weight, four);
      }
      if (row >= item.num_rows) continue;
      const int flat = item.first_row + row, token = flat / p.attention.num_heads;
      Bf16* out = static_cast<Bf16*>(p.attention.out) + (item.first_token + token) * p.attention.out_strides[0] +
                  (flat - token * p.attention.num_heads) * p.attention.out_strides[1];
      store_quad(out + chunk / (2 * LatentSums::kQuads) * kHalf, chunk % LatentSums::kQuads * 4 + lane % 4, sum);
    }
    sync_consumers();
  }
}

// All consumers have stored what they have of items. Waits for the CTAs that share them.
__device__ inline void merge_cuts(const LatentWgmmaKernelParams& p, const CutItem (&cuts)[2], uint32_t stage) {
  if (cuts[0].num_parts == 0 && cuts[1].num_parts == 0) return;
  const int thread = find_consumer();
  const bool tells = thread < 2 && cuts[thread].num_parts > 0;
  uint32_t* arrivals = nullptr;
  uint32_t num_parts = 0, num_seen = 0;
  sync_consumers();
  if (tells) {
    num_parts = static_cast<uint32_t>(cuts[thread].num_parts);
    arrivals = p.arrivals + cuts[thread].first_team * p.team_size + static_cast<int>(blockIdx.x) % p.team_size;
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals) : "memory");
    const long long start = clock64();
    while (load_acquire(arrivals) < num_parts) {
      // Ends the program as __trap() would, with which the products of this kernel are serialized.
      if (clock64() - start > 2000000000ll) asm volatile("st.global.u32 [%0], %1;" ::"l"(0ull), "r"(0) : "memory");
    }
  }
  sync_consumers();
  if (tells) asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(num_seen) : "l"(arrivals) : "memory");
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    if (cuts[i].num_parts > 0) merge_item(p, cuts[i], stage);
  }
  if (tells && num_seen == 2 * num_parts - 1) *arrivals = 0;  // the last one to have seen all parts
}

}  // namespace spate::cuda
