// WHAT       out[pair_rows[pair]] = x[pair / num_experts_per_tok]: rows of tokens, or their codes, one behind the other
//            in the order of experts, for products of many rows.
// SHAPES     expert_order.h; rows of whole units of 16 bytes at multiples of 16. Rows of out that no pair has are left.
//            Of codes the scales of a row, too.
// NUMERICS   Bytes are copied.
// WORK       grid.x tokens; a thread a unit of the row, which it reads once and stores to each of the token's experts.
// ROOFLINE   Memory: what is written. 65,536 rows of 2,048 codes are 134 MB, 30 us at 4.5 TB/s.
// WARM       0.2 s: experts
// LIMITS     num_experts_per_tok <= 64.
// TESTS      spate-conformance --backend cuda --filter expert_mlp
#include "backend/cuda/kernel/expert/expert_order.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

extern "C" __global__ void expert_copy_rows(const __grid_constant__ ExpertCopyRowsKernelParams p) {
  __shared__ int32_t rows[kCopyRowsMaxPairs];
  let_dependents_launch();
  wait_for_inputs();
  const int thread = static_cast<int>(threadIdx.x), k = p.num_experts_per_tok;
  const int64_t token = blockIdx.x;
  if (thread < k) rows[thread] = p.pair_rows[token * k + thread];
  const uint4* x = reinterpret_cast<const uint4*>(p.x + token * p.x_stride_bytes);
  uint4* out = reinterpret_cast<uint4*>(p.out);
  uint4 unit{};
  if (thread < p.num_units) unit = x[thread];
  __syncthreads();
  if (p.rows != nullptr && thread < k && rows[thread] >= 0) p.ordered_rows[rows[thread]] = p.rows[token];
  for (int i = thread; i < p.num_units; i += static_cast<int>(blockDim.x)) {
    if (i != thread) unit = x[i];
    for (int e = 0; e < k; ++e) {
      if (rows[e] >= 0) out[static_cast<int64_t>(rows[e]) * p.num_units + i] = unit;
    }
  }
}

}  // namespace spate::cuda
