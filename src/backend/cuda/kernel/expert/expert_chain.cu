// WHAT       What a layer of experts computes of one token between its attention and that of the next layer: o, the
//            residual and its norm, the router and the choice of experts, gate_up, silu and down of these and of a
//            shared one, their weighted sum, the residual and its norm, the next layer's qkv (layer_products.h).
// SHAPES     x bf16, weights bf16 or two-level int4 with groups of 64; the router bf16. Widths are multiples of a
//            step of k and have one for every warp; kExpertChainMax*.
// LAYOUT     bf16 row-major, rows padded to 16 elements; integer_weight.h.
// NUMERICS   As the ops one after the other but for the order of sums, and that the router's x is not rounded: the
//            products with down of all experts, the shared one's too, are one sum along k, each step times its expert's
//            weight. Logits are sums of integers, the same in any order. int4: x becomes integers of 14 bits and a sign
//            in a unit of 64 elements, where the ops make 8-bit codes of a row: a low byte and a high one, two columns
//            of one product, whose sums are exact.
// WORK       One CTA an SM, all at once, with 3 barriers of the grid between the products; as linear_chain.cu, whose
//            reasons hold here. Where the copies of a warp come from its lanes find at once, a step each. A CTA
//            multiplies its rows of o, with the residual and the norm's weights, by their columns of the router, and
//            adds that to the logits, so that these need no barrier of their own; 1 / rms comes later. Weights of the
//            experts are known only then: until that the rings run dry, or bring those of the shared expert. Each CTA
//            makes the norms and chooses the experts itself, by the ranks of all at once, before the norm where it can;
//            scores and weights are made when copies are on their way.
// ROOFLINE   Bytes of W over 4.65 TB/s; 3 barriers and what follows them some 2.5 us each, 4 with the choice.
// WARM       5 s: fast, bf16, expert-bf16; fast, bf16, expert-int4
// LIMITS     sm_90a; a grid of the SMs of the whole device; no groups of experts, no scale of a shared expert.
// TESTS      spate-conformance --backend cuda --filter layer_products
#include "backend/cuda/kernel/expert/expert_chain.h"

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/expert/expert_chain_choice.h"
#include "backend/cuda/kernel/expert/expert_chain_steps.h"
#include "backend/cuda/kernel/expert/expert_integers.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_barrier.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

static_assert(kExpertChainMaxHidden <= kThreads * kPieceElems);  // a piece of the residual a thread

// --- x ---------------------------------------------------------------------------------------------------------------

__device__ inline float sum_of_warps(float of_lane, float (&of_warp)[kWarps]) {
  const float own = warp_reduce(of_lane, Sum());
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = own;
  __syncthreads();
  float sum = of_warp[threadIdx.x % kWarps];
#pragma unroll
  for (int mask = 1; mask < kWarps; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  return sum;
}

// Elements [first, first + 8) of x of a product. All lanes call it; those without a piece have zeros.
template <typename Format>
__device__ inline void put_piece(const Piece<Bf16>& piece, int first, bool exists, ExpertChainShared<Format>& shared) {
  if constexpr (Format::kIsInt4) {
    // Integers of 14 bits and a sign in units of 2^-n, the largest of 64 elements in [2^13, 2^14).
    const uint32_t largest = largest_bits<64 / kPieceElems>(piece);
    if (!exists) return;
    const uint32_t exponent = max(largest >> 7, 19u);
    const float power = __uint_as_float((127 + 13 + 127 - exponent) << 23);
    // Codes of W are 16 times too large. NaN, infinity: NaN.
    if (first % 64 == 0) {
      shared.x_scales[first / 64] = __uint_as_float(exponent == 255 ? 0x7fc00000u : (exponent - 17) << 23);
    }
    char* at = reinterpret_cast<char*>(shared.x) + first / 64 * 128 + first % 16 / 4 * 16 + first % 32 / 16 * 8 +
               first % 64 / 32 * 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const IntegerBytes bytes = integer_bytes(piece, i, power);
      *reinterpret_cast<uint32_t*>(at + 16 * i) = bytes.high;
      *reinterpret_cast<uint32_t*>(at + 64 + 16 * i) = bytes.low;
    }
  } else {
    const uint32_t* w = piece.words;
    if (exists) *reinterpret_cast<uint4*>(shared.x + first) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// --- products --------------------------------------------------------------------------------------------------------

// (word & 0xf0f0f0f0) ^ 0x80808080: 16 times the signed codes in the high halves of bytes.
__device__ inline uint32_t high_codes(uint32_t word) {
  uint32_t codes;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(codes) : "r"(word), "r"(0xf0f0f0f0u), "r"(0x80808080u));
  return codes;
}

// Where a lane reads x of int4. A group of 64 elements has two columns, those of the high bytes and of the low ones; in
// the columns of the other group it is zero. Sums of a group are in lane % 4 = group.
struct ChainColumns {
  uint32_t first[2], stride[2], scales;

  template <typename Format>
  __device__ explicit ChainColumns(const ExpertChainShared<Format>& shared) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, column = lane / 4;
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const bool is_own = column / 2 == g;
      first[g] =
          is_own ? shared_address(shared.x) + 128 * g + column % 2 * 64 + lane % 4 * 16 : shared_address(shared.zeros);
      stride[g] = is_own ? 256 : 0;
      asm("" : "+r"(first[g]), "+r"(stride[g]));  // not to be made again in each step
    }
    scales = shared_address(shared.x_scales) + lane % 2 * 4;
  }
};

