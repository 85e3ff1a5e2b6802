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
//            the shared expert. Each CTA makes the norms and chooses the experts itself, by the ranks of all at once;
//            scores and weights are made when copies are on their way. Steps are walked through without divisions.
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

__device__ constexpr uint64_t policy_evict_first() {
  return 0x12f0000000000000ull;  // what createpolicy.fractional.L2::evict_first makes of 1.0
}
__device__ inline void copy_stream_16(uint32_t shared, const char* global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::256B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "l"(policy)
               : "memory");
}
__device__ inline void copy_float(float* shared, const float* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
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
      const uint32_t row = static_cast<uint32_t>(at.row + i * phase.pair_rows), in_tile = row % kWgmmaTileRows;
      const char* chunk = chunks + row / kWgmmaTileRows * phase.tile_bytes;
      copy_stream_16(slot + 512 * i + lane * 16, chunk + in_tile * kInt4RowBytes + lane * 16, policy);
      if (lane == i) copy_stream_16(slot + 1024 + 16 * i, chunk + kInt4CodeBytes + in_tile * 2, policy);
    }
  }
};

// The groups of a product that a CTA has; of gate_up the first one's expert, by its place among the chosen.
struct ChainRange {
  int32_t begin, end, chosen;
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
  ChainRange ranges[kExpertChainProducts];
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

// A step along k of down, by its expert and its number in the expert's matrix; of other products the expert is 0. Those
// behind the chosen experts are the shared one's.
template <typename Format>
struct ChainPlace {
  int chosen = 0, step;

  __device__ ChainPlace(const ExpertChainKernelParams& p, int which, int first) : step(first) { pass(p, which); }
  __device__ void advance(const ExpertChainKernelParams& p, int which) {
    step += kWarps;
    pass(p, which);
  }

 private:
  __device__ void pass(const ExpertChainKernelParams& p, int which) {
    if (which != kChainDown) return;
    const int of_matrix = p.phases[kChainDown].steps_of_matrix;
    while (step >= of_matrix && (!Format::kHasShared || chosen < p.rules.num_experts_per_tok)) {
      step -= of_matrix;
      ++chosen;
    }
  }
};

// The copies of a warp's steps of all its groups in the phases before a limit, one behind the other.
template <typename Format>
class ChainLoads {
 public:
  __device__ ChainLoads(const ExpertChainKernelParams& p, const int32_t* experts, const ChainRange* ranges)
      : p_(p), experts_(experts), ranges_(ranges), warp_(static_cast<int>(threadIdx.x) / kWarpSize), place_(p, 0, 0) {}
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
      place_.advance(p_, phase_);
      if (step_ >= p_.phases[phase_].num_steps) {
        ++in_matrix_;
        if (phase_ == kChainGateUp && in_matrix_ == p_.phases[kChainGateUp].groups_of_matrix) {
          in_matrix_ = 0;
          ++chosen_;
        }
        if (++group_ == end_) {
          ++phase_;
          start_phase();
        } else {
          start_group();
        }
      }
    } else {
      limit_ = kDry;
    }
    commit_copies();
  }

 private:
  __device__ void start_group() {
    step_ = warp_;
    place_ = ChainPlace<Format>(p_, phase_, warp_);
  }
  __device__ void start_phase() {
    for (; phase_ < limit_; ++phase_) {
      const ChainRange range = ranges_[phase_];
      if (range.begin >= range.end) continue;
      group_ = range.begin;
      end_ = range.end;
      chosen_ = range.chosen;
      in_matrix_ = phase_ == kChainGateUp ? group_ - chosen_ * p_.phases[kChainGateUp].groups_of_matrix : group_;
      return start_group();
    }
  }
  __device__ void copy(uint32_t slot) const {
    const ExpertChainPhase* phase = &p_.phases[phase_];
    ChainStep at{phase->weight, in_matrix_, place_.step};
    if (phase_ == kChainGateUp) at.matrix += experts_[chosen_] * phase->matrix_bytes;
    if (phase_ == kChainDown) {
      if (!Format::kHasShared || place_.chosen < p_.rules.num_experts_per_tok) {
        at.matrix += experts_[place_.chosen] * phase->matrix_bytes;
      } else {
        phase = &p_.phases[kChainSharedDown];
        at.matrix = phase->weight;
      }
    }
    at.row *= phase->group_step;
    Format::copy(*phase, at, slot, policy_evict_first());
  }

  static constexpr int kDry = -1;  // the limit once copies have run out

  const ExpertChainKernelParams& p_;
  const int32_t* experts_;
  const ChainRange* ranges_;
  const int warp_;
  int phase_ = 0, limit_ = 0, group_ = 0, end_ = 0, step_ = 0;
  int chosen_ = 0, in_matrix_ = 0;  // of gate_up: whose matrix, and the group there
  ChainPlace<Format> place_;        // along k
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

