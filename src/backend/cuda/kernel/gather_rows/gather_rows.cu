// WHAT       gather_rows:  out[i, :] = x[row_ids[i], :], zeros where row_ids[i] is -1.
//            scatter_rows: out[row_ids[i], :] = x[i, :], nothing where row_ids[i] is -1.
// SHAPES     gather_rows: x [num_rows, width], row_ids [n] i32, out [n, width]; scatter_rows: x [n, width], out [num_rows,
//            width]; any dtype.
// LAYOUT     Row-major, row strides free. Rows are moved in the largest unit that divides every address and size.
// NUMERICS   Bytes are copied.
// WORK       grid.x rows, grid.y parts of a row; a thread a unit.
// ROOFLINE   Memory. One row a sampled sequence: a launch's worth of time.
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter gather_rows, --filter scatter_rows
#include "backend/cuda/kernel/gather_rows/gather_rows.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

struct alignas(16) Bytes16 {
  uint64_t words[2];
};

template <typename Unit>
__device__ inline void gather_rows(const GatherRowsKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t row = blockIdx.x;
  const int64_t row_id = p.row_ids[row];
  const Unit* src = static_cast<const Unit*>(p.x) + row_id * p.x_stride;
  Unit* dst = static_cast<Unit*>(p.out) + row * p.out_stride;
  const int k = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (k < p.width) dst[k] = row_id < 0 ? Unit{} : src[k];
}

template <typename Unit>
__device__ inline void scatter_rows(const GatherRowsKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t row = blockIdx.x, row_id = p.row_ids[row];
  if (row_id < 0) return;
  const Unit* src = static_cast<const Unit*>(p.x) + row * p.x_stride;
  Unit* dst = static_cast<Unit*>(p.out) + row_id * p.out_stride;
  const int k = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (k < p.width) dst[k] = src[k];
}

extern "C" __global__ void gather_rows_1(const __grid_constant__ GatherRowsKernelParams p) { gather_rows<uint8_t>(p); }
extern "C" __global__ void gather_rows_2(const __grid_constant__ GatherRowsKernelParams p) { gather_rows<uint16_t>(p); }
extern "C" __global__ void gather_rows_4(const __grid_constant__ GatherRowsKernelParams p) { gather_rows<uint32_t>(p); }
extern "C" __global__ void gather_rows_8(const __grid_constant__ GatherRowsKernelParams p) { gather_rows<uint64_t>(p); }
extern "C" __global__ void gather_rows_16(const __grid_constant__ GatherRowsKernelParams p) { gather_rows<Bytes16>(p); }
extern "C" __global__ void scatter_rows_1(const __grid_constant__ GatherRowsKernelParams p) { scatter_rows<uint8_t>(p); }
extern "C" __global__ void scatter_rows_2(const __grid_constant__ GatherRowsKernelParams p) { scatter_rows<uint16_t>(p); }
extern "C" __global__ void scatter_rows_4(const __grid_constant__ GatherRowsKernelParams p) { scatter_rows<uint32_t>(p); }
extern "C" __global__ void scatter_rows_8(const __grid_constant__ GatherRowsKernelParams p) { scatter_rows<uint64_t>(p); }
extern "C" __global__ void scatter_rows_16(const __grid_constant__ GatherRowsKernelParams p) { scatter_rows<Bytes16>(p); }

}  // namespace spate::cuda
