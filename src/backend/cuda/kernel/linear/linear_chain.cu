// WHAT       What a dense layer of one token computes between its attention and that of the next layer: o, the residual
//            and its norm, gate_up and silu, down, the residual and its norm, the next layer's qkv (layer_products.h).
// SHAPES     x bf16, all weights in one format: bf16, int8 with a scale a row, two-level int4. Widths are multiples of
// a
//            step of k and have one for every warp; kChainMaxWidth, kChainMaxHidden, kChainMaxGroups.
// LAYOUT     integer_weight.h; bf16 row-major.
// NUMERICS   As the ops one after the other but for the order of sums in norms and of bf16 products: those of codes are
//            exact. Codes of x as quantize_rows.cu.
// WORK       One CTA an SM, all at once, with barriers of the grid between the four products. A CTA has a run of groups
// of
//            rows of each; its warps share the k of a group, and each has a ring in shared memory that its copies of
//            weights fill, from group to group and product to product: while the CTAs wait for each other, and for the
//            attention before, the weights of what comes next arrive. Each CTA makes all of x of a product itself:
//            norm, codes, outliers. What the barriers protect may overlap: see layer_products.h.
// ROOFLINE   Bytes of W over 4.65 TB/s; 4 barriers and x of 4 products take some 2.5 us each.
// WARM       2 s: fast, bf16, heads; fast, bf16, latent
// LIMITS     sm_90a; a grid of the SMs of the whole device.
// TESTS      spate-conformance --backend cuda --filter layer_products
#include "backend/cuda/kernel/linear/linear_chain.h"

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/linear/quantize_row.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/codes.h"
#include "backend/cuda/kernel/primitive/grid_barrier.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/primitive/shared_load.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

constexpr int kLanes = 32;

__device__ inline void copy_stream_16(uint32_t shared, const char* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ inline void copy_16(uint32_t shared, const char* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ inline float load_scale(const float* address) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(address));
  return value;
}

// --- formats ---------------------------------------------------------------------------------------------------------

// Of two-level int4 a group is 32 rows, two halves of 16, and a step 128 of k. Only the first column of a product is
// used, so that all lanes may have x. The low halves of bytes and the high ones, which stay where they are, are
// products of their own: what is 16 times too much is taken off the sum. A code is 8 too large: so are sums by 8 times
// that of x.
template <int kMultipliers>
struct Int4Chain {
  static constexpr int kHalfRows = 16, kStepK = 128, kGroup = 128 / kMultipliers;
  static constexpr int kCodeBytes = 2048, kSlotBytes = kCodeBytes + 32 * kMultipliers;
  static constexpr bool kIsInteger = true, kIsPermuted = true;
  using Sum = int32_t;

  // Where a lane's part of a step comes from.
  struct Source {
    const char* first;  // of the warp's first step
    const char* at;     // of its next one
    int32_t tile_bytes, step_bytes;
    int32_t low, high, scales;  // from `at` on

    __device__ void start_phase(const ChainPhase& phase, int warp) {
      step_bytes = static_cast<int32_t>(phase.layout.chunk_bytes());
      tile_bytes = phase.layout.num_steps * step_bytes;
      first = phase.weight + warp * step_bytes;
    }
    __device__ void start_group(const ChainPhase& phase, int row) {
      const int lane = threadIdx.x % kLanes, second = row + phase.pair_step;
      const int tile = row / kWgmmaTileRows * tile_bytes, in_tile = row % kWgmmaTileRows;
      const int other_tile = second / kWgmmaTileRows * tile_bytes, in_other = second % kWgmmaTileRows;
      const bool is_second = lane / kMultipliers % 2 == 1;  // kMultipliers lanes bring those of 16 rows
      low = tile + in_tile * kInt4RowBytes + lane * 16;
      high = other_tile + in_other * kInt4RowBytes + lane * 16;
      scales = kInt4CodeBytes + (is_second ? other_tile + in_other * kMultipliers : tile + in_tile * kMultipliers) +
               lane % kMultipliers * 16;
      at = first;
    }
    __device__ void advance(int num_steps) { at += num_steps * step_bytes; }
    __device__ void copy(uint32_t slot) const {
      const int lane = threadIdx.x % kLanes;
      const char* from = at + low;
      const char* other = at + high;
      copy_stream_16(slot + lane * 16, from);
      copy_stream_16(slot + 512 + lane * 16, from + 512);
      copy_stream_16(slot + 1024 + lane * 16, other);
      copy_stream_16(slot + 1536 + lane * 16, other + 512);
      if (lane < 2 * kMultipliers) copy_16(slot + kCodeBytes + lane * 16, at + scales);
    }
  };

