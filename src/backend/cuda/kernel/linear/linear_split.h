// linear_split.cu, for host and device. Its params: LinearWgmmaKernelParams without what cuts k.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/linear_wgmma.h"

namespace spate::cuda {

constexpr int kSplitCtas = 8;               // of a cluster, share the k of a tile
constexpr int kSplitChunkTokens = 128;      // of a tile's sums that are exchanged at a time
constexpr int kSplitGroupBytes = 256 * 16;  // of a chunk: the sums of 8 tokens by 128 rows, four a thread

constexpr int split_groups(int tokens) { return (tokens < kSplitChunkTokens ? tokens : kSplitChunkTokens) / 8; }
constexpr int split_chunk_bytes(int tokens) {
  return (split_groups(tokens) < kSplitCtas ? kSplitCtas : split_groups(tokens)) * kSplitGroupBytes;
}
constexpr int split_stage_bytes(int tokens) { return (kWgmmaTileRows + tokens) * kWgmmaStageRowBytes; }
constexpr int split_stages(int tokens) { return tokens == 128 ? 5 : tokens <= 16 ? 4 : 3; }
constexpr int split_shared_bytes(int tokens) {
  return 1024 + split_stages(tokens) * (split_stage_bytes(tokens) + 16) + split_chunk_bytes(tokens) + 16;
}

}  // namespace spate::cuda