// Adds a step to the sums of a lane's row in the low 8 and of that in the high 8, where lane % 4 is 0; int4: or 1.
template <typename Format>
__device__ inline void multiply_step(uint32_t slot, int step_width, bool is_down, int step, int chosen, int down_row,
                                     const ExpertChainShared<Format>& shared, const ChainColumns& columns,
                                     float (&totals)[2], auto load_next) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if constexpr (!Format::kIsInt4) {
    uint4 rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i] = load_shared_16(slot + 512 * i + lane * 16);
    __syncwarp();
    load_next();
    const bool is_narrow = step_width == 128;
    const Bf16* x = shared.x + step * step_width + lane % 4 * 8 + (is_narrow && lane / 4 % 2 != 0 ? 64 : 0);
    const uint4 b0 = *reinterpret_cast<const uint4*>(x), b1 = *reinterpret_cast<const uint4*>(x + 32);
    float acc[4] = {};
    mma_m16n8k16_bf16(acc, {rows[0].x, rows[2].x, rows[0].y, rows[2].y}, {b0.x, b0.y});
    mma_m16n8k16_bf16(acc, {rows[0].z, rows[2].z, rows[0].w, rows[2].w}, {b0.z, b0.w});
    mma_m16n8k16_bf16(acc, {rows[1].x, rows[3].x, rows[1].y, rows[3].y}, {b1.x, b1.y});
    mma_m16n8k16_bf16(acc, {rows[1].z, rows[3].z, rows[1].w, rows[3].w}, {b1.z, b1.w});
    const float factor = is_down ? shared.weights[chosen] : 1.0f;
    totals[0] = __fmaf_rn(factor, is_narrow ? acc[0] + acc[3] : acc[0], totals[0]);
    totals[1] = __fmaf_rn(factor, acc[2], totals[1]);
  } else {
    const uint4 low = load_shared_16(slot + lane * 16), high = load_shared_16(slot + 512 + lane * 16);
    const uint32_t multipliers = slot + 1024 + lane / 4 * 2 + lane % 2;
    float factors[2] = {static_cast<float>(load_shared_byte(multipliers)),
                        static_cast<float>(load_shared_byte(multipliers + 16))};
    const uint4 x[2] = {load_shared_16(columns.first[0] + step * columns.stride[0]),
                        load_shared_16(columns.first[1] + step * columns.stride[1])};
    const float x_scale = load_shared_float(columns.scales + step * 8);
    __syncwarp();
    load_next();
    const uint32_t codes[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
    int32_t acc[4] = {};
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const uint32_t words[4] = {codes[0][2 * g], codes[1][2 * g], codes[0][2 * g + 1], codes[1][2 * g + 1]};
      uint32_t lows[4], highs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        lows[i] = high_codes(words[i] << 4);
        highs[i] = high_codes(words[i]);
      }
      mma_m16n8k32_s8(acc, lows, {x[g].x, x[g].y});
      mma_m16n8k32_s8(acc, highs, {x[g].z, x[g].w});
    }
    const float* scales = shared.down_scales[chosen] + down_row + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factors[r] *= x_scale;
      if (is_down) factors[r] *= shared.weights[chosen] * scales[8 * r];
      totals[r] = __fmaf_rn(static_cast<float>(acc[2 * r] * 256 + acc[2 * r + 1]), factors[r], totals[r]);
    }
  }
}

