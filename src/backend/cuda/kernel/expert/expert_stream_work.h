// Which steps a warp of expert_stream_kernel.h has, and the copies that bring them.
#pragma once

#include "backend/cuda/kernel/expert/expert_stream_order.h"
#include "backend/cuda/kernel/primitive/async_copy.h"

namespace spate::cuda {

// A warp's steps of a phase: `count` from step `step` of group `group` on.
struct StreamRun {
  int is_down, tile;
  int num_groups;  // of the phase, of the CTA
  int num_steps;   // of a group
  int group, step, count;
};

// The phases of a CTA in order, with the steps of one warp.
class StreamRuns {
 public:
  __device__ StreamRuns(const ExpertStreamKernelParams& p, int num_tiles) : p_(p), num_tiles_(num_tiles) { start(0); }

  __device__ bool next(StreamRun& run) {
    while (at_ >= end_) {
      if (is_down_ != 0) return false;
      start(1);
    }
    const int warp = static_cast<int>(threadIdx.x) / 32;
    run.is_down = is_down_;
    run.tile = at_ / groups_;
    const int first = at_ - run.tile * groups_;
    run.num_groups = min(groups_ - first, end_ - at_);
    run.num_steps = is_down_ != 0 ? p_.down.layout.num_steps : p_.gate_up.layout.num_steps;
    const int total = run.num_groups * run.num_steps;
    const int begin = total * warp / kExpertStreamWarps;
    run.count = total * (warp + 1) / kExpertStreamWarps - begin;
    run.group = first + begin / run.num_steps;
    run.step = begin % run.num_steps;
    at_ += run.num_groups;
    return true;
  }
  // Steps that warp `warp` has in a phase.
  __device__ static int count_of(const StreamRun& run, int warp) {
    const int total = run.num_groups * run.num_steps;
    return total * (warp + 1) / kExpertStreamWarps - total * warp / kExpertStreamWarps;
  }
  // CTAs that have groups of down of the tile.
  __device__ int num_ctas_of(int tile) const {
    const Shares shares(num_tiles_ * groups_);
    return shares.cta_of(tile * groups_ + groups_ - 1) - shares.cta_of(tile * groups_) + 1;
  }

 private:
  // Equal runs of groups of a product, the first ones longer by one.
  struct Shares {
    int each, num_longer;
    __device__ explicit Shares(int num_groups) {
      const auto total = static_cast<uint32_t>(num_groups);
      each = static_cast<int>(total / gridDim.x);
      num_longer = static_cast<int>(total % gridDim.x);
    }
    __device__ int first(int cta) const { return cta * each + min(cta, num_longer); }
    __device__ int cta_of(int group) const {
      const int in_longer = num_longer * (each + 1);
      return group < in_longer ? group / (each + 1) : num_longer + (group - in_longer) / each;
    }
  };

  __device__ void start(int is_down) {
    is_down_ = is_down;
    groups_ = is_down != 0 ? p_.hidden_size / 16 : p_.intermediate_size / 8;
    const Shares shares(num_tiles_ * groups_);
    at_ = shares.first(static_cast<int>(blockIdx.x));
    end_ = shares.first(static_cast<int>(blockIdx.x) + 1);
  }

  const ExpertStreamKernelParams& p_;
  const int num_tiles_;
  int is_down_, groups_;
  int at_, end_;  // groups of all tiles
};

__device__ inline void copy_streamed_16(uint32_t shared, const char* global) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// The copies of a warp, through all of its runs.
template <int kMultipliers, int kRows>
class StreamLoads {
 public:
  static constexpr int kStepBytes = expert_stream_step_bytes(kMultipliers);

  __device__ StreamLoads(const ExpertStreamKernelParams& p, const StreamOrder<kRows>& order)
      : p_(p), order_(order), runs_(p, order.num_tiles) {
    run_.count = 0;
    left_ = 0;
  }
  // One step more to the slot, if there is one.
  __device__ void next(uint32_t slot) {
    if (left_ == 0) find();
    if (left_ > 0) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      copy_streamed_16(slot + lane * 16, from_[0]);
      copy_streamed_16(slot + 512 + lane * 16, from_[1]);
      if (lane < kMultipliers) copy_streamed_16(slot + 1024 + lane * 16, multipliers_);
      from_[0] += chunk_bytes_;
      from_[1] += chunk_bytes_;
      multipliers_ += chunk_bytes_;
      --left_;
    }
    commit_copies();
  }

 private:
  // The next segment: what the warp has of a group.
  __device__ void find() {
    while (run_.count == 0) {
      if (!runs_.next(run_)) {
        run_.count = 0;
        return;
      }
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const ExpertStreamProduct& product = run_.is_down != 0 ? p_.down : p_.gate_up;
    const char* matrix = product.weight + order_.tiles[run_.tile].expert * product.layout.matrix_bytes;
    chunk_bytes_ = static_cast<int>(product.layout.chunk_bytes());
    const auto chunk_of = [&](int row) { return matrix + product.layout.chunk_offset(row, run_.step * kIntegerTileK); };
    const int rows[2] = {run_.is_down != 0 ? run_.group * 16 : run_.group * 8,
                         run_.is_down != 0 ? run_.group * 16 + 8 : p_.intermediate_size + run_.group * 8};
#pragma unroll
    for (int r = 0; r < 2; ++r) from_[r] = chunk_of(rows[r]) + rows[r] % kWgmmaTileRows * kInt4RowBytes + lane * 16;
    const int half = lane / (kMultipliers / 2) % 2, row = half != 0 ? rows[1] : rows[0];
    multipliers_ =
        chunk_of(row) + kInt4CodeBytes + row % kWgmmaTileRows * kMultipliers + lane % (kMultipliers / 2) * 16;
    left_ = min(run_.count, run_.num_steps - run_.step);
    run_.count -= left_;
    run_.step = 0;
    ++run_.group;
  }

  const ExpertStreamKernelParams& p_;
  const StreamOrder<kRows>& order_;
  StreamRuns runs_;
  StreamRun run_;
  const char *from_[2], *multipliers_;
  int left_, chunk_bytes_;
};

}  // namespace spate::cuda
