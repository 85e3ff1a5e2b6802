// What the kernels of attention_decode.cu and attention_decode_int8.cu share: which keys a CTA has.
#pragma once

#include "backend/cuda/kernel/attention/attention_decode.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

constexpr int kTile = kDecodeTileKeys, kHeads = kDecodeHeadTile;

// Keys that the query of a sequence sees: [begin, end), begin rounded down to a tile. None of a dummy, and of a sequence
// with more queries, which is another kernel's.
struct KeyRange {
  int begin, end;
};
__device__ inline KeyRange seen_keys(const AttentionPagedKernelParams& p, int seq) {
  const int seq_len = p.seq_lens[seq];
  if (p.cu_seqlens_q[seq + 1] - p.cu_seqlens_q[seq] != 1 || seq_len <= 0) return {};
  const int begin = p.window > 0 ? max(0, seq_len - p.window) : 0;
  return {begin / kTile * kTile, seq_len};
}

struct Item {
  int seq;  // -1: none
  int split;
  int num_splits;
};

// What the CTA computes. All threads call it; every CTA of the grid counts alike.
__device__ inline Item find_item(const AttentionDecodeKernelParams& params, int item) {
  __shared__ Item found;
  __shared__ int warp_items[kDecodeWarps];
  const AttentionPagedKernelParams& p = params.attention;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  int num_keys = 0;
  for (int seq = threadIdx.x; seq < p.num_seqs; seq += blockDim.x) {
    const KeyRange keys = seen_keys(p, seq);
    num_keys += keys.end - keys.begin;
  }
  num_keys = block_reduce(num_keys, Sum());
  const int split_keys = max(kDecodeSplitUnit, (num_keys + params.max_splits - 1) / params.max_splits);
  if (threadIdx.x == 0) found.seq = -1;
  int items_before = 0;
  for (int first = 0; first < p.num_seqs; first += blockDim.x) {
    const int seq = first + threadIdx.x;
    int num_splits = 0;
    if (seq < p.num_seqs) {
      const KeyRange keys = seen_keys(p, seq);
      num_splits = max(1, (keys.end - keys.begin + split_keys - 1) / split_keys);
    }
    int through = num_splits;  // items of the sequences up to this one, in the warp, then in the CTA
#pragma unroll
    for (int delta = 1; delta < kWarpSize; delta *= 2) {
      const int lower = __shfl_up_sync(0xffffffffu, through, delta);
      if (lane >= delta) through += lower;
    }
    __syncthreads();
    if (lane == kWarpSize - 1) warp_items[warp] = through;
    __syncthreads();
    for (int w = 0; w < warp; ++w) through += warp_items[w];
    const int first_item = items_before + through - num_splits;
    if (seq < p.num_seqs && first_item <= item && item < first_item + num_splits) {
      found = {seq, item - first_item, num_splits};
      if (item == first_item && blockIdx.y == 0) {
        params.first_item[seq] = first_item;
        params.first_item[p.num_seqs + seq] = num_splits;
      }
    }
    for (int w = 0; w < kDecodeWarps; ++w) items_before += warp_items[w];
  }
  __syncthreads();
  return found;
}

}  // namespace spate::cuda