  uint4 rows[4];  // of lane / 4 in 8 rows each
  uint32_t multipliers[4];

  __device__ void take(uint32_t slot) {
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      rows[r] = load_shared_16(slot + 512 * r + lane * 16);
      const uint32_t from = slot + kCodeBytes + (8 * r + lane / 4) * kMultipliers;
      multipliers[r] = kMultipliers == 4 ? load_shared_word(from) : load_shared_half(from);
    }
  }
  // x: codes of the step: 8 words of lane `pair`, two of each 32 elements, behind each other; sums: those of its
  // groups.
  __device__ void multiply(Sum (&totals)[4], const char* x, const int16_t* sums) const {
    const int pair = threadIdx.x % 4;
    uint32_t codes[8];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 quad = *reinterpret_cast<const uint4*>(x + pair * 32 + 16 * i);
      codes[4 * i] = quad.x;
      codes[4 * i + 1] = quad.y;
      codes[4 * i + 2] = quad.z;
      codes[4 * i + 3] = quad.w;
    }
    constexpr int kWords = 4 / kMultipliers;  // of a lane, a row and a group
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 a = rows[2 * half], b = rows[2 * half + 1];
      const uint32_t words[2][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
#pragma unroll
      for (int g = 0; g < kMultipliers; ++g) {
        const int s = g * kWords;
        int32_t low[4] = {}, high[4] = {};
        if constexpr (kWords == 2) {
          mma_m16n8k32_u8_s8(low,
                             {words[0][s] & 0x0f0f0f0fu, words[1][s] & 0x0f0f0f0fu, words[0][s + 1] & 0x0f0f0f0fu,
                              words[1][s + 1] & 0x0f0f0f0fu},
                             {codes[2 * s], codes[2 * s + 2]});
          mma_m16n8k32_u8_s8(high,
                             {words[0][s] & 0xf0f0f0f0u, words[1][s] & 0xf0f0f0f0u, words[0][s + 1] & 0xf0f0f0f0u,
                              words[1][s + 1] & 0xf0f0f0f0u},
                             {codes[2 * s + 1], codes[2 * s + 3]});
        } else {
          mma_m16n8k32_u8_s8(low,
                             {words[0][s] & 0x0f0f0f0fu, words[1][s] & 0x0f0f0f0fu, words[0][s] >> 4 & 0x0f0f0f0fu,
                              words[1][s] >> 4 & 0x0f0f0f0fu},
                             {codes[2 * s], codes[2 * s + 1]});
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int32_t multiplier = static_cast<int32_t>(multipliers[2 * half + r] >> (8 * g) & 0xff);
          totals[2 * half + r] += multiplier * (low[2 * r] + (high[2 * r] >> 4));
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t of_row = multipliers[2 * half + r];
        int32_t offset = 0;
#pragma unroll
        for (int g = 0; g < kMultipliers; g += 2) {
          offset =
              __dp2a_lo(*reinterpret_cast<const int32_t*>(sums + g), static_cast<int32_t>(of_row >> (8 * g)), offset);
        }
        totals[2 * half + r] -= 8 * offset;
      }
    }
  }
  __device__ static float weight_at(const ChainPhase& phase, int row, int k) {
    const int byte = static_cast<unsigned char>(phase.weight[phase.layout.code_offset(row, k)]);
    const int code = (IntegerLayout::is_high(k) ? byte >> 4 : byte & 15) - 8;
    return static_cast<float>(code * phase.weight[phase.layout.multiplier_offset(row, k)]);
  }
};

// Of rows: a step is 128 bytes of 16 of them.
struct RowSource {
  const char* first;
  const char* at;
  int64_t high;

  __device__ void start_phase(const ChainPhase& phase, int warp) {
    const int lane = threadIdx.x % kLanes;
    first = phase.weight + lane / 4 * phase.row_bytes + warp * 128 + lane % 4 * 16;
    high = phase.pair_step * phase.row_bytes;
  }
  __device__ void start_group(const ChainPhase& phase, int row) { at = first + row * phase.row_bytes; }
  __device__ void advance(int num_steps) { at += num_steps * 128; }
  __device__ void copy(uint32_t slot) const {
    const int lane = threadIdx.x % kLanes;
#pragma unroll
    for (int i = 0; i < 4; ++i) copy_stream_16(slot + 512 * i + lane * 16, at + (i / 2) * high + i % 2 * 64);
  }
};

