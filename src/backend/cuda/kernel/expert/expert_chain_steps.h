// expert_chain.cu: what lies in shared memory, and the copies of weights into the rings of the warps. A lane has one of
// the next 32 steps of its warp in a product: all lanes find theirs at once, and a copy takes what it needs from one.
#pragma once

#include "backend/cuda/kernel/expert/expert_chain.h"
#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/primitive/shared_load.h"

namespace spate::cuda {

constexpr int kWarps = kExpertChainWarps, kThreads = kWarps * kWarpSize;

__device__ constexpr uint64_t policy_evict_first() {
  return 0x12f0000000000000ull;  // what createpolicy.fractional.L2::evict_first makes of 1.0
}
__device__ inline void copy_stream_16(uint32_t shared, const char* global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "l"(policy)
               : "memory");
}
__device__ inline void copy_stream_16(uint32_t shared, const char* global, uint64_t policy, bool is_used) {
  asm volatile(
      "{ .reg .pred used; setp.ne.u32 used, %3, 0; "
      "@used cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2; }" ::"r"(shared),
      "l"(global), "l"(policy), "r"(static_cast<uint32_t>(is_used))
      : "memory");
}
__device__ inline void copy_float(float* shared, const float* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}

// --- formats ---------------------------------------------------------------------------------------------------------

// Where a step of a group comes from. bf16: the way from a row to the next and to the other rows or the other half of
// k. int4: the way to the codes of the other rows, and from the codes of both to their multipliers, 16 bits each.
struct ChainSource {
  const char* from;
  int32_t first, second;
};
__device__ inline ChainSource of_lane(const ChainSource& source, int lane) {
  const uint64_t from = reinterpret_cast<uint64_t>(source.from);
  const uint32_t low = __shfl_sync(0xffffffffu, static_cast<uint32_t>(from), lane);
  const uint32_t high = __shfl_sync(0xffffffffu, static_cast<uint32_t>(from >> 32), lane);
  return {reinterpret_cast<const char*>(static_cast<uint64_t>(high) << 32 | low),
          __shfl_sync(0xffffffffu, source.first, lane), __shfl_sync(0xffffffffu, source.second, lane)};
}

// A step of 16 rows and 64 of k: rows[0], [1] are the halves of k of the low 8 rows, [2], [3] those of the high ones.
// Or 8 rows and 128 of k, whose second half is multiplied as high rows are, by the odd columns of x.
template <bool kShared>
struct ChainBf16 {
  static constexpr bool kIsInt4 = false, kHasShared = kShared;
  static constexpr int kDepth = kExpertChainBf16Depth, kSlotBytes = kExpertChainBf16StepBytes;

  __device__ static ChainSource source(const ExpertChainPhase& phase, int row, int step) {
    return {phase.weight + row * phase.row_bytes + step * phase.step_bytes, static_cast<int32_t>(phase.row_bytes),
            static_cast<int32_t>(phase.pair_bytes)};
  }
  __device__ static void copy(const ChainSource& source, uint32_t slot, uint64_t policy) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const char* from = source.from + (lane / 4 * source.first + lane % 4 * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_stream_16(slot + 512 * i + lane * 16, from + (i / 2 == 0 ? 0 : source.second) + i % 2 * 64, policy);
    }
  }
};

// A step of 16 rows and 128 of k, 512 bytes of 8 rows each, then 16 bytes of their multipliers.
template <bool kShared>
struct ChainInt4 {
  static constexpr bool kIsInt4 = true, kHasShared = kShared;
  static constexpr int kDepth = kExpertChainInt4Depth, kSlotBytes = kExpertChainInt4StepBytes;

  __device__ static ChainSource source(const ExpertChainPhase& phase, int row, int step) {
    const uint32_t low = static_cast<uint32_t>(row), high = low + static_cast<uint32_t>(phase.pair_rows);
    const int32_t of_low =
        static_cast<int32_t>(low / kWgmmaTileRows * phase.tile_bytes + low % kWgmmaTileRows * kInt4RowBytes);
    const int32_t of_high =
        static_cast<int32_t>(high / kWgmmaTileRows * phase.tile_bytes + high % kWgmmaTileRows * kInt4RowBytes);
    const auto to_multipliers = [](uint32_t r) {
      return kInt4CodeBytes - static_cast<int32_t>(r % kWgmmaTileRows) * (kInt4RowBytes - 2);
    };
    return {phase.weight + step * phase.step_bytes + of_low, of_high - of_low,
            to_multipliers(low) | to_multipliers(high) << 16};
  }
  __device__ static void copy(const ChainSource& source, uint32_t slot, uint64_t policy) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const char* from = source.from + lane * 16;
    copy_stream_16(slot + lane * 16, from, policy);
    copy_stream_16(slot + 512 + lane * 16, from + source.first, policy);
    const int32_t to_multipliers =
        static_cast<int32_t>(static_cast<uint32_t>(source.second) >> 16 * (lane & 1) & 0xffff);
    copy_stream_16(slot + 1024 + 16 * lane, source.from + ((lane & 1) * source.first + to_multipliers), policy,
                   lane < 2);
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
  alignas(16) Bf16 x[kWidth];                         // int4: codes, in the order of its steps
  float x_scales[Format::kIsInt4 ? kWidth / 64 : 1];  // of 64 elements
  float down_scales[Format::kIsInt4 ? kExpertChainMaxChosen : 1][Format::kIsInt4 ? kExpertChainMaxDownRows : 1];
  alignas(16) float sums[kExpertChainMaxGroups][kWarps][16];
  alignas(16) uint32_t zeros[4];
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

// n / d, exact for n below 2^20: a reciprocal is wrong by less than what the half leaves.
__device__ inline int divided(int n, int d) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(static_cast<float>(d)));
  return static_cast<int>((static_cast<float>(n) + 0.5f) * reciprocal);
}

