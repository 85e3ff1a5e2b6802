// For launchers: whether kernels may move rows in accesses of 16 bytes.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/tensor.h"

namespace spate::cuda {

// Every row (along the last dim) of every tensor starts at a multiple of 16 bytes.
inline bool are_rows_aligned(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    if (reinterpret_cast<uintptr_t>(tensor->raw()) % 16 != 0) return false;
    for (int i = 0; i + 1 < tensor->rank(); ++i) {
      if (tensor->dim(i) > 1 && tensor->stride(i) * dtype_bytes(tensor->dtype()) % 16 != 0) return false;
    }
  }
  return true;
}

}  // namespace spate::cuda
