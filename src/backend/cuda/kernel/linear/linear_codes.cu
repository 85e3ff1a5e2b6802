// WHAT       out = x W^T + bias for 1 to 8 tokens by 8-bit codes of x and integer weights, bound by the bytes of W; or
//            silu(gate) * up of it.
// SHAPES     As linear_int8.cu and linear_int4.cu.
// LAYOUT     integer_weight.h.
// NUMERICS   As linear_int8.cu and linear_int4.cu, to the bit: sums of codes are exact in 32 bits. With silu as
//            silu_and_mul of what would be stored, to the bit. Codes of x as quantize_rows.cu, to the bit.
// WORK       A CTA has a run of groups of 16 rows of W, one after the other; the grid is two CTAs an SM, so that no sum
//            crosses CTAs. Its 8 warps share the k of a group: step s of 128 belongs to warp s % 8; their sums meet in
//            shared memory, where one of them, by turns, finishes the group. W goes from global memory to registers,
//            kDepth steps ahead, the first ones before the wait for the kernel before; what a lane holds is operand A
//            of mma.sync as it is (the k of int8 is permuted, x is read the same way). The scales of rows are loaded
//            early. With silu a group is 8 gates and their 8 ups, so that a lane has both of a feature.
//            `own`: each CTA makes the codes of x itself, in shared memory, while its first weights come.
// ROOFLINE   Bytes of W over 4.65 TB/s.
// WARM       3.5 s: codes
// LIMITS     At least 8 steps of k; in_features at most 65,536.
// TESTS      spate-conformance --backend cuda --filter int8, --filter int4
#include "backend/cuda/kernel/linear/linear_codes.h"

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/codes.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

constexpr int kWarps = kCodesWarps, kLanes = 32;

// What no other CTA reads: past L1.
__device__ inline uint4 load_stream(const char* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
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
      const int row = min(first_row + lane / 4 + p.pair_step * r, p.layout.num_rows - 1);
      const char* from = p.weight + static_cast<int64_t>(row) * static_cast<int32_t>(p.layout.row_bytes()) +
                         (step * kIntegerTileK + lane % 4 * 16);
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
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int first = first_row + p.pair_step * r;  // of 8 rows, which are in one chunk
      const char* chunk = p.weight + p.layout.chunk_offset(first, step * kIntegerTileK);
      const int row = first % kWgmmaTileRows + lane / 4;
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

  __device__ void load_tokens(const LinearCodesKernelParams& p, const QuantizedRow* of_tokens) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      tokens[c] = of_tokens[min(static_cast<int>(threadIdx.x % 4) * 2 + c, p.num_tokens - 1)];
    }
  }
  __device__ void load_rows(const LinearCodesKernelParams& p, int first_row) {
    const float* scales = reinterpret_cast<const float*>(p.weight + p.layout.scales_offset);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows[r] = load_scale(scales + min(first_row + static_cast<int>(threadIdx.x) % kLanes / 4 + p.pair_step * r,
                                        p.layout.num_rows - 1));
    }
  }
};

// From sums to `out`, as scale_sums() and store_tile(); with silu as silu_and_mul of what these would store.
template <typename Format>
__device__ inline void finish_rows(const LinearCodesKernelParams& p, const int32_t (&sums)[4], const LaneScales& scales,
                                   const Outlier* outliers, int first_row) {
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int token = lane % 4 * 2 + c;
    if (token >= p.num_tokens) continue;
    float values[2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + lane / 4 + p.pair_step * r;
      if (row >= p.layout.num_rows) continue;
      const QuantizedRow& x = scales.tokens[c];
      const float scale = scales.rows[r];
      float value = x.scale * (scale * static_cast<float>(sums[2 * r + c] - Format::kBias * x.code_sum));
      for (int e = 0; e < x.num_outliers; ++e) {
        const Outlier outlier = outliers[token * kMaxOutliers + e];
        value += outlier.x * (scale * static_cast<float>(Format::weight_at(p, row, outlier.k)));
      }
      if (p.bias != nullptr) {
        value +=
            p.is_bias_f32 ? static_cast<const float*>(p.bias)[row] : to_float(static_cast<const Bf16*>(p.bias)[row]);
      }
      values[r] = value;
      if (p.has_silu) continue;
      const int64_t offset = token * p.out_stride + row;
      if (p.is_out_f32) {
        static_cast<float*>(p.out)[offset] = value;
      } else {
        static_cast<Bf16*>(p.out)[offset] = from_float<Bf16>(value);
      }
    }
    if (p.has_silu) {
      const float gate = round_to<Bf16>(values[0]), up = round_to<Bf16>(values[1]);
      static_cast<Bf16*>(p.out)[token * p.out_stride + first_row + lane / 4] =
          from_float<Bf16>(silu_times<Bf16>(gate, up));
    }
  }
}

