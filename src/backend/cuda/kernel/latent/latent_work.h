// How the units of latent_wgmma.h are shared out: for the kernel that computes them and the one that combines.
#pragma once

#include "backend/cuda/kernel/latent/latent_split.h"
#include "backend/cuda/kernel/latent/latent_wgmma.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

constexpr uint32_t kAllLanes = 0xffffffffu;

struct LatentSequence {
  int first_token, query_len, seq_len;
  int num_items, num_tiles;  // tiles of an item that sees all keys
};

__device__ inline LatentSequence latent_sequence(const AttentionLatentKernelParams& p, int seq) {
  LatentSequence s;
  s.first_token = p.cu_seqlens_q[seq];
  s.query_len = p.cu_seqlens_q[seq + 1] - s.first_token;
  s.seq_len = p.seq_lens[seq];
  if (s.seq_len <= 0) s.query_len = s.seq_len = 0;
  s.num_items = (s.query_len * p.num_heads + kLatentRows - 1) / kLatentRows;
  s.num_tiles = (s.seq_len + kLatentKeys - 1) / kLatentKeys;
  return s;
}

// A team of CTAs takes as many items of a sequence at once.
__device__ inline int num_rounds(const LatentSequence& s, int team_size) { return (s.num_items + team_size - 1) / team_size; }

}  // namespace spate::cuda
