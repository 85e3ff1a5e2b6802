// What a CTA that owns a row reads and writes of it, for rms_norm.cu and add_rms_norm_codes.cu.
#pragma once

#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/rehearsal.h"
#include "backend/cuda/kernel/rms_norm/rms_norm.h"

namespace spate::cuda {

// A row of x, and of the residual when kAdds. kIsWhole: has_whole_pieces() of all of its rows.
template <typename Act, bool kAdds, bool kIsWhole = false>
struct NormRow {
  const RmsNormKernelParams& p;
  const Act* x;
  Act* residual;
  Act* out;

  // What is normalised; with kAdds it has to become the residual, too.
  __device__ Piece<Act> take(int first) const {
    const Piece<Act> from_x = load(x, first);
    if constexpr (!kAdds) return from_x;
    const Piece<Act> before = load(residual, first);
    float sum[kPieceElems];
#pragma unroll
    for (int i = 0; i < kPieceElems; ++i) sum[i] = value_of(before, i) + value_of(from_x, i);
    return to_piece<Act>(sum);
  }
  // The same once more.
  __device__ Piece<Act> take_again(int first) const { return load(kAdds ? residual : x, first); }
  __device__ Piece<Act> load(const Act* row, int first) const {
    return kIsWhole ? load_whole(row, first, p.width) : load_piece(row, first, p.width, p.is_aligned);
  }
  __device__ void store(Act* row, int first, const Piece<Act>& piece) const {
    kIsWhole ? store_whole(row, first, p.width, piece) : store_piece(row, first, p.width, p.is_aligned, piece);
  }
};

template <typename Act, bool kAdds, bool kIsWhole = false>
__device__ inline NormRow<Act, kAdds, kIsWhole> row_of_cta(const RmsNormKernelParams& p, void* residual,
                                                           int64_t residual_stride) {
  const int num_heads = kAdds ? 1 : p.num_heads;
  const int64_t token = num_heads == 1 ? blockIdx.x : blockIdx.x / num_heads, head = blockIdx.x - token * num_heads;
  NormRow<Act, kAdds, kIsWhole> row = {
      p, static_cast<const Act*>(p.x) + token * p.x_token_stride + head * p.x_head_stride,
      kAdds ? static_cast<Act*>(residual) + token * residual_stride : nullptr,
      static_cast<Act*>(p.out) + token * p.out_token_stride + head * p.out_head_stride};
  return row;
}

// The weight's pieces of a thread, asked for before the wait. Whole ones of bf16 come by copies into shared memory:
// ordinary loads are moved behind the wait when the machine code is made. Once in a kernel.
template <typename Act, int kPieces, bool kIsWhole>
class NormWeight {
 public:
  template <typename FirstOf>
  __device__ NormWeight(const RmsNormKernelParams& p, FirstOf first_of) {
    const Act* row = static_cast<const Act*>(p.weight);
    if constexpr (kCopies) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int first = first_of(i);
        copy_async_16(shared_address(place(i)), row + (first < p.width ? first : 0), first < p.width);
      }
      commit_copies();
    } else {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) pieces_[i] = load_constant_piece(row, first_of(i), p.width, p.is_aligned);
    }
  }
  // The i-th piece is there.
  __device__ void wait() const {
    if constexpr (kCopies) wait_copies<0>();
  }
  __device__ Piece<Act> piece(int i) const {
    if constexpr (kCopies) return *place(i);
    return pieces_[i];
  }

 private:
  static constexpr bool kCopies = kIsWhole && sizeof(Act) == sizeof(Bf16);
  __device__ static Piece<Bf16>* place(int i) {
    __shared__ uint4 pieces[kPieces][kNormMaxThreads];
    return reinterpret_cast<Piece<Bf16>*>(&pieces[i][threadIdx.x]);
  }

  Piece<Act> pieces_[kPieces];
};

}  // namespace spate::cuda
