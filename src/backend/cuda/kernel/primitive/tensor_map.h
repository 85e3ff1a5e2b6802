#pragma once

#include <cstdint>

namespace spate::cuda {

// CUtensorMap, made by the host (backend/cuda/tensor_map.h): passed by value in a kernel's parameters.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

}  // namespace spate::cuda
