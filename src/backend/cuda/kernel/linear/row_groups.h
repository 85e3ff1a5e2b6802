// A walk of linear_rows.cu: a CTA has a run of groups of rows, its kWarps warps share the k of a
// group, step s belongs to warp s % kWarps, and one of them, by turns, finishes the group.
//
// A warp's steps of all its groups are one sequence, and its loads stay kDepth steps ahead in it. No warp waits for the
// others at the end of a group: it leaves its sums and goes on, up to kPlaces groups ahead of the slowest. The one
// whose turn it is finishes a group when it has done its part of the next one too: by then the others' sums are there.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {

constexpr int kGroupPlaces = 4;  // for the sums of groups

template <int kWarps>
struct GroupSums {
  float4 of_warp[kGroupPlaces][kWarps][32];
  uint64_t full[kGroupPlaces], empty[kGroupPlaces];

  // All threads; then they may be used.
  __device__ void init() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kGroupPlaces; ++i) {
        init_barrier(shared_address(full + i), kWarps);
        init_barrier(shared_address(empty + i), 1);
      }
    }
    __syncthreads();
  }
};

// Step: what a lane holds of a step of a group.
template <typename Step, int kDepth, int kWarps>
class RowGroups {
 public:
  Step ring[kDepth];

  // num_steps: of k, at least kWarps.
  __device__ RowGroups(int num_groups, int num_steps) {
    const auto first_group = [&](int cta) {
      return static_cast<int>(static_cast<int64_t>(num_groups) * cta / static_cast<int>(gridDim.x));
    };
    begin_ = first_group(static_cast<int>(blockIdx.x));
    end_ = first_group(static_cast<int>(blockIdx.x) + 1);
    warp_ = static_cast<int>(threadIdx.x) / 32;
    num_steps_ = (num_steps - warp_ + kWarps - 1) / kWarps;
    next_group_ = begin_;
  }
  __device__ int begin() const { return begin_; }
  __device__ int end() const { return end_; }

  // The first loads. load(step, group, k): step k of the group.
  template <typename Load>
  __device__ void fill(Load load) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) load_next(ring[d], load);
  }

  // multiply(step, sums, i): adds this warp's i-th step of a group. finish(group, totals): of all warps, added in their
  // order; called by the warps of the CTA by turns.
  template <typename Load, typename Multiply, typename Finish>
  __device__ void run(GroupSums<kWarps>& shared, Load load, Multiply multiply, Finish finish) {
    float sums[4] = {};
    int idx = 0, i = 0;
    const int num_groups = end_ - begin_, lane = static_cast<int>(threadIdx.x) % 32;
    const auto finish_group = [&](int which) {
      if (which % kWarps != warp_) return;
      const int place = which % kGroupPlaces;
      wait_barrier(shared_address(shared.full + place), static_cast<uint32_t>(which / kGroupPlaces % 2));
      float totals[4] = {};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float4 more = shared.of_warp[place][w][lane];
        totals[0] += more.x;
        totals[1] += more.y;
        totals[2] += more.z;
        totals[3] += more.w;
      }
      __syncwarp();
      if (lane == 0) arrive(shared_address(shared.empty + place));
      finish(begin_ + which, totals);
    };
    while (idx < num_groups) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (idx == num_groups) break;
        multiply(ring[d], sums, i);
        load_next(ring[d], load);
        if (++i < num_steps_) continue;
        const int place = idx % kGroupPlaces;
        wait_barrier(shared_address(shared.empty + place), static_cast<uint32_t>(idx / kGroupPlaces % 2) ^ 1);
        shared.of_warp[place][warp_][lane] = {sums[0], sums[1], sums[2], sums[3]};
        __syncwarp();
        if (lane == 0) arrive(shared_address(shared.full + place));
        if (idx > 0) finish_group(idx - 1);
        sums[0] = sums[1] = sums[2] = sums[3] = 0;
        i = 0;
        ++idx;
      }
    }
    if (num_groups > 0) finish_group(num_groups - 1);
  }

 private:
  template <typename Load>
  __device__ void load_next(Step& step, Load load) {
    if (next_group_ >= end_) return;
    load(step, next_group_, warp_ + kWarps * next_step_);
    if (++next_step_ < num_steps_) return;
    next_step_ = 0;
    ++next_group_;
  }

  int begin_, end_, warp_, num_steps_;
  int next_group_, next_step_ = 0;  // of the loads
};

}  // namespace spate::cuda
