// WHAT       add:           out = a + b
//            silu_and_mul:  out = act(silu(gate)) * up, silu(x) = x / (1 + exp(-x))
// SHAPES     a, b, out [num_tokens, width] act; gate_up [num_tokens, 2 * intermediate_size] act, gate first.
// LAYOUT     Row-major, row strides free; add's out may be a or b.
// NUMERICS   fp32, each result rounded once to act; silu is rounded before the product.
// WORK       grid.x tokens, grid.y parts of a row; a thread a piece of 8 elements, in accesses of 16 bytes where all
// rows
//            (and the up half) start at multiples of 16 bytes.
// ROOFLINE   Memory: 6 bytes an element in bf16; silu_and_mul of 8,192 x 14,336 is 704 MB, 166 us at 4.25 TB/s.
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter add, --filter silu_and_mul
#include "backend/cuda/kernel/elementwise/elementwise.h"

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

template <typename Act>
__device__ inline void add(const AddKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kPieceElems;
  if (first >= p.width) return;
  const Piece<Act> a = load_piece(static_cast<const Act*>(p.a) + token * p.a_stride, first, p.width, p.is_aligned);
  const Piece<Act> b = load_piece(static_cast<const Act*>(p.b) + token * p.b_stride, first, p.width, p.is_aligned);
  float sum[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) sum[i] = value_of(a, i) + value_of(b, i);
  store_piece(static_cast<Act*>(p.out) + token * p.out_stride, first, p.width, p.is_aligned, to_piece<Act>(sum));
}

template <typename Act>
__device__ inline void silu_and_mul(const SiluAndMulKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kPieceElems, width = p.intermediate_size;
  if (first >= width) return;
  const Act* row = static_cast<const Act*>(p.gate_up) + token * p.gate_up_stride;
  const Piece<Act> gate = load_piece(row, first, width, p.is_aligned);
  const Piece<Act> up = load_piece(row + width, first, width, p.is_aligned);
  store_piece(static_cast<Act*>(p.out) + token * p.out_stride, first, width, p.is_aligned, silu_and_mul_of(gate, up));
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
