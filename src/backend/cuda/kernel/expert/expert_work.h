// The work of a CTA of expert_skeleton.h: which steps of k of which tiles it multiplies.
#pragma once

#include "backend/cuda/kernel/expert/expert_wgmma.h"
#include "backend/cuda/kernel/primitive/cluster.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {

enum class ExpertKind { kGateUp, kGateUpDense, kDown, kHeads };

// Whether the kernel can make the order for itself.
constexpr bool makes_order(ExpertKind kind, int rows) {
  return (kind == ExpertKind::kGateUp || kind == ExpertKind::kDown) && cta_order_pairs(rows) > 0;
}

constexpr bool has_silu(ExpertKind kind) { return kind == ExpertKind::kGateUp || kind == ExpertKind::kGateUpDense; }

// Tiles of experts with many rows, which one thread loads.
template <ExpertKind kKind, int kRows>
constexpr bool kHasManyRows = kRows >= 128 && (kKind == ExpertKind::kGateUpDense || kKind == ExpertKind::kDown);
// CTAs of a cluster that have neighbouring rows of W and the same rows of x: each copies half of them to both.
template <ExpertKind kKind, int kRows>
constexpr int kExpertTeam = kHasManyRows<kKind, kRows>&& kRows == 256 ? kExpertTeamCtas : 1;

// A run of steps of k of one tile.
struct ExpertSegment {
  int matrix;
  int weight_tile;
  int first_row, num_rows;
  int begin, end;
};

// How the tiles of a call are shared out, from the number that the device counted.
struct ExpertShares {
  int num_whole;         // the first tiles, computed by one CTA each
  int num_shared_steps;  // of k, of all other tiles one behind the other
  int num_sharing_ctas;  // which have equal runs of them

  __device__ ExpertShares(const ExpertWgmmaKernelParams& p, int num_row_tiles) {
    constexpr int kMinSteps = 8;  // of k a CTA: fewer take longer to add than to multiply
    constexpr int kSumSteps = 4;  // that could be loaded while CTAs pass sums on
    const int num_ctas = static_cast<int>(gridDim.x), num_tiles = num_row_tiles * p.num_weight_tiles;
    // A last round of tiles that leaves few SMs idle is not cut, nor one that leaves them idle for a short time.
    const int rest = num_tiles % num_ctas, num_idle = rest > 0 ? num_ctas - rest : 0;
    const bool is_rest_large = num_tiles >= num_ctas && 10 * rest > 7 * num_ctas;
    const bool is_idle_short = num_idle * p.num_steps <= kSumSteps * num_ctas;
    num_whole = p.is_whole || is_idle_short || (p.is_many && is_rest_large) ? num_tiles
                : p.is_many                                                 ? num_tiles - rest
                                                                            : 0;
    num_shared_steps = (num_tiles - num_whole) * p.num_steps;
    num_sharing_ctas = max(1, min(num_ctas, num_shared_steps / kMinSteps));
  }
  // A CTA has the shared steps from here to the next CTA's.
  __device__ int first_step(int cta) const {
    return static_cast<int>(static_cast<int64_t>(num_shared_steps) * min(cta, num_sharing_ctas) / num_sharing_ctas);
  }
};

// The CTA's segments, in order; the warps that load and those that multiply walk through them alike.
template <ExpertKind kKind>
class ExpertWork {
 public:
  __device__ ExpertWork(const ExpertWgmmaKernelParams& p, const ExpertOrder& order, int tile_rows)
      : p_(p),
        order_(order),
        tile_rows_(tile_rows),
        shares_(p, kKind == ExpertKind::kHeads ? p.num_matrices * ((p.num_rows + tile_rows - 1) / tile_rows)
                                               : *order.num_tiles) {
    tile_ = static_cast<int>(blockIdx.x);
    step_ = shares_.first_step(tile_);
    end_ = shares_.first_step(tile_ + 1);
  }

  __device__ const ExpertShares& shares() const { return shares_; }

  __device__ bool next(ExpertSegment& segment) {
    int tile = tile_;
    if (tile < shares_.num_whole) {
      segment.begin = 0;
      segment.end = p_.num_steps;
      tile_ += static_cast<int>(gridDim.x);
    } else if (step_ < end_) {
      tile = shares_.num_whole + step_ / p_.num_steps;
      segment.begin = step_ % p_.num_steps;
      segment.end = min(p_.num_steps, segment.begin + end_ - step_);
      step_ += segment.end - segment.begin;
    } else {
      return false;
    }
    if constexpr (kKind == ExpertKind::kHeads) {
      const int tiles_of_rows = (p_.num_rows + tile_rows_ - 1) / tile_rows_;
      const int tiles_of_matrix = tiles_of_rows * p_.num_weight_tiles, in_matrix = tile % tiles_of_matrix;
      segment.matrix = tile / tiles_of_matrix;
      segment.weight_tile = in_matrix / tiles_of_rows;
      segment.first_row = in_matrix % tiles_of_rows * tile_rows_;
      segment.num_rows = min(tile_rows_, p_.num_rows - segment.first_row);
    } else {
      // The tiles of an expert take num_of_expert * num_weight_tiles places from that of its first on.
      const int place = tile / p_.num_weight_tiles;
      const ExpertTile any = order_.tiles[place];
      const int first = place - any.idx_of_expert, in_expert = tile - first * p_.num_weight_tiles;
      const ExpertTile own = order_.tiles[first + in_expert % any.num_of_expert];
      segment.matrix = own.expert;
      segment.weight_tile = in_expert / any.num_of_expert;
      segment.first_row = own.first_row;
      segment.num_rows = own.num_rows;
    }
    return true;
  }

