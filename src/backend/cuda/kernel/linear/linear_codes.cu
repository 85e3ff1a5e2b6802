// WHAT       out = x W^T + bias for 1 to 8 tokens by 8-bit codes of x and integer weights, bound by the bytes of W.
// SHAPES     As linear_int8.cu and linear_int4.cu.
// LAYOUT     integer_weight.h.
// NUMERICS   As linear_int8.cu and linear_int4.cu, to the bit: sums of codes are exact in 32 bits.
// WORK       A CTA has a run of groups of 16 rows of W, one after the other; the grid is two CTAs an SM, so that no sum
//            crosses CTAs. Its 8 warps share the k of a group: step s of 128 belongs to warp s % 8; their sums meet in
//            shared memory, where one of them, by turns, finishes the group. W goes from global memory to registers, kDepth
//            steps ahead, the first ones before the wait for the kernel before; what a lane holds is operand A of
//            mma.sync as it is (the k of int8 is permuted, x is read the same way). The scales of rows are loaded early.
// ROOFLINE   Bytes of W over 4.65 TB/s.
// LIMITS     At least 8 steps of k; in_features at most 65,536.
// TESTS      spate-conformance --backend cuda --filter int8, --filter int4
#include "backend/cuda/kernel/linear/linear_codes.h"

#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"

namespace spate::cuda {

constexpr int kWarps = kCodesWarps, kLanes = 32;

// What no other CTA reads: past L1.
__device__ inline uint4 load_stream(const char* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}
__device__ inline uint32_t load_stream_word(const char* address) {
  uint32_t value;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}
__device__ inline uint32_t load_stream_half(const char* address) {
  uint16_t value;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(value) : "l"(address));
  return value;
}
__device__ inline float load_scale(const float* address) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(address));
  return value;
}

// A format: what a lane holds of 16 rows and 128 elements of k, and their product with x. With group = lane / 4 and
// pair = lane % 4 it has parts of the rows `group` and `group` + 8, and of token `group` of x.

struct Int8Codes {
  static constexpr int kDepth = 4, kBias = 0;
  uint4 rows[2][2];  // [row][64 elements of k]: 16 of them from 16 pair on

  __device__ void load(const LinearCodesKernelParams& p, int first_row, int step) {
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = min(first_row + lane / 4 + 8 * r, p.layout.num_rows - 1);
      const char* from = p.weight + row * p.layout.row_bytes() + step * kIntegerTileK + lane % 4 * 16;
#pragma unroll
      for (int half = 0; half < 2; ++half) rows[r][half] = load_stream(from + 64 * half);
    }
  }
  // x: of the lane's token at the step's first element; null: zeros.
  __device__ void multiply(int32_t (&sums)[4], const int8_t* x) const {
    const int pair = threadIdx.x % 4;
    uint4 codes[2] = {};
    if (x != nullptr) {
#pragma unroll
      for (int half = 0; half < 2; ++half) codes[half] = *reinterpret_cast<const uint4*>(x + 64 * half + 16 * pair);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 a = rows[0][half], b = rows[1][half];
      mma_m16n8k32_s8(sums, {a.x, b.x, a.y, b.y}, {codes[half].x, codes[half].y});
      mma_m16n8k32_s8(sums, {a.z, b.z, a.w, b.w}, {codes[half].z, codes[half].w});
    }
  }
  __device__ static int weight_at(const LinearCodesKernelParams& p, int row, int k) {
    return reinterpret_cast<const int8_t*>(p.weight)[row * p.layout.row_bytes() + k];
  }
};

// kMultipliers: of a row in 128 elements. As int4_format.h.
template <int kMultipliers>
struct Int4Codes {
  static constexpr int kDepth = 4, kBias = 128, kSteps = kIntegerTileK / 32;
  uint4 rows[2];
  uint32_t multipliers[2];

  __device__ void load(const LinearCodesKernelParams& p, int first_row, int step) {
    const int lane = threadIdx.x % kLanes;
    const char* chunk = p.weight + p.layout.chunk_offset(first_row, step * kIntegerTileK);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row % kWgmmaTileRows + lane / 4 + 8 * r;
      rows[r] = load_stream(chunk + row * kInt4RowBytes + lane % 4 * 16);
      const char* from = chunk + kInt4CodeBytes + row * kMultipliers;
      multipliers[r] = kMultipliers == 4 ? load_stream_word(from) : load_stream_half(from);
    }
  }
  __device__ void multiply(int32_t (&sums)[4], const int8_t* x) const {
    const int pair = threadIdx.x % 4;
    uint32_t codes[kSteps][2] = {};
    if (x != nullptr) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          codes[s][half] = *reinterpret_cast<const uint32_t*>(x + 32 * s + 16 * half + 4 * pair);
        }
      }
    }
    const uint32_t words[2][kSteps] = {{rows[0].x, rows[0].y, rows[0].z, rows[0].w},
                                       {rows[1].x, rows[1].y, rows[1].z, rows[1].w}};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t multiplier = multipliers[r] >> (s * kMultipliers / kSteps * 8) & 0xff;
        const uint32_t offset = 0x80808080u - multiplier * 0x08080808u;
        a[r] = (words[r][s] & 0x0f0f0f0fu) * multiplier + offset;
        a[2 + r] = (words[r][s] >> 4 & 0x0f0f0f0fu) * multiplier + offset;
      }
      mma_m16n8k32_u8_s8(sums, a, codes[s]);
    }
  }
  __device__ static int weight_at(const LinearCodesKernelParams& p, int row, int k) {
    const int byte = static_cast<unsigned char>(p.weight[p.layout.code_offset(row, k)]);
    const int code = (IntegerLayout::is_high(k) ? byte >> 4 : byte & 15) - 8;
    return code * p.weight[p.layout.multiplier_offset(row, k)];
  }
};