struct Int8Chain {
  static constexpr int kHalfRows = 8, kSlotBytes = 2048, kStepK = 128, kGroup = 128;
  static constexpr bool kIsInteger = true, kIsPermuted = false;
  using Sum = int32_t;
  using Source = RowSource;
  uint4 rows[2][2];
  __device__ void take(uint32_t slot) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i / 2][i % 2] = load_shared_16(slot + 512 * i + threadIdx.x % kLanes * 16);
  }
  __device__ void multiply(Sum (&totals)[2], const char* x, const int16_t*) const {
    const int pair = threadIdx.x % 4;
    int32_t acc[4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 b = *reinterpret_cast<const uint4*>(x + 64 * half + 16 * pair);
      const uint4 l = rows[0][half], h = rows[1][half];
      mma_m16n8k32_s8(acc, {l.x, h.x, l.y, h.y}, {b.x, b.y});
      mma_m16n8k32_s8(acc, {l.z, h.z, l.w, h.w}, {b.z, b.w});
    }
    totals[0] += acc[0];
    totals[1] += acc[2];
  }
  __device__ static float weight_at(const ChainPhase& phase, int row, int k) {
    return static_cast<float>(reinterpret_cast<const int8_t*>(phase.weight)[row * phase.row_bytes + k]);
  }
};

// A step is 16 rows by 64 of k.
struct Bf16Chain {
  static constexpr int kHalfRows = 8, kSlotBytes = 2048, kStepK = 64, kGroup = 64;
  static constexpr bool kIsInteger = false, kIsPermuted = false;
  using Sum = float;
  using Source = RowSource;
  uint4 rows[2][2];
  __device__ void take(uint32_t slot) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i / 2][i % 2] = load_shared_16(slot + 512 * i + threadIdx.x % kLanes * 16);
  }
  __device__ void multiply(Sum (&totals)[2], const char* x, const int16_t*) const {
    const int pair = threadIdx.x % 4;
    float acc[4] = {totals[0], 0, totals[1], 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 b = *reinterpret_cast<const uint4*>(x + 64 * half + 16 * pair);
      const uint4 l = rows[0][half], h = rows[1][half];
      mma_m16n8k16_bf16(acc, {l.x, h.x, l.y, h.y}, {b.x, b.y});
      mma_m16n8k16_bf16(acc, {l.z, h.z, l.w, h.w}, {b.z, b.w});
    }
    totals[0] = acc[0];
    totals[1] = acc[2];
  }
  __device__ static float weight_at(const ChainPhase&, int, int) { return 0.0f; }
};

// --- the kernel ------------------------------------------------------------------------------------------------------

template <typename Format, int kWarps, int kDepth>
struct ChainShared {
  alignas(16) char ring[kWarps][kDepth][Format::kSlotBytes];
  alignas(16) char x[kChainMaxWidth * (Format::kIsInteger ? 1 : 2)];  // codes, or bf16
  alignas(16) typename Format::Sum sums[kChainMaxGroups * 16 / (2 * Format::kHalfRows)][kWarps][2 * Format::kHalfRows];
  alignas(16) int16_t group_sums[Format::kIsPermuted ? kChainMaxWidth / Format::kGroup : 2];
  Outlier found[kMaxOutliers], outliers[kMaxOutliers];
  uint32_t of_warp[4][kWarps];
  int32_t num_found;
  float scale;
};

// The copies of a warp's steps of all its groups in all phases, one behind the other.
template <typename Format, int kWarps>
class ChainLoads {
 public:
  __device__ explicit ChainLoads(const LinearChainKernelParams& p) : p_(p) { start_phase(); }
  __device__ void next(uint32_t slot) {
    if (phase_ < p_.num_phases) {
      source_.copy(slot);
      step_ += kWarps;
      if (step_ < num_steps_) {
        source_.advance(kWarps);
      } else if (++group_ < end_) {
        start_group();
      } else {
        ++phase_;
        start_phase();
      }
    }
    commit_copies();
  }

 private:
  __device__ void start_phase() {
    for (; phase_ < p_.num_phases; ++phase_) {
      const ChainPhase& phase = p_.phases[phase_];
      group_ = static_cast<int>(static_cast<int64_t>(phase.num_groups) * blockIdx.x / gridDim.x);
      end_ = static_cast<int>(static_cast<int64_t>(phase.num_groups) * (blockIdx.x + 1) / gridDim.x);
      num_steps_ = phase.layout.num_steps;
      source_.start_phase(phase, threadIdx.x / kLanes);
      if (group_ < end_) return start_group();
    }
  }
  __device__ void start_group() {
    step_ = threadIdx.x / kLanes;
    source_.start_group(p_.phases[phase_], group_ * p_.phases[phase_].group_step);
  }

