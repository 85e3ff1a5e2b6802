// The work of a CTA of linear_skeleton.h: which steps of k of which tiles it multiplies.
#pragma once

#include "backend/cuda/kernel/linear/linear_wgmma.h"
#include "backend/cuda/kernel/primitive/cluster.h"

namespace spate::cuda {

constexpr int kTokenTilesTogether = 8;  // tiles of tokens that share a pass over W

// A run of steps of k of one tile.
struct Segment {
  int row;    // the tile's first row of W
  int token;  // and token
  int begin, end;
};

// The shared steps of k, of all shared tiles one behind the other: a CTA has those from first() to the next CTA's.
class SharedSteps {
 public:
  __device__ explicit SharedSteps(const LinearWgmmaKernelParams& p) : num_ctas_(p.num_sharing_ctas) {
    const auto num_steps = static_cast<uint32_t>((p.num_tiles - p.num_whole_tiles) * p.num_steps),
               num_ctas = static_cast<uint32_t>(num_ctas_);
    each_ = static_cast<int>(num_steps / num_ctas);
    num_longer_ = static_cast<int>(num_steps % num_ctas);  // by one
  }
  __device__ int first(int cta) const {
    const int before = min(cta, num_ctas_);
    return before * each_ + min(before, num_longer_);
  }

 private:
  int num_ctas_, each_, num_longer_;
};

// The CTA's segments, in order; the warps that load and those that multiply walk through them alike.
class Work {
 public:
  __device__ Work(const LinearWgmmaKernelParams& p, int tile_tokens, int team_ctas)
      : p_(p), tile_tokens_(tile_tokens), team_ctas_(team_ctas), rank_(team_ctas > 1 ? cluster_rank() : 0) {
    tile_ = static_cast<int>(blockIdx.x) / team_ctas;
    const SharedSteps steps(p);
    step_ = steps.first(tile_);
    end_ = steps.first(tile_ + 1);
  }
  __device__ bool next(Segment& segment) {
    int tile = tile_;
    if (tile < p_.num_whole_tiles) {
      segment.begin = 0;
      segment.end = p_.num_steps;
      tile_ += static_cast<int>(gridDim.x) / team_ctas_;
    } else if (step_ < end_) {
      tile = p_.num_whole_tiles + step_ / p_.num_steps;
      segment.begin = step_ % p_.num_steps;
      segment.end = min(p_.num_steps, segment.begin + end_ - step_);
      step_ += segment.end - segment.begin;
    } else {
      return false;
    }
    const int num_token_tiles = p_.num_tiles / p_.num_row_tiles, in_group = kTokenTilesTogether * p_.num_row_tiles;
    const int first = tile / in_group * kTokenTilesTogether,
              together = min(kTokenTilesTogether, num_token_tiles - first);
    segment.token = (first + tile % in_group % together) * tile_tokens_;
    segment.row = (tile % in_group / together * team_ctas_ + rank_) * kWgmmaTileRows;
    return true;
  }

 private:
  const LinearWgmmaKernelParams& p_;
  const int tile_tokens_, team_ctas_, rank_;
  int tile_;        // of the whole ones
  int step_, end_;  // of all steps of the shared ones
};

}  // namespace spate::cuda
