// WHAT       Products of the tensor core on numbers in registers, again and again: the rate that products are compared with.
// SHAPES     num_rounds of 16 products of 16 x 8 x 16 (bf16) or 16 x 8 x 32 (8-bit codes) a warp.
// LAYOUT     None.
// NUMERICS   Operands are random: zeros would draw less power than any model.
// WORK       8 warps a CTA, two CTAs an SM.
// ROOFLINE   It is the roofline of mma.sync.
// WARM       0.1 s: bench
// LIMITS     None.
// TESTS      spate bench limits --device cuda
#include "backend/cuda/kernel/limits/limits.h"
#include "backend/cuda/kernel/limits/random_operand.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"

namespace spate::cuda {

constexpr int kNumSums = 8;  // that a warp adds to by turns, so that no product waits for the one before it

extern "C" __global__ void __launch_bounds__(kLimitThreads) limit_mma_bf16(const __grid_constant__ ProductLimitParams p) {
  let_dependents_launch();
  wait_for_inputs();
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = random_bf16_pair(threadIdx.x * 8 + i);
  for (int i = 0; i < 2; ++i) b[i] = random_bf16_pair(threadIdx.x * 8 + 4 + i);
  float sums[kNumSums][4] = {};
  for (int round = 0; round < p.num_rounds; ++round) {
#pragma unroll
    for (int i = 0; i < 16; ++i) mma_m16n8k16_bf16(sums[i % kNumSums], a, b);
  }
  float total = 0;
  for (const auto& sum : sums) total += sum[0] + sum[1] + sum[2] + sum[3];
  if (__float_as_uint(total) == kNeverBits) *p.out = kNeverBits;
}

extern "C" __global__ void __launch_bounds__(kLimitThreads) limit_mma_int8(const __grid_constant__ ProductLimitParams p) {
  let_dependents_launch();
  wait_for_inputs();
  uint32_t a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = random_bits(threadIdx.x * 8 + i);
  for (int i = 0; i < 2; ++i) b[i] = random_bits(threadIdx.x * 8 + 4 + i);
  int32_t sums[kNumSums][4] = {};
  for (int round = 0; round < p.num_rounds; ++round) {
#pragma unroll
    for (int i = 0; i < 16; ++i) mma_m16n8k32_s8(sums[i % kNumSums], a, b);
  }
  int32_t total = 0;
  for (const auto& sum : sums) total ^= sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
  if (static_cast<uint32_t>(total) == kNeverBits) *p.out = kNeverBits;
}

}  // namespace spate::cuda
