// WHAT       On the heads of a qkv row: rms_norm of q and k (where there are weights), rope of both, then k and v to
// their
//            slot of the paged cache.
// SHAPES     q [num_tokens, num_heads, head_dim], k, v [num_tokens, num_kv_heads, head_dim] act, outer strides free;
//            q_norm, k_norm [head_dim] act or null; positions, slot_mapping [num_tokens] i32, slot -1 skips; cos_sin
//            [max_positions, rotary_dim] f32.
// LAYOUT     The cache as kv_layout.h says; q is changed in place, k stays as it was.
// NUMERICS   Bit-identical to rms_norm, rope and kv_write one after the other: rounded to act after the norm (twice)
// and
//            after the rotation; the squares of a head add in the order of a warp (rms_norm.cu, narrow).
// WORK       grid.x tokens, grid.y groups of heads (q, then k, then v); a head is 8, 16 or 32 lanes, a piece of 8
// elements
//            each. The element that pair j of a rotated half needs lies in the same place of another lane's piece.
// ROOFLINE   Memory: 4 bytes an element in bf16. 8,192 tokens of 48 heads x 128: 201 MB, 47 us at 4.25 TB/s. One token:
//            latency of two dependent loads and a store, some 2 us.
// LIMITS     head_dim <= 256, rotary_dim a multiple of 16; the launcher decomposes the rest.
// TESTS      spate-conformance --backend cuda --filter qk_norm_rope_kv_write; bits: cuda_test on a GPU
#include "backend/cuda/kernel/kv/qk_norm_rope_kv_write.h"

#include "backend/cuda/kernel/kv/write_codes.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

enum class Part { kQuery, kKey, kValue };

// Cosines and sines of a piece's elements: of its 4 pairs of neighbours, or of the 8 pairs that it has one half of.
struct Angles {
  float cos[kPieceElems], sin[kPieceElems];

  __device__ void load(const float* cos_sin, int first, int rotary_dim, bool is_interleaved) {
    if (first >= rotary_dim) return;
    const int half = rotary_dim / 2;
    const int pair = is_interleaved ? first / 2 : first >= half ? first - half : first;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const float* address = cos_sin + pair + (is_interleaved ? 0 : 4 * part);
      const float4 c = *reinterpret_cast<const float4*>(address), s = *reinterpret_cast<const float4*>(address + half);
      const float cosines[4] = {c.x, c.y, c.z, c.w}, sines[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        cos[4 * part + i] = cosines[i];
        sin[4 * part + i] = sines[i];
      }
    }
  }
};

// Pairs (2j, 2j + 1): both lie in the piece.
template <typename Act>
__device__ inline Piece<Act> rotated_neighbours(const Piece<Act>& x, const Angles& angles, int first, int rotary_dim) {
  if (first >= rotary_dim) return x;
  float values[kPieceElems];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float a = value_of(x, 2 * j), b = value_of(x, 2 * j + 1);
    values[2 * j] = a * angles.cos[j] - b * angles.sin[j];
    values[2 * j + 1] = b * angles.cos[j] + a * angles.sin[j];
  }
  return to_piece<Act>(values);
}

// Pairs (j, j + rotary_dim / 2): the partner is the same element of the piece half / 8 lanes away. All lanes call it.
template <typename Act>
__device__ inline Piece<Act> rotated_halves(const Piece<Act>& x, const Angles& angles, int first, int rotary_dim) {
  const int half = rotary_dim / 2, lane = threadIdx.x % kWarpSize;
  const bool is_rotated = first < rotary_dim, is_second = first >= half;
  const int partner_lane = !is_rotated ? lane : is_second ? lane - half / kPieceElems : lane + half / kPieceElems;
  Piece<Act> partner;
#pragma unroll
  for (int w = 0; w < 4 * Piece<Act>::kQuads; ++w) {
    partner.words[w] = __shfl_sync(0xffffffffu, x.words[w], partner_lane);
  }
  if (!is_rotated) return x;
  float values[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) {
    const float own = value_of(x, i), other = value_of(partner, i);
    values[i] = is_second ? own * angles.cos[i] + other * angles.sin[i] : own * angles.cos[i] - other * angles.sin[i];
  }
  return to_piece<Act>(values);
}

