// WHAT       What a layer of experts computes of one token between its attention and that of the next layer: o, the
//            residual and its norm, the router and the choice of experts, gate_up, silu and down of these and of a
//            shared one, their weighted sum, the residual and its norm, the next layer's qkv (layer_products.h).
// SHAPES     x bf16, weights bf16 or two-level int4 with groups of 64; the router bf16. Widths are multiples of a
//            step of k and have one for every warp; kExpertChainMax*.
// LAYOUT     bf16 row-major, rows padded to 16 elements; integer_weight.h.
// NUMERICS   As the ops one after the other but for the order of sums, and that the router's x is not rounded: the
//            products with down of all experts, the shared one's too, are one sum along k, each step times its expert's
//            weight. Logits are sums of integers, the same in any order. int4: x stays bf16, where the ops make 8-bit
//            codes of it. Codes become 128 + code + 8 in bf16, exactly; 136 times the sum of x is too much.
// WORK       One CTA an SM, all at once, with 3 barriers of the grid between the products; as linear_chain.cu, whose
//            reasons hold here. A CTA multiplies its rows of o, with the residual and the norm's weights, by their
//            columns of the router, and adds that to the logits, so that these need no barrier of their own; 1 / rms
//            comes later. Weights of the experts are known only then: until that the rings run dry, or bring those of
//            the shared expert. Each CTA makes the norms and chooses the experts itself, by the ranks of all at once.
// ROOFLINE   Bytes of W over 4.65 TB/s; 3 barriers and what follows them some 2.5 us each, 4 with the choice.
// WARM       5 s: fast, bf16, expert-bf16; fast, bf16, expert-int4
// LIMITS     sm_90a; a grid of the SMs of the whole device; no groups of experts, no scale of a shared expert.
// TESTS      spate-conformance --backend cuda --filter layer_products
#include "backend/cuda/kernel/expert/expert_chain.h"

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/expert/route_token.h"
#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_barrier.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/mma.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/rms_norm/normalize.h"

namespace spate::cuda {

constexpr int kWarps = kExpertChainWarps, kThreads = kWarps * kWarpSize;
static_assert(kExpertChainMaxHidden <= kThreads * kPieceElems);  // a piece of the residual a thread

__device__ inline uint64_t policy_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void copy_stream_16(uint32_t shared, const char* global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "l"(policy)
               : "memory");
}
__device__ inline uint4 load_shared_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}
__device__ inline uint32_t load_shared_half(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}

// --- formats ---------------------------------------------------------------------------------------------------------

// Where a step of a group lies: of which matrix, its first row and its number in the matrix.
struct ChainStep {
  const char* matrix;
  int row, step;
};

// A step of 16 rows and 64 of k: rows[0], [1] are the halves of k of the low 8 rows, [2], [3] those of the high ones.
// Or 8 rows and 128 of k, whose second half is multiplied as high rows are, by the odd columns of x.
template <bool kShared>
struct ChainBf16 {
  static constexpr bool kIsInt4 = false, kHasShared = kShared;
  static constexpr int kDepth = kExpertChainBf16Depth, kSlotBytes = kExpertChainBf16StepBytes;

  __device__ static void copy(const ExpertChainPhase& phase, const ChainStep& at, uint32_t slot, uint64_t policy) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const char* from = at.matrix + (at.row + lane / 4) * phase.row_bytes + at.step * phase.step_bytes + lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_stream_16(slot + 512 * i + lane * 16, from + (i / 2) * phase.pair_bytes + i % 2 * 64, policy);
    }
  }
};

// A step of 16 rows and 128 of k, 512 bytes of 8 rows each, then 16 bytes of their multipliers.
template <bool kShared>
struct ChainInt4 {
  static constexpr bool kIsInt4 = true, kHasShared = kShared;
  static constexpr int kDepth = kExpertChainInt4Depth, kSlotBytes = kExpertChainInt4StepBytes;