// The codes of x that a CTA makes for itself, with the bits of quantize_rows.
struct OwnCodes {
  int8_t codes[kOwnCodesBytes];
  QuantizedRow rows[kOwnCodesTokens];
  Outlier outliers[kOwnCodesTokens][kMaxOutliers];
  Outlier found[kMaxOutliers];
  uint32_t of_warp[2][kWarps];
  int32_t code_sum_of_warp[kWarps];
  int32_t num_found;
};

// The reduction of a warp's values to all threads of the CTA. Two in turn take different `of_warp`.
template <typename Combine>
__device__ inline uint32_t join_warps(uint32_t value, uint32_t (&of_warp)[kWarps], Combine combine) {
  if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = value;
  __syncthreads();
  uint32_t result = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) result = combine(result, of_warp[warp]);
  return result;
}

// All threads call it. Numbers from 0 on have the order of their bits.
template <int kPieces>
__device__ inline void make_codes(const LinearCodesKernelParams& p, int token, OwnCodes& own) {
  constexpr int kThreads = kWarps * kLanes;
  const int row_bytes = static_cast<int>(p.layout.row_bytes()), width = p.layout.width;
  const Bf16* x = static_cast<const Bf16*>(p.x) + token * p.x_stride;
  Piece<Bf16> pieces[kPieces];
  const auto first_of = [&](int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) * kPieceElems; };
#pragma unroll
  for (int i = 0; i < kPieces; ++i) pieces[i] = load_piece(x, first_of(i), width, p.is_x_aligned);
  if (threadIdx.x == 0) own.num_found = 0;
  float top = 0.0f;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
#pragma unroll
    for (int j = 0; j < kPieceElems; ++j) top = Max()(top, magnitude_of(value_of(pieces[i], j)));
  }
  top = __uint_as_float(join_warps(__reduce_max_sync(0xffffffffu, __float_as_uint(top)), own.of_warp[0], Max()));
  float limit = kInfinity;
  while (top < kInfinity && top >= kSmallestScaled) {
    const float share = top * kOutlierShare;
    uint32_t count = 0;
    float largest_below = 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) {
        const float magnitude = fabsf(value_of(pieces[i], j));
        if (magnitude > share) {
          ++count;
        } else {
          largest_below = Max()(largest_below, magnitude);
        }
      }
    }
    count = join_warps(__reduce_add_sync(0xffffffffu, count), own.of_warp[1], Sum());
    if (count > max_outliers(width)) break;
    limit = share;
    top = __uint_as_float(
        join_warps(__reduce_max_sync(0xffffffffu, __float_as_uint(largest_below)), own.of_warp[0], Max()));
  }
  const CodeScale scale = code_scale(top);
  int32_t code_sum = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int first = first_of(i);
    if (first >= row_bytes) continue;
    int codes[kPieceElems];
