// WHAT       Rows of numbers, or of int4 codes, into the layouts of integer weights.
// SHAPES     rows [num_rows, width] f32 or bf16 (pack_int8, pack_int4), or i8 codes with a scale and multipliers a row
//            (place_int4).
// LAYOUT     integer_weight.h.
// NUMERICS   quantize_row() of quant/quantize.h, to the bit.
// WORK       A CTA a row. pack_int4: a thread a group, 16 elements at a time; the row's tail of a step is filled with
//            code 0 and multiplier 0.
// ROOFLINE   None: it is as fast as weights come over PCIe.
// WARM       0.6 s: codes
// LIMITS     None.
// TESTS      spate-conformance --backend cuda --filter embedding
#include "backend/cuda/kernel/linear/pack_integer.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "quant/two_level.h"

namespace spate::cuda {

template <typename Src>
struct SourceRow {
  const Src* row;
  int width;
  __device__ float at(int k) const { return k < width ? to_float(row[k]) : 0.0f; }
  __device__ float largest_magnitude() const {
    float largest = 0.0f;
    for (int k = static_cast<int>(threadIdx.x); k < width; k += kPackThreads) largest = Max()(fabsf(at(k)), largest);
    return block_reduce(largest, Max());
  }
};

template <typename Src>
__device__ inline SourceRow<Src> source_row(const PackIntegerKernelParams& p) {
  return {static_cast<const Src*>(p.rows) + static_cast<int64_t>(blockIdx.x) * p.layout.width, p.layout.width};
}

// To the nearest code; NaN takes the lowest.
__device__ inline int nearest_code(float code, float lowest, float highest) {
  const float rounded = rintf(code);
  return static_cast<int>(!(rounded > lowest) ? lowest : rounded < highest ? rounded : highest);
}

template <typename Src>
__device__ inline void pack_int8(const PackIntegerKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const SourceRow<Src> source = source_row<Src>(p);
  const int row = p.first_row + static_cast<int>(blockIdx.x);
  const float scale = source.largest_magnitude() / 127.0f;
  const float inverse = scale >= kSmallestScaled ? 1.0f / scale : 0.0f;
  auto* codes = reinterpret_cast<int8_t*>(p.matrix) + row * p.layout.row_bytes();
  for (int k = static_cast<int>(threadIdx.x); k < p.layout.row_bytes(); k += kPackThreads) {
    codes[k] = k < p.layout.width ? static_cast<int8_t>(nearest_code(source.at(k) * inverse, -127.0f, 127.0f)) : 0;
  }
  if (threadIdx.x == 0) reinterpret_cast<float*>(p.matrix + p.layout.scales_offset)[row] = scale;
}

// Sixteen elements from k on, a multiple of 16: four bytes' low or high halves in each of four lanes' words.
__device__ inline void put_codes(const PackIntegerKernelParams& p, int row, int k, const int (&codes)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    // A neighbouring thread may have the other half of the byte; groups are multiples of 32 elements, so it does not.
    char& byte = p.matrix[p.layout.code_offset(row, k + i)];
    const int nibble = codes[i] + 8;
    byte = static_cast<char>(IntegerLayout::is_high(k) ? (byte & 15) | nibble << 4 : nibble);
  }
}

__device__ inline void put_multiplier(const PackIntegerKernelParams& p, int row, int begin, int multiplier) {
  const int elements = kIntegerTileK / p.layout.num_multipliers;
  for (int k = begin; k < begin + p.group_width && k < p.layout.num_steps * kIntegerTileK; k += elements) {
    p.matrix[p.layout.multiplier_offset(row, k)] = static_cast<char>(multiplier);
  }
}

// Codes of sixteen elements and what they lose, added to `sums`.
template <typename Src>
__device__ inline void code_sixteen(const SourceRow<Src>& source, int k, float scale, float inverse, int (&codes)[16],
                                    float (&sums)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float w = source.at(k + i);
    codes[i] = nearest_code(w * inverse, -8.0f, 7.0f);
    const float error = __fmaf_rn(-scale, static_cast<float>(codes[i]), w);
    sums[i] = __fmaf_rn(error, error, sums[i]);
  }
}

