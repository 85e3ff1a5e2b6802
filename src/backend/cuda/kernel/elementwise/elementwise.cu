// WHAT       add:           out = a + b
//            silu_and_mul:  out = act(silu(gate)) * up, silu(x) = x / (1 + exp(-x))
// SHAPES     a, b, out [num_tokens, width] act; gate_up [num_tokens, 2 * intermediate_size] act, gate first.
// LAYOUT     Row-major, row strides free; add's out may be a or b.
// NUMERICS   fp32, each result rounded once to act; silu is rounded before the product.
// WORK       grid.x tokens, grid.y pieces of a row; a thread an element.
// ROOFLINE   Memory: 6 bytes an element in bf16. Not tuned.
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter add, --filter silu_and_mul
#include "backend/cuda/kernel/elementwise/elementwise.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

template <typename Act>
__device__ inline void add(const AddKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int k = blockIdx.y * blockDim.x + threadIdx.x;
  if (k >= p.width) return;
  const float a = to_float(static_cast<const Act*>(p.a)[token * p.a_stride + k]);
  const float b = to_float(static_cast<const Act*>(p.b)[token * p.b_stride + k]);
  static_cast<Act*>(p.out)[token * p.out_stride + k] = from_float<Act>(a + b);
}

template <typename Act>
__device__ inline void silu_and_mul(const SiluAndMulKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int k = blockIdx.y * blockDim.x + threadIdx.x;
  if (k >= p.intermediate_size) return;
  const Act* gate_up = static_cast<const Act*>(p.gate_up) + token * p.gate_up_stride;
  const float gate = to_float(gate_up[k]), up = to_float(gate_up[p.intermediate_size + k]);
  const float silu = round_to<Act>(gate / (1.0f + expf(-gate)));
  static_cast<Act*>(p.out)[token * p.out_stride + k] = from_float<Act>(silu * up);
}

extern "C" __global__ void add_bf16(const __grid_constant__ AddKernelParams p) { add<Bf16>(p); }
extern "C" __global__ void add_f32(const __grid_constant__ AddKernelParams p) { add<float>(p); }
extern "C" __global__ void silu_and_mul_bf16(const __grid_constant__ SiluAndMulKernelParams p) {
  silu_and_mul<Bf16>(p);
}
extern "C" __global__ void silu_and_mul_f32(const __grid_constant__ SiluAndMulKernelParams p) {
  silu_and_mul<float>(p);
}

}  // namespace spate::cuda