// The tokens 2 pair and 2 pair + 1 of a lane, and the scales of the rows that it finishes next.
struct LaneScales {
  QuantizedRow tokens[2];
  float rows[2];

  __device__ void load_tokens(const LinearCodesKernelParams& p) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      tokens[c] = p.rows[min(static_cast<int>(threadIdx.x % 4) * 2 + c, p.num_tokens - 1)];
    }
  }
  __device__ void load_rows(const LinearCodesKernelParams& p, int first_row) {
    const float* scales = reinterpret_cast<const float*>(p.weight + p.layout.scales_offset);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r] = load_scale(scales + min(first_row + static_cast<int>(threadIdx.x) % kLanes / 4 + 8 * r,
                                        p.layout.num_rows - 1));
    }
  }
};

// From sums to `out`, as scale_sums() and store_tile().
template <typename Format>
__device__ inline void finish_rows(const LinearCodesKernelParams& p, const int32_t (&sums)[4], const LaneScales& scales,
                                   int first_row) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + lane / 4 + i / 2 * 8, token = lane % 4 * 2 + i % 2;
    if (row >= p.layout.num_rows || token >= p.num_tokens) continue;
    const QuantizedRow& x = scales.tokens[i % 2];
    const float scale = scales.rows[i / 2];
    float value = x.scale * (scale * static_cast<float>(sums[i] - Format::kBias * x.code_sum));
    for (int e = 0; e < x.num_outliers; ++e) {
      const Outlier outlier = p.outliers[token * kMaxOutliers + e];
      value += outlier.x * (scale * static_cast<float>(Format::weight_at(p, row, outlier.k)));
    }
    if (p.bias != nullptr) {
      value += p.is_bias_f32 ? static_cast<const float*>(p.bias)[row] : to_float(static_cast<const Bf16*>(p.bias)[row]);
    }
    const int64_t offset = token * p.out_stride + row;
    if (p.is_out_f32) {
      static_cast<float*>(p.out)[offset] = value;
    } else {
      static_cast<Bf16*>(p.out)[offset] = from_float<Bf16>(value);
    }
  }
}

template <typename Format>
__device__ inline void linear_codes(const LinearCodesKernelParams& p) {
  constexpr int kDepth = Format::kDepth;
  __shared__ int4 warp_sums[2][kWarps][kLanes];
  let_dependents_launch();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int num_steps = (p.layout.num_steps - warp + kWarps - 1) / kWarps;  // of this warp, of a group
  const auto first_group = [&](int cta) {
    return static_cast<int>(static_cast<int64_t>(p.num_groups) * cta / static_cast<int>(gridDim.x));
  };
  const int begin = first_group(static_cast<int>(blockIdx.x)), end = first_group(static_cast<int>(blockIdx.x) + 1);
  Format ring[kDepth];  // a step i of a group stands at i % kDepth
#pragma unroll
  for (int d = 0; d < kDepth; ++d) {
    if (d < num_steps && begin < end) ring[d].load(p, begin * kCodesRows, warp + kWarps * d);
  }
  LaneScales scales;
  if (begin + warp < end) scales.load_rows(p, (begin + warp) * kCodesRows);
  wait_for_inputs();
  scales.load_tokens(p);
  const int8_t* x = lane / 4 < p.num_tokens ? p.x + lane / 4 * p.layout.row_bytes() + warp * kIntegerTileK : nullptr;

  for (int group = begin; group < end; ++group) {
    int32_t sums[4] = {};
    for (int first = 0; first < num_steps; first += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int i = first + d;
        if (i >= num_steps) break;
        ring[d].multiply(sums, x == nullptr ? nullptr : x + i * (kWarps * kIntegerTileK));
        const bool is_last = i + kDepth >= num_steps;
        if (!is_last || group + 1 < end) {
          ring[d].load(p, (is_last ? group + 1 : group) * kCodesRows, warp + kWarps * (is_last ? d : i + kDepth));
        }
      }
    }
    const int idx = group - begin;
    warp_sums[idx % 2][warp][lane] = make_int4(sums[0], sums[1], sums[2], sums[3]);
    __syncthreads();  // what is read here is written again after the next one
    if (idx % kWarps != warp) continue;
    int32_t total[4] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const int4 more = warp_sums[idx % 2][w][lane];
      total[0] += more.x;
      total[1] += more.y;
      total[2] += more.z;
      total[3] += more.w;
    }
    finish_rows<Format>(p, total, scales, group * kCodesRows);
    if (group + kWarps < end) scales.load_rows(p, (group + kWarps) * kCodesRows);
  }
}

// 2 CTAs an SM: that of the next product finds registers beside this one's.
#define SPATE_LINEAR_CODES_KERNEL(name, Format)                             \
  extern "C" __global__ void __launch_bounds__(kCodesWarps * kLanes, 2)     \
      name##_stream(const __grid_constant__ LinearCodesKernelParams p) {    \
    linear_codes<Format>(p);                                                \
  }
SPATE_LINEAR_CODES_KERNEL(linear_int8, Int8Codes)
SPATE_LINEAR_CODES_KERNEL(linear_int4, Int4Codes<2>)
SPATE_LINEAR_CODES_KERNEL(linear_int4_g32, Int4Codes<4>)

}  // namespace spate::cuda
