// WHAT       out[i, :] = table[token_ids[i] - first_row, :], zeros when that row is not in this shard.
// SHAPES     token_ids [num_tokens] i32; table [num_rows, hidden_size] f32 or bf16; out [num_tokens, hidden_size] act.
// LAYOUT     Row-major; the table's rows are padded to the packed weight's stride.
// NUMERICS   One rounding to act when the table is f32 and act is bf16.
// WORK       grid.x tokens, grid.y parts of a row; a thread a piece of 8 elements.
// ROOFLINE   Memory: 4 bytes an element in bf16; 2,048 tokens of 4,096 are 34 MB, 8 us at 4.25 TB/s.
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter embedding
#include "backend/cuda/kernel/embedding/embedding.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

template <typename Act, typename Weight>
__device__ inline void embedding(const EmbeddingKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kPieceElems;
  if (first >= p.hidden_size) return;
  const int64_t row = static_cast<int64_t>(p.token_ids[token]) - p.first_row;
  float values[kPieceElems] = {};
  if (row >= 0 && row < p.num_rows) {
    // Rows of a packed weight always start at a multiple of 16 bytes.
    const Piece<Weight> piece =
        load_piece(static_cast<const Weight*>(p.table) + row * p.table_stride, first, p.hidden_size, true);
#pragma unroll
    for (int i = 0; i < kPieceElems; ++i) values[i] = value_of(piece, i);
  }
  Act* out = static_cast<Act*>(p.out) + token * p.out_stride;
  store_piece(out, first, p.hidden_size, p.is_out_aligned, to_piece<Act>(values));
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