  __device__ static void copy(const ExpertChainPhase& phase, const ChainStep& at, uint32_t slot, uint64_t policy) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const char* chunks = at.matrix + at.step * phase.step_bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = at.row + i * phase.pair_rows, in_tile = row % kWgmmaTileRows;
      const char* chunk = chunks + row / kWgmmaTileRows * phase.tile_bytes;
      copy_stream_16(slot + 512 * i + lane * 16, chunk + in_tile * kInt4RowBytes + lane * 16, policy);
      if (lane == i) copy_stream_16(slot + 1024 + 16 * i, chunk + kInt4CodeBytes + in_tile * 2, policy);
    }
  }
};

template <typename Format>
struct ExpertChainShared {
  static constexpr int kWidth = Format::kHasShared ? kExpertChainMaxSharedWidth : kExpertChainMaxWidth;
  alignas(16) char ring[kWarps][Format::kDepth][Format::kSlotBytes];
  alignas(16) Bf16 x[kWidth];                       // int4: in the order of its steps
  float x_sums[Format::kIsInt4 ? kWidth / 64 : 1];  // of 64 elements
  float down_scales[Format::kIsInt4 ? kExpertChainMaxChosen : 1][Format::kIsInt4 ? kExpertChainMaxDownRows : 1];
  alignas(16) float sums[kExpertChainMaxGroups][kWarps][16];
  int32_t experts[kExpertChainMaxChosen];
  float weights[kExpertChainMaxChosen];
  float of_warp[kWarps];
  // Of the rows of o that the CTA has: the residual before, the norm's weights, the residual after times these.
  float o_residual[kExpertChainMaxORows], o_norm[kExpertChainMaxORows], o_rows[kExpertChainMaxORows];
};
static_assert(sizeof(ExpertChainShared<ChainBf16<false>>) <= expert_chain_bf16_bytes(false));
static_assert(sizeof(ExpertChainShared<ChainBf16<true>>) <= expert_chain_bf16_bytes(true));
static_assert(sizeof(ExpertChainShared<ChainInt4<false>>) <= expert_chain_int4_bytes(false));
static_assert(sizeof(ExpertChainShared<ChainInt4<true>>) <= expert_chain_int4_bytes(true));

__device__ inline int first_group(const ExpertChainPhase& phase, int cta) {
  return static_cast<int>(static_cast<int64_t>(phase.num_groups) * cta / static_cast<int>(gridDim.x));
}

// Of a step of down: which of the chosen experts it is of; the number of these: the shared one.
template <typename Format>
__device__ inline int chosen_of(const ExpertChainKernelParams& p, int step) {
  const int chosen = step / p.phases[kChainDown].steps_of_matrix;
  return Format::kHasShared ? min(chosen, p.rules.num_experts_per_tok) : chosen;
}

// The copies of a warp's steps of all its groups in the phases before a limit, one behind the other.
template <typename Format>
class ChainLoads {
 public:
  __device__ ChainLoads(const ExpertChainKernelParams& p, const int32_t* experts)
      : p_(p), experts_(experts), warp_(static_cast<int>(threadIdx.x) / kWarpSize) {}
  // What was on its way has been used.
  __device__ void start(int phase, int limit, uint32_t ring) {
    phase_ = phase;
    limit_ = limit;
    start_phase();
#pragma unroll 1
    for (int i = 0; i < Format::kDepth; ++i) next(ring + i * Format::kSlotBytes);
  }
  // More behind what is on its way; not where that is_dry(): some of the copies ahead then were of nothing.
  __device__ void extend(int limit) {
    const bool is_over = phase_ >= limit_;
    limit_ = limit;
    if (is_over) start_phase();
  }
  __device__ bool is_dry() const { return limit_ == kDry; }
  __device__ void next(uint32_t slot) {
    if (phase_ < limit_) {
      copy(slot);
      step_ += kWarps;
      if (step_ >= p_.phases[phase_].num_steps) {
        step_ = warp_;
        if (++group_ == end_) {
          ++phase_;
          start_phase();
        }
      }
    } else {
      limit_ = kDry;
    }
    commit_copies();
  }

