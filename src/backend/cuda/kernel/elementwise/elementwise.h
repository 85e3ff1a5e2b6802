#pragma once

#include <cstdint>

namespace spate::cuda {

struct AddKernelParams {
  const void* a;  // [num_tokens, width]
  const void* b;
  void* out;
  int64_t a_stride;
  int64_t b_stride;
  int64_t out_stride;
  int32_t width;
  int32_t is_aligned;  // every row starts at a multiple of 16 bytes
};

struct SiluAndMulKernelParams {
  const void* gate_up;  // [num_tokens, 2 * intermediate_size]
  void* out;            // [num_tokens, intermediate_size]
  int64_t gate_up_stride;
  int64_t out_stride;
  int32_t intermediate_size;
  int32_t is_aligned;  // every row, and its up half, starts at a multiple of 16 bytes
};

}  // namespace spate::cuda
