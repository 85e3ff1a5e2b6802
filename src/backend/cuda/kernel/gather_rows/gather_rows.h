#pragma once

#include <cstdint>

namespace spate::cuda {

// Of scatter_rows too: x [n, width], out [num_rows, width].
struct GatherRowsKernelParams {
  const void* x;           // [num_rows, width]
  const int32_t* row_ids;  // [n]
  void* out;               // [n, width]
  int64_t x_stride;        // the rest in units: 1, 2, 4, 8 or 16 bytes
  int64_t out_stride;
  int32_t width;
};

}  // namespace spate::cuda