// Of each half of a word the low 4 bits, as 128 more in bf16: in one instruction, where the compiler makes two.
__device__ inline uint32_t biased_codes(uint32_t word) {
  uint32_t codes;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(codes) : "r"(word), "r"(0x000f000fu), "r"(0x43004300u));
  return codes;
}

// Adds a step to the sums of a lane's row in the low 8 and of that in the high 8, where lane % 4 is 0.
template <typename Format>
__device__ inline void multiply_step(uint32_t slot, const ExpertChainKernelParams& p, int which, int step, int chosen,
                                     int down_row, const ExpertChainShared<Format>& shared, float (&totals)[2],
                                     auto load_next) {
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
    const float factor = which == kChainDown ? shared.weights[chosen] : 1.0f;
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
        const auto pair_of = [&](int r, int shift) { return biased_codes(codes[r][s] >> shift); };
        mma_m16n8k16_bf16(acc, {pair_of(0, 0), pair_of(1, 0), pair_of(0, 8), pair_of(1, 8)}, {b.x, b.y});
        mma_m16n8k16_bf16(acc, {pair_of(0, 4), pair_of(1, 4), pair_of(0, 12), pair_of(1, 12)}, {b.z, b.w});
      }
      const float too_much = 136.0f * shared.x_sums[2 * step + g];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sums[r] = __fmaf_rn(static_cast<float>(multipliers[r] >> (8 * g) & 0xff), acc[2 * r] - too_much, sums[r]);
      }
    }
    const float* scales = shared.down_scales[chosen] + down_row + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      totals[r] = which == kChainDown ? __fmaf_rn(shared.weights[chosen] * scales[8 * r], sums[r], totals[r])
                                      : totals[r] + sums[r];
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

// --- the router ------------------------------------------------------------------------------------------------------

// Of the rows of o that this CTA has, a multiple of 8, what lies at `first`: the norm's weights, the residual.
__device__ inline int o_place(const ExpertChainKernelParams& p, const ChainRange& o, int first) {
  const int begin = o.begin * p.phases[kChainO].group_step, end = o.end * p.phases[kChainO].group_step;
  return first < begin || first >= end ? -1 : first - begin;
}
template <typename Format>
__device__ inline void put_o_norm(const ExpertChainKernelParams& p, int first, ExpertChainShared<Format>& shared) {
  const int at = o_place(p, shared.ranges[kChainO], first);
  if (at < 0) return;
  const Piece<Bf16> norm = load_constant_piece(static_cast<const Bf16*>(p.post_norm), first, p.hidden_size, true);
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) shared.o_norm[at + i] = value_of(norm, i);
}
template <typename Format>
__device__ inline void put_o_residual(const ExpertChainKernelParams& p, const Piece<Bf16>& residual, int first,
                                      ExpertChainShared<Format>& shared) {
  const int at = o_place(p, shared.ranges[kChainO], first);
  if (at < 0) return;
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) shared.o_residual[at + i] = value_of(residual, i);
}

// What the rows of o that this CTA has, in shared memory, add to the logits. A thread has an expert; those of the first
// warp have none, as they finish o meanwhile.
struct RouterRows {
  static constexpr int kPieces = kExpertChainMaxORows / kPieceElems;
  static_assert(kExpertChainMaxExperts <= kThreads - kWarpSize);
  const int expert, num_rows;
  const Bf16* row;
  Piece<Bf16> pieces[kPieces];

