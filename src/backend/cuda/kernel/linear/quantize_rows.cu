// WHAT       Rows of activations as 8-bit codes with a scale each, outliers set aside.
// SHAPES     x [num_tokens, width] act; codes [num_tokens, row_bytes], zeros behind the width.
// NUMERICS   quant/outlier_rule.h, then quantize_activations() of quant/quantize.h, to the bit. A row with a NaN or an
//            infinity has the scale NaN and codes of zero.
// WORK       A CTA a row, which stays in registers, 1 or (bf16) 2 pieces of 8 elements a thread; wider ones are read
// again. A
//            reduction for the largest
//            |x|, one for each round of outliers (a row of ordinary numbers: one), one for the sum of the codes.
// ROOFLINE   Memory: 3 bytes an element in bf16: 2,048 rows of 4,096 are 25 MB, 6 us at 4.25 TB/s. One row: latency.
// LIMITS     width <= 65,536 (linear_int8.cu).
// TESTS      spate-conformance --backend cuda --filter int8
#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/primitive/codes.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

// What a round of the outlier rule must know of a row.
struct AboveShare {
  int32_t count;
  float largest_below;
};

__device__ inline AboveShare shuffle_xor(AboveShare value, int lane_mask) {
  return {shuffle_xor(value.count, lane_mask), shuffle_xor(value.largest_below, lane_mask)};
}
struct Join {
  __device__ AboveShare operator()(AboveShare a, AboveShare b) const {
    return {a.count + b.count, Max()(a.largest_below, b.largest_below)};
  }
};

// A thread's pieces of a row of x: in registers, or read again each time (kPieces 0).
template <typename Act, int kPieces>
class RowPieces {
 public:
  __device__ explicit RowPieces(const QuantizeRowsKernelParams& p) : p_(p) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces_[i] = load(i);
  }
  __device__ int count() const {
    return kPieces > 0 ? kPieces : static_cast<int>((p_.row_bytes / kPieceElems + blockDim.x - 1) / blockDim.x);
  }
  __device__ int first_of(int i) const {
    return (i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kPieceElems;
  }
  // f(first, values)
  template <typename F>
  __device__ void for_each(F f) const {
#pragma unroll
    for (int i = 0; i < count(); ++i) {
      const Piece<Act> piece = kPieces > 0 ? pieces_[i] : load(i);
      float values[kPieceElems];
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) values[j] = value_of(piece, j);
      f(first_of(i), values);
    }
  }

 private:
  __device__ Piece<Act> load(int i) const {
    return load_piece(static_cast<const Act*>(p_.x) + blockIdx.x * p_.x_stride, first_of(i), p_.width, p_.is_x_aligned);
  }
  const QuantizeRowsKernelParams& p_;
  Piece<Act> pieces_[kPieces > 0 ? kPieces : 1];
};

// |x| above the result are outliers; `top` becomes the largest that is none.
template <typename Row>
__device__ inline float outlier_limit(const Row& row, int64_t width, float& top) {
  float limit = kInfinity;
  while (top < kInfinity && top >= kSmallestScaled) {
    const float share = top * kOutlierShare;
    AboveShare above = {};
    row.for_each([&](int, const float(&x)[kPieceElems]) {
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) {
        const float magnitude = fabsf(x[j]);
        if (magnitude > share) {
          ++above.count;
        } else {
          above.largest_below = Max()(above.largest_below, magnitude);
        }
      }
    });
    above = block_reduce(above, Join());
    if (above.count > max_outliers(width)) break;
    limit = share;
    top = above.largest_below;
  }
  return limit;
}

template <typename Act, int kPieces>
__device__ inline void quantize_rows(const QuantizeRowsKernelParams& p) {
  let_dependents_launch();
  __shared__ Outlier found[kMaxOutliers];
  __shared__ int num_found;
  if (threadIdx.x == 0) num_found = 0;
  wait_for_inputs();
  const int64_t token = blockIdx.x;
  const RowPieces<Act, kPieces> row(p);
  float top = 0.0f;
  row.for_each([&](int, const float(&x)[kPieceElems]) {
#pragma unroll
    for (int j = 0; j < kPieceElems; ++j) top = Max()(top, magnitude_of(x[j]));
  });
  top = block_reduce(top, Max());
  const float limit = outlier_limit(row, p.width, top);
  const CodeScale scale = code_scale(top);
  int32_t code_sum = 0;
  row.for_each([&](int first, const float(&x)[kPieceElems]) {
    if (first >= p.row_bytes) return;
    int codes[kPieceElems];
#pragma unroll
    for (int j = 0; j < kPieceElems; ++j) {
      const bool is_outlier = fabsf(x[j]) > limit;
      if (is_outlier) found[atomicAdd(&num_found, 1)] = {first + j, x[j]};
      codes[j] = is_outlier ? 0 : code_of(x[j], scale.inverse);
      code_sum += codes[j];
    }
    *reinterpret_cast<uint2*>(p.codes + token * p.row_bytes + first) = pack_codes(codes);
  });
  code_sum = block_reduce(code_sum, Sum());
  const int count = num_found;
  if (threadIdx.x == 0) p.rows[token] = {scale.scale, code_sum, count, 0};
  if (threadIdx.x == 0 && token == 0 && p.outlier_columns != nullptr) p.outlier_columns->is_gathered = 0;
  if (threadIdx.x < count) {
    const Outlier own = found[threadIdx.x];
    int rank = 0;
    for (int i = 0; i < count; ++i) rank += found[i].k < own.k;
    p.outliers[token * kMaxOutliers + rank] = own;
    const uint32_t bit = 1u << own.k % 32;
    if (p.outlier_columns != nullptr) {
      uint32_t* word = p.outlier_columns->marks + own.k / 32;
      if ((__ldcg(word) & bit) == 0) atomicOr(word, bit);
    }
  }
}

#define SPATE_QUANTIZE_ROWS(name, Act, pieces)                                   \
  extern "C" __global__ void __launch_bounds__(kQuantizeMaxThreads)              \
      quantize_rows_##name(const __grid_constant__ QuantizeRowsKernelParams p) { \
    quantize_rows<Act, pieces>(p);                                               \
  }
SPATE_QUANTIZE_ROWS(bf16_1, Bf16, 1)
SPATE_QUANTIZE_ROWS(bf16_2, Bf16, 2)
SPATE_QUANTIZE_ROWS(bf16_wide, Bf16, 0)
SPATE_QUANTIZE_ROWS(f32_1, float, 1)
SPATE_QUANTIZE_ROWS(f32_wide, float, 0)

}  // namespace spate::cuda
