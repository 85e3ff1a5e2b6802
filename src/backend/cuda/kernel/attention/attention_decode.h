#pragma once

#include <cstdint>

#include "backend/cuda/kernel/attention/attention_paged.h"

namespace spate::cuda {

constexpr int kDecodeWarps = 4;
constexpr int kDecodeTileKeys = 16;  // keys that a warp takes at once; they lie in one block
constexpr int kDecodeHeadTile = 8;   // query heads of one kv head that a CTA serves
constexpr int kCombineWarps = 8;
constexpr int kDecodeSplitUnit = 128;  // splits have at least as many keys: two tiles a warp

// One query token a sequence. The keys of a sequence are cut into splits of equal size, a CTA each. How many is found
// on the device, from the lengths of all sequences: together about max_splits, and one a sequence at least. The CTA
// that computes a split is its `item`; the items of a sequence follow each other.
struct AttentionDecodeKernelParams {
  AttentionPagedKernelParams attention;
  float* partial;  // [max_splits + num_seqs, num_heads, head_dim + 2]: of an item, if its sequence has several: sums of
                   // v, then the largest score and the sum of 2^
  int32_t* first_item;  // [num_seqs] and behind it [num_seqs]: its number of items
  int32_t num_heads;
  int32_t max_splits;
};

}  // namespace spate::cuda
