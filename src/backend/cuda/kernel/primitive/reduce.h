// Sums and maxima over a warp and over a CTA, in an order that depends on the thread count only.
#pragma once

#include <cstdint>

namespace spate::cuda {

constexpr int kWarpSize = 32;
constexpr int kMaxWarps = 32;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);  // NVRTC has no INFINITY

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// A value and whose it is: the largest key wins, among equals the smallest id.
template <typename Key>
struct Ranked {
  Key key;
  int32_t id;
};

struct First {
  template <typename Key>
  __device__ Ranked<Key> operator()(Ranked<Key> a, Ranked<Key> b) const {
    return b.key > a.key || (b.key == a.key && b.id < a.id) ? b : a;
  }
};

template <typename T>
__device__ inline T shuffle_xor(T value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

template <typename Key>
__device__ inline Ranked<Key> shuffle_xor(Ranked<Key> value, int lane_mask) {
  return {shuffle_xor(value.key, lane_mask), shuffle_xor(value.id, lane_mask)};
}

// Every lane gets the result.
template <typename T, typename Combine>
__device__ inline T warp_reduce(T value, Combine combine) {
#pragma unroll
  for (int lane_mask = kWarpSize / 2; lane_mask > 0; lane_mask /= 2) {
    value = combine(value, shuffle_xor(value, lane_mask));
  }
  return value;
}

// The sum of the lanes up to and with this one.
template <typename T>
__device__ inline T sum_through_lane(T value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const T lower = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value += lower;
  }
  return value;
}

// Every thread gets the result. All threads of the CTA call it; blockDim.x is a multiple of 32, at most 1024.
template <typename T, typename Combine>
__device__ inline T block_reduce(T value, Combine combine) {
  __shared__ T of_warp[kMaxWarps];
  value = warp_reduce(value, combine);
  __syncthreads();  // the array may still be read for the reduction before this one
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = of_warp[0];
  for (int warp = 1; warp < static_cast<int>(blockDim.x) / kWarpSize; ++warp) value = combine(value, of_warp[warp]);
  return value;
}

}  // namespace spate::cuda