 private:
  __device__ void start_phase() {
    for (; phase_ < limit_; ++phase_) {
      const ExpertChainPhase& phase = p_.phases[phase_];
      group_ = first_group(phase, static_cast<int>(blockIdx.x));
      end_ = first_group(phase, static_cast<int>(blockIdx.x) + 1);
      step_ = warp_;
      if (group_ < end_) return;
    }
  }
  __device__ void copy(uint32_t slot) const {
    const ExpertChainPhase& phase = p_.phases[phase_];
    ChainStep at{phase.weight, group_, step_};
    const ExpertChainPhase* matrix = &phase;
    if (phase_ == kChainGateUp) {
      const int chosen = group_ / phase.groups_of_matrix;
      at.row -= chosen * phase.groups_of_matrix;
      at.matrix += experts_[chosen] * phase.matrix_bytes;
    } else if (phase_ == kChainDown) {
      const int chosen = chosen_of<Format>(p_, step_);
      at.step -= chosen * phase.steps_of_matrix;
      if (!Format::kHasShared || chosen < p_.rules.num_experts_per_tok) {
        at.matrix += experts_[chosen] * phase.matrix_bytes;
      } else {
        matrix = &p_.phases[kChainSharedDown];
        at.matrix = matrix->weight;
      }
    }
    at.row *= phase.group_step;
    Format::copy(*matrix, at, slot, policy_);
  }

  static constexpr int kDry = -1;  // the limit once copies have run out

  const ExpertChainKernelParams& p_;
  const int32_t* experts_;
  const int warp_;
  const uint64_t policy_ = policy_evict_first();
  int phase_ = 0, limit_ = 0, group_ = 0, end_ = 0, step_ = 0;
};

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
  const uint32_t* w = piece.words;
  if constexpr (Format::kIsInt4) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPieceElems; ++i) sum += value_of(piece, i);
