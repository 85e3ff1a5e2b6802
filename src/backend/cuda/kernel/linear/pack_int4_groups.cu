// WHAT       Rows of numbers, or of codes with scales, into the layout of int4 weights with scales of groups; rows out
//            of it, of a matrix (expand_int4_groups) and of an embedding table.
// SHAPES     rows [num_rows, width] f32 or bf16 (pack_int4_groups), or i8 codes with [num_rows, num_groups] scales and
//            offsets as they are stored (place_int4_groups). out [num_rows, out_stride] bf16 or f32.
// LAYOUT     int4_groups.h.
// NUMERICS   Into it: quantize_row() of quant/quantize.h, symmetric, to the bit. Out of it: dequantized(), then rounded
//            to out's dtype.
// WORK       A CTA a row: a warp a group finds its scale, a thread a word puts its codes; outwards a thread a word.
// ROOFLINE   None: packing is as fast as weights come over PCIe. expand_int4_groups writes 4 times what it reads.
// WARM       0.3 s: other-codes
// LIMITS     pack_int4_groups: kMaxInt4GroupWidth.
// TESTS      spate-conformance --backend cuda --filter a16
#include "backend/cuda/kernel/linear/int4_groups_decode.h"
#include "backend/cuda/kernel/primitive/codes.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

constexpr int kWarpLanes = 32, kWordsOfChunk = 8, kCodesOfWord = 8;

__device__ inline uint16_t float_to_half(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ inline void put_scale(const PackInt4GroupsKernelParams& p, int row, int idx, float scale) {
  char* at = p.matrix + p.layout.scale_offset(row, idx);
  if (p.layout.scale_bytes == 8) {
    *reinterpret_cast<float2*>(at) = {scale, 0.0f};
  } else if (p.layout.scale_bytes == 4) {
    *reinterpret_cast<uint32_t*>(at) = float_to_half(scale);
  } else {
    *reinterpret_cast<uint16_t*>(at) = float_to_half(scale);
  }
}

// The words of a row; code(k): of an element, -8 to 7.
template <typename Code>
__device__ inline void put_words(const PackInt4GroupsKernelParams& p, int row, Code code) {
  for (int i = static_cast<int>(threadIdx.x); i < p.layout.num_chunks * kWordsOfChunk; i += kInt4GroupThreads) {
    const int chunk = i / kWordsOfChunk, word = i % kWordsOfChunk;
    uint32_t codes = 0;
    for (int n = 0; n < kCodesOfWord; ++n) {
      const int k = Int4GroupLayout::k_of(chunk, word, n % 4) + n / 4;
      codes |= static_cast<uint32_t>((k < p.layout.width ? code(k) : 0) + 8) << (4 * n);
    }
    *reinterpret_cast<uint32_t*>(p.matrix + p.layout.word_offset(row, chunk, word)) = codes;
  }
}

template <typename Src>
__device__ inline void pack_int4_groups(const PackInt4GroupsKernelParams& p) {
  constexpr float kLimit = 7.0f, kMaxHalf = 65504.0f;
  __shared__ float scales[kMaxInt4GroupWidth / 32];
  let_dependents_launch();
  wait_for_inputs();
  const Src* source = static_cast<const Src*>(p.rows) + static_cast<int64_t>(blockIdx.x) * p.layout.width;
  const int row = p.first_row + static_cast<int>(blockIdx.x);
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
  const int padded_width = p.layout.num_chunks * kInt4GroupTileK;
  for (int group = warp; group * p.layout.group_width < padded_width; group += kInt4GroupThreads / kWarpLanes) {
    const int begin = group * p.layout.group_width, end = min(begin + p.layout.group_width, p.layout.width);
    float largest = 0.0f;
    for (int k = begin + lane; k < end; k += kWarpLanes) largest = Max()(fabsf(to_float(source[k])), largest);
    largest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(largest)));
    float scale = largest / kLimit;
    if (p.layout.scale_bytes < 8) scale = half_to_float(float_to_half(scale < kMaxHalf ? scale : kMaxHalf));
    if (lane > 0) continue;
    scales[group] = scale;
    const int padded_end = min(begin + p.layout.group_width, padded_width);
    for (int k = begin; k < padded_end; k += p.layout.place_width) put_scale(p, row, k / p.layout.place_width, scale);
  }
  __syncthreads();
  put_words(p, row, [&](int k) {
    const float scale = scales[k / p.layout.group_width], inverse = scale >= kSmallestScaled ? 1.0f / scale : 0.0f;
    const float code = rintf(to_float(source[k]) * inverse);
    return static_cast<int>(!(code > -kLimit) ? -kLimit : code < kLimit ? code : kLimit);
  });
}

