#pragma once

#include <cstdint>

namespace spate::cuda {

constexpr int kLimitThreads = 256;  // of every kernel here

struct MemoryReadParams {
  const void* data;  // num_pieces x 16 bytes; a multiple of kReadPieces * kLimitThreads pieces
  uint32_t* out;     // one word, as kNeverBits says
  int64_t num_pieces;
  int32_t num_passes;  // over the data
};
constexpr int kReadPieces = 8;  // that a thread has in flight

struct ProductLimitParams {
  uint32_t* out;  // one word, as kNeverBits says
  int32_t num_rounds;
};
// Multiplications and additions of a CTA in a round.
constexpr int64_t kMmaOpsBf16 = int64_t{2} * 8 * 16 * (16 * 8 * 16);  // 8 warps, 16 products each
constexpr int64_t kMmaOpsInt8 = int64_t{2} * 8 * 16 * (16 * 8 * 32);
constexpr int64_t kWgmmaOpsBf16 = int64_t{2} * 2 * 16 * (64 * 256 * 16);  // 2 warpgroups, 16 products each
constexpr int64_t kWgmmaOpsInt8 = int64_t{2} * 2 * 16 * (64 * 256 * 32);

}  // namespace spate::cuda