#pragma unroll
    for (int mask = 1; mask < 64 / kPieceElems; mask *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (!exists) return;
    if (first % 64 == 0) shared.x_sums[first / 64] = sum;
    // A lane of the product reads, of 32 elements, 4 neighbours of the first 16 and those of the last 16: elements 0
    // and 2, 1 and 3 of each, as its codes come.
    char* at = reinterpret_cast<char*>(shared.x) + first / 128 * 256 + first % 128 / 32 * 64 + first % 16 / 4 * 16 +
               first % 32 / 16 * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<uint2*>(at + 16 * i) =
          make_uint2(__byte_perm(w[2 * i], w[2 * i + 1], 0x5410), __byte_perm(w[2 * i], w[2 * i + 1], 0x7632));
    }
  } else {
    if (exists) *reinterpret_cast<uint4*>(shared.x + first) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// --- products --------------------------------------------------------------------------------------------------------

// Adds a step to the sums of a lane's row in the low 8 and of that in the high 8, where lane % 4 is 0.
template <typename Format>
__device__ inline void multiply_step(uint32_t slot, const ExpertChainKernelParams& p, int which, int step, int down_row,
                                     const ExpertChainShared<Format>& shared, float (&totals)[2], auto load_next) {
  const ExpertChainPhase& phase = p.phases[which];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if constexpr (!Format::kIsInt4) {
    uint4 rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i] = load_shared_16(slot + 512 * i + lane * 16);
    __syncwarp();
    load_next();
    const bool is_narrow = phase.step_width == 128;
    const Bf16* x = shared.x + step * phase.step_width + lane % 4 * 8 + (is_narrow && lane / 4 % 2 != 0 ? 64 : 0);
    const uint4 b0 = *reinterpret_cast<const uint4*>(x), b1 = *reinterpret_cast<const uint4*>(x + 32);
    float acc[4] = {};
    mma_m16n8k16_bf16(acc, {rows[0].x, rows[2].x, rows[0].y, rows[2].y}, {b0.x, b0.y});
    mma_m16n8k16_bf16(acc, {rows[0].z, rows[2].z, rows[0].w, rows[2].w}, {b0.z, b0.w});
    mma_m16n8k16_bf16(acc, {rows[1].x, rows[3].x, rows[1].y, rows[3].y}, {b1.x, b1.y});
    mma_m16n8k16_bf16(acc, {rows[1].z, rows[3].z, rows[1].w, rows[3].w}, {b1.z, b1.w});
    const float factor = which == kChainDown ? shared.weights[chosen_of<Format>(p, step)] : 1.0f;
    totals[0] = __fmaf_rn(factor, is_narrow ? acc[0] + acc[3] : acc[0], totals[0]);
    totals[1] = __fmaf_rn(factor, acc[2], totals[1]);
  } else {
    const uint4 low = load_shared_16(slot + lane * 16), high = load_shared_16(slot + 512 + lane * 16);
    const uint32_t multipliers[2] = {load_shared_half(slot + 1024 + lane / 4 * 2),
                                     load_shared_half(slot + 1040 + lane / 4 * 2)};
    __syncwarp();
    load_next();
    const uint32_t codes[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
    const char* x = reinterpret_cast<const char*>(shared.x) + step * 256 + lane % 4 * 16;
    float sums[2] = {};
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      float acc[4] = {};
#pragma unroll
      for (int s = 2 * g; s < 2 * g + 2; ++s) {
        const uint4 b = *reinterpret_cast<const uint4*>(x + s * 64);
        const auto pair_of = [&](int r, int shift) { return (codes[r][s] >> shift & 0x000f000fu) | 0x43004300u; };
        mma_m16n8k16_bf16(acc, {pair_of(0, 0), pair_of(1, 0), pair_of(0, 8), pair_of(1, 8)}, {b.x, b.y});
        mma_m16n8k16_bf16(acc, {pair_of(0, 4), pair_of(1, 4), pair_of(0, 12), pair_of(1, 12)}, {b.z, b.w});
      }
      const float too_much = 136.0f * shared.x_sums[2 * step + g];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sums[r] = __fmaf_rn(static_cast<float>(multipliers[r] >> (8 * g) & 0xff), acc[2 * r] - too_much, sums[r]);
      }
    }
    const float* scales =
        shared.down_scales[which == kChainDown ? chosen_of<Format>(p, step) : 0] + down_row + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      totals[r] = which == kChainDown ? __fmaf_rn(scales[8 * r], sums[r], totals[r]) : totals[r] + sums[r];
    }
  }
}

// The scale of a row of int4.
__device__ inline float row_scale(const ExpertChainPhase& phase, int matrix, int row) {
  return load_constant(
      reinterpret_cast<const float*>(phase.weight + matrix * phase.matrix_bytes + phase.scales_offset) + row);
}

// --- the router ------------------------------------------------------------------------------------------------------

// Of the residual's piece at `first` what this CTA's rows of o need, a multiple of 8 of them.
template <typename Format>
__device__ inline void put_o_residual(const ExpertChainKernelParams& p, const Piece<Bf16>& residual, int first,
                                      ExpertChainShared<Format>& shared) {
  const ExpertChainPhase& o = p.phases[kChainO];
  const int begin = first_group(o, static_cast<int>(blockIdx.x)) * o.group_step;
  const int end = first_group(o, static_cast<int>(blockIdx.x) + 1) * o.group_step;
  if (first < begin || first >= end) return;
  const Piece<Bf16> norm = load_constant_piece(static_cast<const Bf16*>(p.post_norm), first, p.hidden_size, true);
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) {
    shared.o_residual[first - begin + i] = value_of(residual, i);
    shared.o_norm[first - begin + i] = value_of(norm, i);
  }
}

// What the rows of o that this CTA has, in shared memory, add to the logits. A thread has an expert; those of the first
// warp have none, as they finish o meanwhile.
struct RouterRows {
  static constexpr int kPieces = kExpertChainMaxORows / kPieceElems;
  static_assert(kExpertChainMaxExperts <= kThreads - kWarpSize);
  const int expert, num_rows;
  const Bf16* row;
  Piece<Bf16> pieces[kPieces];

