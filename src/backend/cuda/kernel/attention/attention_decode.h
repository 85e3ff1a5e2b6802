#pragma once

#include <cstdint>

#include "backend/cuda/kernel/attention/attention_paged.h"

namespace spate::cuda {

constexpr int kDecodeWarps = 4;
constexpr int kDecodeTileKeys = 16;    // keys that a warp takes at once; they lie in one block
constexpr int kDecodeHeadTile = 8;     // query heads of one kv head that a CTA serves
constexpr int kDecodeSplitUnit = 128;  // splits are multiples of it: two tiles a warp

// One query token a sequence; the keys of a sequence are cut into num_splits runs of split_keys, a CTA each.
struct AttentionDecodeKernelParams {
  AttentionPagedKernelParams attention;
  float*
      partial;  // [num_seqs, num_heads, num_splits, head_dim + 2]: sums of v, then the largest score and the sum of 2^
  int32_t num_heads;
  int32_t split_keys;
  int32_t num_splits;  // 1: the result goes to `out`
};

}  // namespace spate::cuda
