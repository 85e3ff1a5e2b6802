#pragma once

#include <cstdint>

#include "backend/cuda/kernel/linear/integer_weight.h"

namespace spate::cuda {

struct EmbeddingKernelParams {
  const int32_t* token_ids;  // [num_tokens]
  const void* table;         // [num_rows, table_stride], hidden_size of each row in use
  void* out;                 // [num_tokens, out_stride]
  int64_t table_stride;
  int64_t out_stride;
  int32_t num_rows;
  int32_t first_row;
  int32_t hidden_size;
  int32_t is_out_aligned;  // every row of out starts at a multiple of 16 bytes
};

// A table of integer codes.
struct EmbeddingIntegerKernelParams {
  const int32_t* token_ids;  // [num_tokens]
  const char* table;
  IntegerLayout layout;
  void* out;  // [num_tokens, out_stride]
  int64_t out_stride;
  int32_t first_row;
  int32_t is_out_aligned;  // every row of out starts at a multiple of 16 bytes
};

}  // namespace spate::cuda