// The copies of a warp's steps of all its groups in the phases before a limit, one behind the other.
template <typename Format>
class ChainLoads {
 public:
  __device__ ChainLoads(const ExpertChainKernelParams& p, const ExpertChainShared<Format>& shared)
      : p_(p), shared_(shared) {}
  // What was on its way has been used. The experts need not be known.
  __device__ void prepare(int phase, int limit) {
    limit_ = limit;
    enter(phase);
  }
  __device__ void start(uint32_t ring) {
    add_expert();
#pragma unroll 1
    for (int i = 0; i < Format::kDepth; ++i) next(ring + i * Format::kSlotBytes);
  }
  // More behind what is on its way; not where that is_dry(): some of the copies ahead then were of nothing.
  __device__ void extend(int limit) {
    const bool is_over = phase_ >= limit_;
    limit_ = limit;
    if (!is_over) return;
    enter(phase_);
    add_expert();
  }
  __device__ bool is_dry() const { return limit_ == kDry; }
  __device__ void next(uint32_t slot) {
    if (at_ == end_) advance();
    if (at_ < end_) {
      Format::copy(of_lane(source_, at_ & (kWarpSize - 1)), slot, policy_evict_first());
      ++at_;
    } else {
      limit_ = kDry;
    }
    commit_copies();
  }

 private:
  __device__ void advance() {
    if (end_ < count_) {
      locate();
    } else if (phase_ < limit_) {
      enter(phase_ + 1);
    } else {
      return;
    }
    add_expert();
  }
  // The first phase from `phase` on in which the CTA has groups.
  __device__ void enter(int phase) {
    at_ = end_ = count_ = 0;
    chosen_ = -1;
    for (phase_ = phase; phase_ < limit_; ++phase_) {
      const ChainRange range = shared_.ranges[phase_];
      if (range.begin >= range.end) continue;
      const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
      steps_of_group_ = (p_.phases[phase_].num_steps - warp + kWarps - 1) / kWarps;
      count_ = (range.end - range.begin) * steps_of_group_;
      return locate();
    }
  }
  // The lane's step from step end_ on.
  __device__ void locate() {
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize, lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const ExpertChainPhase* phase = &p_.phases[phase_];
    const int number = end_ + lane, group = divided(number, steps_of_group_);
    int row = shared_.ranges[phase_].begin + group, step = warp + (number - group * steps_of_group_) * kWarps;
    chosen_ = -1;
    if (phase_ == kChainGateUp) {
      chosen_ = divided(row, phase->groups_of_matrix);
      row -= chosen_ * phase->groups_of_matrix;
    }
    if (phase_ == kChainDown) {
      const int num_routed = p_.rules.num_experts_per_tok;
      chosen_ = min(divided(step, phase->steps_of_matrix), num_routed);
      step -= chosen_ * phase->steps_of_matrix;
      if (Format::kHasShared && chosen_ == num_routed) {
        chosen_ = -1;
        phase = &p_.phases[kChainSharedDown];
      }
    }
    source_ = Format::source(*phase, row * phase->group_step, step);
    if (number >= count_) chosen_ = -1;
    end_ = min(end_ + kWarpSize, count_);
  }
  __device__ void add_expert() {
    if (chosen_ >= 0) source_.from += shared_.experts[chosen_] * p_.phases[phase_].matrix_bytes;
    chosen_ = -1;
  }

  static constexpr int kDry = -1;  // the limit once copies have run out

  const ExpertChainKernelParams& p_;
  const ExpertChainShared<Format>& shared_;
  int phase_ = 0, limit_ = 0;
  int at_ = 0, end_ = 0, count_ = 0, steps_of_group_ = 1;  // of the warp's steps in the phase; lanes have those to end_
  // Of the lane's step; its expert where that is still to be added, else -1.
  ChainSource source_ = {};
  int chosen_ = -1;
};

}  // namespace spate::cuda