// The multiplier of the least squared error, the largest among equals.
template <typename Src>
__device__ inline int choose_multiplier(const SourceRow<Src>& source, int begin, int end, float row_scale) {
  if (row_scale == 0.0f) return 0;
  float max_abs = 0.0f;
  for (int k = begin; k < end; ++k) max_abs = Max()(fabsf(source.at(k)), max_abs);
  const int largest = largest_multiplier(max_abs, row_scale);
  int best = 0, codes[16];
  float least = 0.0f;
  for (int m = largest; m >= smallest_multiplier(largest); --m) {
    const float scale = row_scale * static_cast<float>(m), inverse = 1.0f / scale;
    float sums[16] = {};
    for (int k = begin; k < end; k += 16) code_sixteen(source, k, scale, inverse, codes, sums);
    float loss = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; ++i) loss += sums[i];
    if (m < largest && !(loss < least)) continue;
    least = loss;
    best = m;
  }
  return best;
}

template <typename Src>
__device__ inline void pack_int4(const PackIntegerKernelParams& p) {
  let_dependents_launch();
  wait_for_inputs();
  const SourceRow<Src> source = source_row<Src>(p);
  const int row = p.first_row + static_cast<int>(blockIdx.x), padded_width = p.layout.num_steps * kIntegerTileK;
  const float row_scale = two_level_row_scale(source.largest_magnitude());
  if (threadIdx.x == 0) reinterpret_cast<float*>(p.matrix + p.layout.scales_offset)[row] = row_scale;
  for (int begin = static_cast<int>(threadIdx.x) * p.group_width; begin < padded_width;
       begin += kPackThreads * p.group_width) {
    const int end = min(begin + p.group_width, padded_width), last = min(end, p.layout.width);
    const int multiplier = begin < p.layout.width ? choose_multiplier(source, begin, last, row_scale) : 0;
    put_multiplier(p, row, begin, multiplier);
    const float scale = row_scale * static_cast<float>(multiplier), inverse = multiplier > 0 ? 1.0f / scale : 0.0f;
    for (int k = begin; k < end; k += 16) {
      int codes[16] = {};
      float sums[16] = {};
      if (multiplier > 0) code_sixteen(source, k, scale, inverse, codes, sums);
      put_codes(p, row, k, codes);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kPackThreads)
    place_int4(const __grid_constant__ PackIntegerKernelParams p) {
  let_dependents_launch();
  wait_for_inputs();
  const auto* source = static_cast<const int8_t*>(p.rows) + static_cast<int64_t>(blockIdx.x) * p.layout.width;
  const int row = p.first_row + static_cast<int>(blockIdx.x), padded_width = p.layout.num_steps * kIntegerTileK;
  const int num_groups = (p.layout.width + p.group_width - 1) / p.group_width;
  if (threadIdx.x == 0) reinterpret_cast<float*>(p.matrix + p.layout.scales_offset)[row] = p.row_scales[blockIdx.x];
  for (int begin = static_cast<int>(threadIdx.x) * p.group_width; begin < padded_width;
       begin += kPackThreads * p.group_width) {
    const int group = begin / p.group_width;
    put_multiplier(p, row, begin,
                   group < num_groups ? p.multipliers[static_cast<int64_t>(blockIdx.x) * num_groups + group] : 0);
    for (int k = begin; k < min(begin + p.group_width, padded_width); k += 16) {
      int codes[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) codes[i] = k + i < p.layout.width ? source[k + i] : 0;
      put_codes(p, row, k, codes);
    }
  }
}

#define SPATE_PACK_INTEGER(name, src, Src)                              \
  extern "C" __global__ void __launch_bounds__(kPackThreads)            \
      name##_##src(const __grid_constant__ PackIntegerKernelParams p) { \
    name<Src>(p);                                                       \
  }
SPATE_PACK_INTEGER(pack_int8, f32, float)
SPATE_PACK_INTEGER(pack_int8, bf16, Bf16)
SPATE_PACK_INTEGER(pack_int4, f32, float)
SPATE_PACK_INTEGER(pack_int4, bf16, Bf16)

}  // namespace spate::cuda
