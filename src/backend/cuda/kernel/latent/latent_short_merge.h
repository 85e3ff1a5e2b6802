// Merges what the clusters of latent_short.cu left of a row.
#pragma once

#include "backend/cuda/kernel/latent/latent_combine_row.h"
#include "backend/cuda/kernel/latent/latent_short.h"

namespace spate::cuda {

// The quad'th four columns of a row of an item, as store_quad() takes them.
__device__ inline float4 merge_short_parts(const LatentShortKernelParams& p, int item, int row, int quad) {
  constexpr int kAhead = 8;
  const int64_t first_part = static_cast<int64_t>(item) * p.num_parts;
  const float2* stats = reinterpret_cast<const float2*>(p.partial_stats) + first_part * kLatentRows + row;
  const float4* from = reinterpret_cast<const float4*>(p.partial_sums) +
                       (first_part * kLatentShortCtas + row / 8) * (8 * kLatentRank / 4) + quad / 4 * kWarpSize +
                       row % 8 * 4 + quad % 4;
  float largest = -kInfinity, total = 0.0f;
  float4 sum = {};
  for (int first = 0; first < p.num_parts; first += kAhead) {
    float2 stat[kAhead];
    float4 part[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      stat[i] = make_float2(-kInfinity, 0.0f);
      part[i] = {};
      if (first + i >= p.num_parts) continue;
      stat[i] = stats[(first + i) * kLatentRows];
      part[i] = from[(first + i) * (kLatentRows * kLatentRank / 4)];
    }
    float new_largest = largest;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) new_largest = fmaxf(new_largest, stat[i].x);
    if (new_largest == -kInfinity) continue;
    const float shrink = exp2f(largest - new_largest);
    largest = new_largest;
    total *= shrink;
    sum = make_float4(sum.x * shrink, sum.y * shrink, sum.z * shrink, sum.w * shrink);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float weight = exp2f(stat[i].x - largest);
      total = __fmaf_rn(weight, stat[i].y, total);
      sum = make_float4(__fmaf_rn(weight, part[i].x, sum.x), __fmaf_rn(weight, part[i].y, sum.y),
                        __fmaf_rn(weight, part[i].z, sum.z), __fmaf_rn(weight, part[i].w, sum.w));
    }
  }
  return make_float4(sum.x / total, sum.y / total, sum.z / total, sum.w / total);
}

}  // namespace spate::cuda