  const LinearChainKernelParams& p_;
  typename Format::Source source_;
  int phase_ = 0, group_ = 0, end_ = 0, step_ = 0, num_steps_ = 0;
};

// The joins of a warp's values to all threads of the CTA. Two in turn take different `of_warp`.
template <int kWarps>
__device__ inline uint32_t max_of_warps(uint32_t of_lanes, uint32_t (&of_warp)[kWarps]) {
  const uint32_t own = __reduce_max_sync(0xffffffffu, of_lanes);
  if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = own;
  __syncthreads();
  return __reduce_max_sync(0xffffffffu, of_warp[threadIdx.x % kWarps]);
}
template <int kWarps>
__device__ inline uint32_t sum_of_warps(uint32_t of_lanes, uint32_t (&of_warp)[kWarps]) {
  const uint32_t own = __reduce_add_sync(0xffffffffu, of_lanes);
  if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = own;
  __syncthreads();
  const int lane = threadIdx.x % kLanes;
  return __reduce_add_sync(0xffffffffu, lane < kWarps ? of_warp[lane] : 0);
}
template <int kWarps>
__device__ inline float sum_of_warps(float of_lanes, uint32_t (&of_warp)[kWarps]) {
  const float own = warp_reduce(of_lanes, Sum());
  if (threadIdx.x % kLanes == 0) of_warp[threadIdx.x / kLanes] = __float_as_uint(own);
  __syncthreads();
  float sum = __uint_as_float(of_warp[threadIdx.x % kWarps]);
#pragma unroll
  for (int mask = 1; mask < kWarps; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  return sum;
}

// x of a product, from pieces in registers to shared memory.
template <typename Format, int kWarps, int kPieces, typename Shared>
__device__ inline void put_x(const Piece<Bf16> (&pieces)[kPieces], int width, Shared& shared) {
  constexpr int kThreads = kWarps * kLanes;
  const auto first_of = [&](int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) * kPieceElems; };
  if constexpr (!Format::kIsInteger) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (first_of(i) >= width) break;
      const uint32_t* w = pieces[i].words;
      *reinterpret_cast<uint4*>(shared.x + first_of(i) * 2) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    __syncthreads();
  } else {
    if (threadIdx.x == 0) shared.num_found = 0;
    uint32_t own_top = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) own_top = max(own_top, top_bits(pieces[i]));
    float top = __uint_as_float(max_of_warps<kWarps>(own_top, shared.of_warp[0]));
    float limit = kInfinity;
    while (top < kInfinity && top >= kSmallestScaled) {
      const float share = top * kOutlierShare;
      uint32_t count = 0;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) count += num_above(pieces[i], share);
      if (sum_of_warps<kWarps>(count, shared.of_warp[1]) > max_outliers(width)) break;
      limit = share;
      float below = 0.0f;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
#pragma unroll
        for (int j = 0; j < kPieceElems; ++j) {
          const float magnitude = fabsf(value_of(pieces[i], j));
          if (magnitude <= share) below = Max()(below, magnitude);
        }
      }
      top = __uint_as_float(max_of_warps<kWarps>(__float_as_uint(below), shared.of_warp[2]));
    }
    const CodeScale scale = code_scale(top);
    if (threadIdx.x == 0) shared.scale = scale.scale;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int first = first_of(i);
      if (i * kThreads * kPieceElems >= width) break;
      const bool exists = first < width;
      uint2 packed;
      if (limit == kInfinity && scale.inverse > 0.0f) {
        packed = codes_of(pieces[i], scale.inverse);
      } else {
        int codes[kPieceElems];
#pragma unroll
        for (int j = 0; j < kPieceElems; ++j) {
          const float value = value_of(pieces[i], j);
          const bool is_outlier = fabsf(value) > limit;
          if (is_outlier && exists) shared.found[atomicAdd(&shared.num_found, 1)] = {first + j, value};
          codes[j] = is_outlier ? 0 : code_of(value, scale.inverse);
        }
        packed = pack_codes(codes);
      }
      if constexpr (Format::kIsPermuted) {
        const int in_step = first % 128;
        const int word = first / 128 * 32 + in_step % 16 / 4 * 8 + in_step / 32 * 2 + in_step % 32 / 16;
        int32_t sum = __dp4a(static_cast<int>(packed.x), 0x01010101, __dp4a(static_cast<int>(packed.y), 0x01010101, 0));
#pragma unroll
        for (int mask = 1; mask < Format::kGroup / kPieceElems; mask *= 2)
          sum += __shfl_xor_sync(0xffffffffu, sum, mask);
        if (exists) {
          reinterpret_cast<uint32_t*>(shared.x)[word] = packed.x;
          reinterpret_cast<uint32_t*>(shared.x)[word + 8] = packed.y;
          if (first % Format::kGroup == 0) shared.group_sums[first / Format::kGroup] = static_cast<int16_t>(sum);
        }
      } else {
        if (exists) *reinterpret_cast<uint2*>(shared.x + first) = packed;
      }
    }
    __syncthreads();
    const int count = shared.num_found;
    if (count > 0) {
      if (static_cast<int>(threadIdx.x) < count) {
        const Outlier mine = shared.found[threadIdx.x];
        int rank = 0;
        for (int i = 0; i < count; ++i) rank += shared.found[i].k < mine.k;
        shared.outliers[rank] = mine;
      }
      __syncthreads();
    }
  }
}