  __device__ static const Bf16* row_of(const ExpertChainKernelParams& p, const ChainRange& o) {
    const int expert = static_cast<int>(threadIdx.x) - kWarpSize;
    return reinterpret_cast<const Bf16*>(p.router + expert * p.router_row_bytes) +
           o.begin * p.phases[kChainO].group_step;
  }
  __device__ static void prefetch(const ExpertChainKernelParams& p, const ChainRange& o) {
    const int expert = static_cast<int>(threadIdx.x) - kWarpSize;
    if (expert < 0 || expert >= p.rules.num_experts) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row_of(p, o)));
  }

  __device__ RouterRows(const ExpertChainKernelParams& p, const ChainRange& o, bool is_used)
      : expert(static_cast<int>(threadIdx.x) - kWarpSize),
        num_rows((o.end - o.begin) * p.phases[kChainO].group_step),
        row(row_of(p, o)) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      pieces[i] = {};
      if (is_used && expert >= 0 && expert < p.rules.num_experts && i * kPieceElems < num_rows) {
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

// The choice of a CTA, in shared memory. Keys order the experts; where they are those of the logits, scores of the
// chosen ones alone are made, by the sum of all that one warp makes meanwhile.
struct ExpertChoice {
  static constexpr int kMax = kExpertChainMaxExperts;
  float logits[kMax], scores[kMax];  // logits: in units, before the norm
  alignas(16) uint32_t keys[kMax];
  float largest, sum;  // of the logits times 1 / rms; of the exponentials below it
};
static_assert(sizeof(ExpertChoice) <= kExpertChainMaxGroups * kWarps * 16 * 4);

__device__ inline bool is_by_logits(const RoutingRules& rules) { return !rules.is_sigmoid && rules.bias == nullptr; }

// Before a barrier of the CTA.
__device__ inline void put_logit(const ExpertChainKernelParams& p, ExpertChoice& choice) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= ExpertChoice::kMax) return;
  uint32_t key = kTaken;
  if (thread < p.rules.num_experts) {
    const float logit = __ll2float_rn(static_cast<long long>(load_fresh(p.logit_sums + thread)));
    choice.logits[thread] = logit;
    key = order_key(logit);
  }
  choice.keys[thread] = key;
}

// Of one warp: scores and the keys that they give.
__device__ inline void put_scores(const RoutingRules& rules, float inv_rms, ExpertChoice& choice) {
  constexpr int kPerLane = ExpertChoice::kMax / kWarpSize;
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

// Of one warp.
__device__ inline void put_sum(const RoutingRules& rules, float inv_rms, ExpertChoice& choice) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float factor = (1.0f / kExpertChainLogitUnits) * inv_rms;
  float largest = -kInfinity, sum = 0.0f;
#pragma unroll 1
  for (int i = lane; i < rules.num_experts; i += kWarpSize) largest = fmaxf(largest, choice.logits[i] * factor);
  largest = warp_reduce(largest, Max());
#pragma unroll 1
  for (int i = lane; i < rules.num_experts; i += kWarpSize) sum += expf(choice.logits[i] * factor - largest);
  sum = warp_reduce(sum, Sum());
  if (lane == 0) {
    choice.largest = largest;
    choice.sum = sum;
  }
}

// As TokenRouter::choose(), by the ranks of all experts at once, four threads each: those that come before it are
// larger, or as large with a lower number. All threads call it; a barrier of the CTA follows.
__device__ inline void put_chosen(const RoutingRules& rules, const ExpertChoice& choice, int32_t* ids) {
  constexpr int kShares = 4;
  const int share = static_cast<int>(threadIdx.x) % kShares;
#pragma unroll 1
  for (int first = 0; first < rules.num_experts; first += kThreads / kShares) {
    const int expert = first + static_cast<int>(threadIdx.x) / kShares;
    const uint32_t own = expert < rules.num_experts ? choice.keys[expert] : 0xffffffffu;
    int rank = 0;
#pragma unroll 2
    for (int i = 4 * share; i < rules.num_experts; i += 4 * kShares) {
      const uint4 four = *reinterpret_cast<const uint4*>(choice.keys + i);
      rank += four.x > own - (i < expert);
      rank += four.y > own - (i + 1 < expert);
      rank += four.z > own - (i + 2 < expert);
      rank += four.w > own - (i + 3 < expert);
    }
#pragma unroll
    for (int mask = 1; mask < kShares; mask *= 2) rank += shuffle_xor(rank, mask);
    if (share == 0 && expert < rules.num_experts && rank < rules.num_experts_per_tok) ids[rank] = expert;
  }
}

// Of one warp: the weights of the chosen experts and of the shared one behind them.
__device__ inline void put_weights(const RoutingRules& rules, float inv_rms, const ExpertChoice& choice,
                                   const int32_t* ids, float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, k = rules.num_experts_per_tok;
  float score = 0.0f, sum = 0.0f;
  if (lane < k) {
    const int id = ids[lane];
    const float factor = (1.0f / kExpertChainLogitUnits) * inv_rms;
    score = is_by_logits(rules) ? expf(choice.logits[id] * factor - choice.largest) / choice.sum : choice.scores[id];
  }
  for (int i = 0; i < k; ++i) sum += __shfl_sync(kAllLanes, score, i);
  if (lane < k) weights[lane] = score * routing_factor(rules, sum);
  if (lane == k) weights[k] = 1.0f;
}