 private:
  const ExpertWgmmaKernelParams& p_;
  const ExpertOrder& order_;
  const int tile_rows_;
  const ExpertShares shares_;
  int tile_;        // of the whole ones
  int step_, end_;  // of all steps of the shared ones
};

// The tiles of a team, which takes the next one when it has loaded one: tiles differ, and the SMs do. The first CTA's
// loading thread takes them and tells that of the other, in whose shared memory a slot has the barrier of 8 bytes, then
// the number of the tile.
template <ExpertKind kKind>
class TeamTiles {
 public:
  static constexpr int kSlots = 8, kSlotBytes = 16;  // the first CTA is at most a ring of stages ahead

  // slots: kSlots of kSlotBytes; every CTA's barriers are initialized with one arrival.
  __device__ TeamTiles(const ExpertWgmmaKernelParams& p, const ExpertOrder& order, uint32_t slots)
      : p_(p), order_(order), slots_(slots), rank_(cluster_rank()) {
    num_pairs_ = (p.num_weight_tiles + kExpertTeamCtas - 1) / kExpertTeamCtas;
    num_tiles_ = *order.num_tiles * num_pairs_;
    if (rank_ == 0) next_ = static_cast<int>(blockIdx.x) / kExpertTeamCtas;
    if (rank_ == 0) send();
  }

  __device__ bool next(ExpertSegment& segment) {
    int tile = next_;
    if (rank_ == 0) {
      if (tile < num_tiles_) {  // read when it is needed
        next_ = static_cast<int>(gridDim.x) / kExpertTeamCtas + atomicAdd(taken(), 1);
      }
    } else {
      const uint32_t slot = slot_of(turn_);
      arrive_expecting(slot, 4);
      wait_cluster_barrier(slot, static_cast<uint32_t>(turn_ / kSlots % 2));
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(tile) : "r"(slot + 8) : "memory");
      ++turn_;
    }
    if (tile >= num_tiles_) return false;
    const ExpertTile own = order_.tiles[tile / num_pairs_];
    segment.matrix = own.expert;
    segment.weight_tile = tile % num_pairs_ * kExpertTeamCtas + rank_;
    segment.first_row = own.first_row;
    segment.num_rows = own.num_rows;
    segment.begin = 0;
    segment.end = p_.num_steps;
    return true;
  }
  // The first CTA's thread, once a tile, when its last stage is free.
  __device__ void tell_next() {
    if (rank_ == 0) send();
  }

 private:
  __device__ int32_t* taken() const { return order_.num_tiles + (kKind == ExpertKind::kDown ? 2 : 1); }
  __device__ uint32_t slot_of(int turn) const { return slots_ + static_cast<uint32_t>(turn % kSlots * kSlotBytes); }
  __device__ void send() {
    const uint32_t slot = slot_of(turn_++);
    send_word(shared_of(slot + 8, 1), static_cast<uint32_t>(next_), shared_of(slot, 1));
  }

  const ExpertWgmmaKernelParams& p_;
  const ExpertOrder& order_;
  const uint32_t slots_;
  const int rank_;
  int num_pairs_, num_tiles_;  // of two tiles of W; of all teams
  int next_ = 0, turn_ = 0;
};

// The loading thread of tiles of many rows tells those that multiply what to do, in shared memory: a segment before its
// first stage, after the last one a segment without a matrix. It has read of tiles ahead; they would wait for them.
__device__ inline void publish_segment(uint32_t place, const ExpertSegment& segment) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(segment.matrix), "r"(segment.weight_tile),
               "r"(segment.first_row), "r"(segment.num_rows)
               : "memory");
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(place + 16), "r"(segment.begin), "r"(segment.end) : "memory");
}
__device__ inline ExpertSegment read_segment(uint32_t place) {
  ExpertSegment segment;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(segment.matrix), "=r"(segment.weight_tile), "=r"(segment.first_row), "=r"(segment.num_rows)
               : "r"(place)
               : "memory");
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(segment.begin), "=r"(segment.end)
               : "r"(place + 16)
               : "memory");
  return segment;
}

}  // namespace spate::cuda