__device__ inline Piece<Bf16> added(const Piece<Bf16>& a, const Piece<Bf16>& b) {
  float values[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) values[i] = value_of(a, i) + value_of(b, i);
  return to_piece<Bf16>(values);
}

template <typename Format, int kWarps, int kDepth>
__device__ inline void linear_chain(const LinearChainKernelParams& p) {
  using Shared = ChainShared<Format, kWarps, kDepth>;
  constexpr int kThreads = kWarps * kLanes;
  constexpr int kHiddenPieces = kChainMaxHidden / kPieceElems / kThreads;
  constexpr int kWidePieces = (kChainMaxWidth / kPieceElems + kThreads - 1) / kThreads;
  extern __shared__ __align__(128) char shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  let_dependents_launch();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  ChainLoads<Format, kWarps> loads(p);
  const uint32_t ring = shared_address(shared.ring[warp]);
#pragma unroll 1
  for (int i = 0; i < kDepth; ++i) loads.next(ring + i * Format::kSlotBytes);
  int place = 0;
  wait_for_inputs();
  GridBarrier barrier(p.num_arrived);

  Piece<Bf16> residual[kHiddenPieces];  // of the layer: after the first sum it is that one
  const auto first_of = [&](int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) * kPieceElems; };
  const int hidden = p.phases[1].layout.width;
#pragma unroll
  for (int i = 0; i < kHiddenPieces; ++i) {
    residual[i] = {};
    if (first_of(i) < hidden) residual[i] = load_fresh_piece(p.residual, first_of(i));
  }

#pragma unroll 1
  for (int which = 0; which < p.num_phases; ++which) {
    const ChainPhase& phase = p.phases[which];
    const int width = phase.layout.width;
    const int begin = static_cast<int>(static_cast<int64_t>(phase.num_groups) * blockIdx.x / gridDim.x);
    const int end = static_cast<int>(static_cast<int64_t>(phase.num_groups) * (blockIdx.x + 1) / gridDim.x);
    // What a thread finishes: a row of the first half of a group and that of the second.
    constexpr int kHalf = Format::kHalfRows;
    const int item = threadIdx.x, num_items = (end - begin) * kHalf;
    const int row = (begin + item / kHalf) * phase.group_step + item % kHalf;
    float row_scales[2] = {1.0f, 1.0f};
    if (Format::kIsInteger && item < num_items) {
      const float* scales = reinterpret_cast<const float*>(phase.weight + phase.layout.scales_offset);
#pragma unroll
      for (int r = 0; r < 2; ++r) row_scales[r] = load_scale(scales + row + r * phase.pair_step);
    }
    if (phase.norm != nullptr) {
      Piece<Bf16> weight[kHiddenPieces] = {};
#pragma unroll
      for (int i = 0; i < kHiddenPieces; ++i) {
        if (first_of(i) < width)
          weight[i] = load_constant_piece(static_cast<const Bf16*>(phase.norm), first_of(i), width, true);
      }
      if (threadIdx.x == 0) barrier.wait();
      __syncthreads();
      Piece<Bf16> more[kHiddenPieces] = {};
#pragma unroll
      for (int i = 0; i < kHiddenPieces; ++i) {
        if (first_of(i) < width) more[i] = load_fresh_piece(phase.x, first_of(i));
      }
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < kHiddenPieces; ++i) {
        residual[i] = added(residual[i], more[i]);
        squares = add_squares(residual[i], squares);
      }
      const float inv_rms = inv_rms_of(sum_of_warps<kWarps>(squares, shared.of_warp[3]), width, phase.eps);
      Piece<Bf16> x[kHiddenPieces];
#pragma unroll
      for (int i = 0; i < kHiddenPieces; ++i) x[i] = normalized(residual[i], weight[i], inv_rms);
      put_x<Format, kWarps>(x, width, shared);
    } else {
      if (which > 0) {
        if (threadIdx.x == 0) barrier.wait();
        __syncthreads();
      }
      Piece<Bf16> x[kWidePieces] = {};
#pragma unroll
      for (int i = 0; i < kWidePieces; ++i) {
        if (first_of(i) < width) x[i] = load_fresh_piece(phase.x, first_of(i));
      }
      put_x<Format, kWarps>(x, width, shared);
    }

    const int num_steps = phase.layout.num_steps;