// The scale of a row of int4.
__device__ inline const float* row_scale(const ExpertChainPhase& phase, int matrix, int row) {
  return reinterpret_cast<const float*>(phase.weight + matrix * phase.matrix_bytes + phase.scales_offset) + row;
}

// The copies of the scales of the rows of down that this CTA has.
template <typename Format>
__device__ inline void copy_down_scales(const ExpertChainKernelParams& p, ExpertChainShared<Format>& shared) {
  constexpr int kMaxRows = kExpertChainMaxDownRows;
  const int first_row = shared.ranges[kChainDown].begin * 16;
  const int num_rows = shared.ranges[kChainDown].end * 16 - first_row;
  const int num_routed = p.rules.num_experts_per_tok, num_used = num_routed + Format::kHasShared;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < num_used * kMaxRows; i += kThreads) {
    const int chosen = i / kMaxRows, row = i % kMaxRows;
    if (row >= num_rows) continue;
    copy_float(&shared.down_scales[chosen][row],
               chosen < num_routed ? row_scale(p.phases[kChainDown], shared.experts[chosen], first_row + row)
                                   : row_scale(p.phases[kChainSharedDown], 0, first_row + row));
  }
}

template <typename Format>
__device__ inline void expert_chain(const ExpertChainKernelParams& p) {
  constexpr int kDepth = Format::kDepth;
  extern __shared__ __align__(128) char shared_bytes[];
  ExpertChainShared<Format>& shared = *reinterpret_cast<ExpertChainShared<Format>*>(shared_bytes);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const uint32_t ring = shared_address(shared.ring[warp]);
  if (thread < kExpertChainProducts) {
    const ExpertChainPhase& phase = p.phases[thread];
    const int begin = first_group(phase, static_cast<int>(blockIdx.x));
    shared.ranges[thread] = {begin, first_group(phase, static_cast<int>(blockIdx.x) + 1),
                             thread == kChainGateUp ? begin / phase.groups_of_matrix : 0};
  }
  if (thread < 4) shared.zeros[thread] = 0;
  __syncthreads();
  ChainLoads<Format> loads(p, shared);
  const RouterRows router(p, shared);
  router.copy(p, shared);
  loads.prepare(kChainO, kChainGateUp);
  loads.start(ring);
  uint32_t slot = ring;
  const int first = thread * kPieceElems;
  const bool has_piece = first < p.hidden_size;
  put_o_norm(p, first, shared);
  constexpr int kWidePieces = ExpertChainShared<Format>::kWidth / kPieceElems / kThreads;
  // x of o and of down.
  const auto put_wide = [&](const void* from, int width, auto beside) {
    Piece<Bf16> pieces[kWidePieces] = {};
#pragma unroll
    for (int i = 0; i < kWidePieces; ++i) {
      const int at = first + i * kThreads * kPieceElems;
      if (at < width) pieces[i] = load_fresh_piece(from, at);
    }
    beside();
#pragma unroll
    for (int i = 0; i < kWidePieces; ++i) {
      const int at = first + i * kThreads * kPieceElems;
      put_piece(pieces[i], at, at < width, shared);
    }
  };
  wait_for_inputs();
  let_dependents_launch();  // what ran before has ended by then, for the two kernels behind
  GridBarrier barrier(p.num_arrived);
  Piece<Bf16> residual = {};  // of the layer: after the first sum it is that one
  put_wide(p.heads, p.heads_width, [&] {
    if (has_piece) residual = load_fresh_piece(p.residual, first);
  });
  put_o_residual(p, residual, first, shared);

  const ChainColumns columns(shared);
  // Where the norm after o is needed, and the choice.
  constexpr int first_gate_up = Format::kHasShared ? kChainSharedGateUp : kChainGateUp;
#pragma unroll 1
  for (int which = 0; which < p.num_phases; ++which) {
    const ExpertChainPhase& phase = p.phases[which];
    if (!Format::kHasShared && which == kChainSharedGateUp) continue;
    const int begin = shared.ranges[which].begin, end = shared.ranges[which].end;
    if (which == first_gate_up || which == kChainQkv) {
      const bool is_post = which == first_gate_up;
      const void* norm = is_post ? p.post_norm : p.next_norm;
      Piece<Bf16> weight = {}, more = {};
      if (has_piece) weight = load_constant_piece(static_cast<const Bf16*>(norm), first, p.hidden_size, true);
      if (!Format::kHasShared && is_post) loads.prepare(kChainGateUp, p.num_phases);
      if (thread == 0) barrier.wait();
      __syncthreads();
      if (has_piece) more = load_fresh_piece(p.x, first);
      ExpertChoice& choice = *reinterpret_cast<ExpertChoice*>(&shared.sums[0][0][0]);
      if (is_post) put_logit(p, choice);
      // The experts first, where the norm does not count for the choice.
      const bool chooses_first = is_by_logits(p.rules);
      float inv_rms = 0.0f;
#pragma unroll 1
      for (int turn = is_post && chooses_first ? 0 : 1; turn < 3; ++turn) {
        if (turn == 1) {
          float sums[kPieceElems];
#pragma unroll
          for (int i = 0; i < kPieceElems; ++i) sums[i] = value_of(residual, i) + value_of(more, i);
          residual = to_piece<Bf16>(sums);
          const float squares = sum_of_warps(add_squares(residual, 0.0f), shared.of_warp);
          inv_rms = inv_rms_of(squares, p.hidden_size, is_post ? p.post_eps : p.next_eps);
          if (!is_post || chooses_first) break;
          if (warp == 0) put_scores(p.rules, inv_rms, choice);
        }
        if (turn == (chooses_first ? 0 : 2)) {
          __syncthreads();
          put_chosen(p.rules, choice, shared.experts);
          __syncthreads();
          if constexpr (Format::kHasShared) {
            if (!loads.is_dry()) loads.extend(p.num_phases);
          } else {
            loads.start(ring);
            slot = ring;
          }
        }
      }
      if (is_post && warp == kWarps - 1) {
        if (chooses_first) put_sum(p.rules, inv_rms, choice);
        __syncwarp();
        put_weights(p.rules, inv_rms, choice, shared.experts, shared.weights);
      }
      put_piece(normalized(residual, weight, inv_rms), first, has_piece, shared);
    } else if (which == kChainDown) {
      if constexpr (Format::kIsInt4) wait_copies<0>();  // the scales; meanwhile steps come as well
      if (thread == 0) barrier.wait();
      __syncthreads();
      put_wide(p.phases[kChainGateUp].out, p.act_width, [] {});
    }
    __syncthreads();
    // What a thread finishes: a row of the low half of a group and that of the high one.
    const bool is_item = thread < (end - begin) * 8;
    const int group = begin + thread / 8, row = group * phase.group_step + thread % 8;
    float row_scales[2] = {1.0f, 1.0f};
    if (which == kChainGateUp) {
      if (Format::kHasShared && loads.is_dry()) {
        loads.prepare(kChainGateUp, p.num_phases);
        loads.start(ring);
        slot = ring;
      }
      if constexpr (Format::kIsInt4) copy_down_scales(p, shared);
    }
    if constexpr (Format::kIsInt4) {
      if (is_item && which != kChainDown) {
        int matrix = 0, in_matrix = row;
        if (which == kChainGateUp) {
          int chosen = shared.ranges[kChainGateUp].chosen;
          const int rows = phase.groups_of_matrix * phase.group_step;
          in_matrix -= chosen * rows;
          for (; in_matrix >= rows; ++chosen) in_matrix -= rows;
          matrix = shared.experts[chosen];
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          row_scales[r] = load_constant(row_scale(phase, matrix, in_matrix + r * phase.pair_rows));
        }
      }
    }

    const int num_steps = phase.num_steps, step_width = phase.step_width;
    const bool is_down = which == kChainDown;
    const int steps_of_matrix = is_down ? phase.steps_of_matrix : num_steps;
    const int num_routed = p.rules.num_experts_per_tok;
#pragma unroll 1
    for (int g = begin; g < end; ++g) {
      float totals[2] = {};
      int chosen = 0, in_matrix = warp;  // of down: whose step it is
#pragma unroll 1
      for (int step = warp; step < num_steps; step += kWarps) {
        while (in_matrix >= steps_of_matrix && (!Format::kHasShared || chosen < num_routed)) {
          in_matrix -= steps_of_matrix;
          ++chosen;
        }
        wait_copies<kDepth - 1>();
        __syncwarp();
        multiply_step(slot, step_width, is_down, step, chosen, (g - begin) * 16, shared, columns, totals,
                      [&] { loads.next(slot); });
        in_matrix += kWarps;
        slot = slot == ring + (kDepth - 1) * Format::kSlotBytes ? ring : slot + Format::kSlotBytes;
      }
      if constexpr (Format::kIsInt4) {
#pragma unroll
        for (int r = 0; r < 2; ++r) totals[r] += shuffle_xor(totals[r], 1);
      }
      if (lane % 4 == 0) {
        shared.sums[g - begin][warp][lane / 4] = totals[0];
        shared.sums[g - begin][warp][8 + lane / 4] = totals[1];
      }
    }
    const bool is_o = which == kChainO, has_high = phase.group_step == 16;
    __syncthreads();
    if (is_item) {
      float values[2] = {};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        values[0] += shared.sums[thread / 8][w][thread % 8];
        values[1] += shared.sums[thread / 8][w][8 + thread % 8];
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) values[r] *= row_scales[r];
      Bf16* out = static_cast<Bf16*>(phase.out);
      // Of gate_up: groups of 8 features, of one expert behind the other.
      if (which == kChainGateUp || which == kChainSharedGateUp) {
        out[row] = from_float<Bf16>(silu_times<Bf16>(round_to<Bf16>(values[0]), round_to<Bf16>(values[1])));
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (r > 0 && !has_high) break;
          const float bias = phase.bias != nullptr ? to_float(static_cast<const Bf16*>(phase.bias)[row + 8 * r]) : 0.0f;
          const float result = round_to<Bf16>(values[r] + bias);
          out[row + 8 * r] = from_float<Bf16>(result);
          if (is_o) {
            const int at = thread / 8 * phase.group_step + thread % 8 + 8 * r;
            shared.o_rows[at] = round_to<Bf16>(shared.o_residual[at] + result) * shared.o_norm[at];
          }
        }
      }
    }
    if (is_o) {
      __syncthreads();
      router.add(p, shared.o_rows);
    }
    if (which + 1 < p.num_phases) {
      __syncthreads();
      if (thread == 0 && which != kChainSharedGateUp) barrier.arrive();
    }
  }
  // All have read them before the second barrier.
  if (blockIdx.x == 0 && thread < p.rules.num_experts) p.logit_sums[thread] = 0;
  if (blockIdx.x == 0 && has_piece) store_piece(static_cast<Bf16*>(p.residual), first, p.hidden_size, true, residual);
}

// Beside so few registers a thread small kernels have room; with fewer they would spill.
#define SPATE_EXPERT_CHAIN_KERNEL(name, Format, registers)                                                    \
  extern "C" __global__ void __maxnreg__(registers) name(const __grid_constant__ ExpertChainKernelParams p) { \
    expert_chain<Format>(p);                                                                                  \
  }
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_bf16, ChainBf16<false>, 80)
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_int4, ChainInt4<false>, 104)
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_shared_bf16, ChainBf16<true>, 88)
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_shared_int4, ChainInt4<true>, 104)

}  // namespace spate::cuda