extern "C" __global__ void __launch_bounds__(kInt4GroupThreads)
    place_int4_groups(const __grid_constant__ PackInt4GroupsKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const int8_t* source = static_cast<const int8_t*>(p.rows) + static_cast<int64_t>(blockIdx.x) * p.layout.width;
  const int row = p.first_row + static_cast<int>(blockIdx.x), words = p.layout.scale_bytes / 2;
  const auto* scales =
      reinterpret_cast<const uint16_t*>(p.scales) + static_cast<int64_t>(blockIdx.x) * p.num_groups * words;
  for (int i = static_cast<int>(threadIdx.x); i < p.layout.num_scales() * words; i += kInt4GroupThreads) {
    const int idx = i / words, group = idx * p.layout.place_width / p.layout.group_width;
    reinterpret_cast<uint16_t*>(p.matrix + p.layout.scale_offset(row, idx))[i % words] =
        group < p.num_groups ? scales[group * words + i % words] : uint16_t{0};
  }
  put_words(p, row, [&](int k) { return static_cast<int>(source[k]); });
}

// The 8 elements of word i of a row go to `out`, those below `width`.
template <typename Act>
__device__ inline void expand_word(const char* matrix, const Int4GroupLayout& layout, int row, int i, Act* out,
                                   int width) {
  const int chunk = i / kWordsOfChunk, word = i % kWordsOfChunk;
  const uint32_t codes = *reinterpret_cast<const uint32_t*>(matrix + layout.word_offset(row, chunk, word));
  const ScaleAndOffset s = read_scale(matrix, layout, row, Int4GroupLayout::k_of(chunk, word, 0) / layout.place_width);
#pragma unroll
  for (int n = 0; n < kCodesOfWord; ++n) {
    const int k = Int4GroupLayout::k_of(chunk, word, n % 4) + n / 4;
    const auto code = static_cast<float>(static_cast<int>(codes >> (4 * n) & 15) - 8);
    if (k < width) out[k] = from_float<Act>(k < layout.width ? __fmaf_rn(s.scale, code, s.offset) : 0.0f);
  }
}

template <typename Act>
__device__ inline void expand_int4_groups(const ExpandInt4GroupsKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  Act* out = static_cast<Act*>(p.out) + blockIdx.x * p.out_stride;
  const int row = p.first_row + static_cast<int>(blockIdx.x);
  for (int i = static_cast<int>(threadIdx.x); i < p.layout.num_chunks * kWordsOfChunk; i += kInt4GroupThreads) {
    expand_word(p.matrix, p.layout, row, i, out, static_cast<int>(p.out_stride));
  }
}

template <typename Act>
__device__ inline void embedding_int4_groups(const EmbeddingInt4GroupsKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  Act* out = static_cast<Act*>(p.out) + blockIdx.x * p.out_stride;
  const int row = p.token_ids[blockIdx.x] - p.first_row;
  if (row < 0 || row >= p.layout.num_rows) {
    for (int k = static_cast<int>(threadIdx.x); k < p.layout.width; k += kInt4GroupThreads)
      out[k] = from_float<Act>(0.0f);
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < p.layout.num_chunks * kWordsOfChunk; i += kInt4GroupThreads) {
    expand_word(p.table, p.layout, row, i, out, p.layout.width);
  }
}

#define SPATE_INT4_GROUPS(name, type, Type, Params)                                                                 \
  extern "C" __global__ void __launch_bounds__(kInt4GroupThreads) name##_##type(const __grid_constant__ Params p) { \
    name<Type>(p);                                                                                                  \
  }
SPATE_INT4_GROUPS(pack_int4_groups, f32, float, PackInt4GroupsKernelParams)
SPATE_INT4_GROUPS(pack_int4_groups, bf16, Bf16, PackInt4GroupsKernelParams)
SPATE_INT4_GROUPS(expand_int4_groups, f32, float, ExpandInt4GroupsKernelParams)
SPATE_INT4_GROUPS(expand_int4_groups, bf16, Bf16, ExpandInt4GroupsKernelParams)
SPATE_INT4_GROUPS(embedding_int4_groups, f32, float, EmbeddingInt4GroupsKernelParams)
SPATE_INT4_GROUPS(embedding_int4_groups, bf16, Bf16, EmbeddingInt4GroupsKernelParams)

}  // namespace spate::cuda