#pragma unroll 1
    for (int group = begin; group < end; ++group) {
      typename Format::Sum totals[kHalf / 4] = {};
#pragma unroll 1
      for (int step = warp; step < num_steps; step += kWarps) {
        const uint32_t slot = ring + place * Format::kSlotBytes;
        wait_copies<kDepth - 1>();
        __syncwarp();
        Format format;
        format.take(slot);
        __syncwarp();
        loads.next(slot);
        place = place + 1 == kDepth ? 0 : place + 1;
        format.multiply(totals, shared.x + step * (Format::kStepK * (Format::kIsInteger ? 1 : 2)),
                        shared.group_sums + step * (Format::kStepK / Format::kGroup));
      }
      if (lane % 4 == 0) {
#pragma unroll
        for (int r = 0; r < kHalf / 4; ++r) shared.sums[group - begin][warp][8 * r + lane / 4] = totals[r];
      }
    }
    __syncthreads();
    if (item < num_items) {
      float values[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        typename Format::Sum total = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) total += shared.sums[item / kHalf][w][kHalf * r + item % kHalf];
        float value = static_cast<float>(total);
        if constexpr (Format::kIsInteger) {
          value = shared.scale * (row_scales[r] * value);
          for (int e = 0; e < shared.num_found; ++e) {
            const Outlier outlier = shared.outliers[e];
            value += outlier.x * (row_scales[r] * Format::weight_at(phase, row + r * phase.pair_step, outlier.k));
          }
        }
        if (phase.bias != nullptr) value += to_float(static_cast<const Bf16*>(phase.bias)[row + r * phase.pair_step]);
        values[r] = value;
      }
      Bf16* out = static_cast<Bf16*>(phase.out);
      if (phase.has_silu) {
        out[row] = from_float<Bf16>(silu_times<Bf16>(round_to<Bf16>(values[0]), round_to<Bf16>(values[1])));
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) out[row + r * phase.pair_step] = from_float<Bf16>(values[r]);
      }
    }
    if (which + 1 < p.num_phases) {
      __syncthreads();
      if (threadIdx.x == 0) barrier.arrive();
    }
  }
  // All have read it before the second barrier.
  if (blockIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kHiddenPieces; ++i) {
      if (first_of(i) >= hidden) break;
      store_piece(static_cast<Bf16*>(p.residual), first_of(i), hidden, true, residual[i]);
    }
  }
}

#define SPATE_CHAIN_KERNEL(name, Format, depth, bytes)                     \
  static_assert(sizeof(ChainShared<Format, kChainWarps, depth>) <= bytes); \
  extern "C" __global__ void __launch_bounds__(kChainWarps* kLanes, 1)     \
      name(const __grid_constant__ LinearChainKernelParams p) {            \
    linear_chain<Format, kChainWarps, depth>(p);                           \
  }
SPATE_CHAIN_KERNEL(linear_chain_bf16, Bf16Chain, kChainDepth, kChainBf16Bytes)
SPATE_CHAIN_KERNEL(linear_chain_int8, Int8Chain, kChainDepth, kChainInt8Bytes)
SPATE_CHAIN_KERNEL(linear_chain_int4, Int4Chain<2>, kChainDepth, kChainInt4Bytes)
SPATE_CHAIN_KERNEL(linear_chain_int4_g32, Int4Chain<4>, kChainDepth, kChainInt4Group32Bytes)

}  // namespace spate::cuda