  __device__ static int first_row(const ExpertChainKernelParams& p, int cta) {
    return first_group(p.phases[kChainO], cta) * p.phases[kChainO].group_step;
  }
  __device__ static const Bf16* row_of(const ExpertChainKernelParams& p) {
    const int expert = static_cast<int>(threadIdx.x) - kWarpSize;
    return reinterpret_cast<const Bf16*>(p.router + expert * p.router_row_bytes) +
           first_row(p, static_cast<int>(blockIdx.x));
  }
  __device__ static void prefetch(const ExpertChainKernelParams& p) {
    const int expert = static_cast<int>(threadIdx.x) - kWarpSize;
    if (expert < 0 || expert >= p.rules.num_experts) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row_of(p)));
  }

  __device__ explicit RouterRows(const ExpertChainKernelParams& p)
      : expert(static_cast<int>(threadIdx.x) - kWarpSize),
        num_rows(first_row(p, static_cast<int>(blockIdx.x) + 1) - first_row(p, static_cast<int>(blockIdx.x))),
        row(row_of(p)) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      pieces[i] = {};
      if (expert >= 0 && expert < p.rules.num_experts && i * kPieceElems < num_rows) {
        pieces[i] = load_constant_piece(row, i * kPieceElems, num_rows, true);
      }
    }
  }
  __device__ void add(const ExpertChainKernelParams& p, const float* rows) const {
    if (expert < 0 || expert >= p.rules.num_experts || num_rows == 0) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (i * kPieceElems >= num_rows) break;
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) sum = __fmaf_rn(value_of(pieces[i], j), rows[i * kPieceElems + j], sum);
    }
    const long long units = __float2ll_rn(sum * kExpertChainLogitUnits);
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(p.logit_sums + expert), "l"(units) : "memory");
  }
};

// The choice of all threads of a CTA, in shared memory.
struct ExpertChoice {
  static constexpr int kMax = kExpertChainMaxExperts, kSlices = kThreads / kMax;
  float logits[kMax], scores[kMax];  // logits: in units, before the norm
  uint32_t keys[kMax];
  int32_t ranks[kSlices][kMax];
  float chosen_scores[kExpertChainMaxChosen];
};
static_assert(sizeof(ExpertChoice) <= kExpertChainMaxGroups * kWarps * 16 * 4);

template <int kPerLane>
__device__ inline void make_keys(const RoutingRules& rules, float inv_rms, ExpertChoice& choice) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float values[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int expert = lane + i * kWarpSize;
    values[i] = expert < rules.num_experts ? choice.logits[expert] * (1.0f / kExpertChainLogitUnits) * inv_rms : 0.0f;
  }
  const TokenRouter<kPerLane> router(rules, values);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    choice.scores[lane + i * kWarpSize] = values[i];
    choice.keys[lane + i * kWarpSize] = router.key(i);
  }
}

// As TokenRouter::choose(), by the ranks of all experts at once. All threads call it.
__device__ inline void choose_experts(const ExpertChainKernelParams& p, float inv_rms, ExpertChoice& choice,
                                      int32_t* ids, float* weights) {
  constexpr int kMax = ExpertChoice::kMax, kSlices = ExpertChoice::kSlices;
  const int thread = static_cast<int>(threadIdx.x), k = p.rules.num_experts_per_tok;
  const bool is_small = p.rules.num_experts <= kMax / 2;
  if (thread < kWarpSize) {
    if (is_small) {
      make_keys<kMax / 2 / kWarpSize>(p.rules, inv_rms, choice);
    } else {
      make_keys<kMax / kWarpSize>(p.rules, inv_rms, choice);
    }
  }
  __syncthreads();
  // Of every slice of the others those that come before this one.
  const int num_keys = is_small ? kMax / 2 : kMax, expert = thread % kMax, slice = thread / kMax;
  if (expert < num_keys) {
    const uint32_t own = choice.keys[expert];
    const int begin = slice * (num_keys / kSlices), end = begin + num_keys / kSlices;
    int rank = 0;
#pragma unroll 4
    for (int i = begin; i < end; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(choice.keys + i);
      rank += four.x > own || (four.x == own && i < expert);
      rank += four.y > own || (four.y == own && i + 1 < expert);
      rank += four.z > own || (four.z == own && i + 2 < expert);
      rank += four.w > own || (four.w == own && i + 3 < expert);
    }
    choice.ranks[slice][expert] = rank;
  }
  __syncthreads();
  if (thread < p.rules.num_experts) {
    int rank = 0;
#pragma unroll
    for (int s = 0; s < kSlices; ++s) rank += choice.ranks[s][thread];
    if (rank < k) {
      ids[rank] = thread;
      choice.chosen_scores[rank] = choice.scores[thread];
    }
  }
  __syncthreads();
  if (thread < k) {
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += choice.chosen_scores[i];
    weights[thread] = choice.chosen_scores[thread] * routing_factor(p.rules, sum);
  }
  if (thread == k) weights[k] = 1.0f;  // of the shared expert
}

