// The order in which experts are computed: made on the device from the ids of a call, read by the kernels behind it.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/primitive/host_device.h"

namespace spate::cuda {

constexpr int kOrderWarps = 16;
constexpr int kOrderMaxExperts = 1024;
constexpr int kOrderSharedBytes = (kOrderWarps + 1) * kOrderMaxExperts * 4;

// Rows of one expert that a kernel takes at once. A call's rows are its pairs of token and expert, by rising expert,
// those of an expert by rising token; a pair is token * num_experts_per_tok + i.
struct alignas(16) ExpertTile {
  int32_t expert;
  int32_t first_row;
  int32_t num_rows;
  int16_t idx_of_expert;  // among the tiles of the expert, which follow each other
  int16_t num_of_expert;
};

struct ExpertOrder {
  int32_t* num_tiles;    // [3]: how many there are; how many teams have taken, of gate_up and of down
  ExpertTile* tiles;     // [max_expert_tiles()]
  int32_t* row_tokens;   // [num_pairs] of each row; pairs whose expert is not here are no rows, the rest is 0
  int32_t* pair_rows;    // [num_pairs] the row of each pair, -1 where the expert is not here
};

// The rows of an expert are cut into as few tiles as hold them. Tiles of kEvenTileRows share them evenly, in units.
constexpr int kEvenTileRows = 256, kExpertUnitRows = 16;

// No more tiles than this, whatever the ids are.
SPATE_HOST_DEVICE constexpr int64_t max_expert_tiles(int64_t num_pairs, int64_t num_experts, int64_t tile_rows) {
  return num_pairs / tile_rows + (num_pairs < num_experts ? num_pairs : num_experts);
}

struct ExpertOrderKernelParams {
  const int32_t* expert_ids;  // [num_tokens, num_experts_per_tok]
  int64_t ids_stride;
  ExpertOrder order;
  int32_t num_pairs;
  int32_t num_experts_per_tok;
  int32_t num_experts;
  int32_t tile_rows;
};

constexpr int kCopyRowsMaxPairs = 64;  // of a token

struct ExpertCopyRowsKernelParams {
  const char* x;             // [num_tokens] rows
  const int32_t* pair_rows;  // of ExpertOrder
  char* out;                 // [num_pairs, num_units of 16 bytes]
  const QuantizedRow* rows;  // [num_tokens] of codes, or null
  QuantizedRow* ordered_rows;  // [num_pairs]
  int64_t x_stride_bytes;
  int32_t num_units;  // of a row
  int32_t num_experts_per_tok;
};

}  // namespace spate::cuda
