// WHAT       As products.cu on wgmma, operands in shared memory.
// SHAPES     num_rounds of 16 products of 64 x 256 x 16 (bf16) or 64 x 256 x 32 (8-bit codes) a warpgroup.
// LAYOUT     wgmma.h; 64 rows for each warpgroup, 256 rows for both.
// NUMERICS   Operands are random: zeros would draw less power than any model.
// WORK       Two warpgroups, one CTA an SM.
// ROOFLINE   It is the roofline of products.
// WARM       3.4 s: bench
// LIMITS     sm_90a.
// TESTS      spate bench limits --device cuda
#include "backend/cuda/kernel/limits/limits.h"
#include "backend/cuda/kernel/limits/random_operand.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/wgmma_int8.h"

namespace spate::cuda {

constexpr int kTileWords = 64 * 32, kNumTiles = 6;  // 64 rows of 128 bytes; 2 tiles of the one operand, 4 of the other

// Descriptors of this warpgroup's 64 rows and of the 256.
struct Operands {
  uint64_t a, b;
};
template <typename Word>
__device__ inline Operands fill(uint32_t* tiles, Word&& word) {
  for (int i = static_cast<int>(threadIdx.x); i < kNumTiles * kTileWords; i += kLimitThreads) tiles[i] = word(i);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(tiles));
  return {wgmma_descriptor(shared + threadIdx.x / 128 * kTileWords * 4), wgmma_descriptor(shared + 2 * kTileWords * 4)};
}

extern "C" __global__ void __launch_bounds__(kLimitThreads) limit_wgmma_bf16(const __grid_constant__ ProductLimitParams p) {
  let_dependents_launch();
  wait_for_inputs();
  __shared__ alignas(1024) uint32_t tiles[kNumTiles * kTileWords];
  const Operands x = fill(tiles, [](int i) { return random_bf16_pair(i); });
  float sums[128] = {};
  for (int round = 0; round < p.num_rounds; ++round) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 16; ++i) wgmma_bf16<256>(sums, next_wgmma_k(x.a, i % 4), next_wgmma_k(x.b, i % 4));
    wgmma_commit();
    wgmma_wait<0>();
  }
  float total = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) total += sums[i];
  if (__float_as_uint(total) == kNeverBits) *p.out = kNeverBits;
}

extern "C" __global__ void __launch_bounds__(kLimitThreads) limit_wgmma_int8(const __grid_constant__ ProductLimitParams p) {
  let_dependents_launch();
  wait_for_inputs();
  __shared__ alignas(1024) uint32_t tiles[kNumTiles * kTileWords];
  const Operands x = fill(tiles, [](int i) { return random_bits(i); });
  int32_t sums[128] = {};
  for (int round = 0; round < p.num_rounds; ++round) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 16; ++i) wgmma_s8<256>(sums, next_wgmma_k(x.a, i % 4), next_wgmma_k(x.b, i % 4));
    wgmma_commit();
    wgmma_wait<0>();
  }
  int32_t total = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) total ^= sums[i];
  if (static_cast<uint32_t>(total) == kNeverBits) *p.out = kNeverBits;
}

}  // namespace spate::cuda