template <typename Format>
__device__ inline void expert_chain(const ExpertChainKernelParams& p) {
  constexpr int kDepth = Format::kDepth;
  extern __shared__ __align__(128) char shared_bytes[];
  ExpertChainShared<Format>& shared = *reinterpret_cast<ExpertChainShared<Format>*>(shared_bytes);
  let_dependents_launch();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const uint32_t ring = shared_address(shared.ring[warp]);
  ChainLoads<Format> loads(p, shared.experts);
  loads.start(kChainO, kChainGateUp, ring);
  int place = 0;
  wait_for_inputs();
  RouterRows::prefetch(p);
  GridBarrier barrier(p.num_arrived);
  const int first = thread * kPieceElems;
  const bool has_piece = first < p.hidden_size;
  Piece<Bf16> residual = {};  // of the layer: after the first sum it is that one
  if (has_piece) residual = load_fresh_piece(p.residual, first);
  put_o_residual(p, residual, first, shared);

  // Where the norm after o is needed, and the choice.
  constexpr int first_gate_up = Format::kHasShared ? kChainSharedGateUp : kChainGateUp;
  constexpr int kWidePieces = ExpertChainShared<Format>::kWidth / kPieceElems / kThreads;

#pragma unroll 1
  for (int which = 0; which < p.num_phases; ++which) {
    const ExpertChainPhase& phase = p.phases[which];
    if (!Format::kHasShared && which == kChainSharedGateUp) continue;
    const int begin = first_group(phase, static_cast<int>(blockIdx.x));
    const int end = first_group(phase, static_cast<int>(blockIdx.x) + 1);
    if (which == first_gate_up || which == kChainQkv) {
      const bool is_post = which == first_gate_up;
      const void* norm = is_post ? p.post_norm : p.next_norm;
      Piece<Bf16> weight = {}, more = {};
      if (has_piece) weight = load_constant_piece(static_cast<const Bf16*>(norm), first, p.hidden_size, true);
      if (thread == 0) barrier.wait();
      __syncthreads();
      if (has_piece) more = load_fresh_piece(p.x, first);
      ExpertChoice& choice = *reinterpret_cast<ExpertChoice*>(&shared.sums[0][0][0]);
      const auto take_logits = [&] {
        if (!is_post || thread >= p.rules.num_experts) return;
        choice.logits[thread] = __ll2float_rn(static_cast<long long>(load_fresh(p.logit_sums + thread)));
      };
      if constexpr (!Format::kIsInt4) take_logits();
      float sums[kPieceElems];
#pragma unroll
      for (int i = 0; i < kPieceElems; ++i) sums[i] = value_of(residual, i) + value_of(more, i);
      residual = to_piece<Bf16>(sums);
      const float squares = sum_of_warps(add_squares(residual, 0.0f), shared.of_warp);
      const float inv_rms = inv_rms_of(squares, p.hidden_size, is_post ? p.post_eps : p.next_eps);
      const Piece<Bf16> x = normalized(residual, weight, inv_rms);
      put_piece(x, first, has_piece, shared);
      if constexpr (Format::kIsInt4) {  // earlier it takes more than 80 registers
        take_logits();
        __syncthreads();
      }
      if (is_post) choose_experts(p, inv_rms, choice, shared.experts, shared.weights);
    } else if (which != kChainGateUp) {
      if (which > 0) {
        if (thread == 0) barrier.wait();
        __syncthreads();
      }
      const int width = which == kChainO ? p.heads_width : p.act_width;
      const void* from = which == kChainO ? p.heads : p.phases[kChainGateUp].out;
      Piece<Bf16> pieces[kWidePieces] = {};
#pragma unroll
      for (int i = 0; i < kWidePieces; ++i) {
        const int at = first + i * kThreads * kPieceElems;
        if (at < width) pieces[i] = load_fresh_piece(from, at);
      }
#pragma unroll
      for (int i = 0; i < kWidePieces; ++i) {
        const int at = first + i * kThreads * kPieceElems;
        put_piece(pieces[i], at, at < width, shared);
      }
    }
    __syncthreads();
    // What a thread finishes: a row of the low half of a group and that of the high one.
    const bool is_item = thread < (end - begin) * 8;
    const int group = begin + thread / 8, row = group * phase.group_step + thread % 8;
    float row_scales[2] = {1.0f, 1.0f};
    if (which == first_gate_up && !loads.is_dry()) loads.extend(p.num_phases);
    if (which == kChainGateUp) {
      if (loads.is_dry()) {
        loads.start(kChainGateUp, p.num_phases, ring);
        place = 0;
      }
      if constexpr (Format::kIsInt4) {
        const ExpertChainPhase& down = p.phases[kChainDown];
        const int first_row = first_group(down, static_cast<int>(blockIdx.x)) * 16;
        const int num_rows = first_group(down, static_cast<int>(blockIdx.x) + 1) * 16 - first_row;
        const ExpertChainPhase& shared_down = p.phases[kChainSharedDown];
        const int num_routed = p.rules.num_experts_per_tok, num_used = num_routed + Format::kHasShared;
        for (int i = thread; i < num_used * num_rows; i += kThreads) {
          const int chosen = i / num_rows, in_chosen = i % num_rows, of_down = first_row + in_chosen;
          shared.down_scales[chosen][in_chosen] =
              shared.weights[chosen] * (chosen < num_routed ? row_scale(down, shared.experts[chosen], of_down)
                                                            : row_scale(shared_down, 0, of_down));
        }
      }
    }
    if constexpr (Format::kIsInt4) {
      if (is_item && which != kChainDown) {
        const int chosen = which == kChainGateUp ? group / phase.groups_of_matrix : 0;
        const int matrix = which == kChainGateUp ? shared.experts[chosen] : 0;
        const int in_matrix = row - chosen * phase.groups_of_matrix * phase.group_step;
#pragma unroll
        for (int r = 0; r < 2; ++r) row_scales[r] = row_scale(phase, matrix, in_matrix + r * phase.pair_rows);
      }
    }

#pragma unroll 1
    for (int g = begin; g < end; ++g) {
      float totals[2] = {};
#pragma unroll 1
      for (int step = warp; step < phase.num_steps; step += kWarps) {
        const uint32_t slot = ring + place * Format::kSlotBytes;
        wait_copies<kDepth - 1>();
        __syncwarp();
        multiply_step(slot, p, which, step, (g - begin) * 16, shared, totals, [&] { loads.next(slot); });
        place = place + 1 == kDepth ? 0 : place + 1;
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
      const RouterRows router(p);
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

// Beside 80 registers a thread small kernels have room.
#define SPATE_EXPERT_CHAIN_KERNEL(name, Format, registers)                                                    \
  extern "C" __global__ void __maxnreg__(registers) name(const __grid_constant__ ExpertChainKernelParams p) { \
    expert_chain<Format>(p);                                                                                  \
  }
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_bf16, ChainBf16<false>, 80)
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_int4, ChainInt4<false>, 80)
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_shared_bf16, ChainBf16<true>, 80)
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_shared_int4, ChainInt4<true>, 88)

}  // namespace spate::cuda
