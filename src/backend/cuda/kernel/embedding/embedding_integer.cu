// WHAT       out[i, :] = the row token_ids[i] - first_row of a table of integer codes, zeros when it is not in this
// shard. SHAPES     token_ids [num_tokens] i32; table [num_rows, width] int8 or int4; out [num_tokens, width] act.
// LAYOUT     linear/integer_weight.h.
// NUMERICS   scale * code in f32, one rounding to act.
// WORK       grid.x tokens, grid.y parts of a row; a thread a piece of 8 elements.
// ROOFLINE   Memory: 3 bytes an element with int8 and bf16.
// WARM       0.2 s: codes
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter embedding
#include "backend/cuda/kernel/embedding/embedding.h"

#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

template <bool kIsInt4>
__device__ inline float value_at(const EmbeddingIntegerKernelParams& p, int row, int k, float scale) {
  if constexpr (!kIsInt4) {
    return scale * static_cast<float>(reinterpret_cast<const int8_t*>(p.table)[row * p.layout.row_bytes() + k]);
  }
  const int byte = static_cast<unsigned char>(p.table[p.layout.code_offset(row, k)]);
  const int code = (IntegerLayout::is_high(k) ? byte >> 4 : byte & 15) - 8;
  // The scale of a group is exact in f32.
  return scale * static_cast<float>(p.table[p.layout.multiplier_offset(row, k)]) * static_cast<float>(code);
}

template <typename Act, bool kIsInt4>
__device__ inline void embedding(const EmbeddingIntegerKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const int first = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kPieceElems;
  if (first >= p.layout.width) return;
  const int row = p.token_ids[token] - p.first_row;
  float values[kPieceElems] = {};
  if (row >= 0 && row < p.layout.num_rows) {
    const float scale = reinterpret_cast<const float*>(p.table + p.layout.scales_offset)[row];
#pragma unroll
    for (int i = 0; i < kPieceElems; ++i) values[i] = value_at<kIsInt4>(p, row, first + i, scale);
  }
  Act* out = static_cast<Act*>(p.out) + token * p.out_stride;
  store_piece(out, first, p.layout.width, p.is_out_aligned, to_piece<Act>(values));
}

#define SPATE_EMBEDDING_INTEGER(name, Act, is_int4)                                                     \
  extern "C" __global__ void embedding_##name(const __grid_constant__ EmbeddingIntegerKernelParams p) { \
    embedding<Act, is_int4>(p);                                                                         \
  }
SPATE_EMBEDDING_INTEGER(int8_bf16, Bf16, false)
SPATE_EMBEDDING_INTEGER(int8_f32, float, false)
SPATE_EMBEDDING_INTEGER(int4_bf16, Bf16, true)
SPATE_EMBEDDING_INTEGER(int4_f32, float, true)

}  // namespace spate::cuda
