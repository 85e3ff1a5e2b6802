// WHAT       out[i, :] = table[token_ids[i] - first_row, :], zeros when that row is not in this shard.
// SHAPES     token_ids [num_tokens] i32; table [num_rows, hidden_size] f32 or bf16; out [num_tokens, hidden_size] act.
// LAYOUT     Row-major; the table's rows are padded to the packed weight's stride.
// NUMERICS   One rounding to act when the table is f32 and act is bf16.
// WORK       A CTA a token, threads stride over the row.
// ROOFLINE   Memory: 4 bytes an element in bf16; 2,048 tokens of 4,096 are 34 MB, 8 us at 4.25 TB/s. Not tuned.
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter embedding
#include "backend/cuda/kernel/embedding/embedding.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"

namespace spate::cuda {

template <typename Act, typename Weight>
__device__ inline void embedding(const EmbeddingKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int64_t row = static_cast<int64_t>(p.token_ids[token]) - p.first_row;
  const bool is_here = row >= 0 && row < p.num_rows;
  const Weight* table_row = static_cast<const Weight*>(p.table) + (is_here ? row * p.table_stride : 0);
  Act* out_row = static_cast<Act*>(p.out) + token * p.out_stride;
  for (int k = threadIdx.x; k < p.hidden_size; k += blockDim.x) {
    out_row[k] = from_float<Act>(is_here ? to_float(table_row[k]) : 0.0f);
  }
}

extern "C" __global__ void embedding_bf16_bf16(const __grid_constant__ EmbeddingKernelParams p) {
  embedding<Bf16, Bf16>(p);
}
extern "C" __global__ void embedding_bf16_f32(const __grid_constant__ EmbeddingKernelParams p) {
  embedding<Bf16, float>(p);
}
extern "C" __global__ void embedding_f32_bf16(const __grid_constant__ EmbeddingKernelParams p) {
  embedding<float, Bf16>(p);
}
extern "C" __global__ void embedding_f32_f32(const __grid_constant__ EmbeddingKernelParams p) {
  embedding<float, float>(p);
}

}  // namespace spate::cuda