template <typename Format>
__device__ inline void expert_chain(const ExpertChainKernelParams& p) {
  constexpr int kDepth = Format::kDepth;
  extern __shared__ __align__(128) char shared_bytes[];
  ExpertChainShared<Format>& shared = *reinterpret_cast<ExpertChainShared<Format>*>(shared_bytes);
  let_dependents_launch();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpSize, lane = thread % kWarpSize;
  const uint32_t ring = shared_address(shared.ring[warp]);
  if (thread < kExpertChainProducts) {
    const ExpertChainPhase& phase = p.phases[thread];
    const int begin = first_group(phase, static_cast<int>(blockIdx.x));
    shared.ranges[thread] = {begin, first_group(phase, static_cast<int>(blockIdx.x) + 1),
                             thread == kChainGateUp ? begin / phase.groups_of_matrix : 0};
  }
  __syncthreads();
  ChainLoads<Format> loads(p, shared.experts, shared.ranges);
  loads.start(kChainO, kChainGateUp, ring);
  int place = 0;
  RouterRows::prefetch(p, shared.ranges[kChainO]);
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
  GridBarrier barrier(p.num_arrived);
  Piece<Bf16> residual = {};  // of the layer: after the first sum it is that one
  put_wide(p.heads, p.heads_width, [&] {
    if (has_piece) residual = load_fresh_piece(p.residual, first);
  });
  put_o_residual(p, residual, first, shared);

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
      if (thread == 0) barrier.wait();
      __syncthreads();
      if (has_piece) more = load_fresh_piece(p.x, first);
      ExpertChoice& choice = *reinterpret_cast<ExpertChoice*>(&shared.sums[0][0][0]);
      if (is_post) put_logit(p, choice);
      float sums[kPieceElems];
#pragma unroll
      for (int i = 0; i < kPieceElems; ++i) sums[i] = value_of(residual, i) + value_of(more, i);
      residual = to_piece<Bf16>(sums);
      const float squares = sum_of_warps(add_squares(residual, 0.0f), shared.of_warp);
      const float inv_rms = inv_rms_of(squares, p.hidden_size, is_post ? p.post_eps : p.next_eps);
      if (is_post) {
        if (!is_by_logits(p.rules)) {
          if (warp == 0) put_scores(p.rules, inv_rms, choice);
          __syncthreads();
        } else if (warp == kWarps - 1) {
          put_sum(p.rules, inv_rms, choice);
        }
        put_chosen(p.rules, choice, shared.experts);
        __syncthreads();
        if constexpr (Format::kHasShared) {
          if (!loads.is_dry()) loads.extend(p.num_phases);
        } else {
          loads.start(kChainGateUp, p.num_phases, ring);
          place = 0;
        }
        if (warp == 0) put_weights(p.rules, inv_rms, choice, shared.experts, shared.weights);
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
        loads.start(kChainGateUp, p.num_phases, ring);
        place = 0;
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

#pragma unroll 1
    for (int g = begin; g < end; ++g) {
      float totals[2] = {};
      ChainPlace<Format> at(p, which, warp);
#pragma unroll 1
      for (int step = warp; step < phase.num_steps; step += kWarps) {
        const uint32_t slot = ring + place * Format::kSlotBytes;
        wait_copies<kDepth - 1>();
        __syncwarp();
        multiply_step(slot, p, which, step, at.chosen, (g - begin) * 16, shared, totals, [&] { loads.next(slot); });
        at.advance(p, which);
        place = place + 1 == kDepth ? 0 : place + 1;
      }
      if (lane % 4 == 0) {
        shared.sums[g - begin][warp][lane / 4] = totals[0];
        shared.sums[g - begin][warp][8 + lane / 4] = totals[1];
      }
    }
    const bool is_o = which == kChainO, has_high = phase.group_step == 16;
    const RouterRows router(p, shared.ranges[kChainO], is_o);
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

// Beside 80 registers a thread small kernels have room; int4 would spill with so few.
#define SPATE_EXPERT_CHAIN_KERNEL(name, Format, registers)                                                    \
  extern "C" __global__ void __maxnreg__(registers) name(const __grid_constant__ ExpertChainKernelParams p) { \
    expert_chain<Format>(p);                                                                                  \
  }
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_bf16, ChainBf16<false>, 80)
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_int4, ChainInt4<false>, 96)
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_shared_bf16, ChainBf16<true>, 80)
SPATE_EXPERT_CHAIN_KERNEL(expert_chain_shared_int4, ChainInt4<true>, 96)

}  // namespace spate::cuda