template <typename Act, typename Kv>
__device__ inline void qk_norm_rope_kv_write(const QkNormRopeKvWriteKernelParams& p) {
  if (!p.launches_late) let_dependents_launch();
  const int64_t token = blockIdx.x;
  const int head_dim = p.kv.head_dim, first = static_cast<int>(threadIdx.x) % p.lanes_per_head * kPieceElems;
  const int head_of_row = static_cast<int>(blockIdx.y) * (kQkvThreads / p.lanes_per_head) +
                          static_cast<int>(threadIdx.x) / p.lanes_per_head;
  const int first_value = p.num_heads + p.kv.num_kv_heads;
  const bool exists = head_of_row < first_value + p.kv.num_kv_heads;
  const Part part = head_of_row < p.num_heads ? Part::kQuery : head_of_row < first_value ? Part::kKey : Part::kValue;
  const int head = part == Part::kQuery ? head_of_row
                   : part == Part::kKey ? head_of_row - p.num_heads
                                        : head_of_row - first_value;
  const Act* norm = static_cast<const Act*>(part == Part::kQuery ? p.q_norm : part == Part::kKey ? p.k_norm : nullptr);
  const bool has_norm = exists && norm != nullptr;
  Piece<Act> weight = {};
  if (has_norm) weight = load_constant_piece(norm, first, head_dim, p.is_aligned);
  if (!p.reads_early) wait_for_inputs();
  const int32_t slot = p.slot_mapping[token];
  Angles angles = {};
  angles.load(p.cos_sin + p.positions[token] * p.cos_sin_stride, first, p.rotary_dim, p.is_interleaved);
  wait_for_inputs();
  if (p.launches_late) let_dependents_launch();

  const Act* source = static_cast<const Act*>(p.q) + token * p.q_token_stride + head * p.q_head_stride;
  if (part == Part::kKey) source = static_cast<const Act*>(p.k) + token * p.k_token_stride + head * p.k_head_stride;
  if (part == Part::kValue) source = static_cast<const Act*>(p.v) + token * p.v_token_stride + head * p.v_head_stride;
  Piece<Act> x = {};
  if (exists) x = load_piece(source, first, head_dim, p.is_aligned);

  float sum_of_squares = add_squares(x, 0.0f);
  for (int lane_mask = p.lanes_per_head / 2; lane_mask > 0; lane_mask /= 2) {
    sum_of_squares += shuffle_xor(sum_of_squares, lane_mask);
  }
  if (has_norm) x = normalized(x, weight, inv_rms_of(sum_of_squares, head_dim, p.eps));
  const Piece<Act> rotated = p.is_interleaved ? rotated_neighbours(x, angles, first, p.rotary_dim)
                                              : rotated_halves(x, angles, first, p.rotary_dim);
  const bool is_written = exists && part != Part::kQuery && slot >= 0;
  if constexpr (sizeof(Kv) > 1) {
    if (!exists || first >= head_dim) return;
  }
  if (exists && part == Part::kQuery && first < head_dim) {
    Act* q = static_cast<Act*>(p.q) + token * p.q_token_stride + head * p.q_head_stride;
    store_piece(q, first, head_dim, p.is_aligned, rotated);
  }
  if constexpr (sizeof(Kv) > 1) {
    if (!is_written) return;
  }
  float values[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) {  // the padding of a head is zero
    const float value = part == Part::kKey ? value_of(rotated, i) : value_of(x, i);
    values[i] = first + i < head_dim ? value : 0.0f;
  }
  if constexpr (sizeof(Kv) == 1) {
    write_codes(p.kv, part == Part::kKey ? 0 : 1, head, slot, first, values, p.lanes_per_head, is_written);
  } else {
    char* block = static_cast<char*>(p.kv.data) + slot / p.kv.kv_block_size * p.kv.block_bytes;
    Kv* row =
        reinterpret_cast<Kv*>(block) + p.kv.row_offset(part == Part::kKey ? 0 : 1, head, slot % p.kv.kv_block_size);
    store_piece(row, first, p.kv.padded_head_dim, true, to_piece<Kv>(values));
  }
}

#define SPATE_QKV_KERNEL(suffix, Act, Kv)                                                       \
  extern "C" __global__ void __launch_bounds__(kQkvThreads)                                     \
      qk_norm_rope_kv_write_##suffix(const __grid_constant__ QkNormRopeKvWriteKernelParams p) { \
    qk_norm_rope_kv_write<Act, Kv>(p);                                                          \
  }
SPATE_QKV_KERNEL(bf16_bf16, Bf16, Bf16)
SPATE_QKV_KERNEL(f32_bf16, float, Bf16)
SPATE_QKV_KERNEL(f32_f32, float, float)
SPATE_QKV_KERNEL(bf16_int8, Bf16, int8_t)
SPATE_QKV_KERNEL(f32_int8, float, int8_t)

}  // namespace spate::cuda
