// WHAT       (a, b) -> (a cos - b sin, b cos + a sin) for every pair of the first rotary_dim elements of a head, in
//            place.
// SHAPES     x [num_tokens, num_heads, head_dim] act, outer strides free; positions [num_tokens] i32;
//            cos_sin [max_positions, rotary_dim] f32.
// LAYOUT     Pair j is (x[j], x[j + rotary_dim / 2]), or (x[2j], x[2j + 1]) when interleaved.
// NUMERICS   fp32 without contraction, one rounding to act.
// WORK       A CTA a token; threads stride over its num_heads * rotary_dim / 2 pairs.
// ROOFLINE   Memory: 4 bytes an element in bf16. Not tuned.
// LIMITS     positions < max_positions (the host sized the table).
// TESTS      spate-conformance --backend cuda --filter rope
#include "backend/cuda/kernel/rope/rope.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

template <typename Act>
__device__ inline void rope(const RopeKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int half = p.rotary_dim / 2;
  const float* cos = p.cos_sin + p.positions[token] * p.cos_sin_stride;
  const float* sin = cos + half;
  for (int i = threadIdx.x; i < p.num_heads * half; i += blockDim.x) {
    const int head = i / half, pair = i % half;
    Act* x = static_cast<Act*>(p.x) + token * p.token_stride + head * p.head_stride;
    Act& a_ref = p.is_interleaved ? x[2 * pair] : x[pair];
    Act& b_ref = p.is_interleaved ? x[2 * pair + 1] : x[pair + half];
    const float a = to_float(a_ref), b = to_float(b_ref);
    a_ref = from_float<Act>(a * cos[pair] - b * sin[pair]);
    b_ref = from_float<Act>(b * cos[pair] + a * sin[pair]);
  }
}

extern "C" __global__ void rope_bf16(const __grid_constant__ RopeKernelParams p) { rope<Bf16>(p); }
extern "C" __global__ void rope_f32(const __grid_constant__ RopeKernelParams p) { rope<float>(p); }

}  // namespace spate::cuda