#pragma unroll
    for (int j = 0; j < kPieceElems; ++j) {
      const float value = value_of(pieces[i], j);
      const bool is_outlier = fabsf(value) > limit;
      if (is_outlier) own.found[atomicAdd(&own.num_found, 1)] = {first + j, value};
      codes[j] = is_outlier ? 0 : code_of(value, scale.inverse);
      code_sum += codes[j];
    }
    *reinterpret_cast<uint2*>(own.codes + token * row_bytes + first) = pack_codes(codes);
  }
  code_sum = __reduce_add_sync(0xffffffffu, code_sum);
  if (threadIdx.x % kLanes == 0) own.code_sum_of_warp[threadIdx.x / kLanes] = code_sum;
  __syncthreads();
  const int count = own.num_found;
  if (threadIdx.x == 0) {
    code_sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) code_sum += own.code_sum_of_warp[warp];
    own.rows[token] = {scale.scale, code_sum, count, 0};
  }
  if (threadIdx.x < count) {
    const Outlier mine = own.found[threadIdx.x];
    int rank = 0;
    for (int i = 0; i < count; ++i) rank += own.found[i].k < mine.k;
    own.outliers[token][rank] = mine;
  }
  __syncthreads();
}

// kOwnPieces: of a row of x a thread, of which the CTA makes the codes itself; 0: they are there.
template <typename Format, int kOwnPieces>
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
    if (d < num_steps && begin < end) ring[d].load(p, begin * p.group_step, warp + kWarps * d);
  }
  LaneScales scales;
  if (begin + warp < end) scales.load_rows(p, (begin + warp) * p.group_step);
  wait_for_inputs();
  const int8_t* codes = p.codes;
  const QuantizedRow* rows = p.rows;
  const Outlier* outliers = p.outliers;
  if constexpr (kOwnPieces > 0) {
    __shared__ alignas(16) OwnCodes own;
    for (int token = 0; token < p.num_tokens; ++token) make_codes<kOwnPieces>(p, token, own);
    codes = own.codes;
    rows = own.rows;
    outliers = own.outliers[0];
  }
  if constexpr (kOwnPieces == 0) scales.load_tokens(p, rows);
  const int8_t* x = lane / 4 < p.num_tokens ? codes + lane / 4 * p.layout.row_bytes() + warp * kIntegerTileK : nullptr;

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
          ring[d].load(p, (is_last ? group + 1 : group) * p.group_step, warp + kWarps * (is_last ? d : i + kDepth));
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
    if constexpr (kOwnPieces > 0) scales.load_tokens(p, rows);  // from shared memory: fewer registers before
    finish_rows<Format>(p, total, scales, outliers, group * p.group_step);
    if (group + kWarps < end) scales.load_rows(p, (group + kWarps) * p.group_step);
  }
}

// 2 CTAs an SM: that of the next product finds registers beside this one's.
#define SPATE_LINEAR_CODES_KERNEL(name, Format, own_pieces)            \
  extern "C" __global__ void __launch_bounds__(kCodesWarps* kLanes, 2) \
      name(const __grid_constant__ LinearCodesKernelParams p) {        \
    linear_codes<Format, own_pieces>(p);                               \
  }
SPATE_LINEAR_CODES_KERNEL(linear_int8_stream, Int8Codes, 0)
SPATE_LINEAR_CODES_KERNEL(linear_int8_stream_own, Int8Codes, kOwnCodesPieces)
SPATE_LINEAR_CODES_KERNEL(linear_int4_stream, Int4Codes<2>, 0)
SPATE_LINEAR_CODES_KERNEL(linear_int4_stream_own, Int4Codes<2>, kOwnCodesPieces)
SPATE_LINEAR_CODES_KERNEL(linear_int4_stream_own_wide, Int4Codes<2>, kOwnCodesWidePieces)
SPATE_LINEAR_CODES_KERNEL(linear_int4_g32_stream, Int4Codes<4>, 0)
SPATE_LINEAR_CODES_KERNEL(linear_int4_g32_stream_own, Int4Codes<4>, kOwnCodesPieces)
SPATE_LINEAR_CODES_KERNEL(linear_int4_g32_stream_own_wide, Int4Codes<4>, kOwnCodesWidePieces)

}  // namespace spate::cuda
