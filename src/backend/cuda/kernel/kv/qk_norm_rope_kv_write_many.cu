// WHAT       qk_norm_rope_kv_write of many tokens: heads of 128 elements in bf16, all of them rotated, by halves.
// SHAPES     As qk_norm_rope_kv_write.cu. q, k and v of a token follow each other; q and k have a norm, or neither.
// NUMERICS   Its bits.
// WORK       grid.x tokens, grid.y parts of their heads. 16 lanes a head, kQkvManyHeads heads a thread, which are read
//            before the position is known; all have its angles. A lane of a head computes the factor of one of them.
// ROOFLINE   Memory: 4 bytes an element. 8,192 tokens of 40 heads: 168 MB, 40 us at 4.2 TB/s. With a head a thread, 550
//            instructions a warp of two heads took 78 us.
// LIMITS     head_dim and rotary_dim 128; the launcher has the other kernels for the rest.
// TESTS      spate-conformance --backend cuda --filter qk_norm_rope_kv_write; bits: cuda_test on a GPU
#include "backend/cuda/kernel/kv/qk_norm_rope_kv_write.h"

#include "backend/cuda/kernel/kv/write_codes.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

// The piece of a head, rotated. sin: with the sign that it has in this half.
__device__ inline Piece<Bf16> rotated_half(const Piece<Bf16>& x, const float (&cos)[kPieceElems],
                                           const float (&sin)[kPieceElems]) {
  Piece<Bf16> rotated;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const uint32_t own = x.words[w], other = shuffle_xor(own, kQkvManyLanes / 2);
    rotated.words[w] = pack_bf16(low_float(own) * cos[2 * w] + low_float(other) * sin[2 * w],
                                 high_float(own) * cos[2 * w + 1] + high_float(other) * sin[2 * w + 1]);
  }
  return rotated;
}

// normalized(): the product of two of bf16 has one rounding either way.
__device__ inline Piece<Bf16> normalized_pairs(const Piece<Bf16>& x, const Piece<Bf16>& weight, float inv_rms) {
  Piece<Bf16> out;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    out.words[w] =
        multiply_bf16x2(pack_bf16(low_float(x.words[w]) * inv_rms, high_float(x.words[w]) * inv_rms), weight.words[w]);
  }
  return out;
}

template <typename Kv>
__device__ inline void qk_norm_rope_kv_write_many(const QkNormRopeKvWriteKernelParams& p) {
  constexpr int kHeadDim = kQkvManyHeadDim, kHeadsOfCta = kQkvManyThreads / kQkvManyLanes;
  let_dependents_launch();
  const int64_t token = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % kQkvManyLanes, first = lane * kPieceElems;
  const int first_head =
      static_cast<int>(blockIdx.y) * kHeadsOfCta * kQkvManyHeads + static_cast<int>(threadIdx.x) / kQkvManyLanes;
  const int first_key = p.num_heads, first_value = first_key + p.kv.num_kv_heads,
            num_rows = first_value + p.kv.num_kv_heads;
  Piece<Bf16> q_weight = {}, k_weight = {};
  const bool has_norm = p.q_norm != nullptr;
  if (has_norm) {
    q_weight = load_constant_piece(static_cast<const Bf16*>(p.q_norm), first, kHeadDim, true);
    k_weight = load_constant_piece(static_cast<const Bf16*>(p.k_norm), first, kHeadDim, true);
  }
  wait_for_inputs();
  const int32_t slot = p.slot_mapping[token], position = p.positions[token];
  Bf16* rows = static_cast<Bf16*>(p.q) + token * p.q_token_stride + first;
  const int stride = static_cast<int>(p.q_head_stride);
  Piece<Bf16> pieces[kQkvManyHeads];
#pragma unroll
  for (int i = 0; i < kQkvManyHeads; ++i) {
    const int head = first_head + i * kHeadsOfCta;
    pieces[i] = {};
    if (head < num_rows) pieces[i] = load_piece(rows + head * stride, 0, kPieceElems, true);
  }
  float cos[kPieceElems], sin[kPieceElems];
  const bool is_second = lane >= kQkvManyLanes / 2;
  const float* angles = p.cos_sin + position * p.cos_sin_stride + first % (kHeadDim / 2);
#pragma unroll
  for (int i = 0; i < kPieceElems; i += 4) {
    const float4 c = *reinterpret_cast<const float4*>(angles + i),
                 s = *reinterpret_cast<const float4*>(angles + kHeadDim / 2 + i);
    const float cosines[4] = {c.x, c.y, c.z, c.w}, sines[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      cos[i + j] = cosines[j];
      sin[i + j] = is_second ? sines[j] : -sines[j];
    }
  }
  float inv_rms = 0.0f;  // of the thread's head `lane`
  if (has_norm) {
    float own_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kQkvManyHeads; ++i) {
      float sum_of_squares = add_squares(pieces[i], 0.0f);
#pragma unroll
      for (int lane_mask = kQkvManyLanes / 2; lane_mask > 0; lane_mask /= 2) {
        sum_of_squares += shuffle_xor(sum_of_squares, lane_mask);
      }
      own_sum = lane == i ? sum_of_squares : own_sum;
    }
    inv_rms = inv_rms_of(own_sum, kHeadDim, p.eps);
  }
#pragma unroll
  for (int i = 0; i < kQkvManyHeads; ++i) {
    const int head = first_head + i * kHeadsOfCta;
    if (head - head % 2 >= num_rows) return;  // those of a warp are neighbours
    const bool is_query = head < first_key, is_value = head >= first_value;
    Piece<Bf16> x = pieces[i];
    if (has_norm) {
      const float factor = __shfl_sync(0xffffffffu, inv_rms, i, kQkvManyLanes);
      if (!is_value) x = normalized_pairs(x, is_query ? q_weight : k_weight, factor);
    }
    const Piece<Bf16> rotated = rotated_half(x, cos, sin);
    if (is_query) store_piece(rows + head * stride, 0, kPieceElems, true, rotated);
    if (head - head % 2 + 1 < first_key) continue;  // no lane of the warp has a key or a value
    if (!is_value) x = rotated;
    const bool is_written = !is_query && head < num_rows && slot >= 0;
    const int part = is_value, kv_head = head - (is_value ? first_value : first_key);
    if constexpr (sizeof(Kv) == 1) {
      float values[kPieceElems];
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) values[j] = value_of(x, j);
      write_codes(p.kv, part, kv_head, slot, first, values, kQkvManyLanes, is_written);
    } else if (is_written) {
      char* block = static_cast<char*>(p.kv.data) + slot / p.kv.kv_block_size * p.kv.block_bytes;
      Kv* row = reinterpret_cast<Kv*>(block) + p.kv.row_offset(part, kv_head, slot % p.kv.kv_block_size);
      store_piece(row, first, kHeadDim, true, x);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kQkvManyThreads)
    qk_norm_rope_kv_write_many_bf16(const __grid_constant__ QkNormRopeKvWriteKernelParams p) {
  qk_norm_rope_kv_write_many<Bf16>(p);
}
extern "C" __global__ void __launch_bounds__(kQkvManyThreads)
    qk_norm_rope_kv_write_many_int8(const __grid_constant__ QkNormRopeKvWriteKernelParams p) {
  qk_norm_rope_kv_write_many<int8_t>(p);
}

}  // namespace spate::cuda
