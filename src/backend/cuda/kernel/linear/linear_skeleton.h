// The skeleton of products on wgmma: the ring of stages, those who load them and those who multiply. How tiles and their
// k are cut among CTAs is in tile_work.h, sums that several CTAs share in shared_sums.h, the store of a tile in
// tile_store.h. What differs between formats of weights is a class:
//
//   struct Format {
//     using Params;                      // of the kernel
//     using Sum;                         // float or int32_t
//     struct Operand;                    // a warpgroup's rows of W of a stage, as far as they go through registers
//     static constexpr int kWeightBytes  // of a stage of W, and
//     static constexpr int kStageWeightBytes  // the same rounded up to 1,024
//     static const LinearWgmmaKernelParams& tiles(const Params&);
//     static void load_weight(p, shared, row, step, barrier);   // starts copies of kWeightBytes
//     static void take(p, operand, weight, consumer);           // from shared memory
//     template <int kTokens> static void multiply(sums, operand, weight, x, consumer);
//     // Values that are stored, without bias; outlier_steps.add(values, consumer), where there are any.
//     template <int kTokens> static void finish(p, sums, values, row, token, outlier_steps);
//     static constexpr bool kHasSilu;    // a stage is 8 gates and their 8 ups by turns; silu(gate) * up is stored
//     static constexpr int ring_bytes(int tokens);  // of all stages, at most
//     static constexpr int kOutlierRows;        // of W in a stage of an outlier step; 0: the format has none
//     static void load_two_rows(p, row, k, values);  // of W, without the scales of rows; where kOutlierRows > 0
//     // May be left out: brings to L2 what finish() reads of 8 rows of W.
//     static void prefetch_finish(p, row);
//     // May be left out, or be there for some kTokens only: what finish() then takes behind p, in shared memory. It
//     // comes by cp.async while a tile's first k is multiplied.
//     template <int kTokens> using FinishInputs;
//     template <int kTokens> static void fetch_finish(p, inputs, row, token, thread);  // of the tile
//   };
//
// A format whose stages hold kStageSteps steps of k, or that keeps state from stage to stage, has instead of
// load_weight, take and kWeightBytes:
//
//     class Source {  // loads a part of W, stage by stage
//       static constexpr int kParts;
//       Source(p, row, stage, part); bytes(); load(shared, barrier); advance();
//     };
//     class Reader { Reader(p, consumer); read(weight); take(operand, chunk); };  // a stage; operands of a step of it
//     template <int kTokens> static void multiply(sums, operand, x);
//
// Stages begin at multiples of kStageSteps. Of steps that another CTA has, x is zeros.
//
// Outlier steps: the idle warps gather the outliers of x and the columns of W that they meet, both as bf16
// (outlier_columns.h), and the CTA that finishes a tile adds their product after the last k, 64 columns a step.
//
// Operands are swapped: rows of W are the 64 rows of wgmma, tokens its columns, so that few tokens waste nothing. A
// CTA: one warp that loads stages of 128 rows of W and the tokens, 128 bytes of k each; two warpgroups that multiply,
// 64 rows each. The grid is at most one CTA an SM. Whole tiles first; the k of the rest is cut into equal runs, one a
// CTA (stream-K), and the CTA that has a tile's first k adds the others' sums in the order of k. The first stages of W
// are loaded, and the first segment is known, before the grid waits for the kernels before it: neither depends on them.
//
// Teams: of the largest tile two CTAs of a cluster have neighbouring rows of W and the same tokens, which memory and L2
// give once: each CTA copies half of them to both. A stage is free when the warps of both have read it.
#pragma once

#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/linear/linear_wgmma.h"
#include "backend/cuda/kernel/linear/outlier_columns.h"
#include "backend/cuda/kernel/linear/shared_sums.h"
#include "backend/cuda/kernel/linear/tile_store.h"
#include "backend/cuda/kernel/linear/tile_work.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/cluster.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/tma.h"
#include "backend/cuda/kernel/primitive/wgmma.h"

namespace spate::cuda {

// --- teams -----------------------------------------------------------------------------------------------------------

// Formats of which the largest tile has teams (SPATE_WGMMA_TEAM_KERNEL).
template <typename Format>
constexpr bool kHasTeams = false;
template <typename Format, int kTokens>
constexpr int kTeamCtas = !kHasTeams<Format> || kTokens < kWgmmaMaxTileTokens ? 1 : kWgmmaTeamCtas;

// --- the ring of stages ----------------------------------------------------------------------------------------------

template <typename Format>
concept HasSource = requires {
  typename Format::Source;
};
template <typename Format>
constexpr int kStageSteps = 1;
template <HasSource Format>
constexpr int kStageSteps<Format> = Format::kStageSteps;
// Parts of W and steps of x.
template <HasSource Format>
constexpr int num_shares() {
  return Format::Source::kParts + Format::kStageSteps;
}
template <typename Format>
constexpr int num_loaders(int tokens) {
  if constexpr (HasSource<Format>) return tokens > 64 ? num_shares<Format>() : 1;
  return 1;
}

template <typename Format, int kTokens, int kRingBytes = Format::ring_bytes(kTokens)>
struct Stages {
  static constexpr uint32_t kStepXBytes = kTokens * kWgmmaStageRowBytes, kXBytes = kStageSteps<Format> * kStepXBytes;
  static constexpr uint32_t kBytes = Format::kStageWeightBytes + kXBytes;
  static constexpr int kCount = kRingBytes / kBytes;
  static constexpr int kLoaders = num_loaders<Format>(kTokens);  // threads that arrive at `full`

  static constexpr int kTeam = kTeamCtas<Format, kTokens>;

  uint32_t base;  // of shared memory

  __device__ uint32_t weight(int stage) const { return base + static_cast<uint32_t>(stage) * kBytes; }
  __device__ uint32_t x(int stage) const { return weight(stage) + Format::kStageWeightBytes; }
  __device__ uint32_t full(int stage) const { return base + kCount * kBytes + static_cast<uint32_t>(stage) * 16; }
  __device__ uint32_t empty(int stage) const { return full(stage) + 8; }
  // Ends a phase when the columns with outliers have been counted; the number stands behind it.
  __device__ uint32_t counted() const { return full(kCount); }
  // Of a warpgroup, kWgmmaStagingBytes where tiles have so many tokens.
  __device__ uint32_t staging(int consumer) const {
    return counted() + 16 + static_cast<uint32_t>(consumer * kWgmmaStagingBytes);
  }
  // One lane of each warp that multiplies: the warp has read the stage.
  __device__ void give_back(int stage) const {
    arrive(empty(stage));
    if constexpr (kTeam > 1) arrive_at_cta(empty(stage), cluster_rank() ^ 1);
  }
};

// A place in the ring of stages.
template <int kCount>
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage < kCount) return;
    stage = 0;
    parity ^= 1;
  }
};

// --- outlier steps ---------------------------------------------------------------------------------------------------

template <typename Format>
__device__ inline bool may_have_outlier_steps(const typename Format::Params& p) {
  if constexpr (Format::kOutlierRows > 0) return p.outlier_columns != nullptr;
  return false;
}

// Waits until the columns with outliers have been counted.
template <typename Format, typename Ring>
__device__ inline int count_outlier_columns(const typename Format::Params& p, const Ring& stages) {
  if (!may_have_outlier_steps<Format>(p)) return 0;
  wait_barrier(stages.counted(), 0);
  int count;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(count) : "r"(stages.counted() + 8) : "memory");
  return count;
}

// The outlier steps of a tile, for all warps.
template <typename Format, int kTokens>
struct OutlierSteps {
  const typename Format::Params& p;
  const Stages<Format, kTokens>& stages;
  Place<Stages<Format, kTokens>::kCount>& place;

  __device__ int count() const {
    return (min(count_outlier_columns<Format>(p, stages), p.outlier_capacity) + kOutlierStepColumns - 1) /
           kOutlierStepColumns;
  }
  __device__ bool has_more() const { return count_outlier_columns<Format>(p, stages) > p.outlier_capacity; }
  // The thread that loads.
  __device__ void load(const Segment& segment) const {
    const int num_steps = count();
    if (num_steps == 0) return;
    while (load_acquire(&p.outlier_columns->is_gathered) == 0) {
    }
    fence_async_proxy_global();
    constexpr uint32_t kBoxBytes = kWgmmaRows * kWgmmaStageRowBytes;
    for (int column = 0; column < num_steps * kOutlierStepColumns; column += kOutlierStepColumns) {
      for (int first = 0; first < kWgmmaTileRows; first += Format::kOutlierRows) {
        const uint32_t full = stages.full(place.stage);
        wait_barrier(stages.empty(place.stage), place.parity ^ 1);
        arrive_expecting(full, (Format::kOutlierRows + kTokens) * kWgmmaStageRowBytes);
        for (int box = 0; box < Format::kOutlierRows / kWgmmaRows; ++box) {
          copy_box(stages.weight(place.stage) + static_cast<uint32_t>(box) * kBoxBytes, p.outlier_weights_map, column,
                   segment.row + first + box * kWgmmaRows, full);
        }
        copy_box(stages.x(place.stage), p.outlier_values_map, column, segment.token, full);
        place.advance();
      }
    }
  }

  // A consumer: values += their products.
  __device__ void add(float (&values)[kTokens / 2], int consumer) const {
    for (int step = count(); step > 0; --step) {
      for (int first = 0; first < kWgmmaTileRows; first += Format::kOutlierRows) {
        wait_barrier(stages.full(place.stage), place.parity);
        const int row = consumer * kWgmmaRows - first;
        if (row >= 0 && row < Format::kOutlierRows) {
          const uint64_t a = wgmma_descriptor(stages.weight(place.stage) +
                                              static_cast<uint32_t>(row) * kWgmmaStageRowBytes),
                         b = wgmma_descriptor(stages.x(place.stage));
          wgmma_fence();
          // Unrolled: else ptxas finds a warpgroup.arrive missing (C7520), and all products of the kernel wait for each
          // other.
#pragma unroll
          for (int k = 0; k < kOutlierStepColumns / kWgmmaK; ++k) {
            wgmma_bf16<kTokens>(values, next_wgmma_k(a, k), next_wgmma_k(b, k));
          }
          wgmma_commit();
          wgmma_wait<0>();
        }
        if (threadIdx.x % 32 == 0) stages.give_back(place.stage);
        place.advance();
      }
    }
  }
};

// One thread.
template <typename Format, int kTokens>
__device__ inline void load_stages(const typename Format::Params& p, const Stages<Format, kTokens>& stages) {
  constexpr int kCount = Stages<Format, kTokens>::kCount, kTeam = Stages<Format, kTokens>::kTeam;
  const LinearWgmmaKernelParams& tiles = Format::tiles(p);
  const auto load_weight = [&](int stage, const Segment& segment, int step) {
    arrive_expecting(stages.full(stage), Format::kWeightBytes + Stages<Format, kTokens>::kXBytes);
    // Behind the last row a team's second CTA has no rows, and multiplies any.
    const int row = kTeam == 1 ? segment.row : min(segment.row, tiles.out_features - 1);
    Format::load_weight(p, stages.weight(stage), row, step, stages.full(stage));
  };
  const auto load_x = [&](int stage, const Segment& segment, int step) {
    if constexpr (kTeam == 1) {
      copy_box(stages.x(stage), tiles.x, step * Format::kTileK, segment.token, stages.full(stage));
    } else {
      const int first = cluster_rank() * (kTokens / kTeam);
      copy_box_to_ctas(stages.x(stage) + static_cast<uint32_t>(first * kWgmmaStageRowBytes), tiles.x,
                       step * Format::kTileK, segment.token + first, stages.full(stage), (1 << kTeam) - 1);
    }
  };
  Work work(tiles, kTokens, kTeam);
  Work ahead = work;
  Segment segment;
  int num_loaded = 0;
  while (num_loaded < kCount && ahead.next(segment)) {
    for (int step = segment.begin; step < segment.end && num_loaded < kCount; ++step) {
      load_weight(num_loaded++, segment, step);
    }
    if (may_have_outlier_steps<Format>(p)) break;  // they come between this segment and the next
  }
  bool has_segment = work.next(segment);
  wait_for_inputs();
  Place<kCount> place;
  for (; has_segment; has_segment = work.next(segment)) {
    for (int step = segment.begin; step < segment.end; ++step) {
      if (num_loaded > 0) {
        --num_loaded;
      } else {
        wait_barrier(stages.empty(place.stage), place.parity ^ 1);
        load_weight(place.stage, segment, step);
      }
      load_x(place.stage, segment, step);
      place.advance();
    }
    if constexpr (Format::kOutlierRows > 0) {
      if (segment.begin == 0) OutlierSteps<Format, kTokens>{p, stages, place}.load(segment);
    }
  }
}

// Of a format with a source, one thread's share of a stage: of the parts of W and the steps of x, counted through,
// those from kFirst to kEnd - 1.
template <HasSource Format, int kTokens, int kFirst, int kEnd>
__device__ inline void load_share(const typename Format::Params& p, const Stages<Format, kTokens>& stages) {
  using Ring = Stages<Format, kTokens>;
  using Source = typename Format::Source;
  constexpr int kCount = Ring::kCount, kSteps = Format::kStageSteps, kParts = Source::kParts;
  constexpr int kEndPart = kEnd < kParts ? kEnd : kParts, kNumParts = kFirst < kEndPart ? kEndPart - kFirst : 0;
  constexpr int kFirstX = kFirst > kParts ? kFirst - kParts : 0, kEndX = kEnd > kParts ? kEnd - kParts : 0;
  static_assert(kParts <= 2);
  const LinearWgmmaKernelParams& tiles = Format::tiles(p);
  struct Sources {
    Source first, second;  // of one part: not used
    __device__ Sources(const typename Format::Params& p, const Segment& segment)
        : first(p, segment.row, segment.begin / kSteps, kFirst),
          second(p, segment.row, segment.begin / kSteps, kFirst + 1) {}
    __device__ void load(uint32_t weight, uint32_t full) const {
      uint32_t bytes = (kEndX - kFirstX) * Ring::kStepXBytes;
      if constexpr (kNumParts > 0) bytes += kNumParts * first.bytes();
      arrive_expecting(full, bytes);
      if constexpr (kNumParts > 0) first.load(weight, full);
      if constexpr (kNumParts > 1) second.load(weight, full);
    }
    __device__ void advance() {
      if constexpr (kNumParts > 0) first.advance();
      if constexpr (kNumParts > 1) second.advance();
    }
  };
  Work work(tiles, kTokens, 1);
  Segment segment;
  int num_loaded = 0;
  if constexpr (kNumParts > 0) {
    Work ahead = work;
    while (num_loaded < kCount && ahead.next(segment)) {
      Sources sources(p, segment);
      for (int step = segment.begin / kSteps * kSteps; step < segment.end && num_loaded < kCount; step += kSteps) {
        sources.load(stages.weight(num_loaded), stages.full(num_loaded));
        sources.advance();
        ++num_loaded;
      }
    }
  }
  bool has_segment = work.next(segment);
  wait_for_inputs();
  Place<kCount> place;
  for (; has_segment; has_segment = work.next(segment)) {
    Sources sources(p, segment);
    for (int first_step = segment.begin / kSteps * kSteps; first_step < segment.end; first_step += kSteps) {
      if (num_loaded > 0) {
        --num_loaded;
      } else {
        wait_barrier(stages.empty(place.stage), place.parity ^ 1);
        sources.load(stages.weight(place.stage), stages.full(place.stage));
      }
      sources.advance();
#pragma unroll
      for (int i = kFirstX; i < kEndX; ++i) {
        int step = first_step + i;
        if (kSteps > 1 && (step < segment.begin || step >= segment.end)) step = tiles.num_steps;  // outside of x: zeros
        copy_box(stages.x(place.stage) + static_cast<uint32_t>(i) * Ring::kStepXBytes, tiles.x, step * Format::kTileK,
                 segment.token, stages.full(place.stage));
      }
      place.advance();
    }
  }
}

// Few tokens: one thread. More: one of each warp, since one alone does not keep up with the tensor core.
template <HasSource Format, int kTokens>
__device__ inline void load_shares(const typename Format::Params& p, const Stages<Format, kTokens>& stages) {
  constexpr int kShares = num_shares<Format>();
  if constexpr (Stages<Format, kTokens>::kLoaders == 1) {
    if (threadIdx.x == 0) return load_share<Format, kTokens, 0, kShares>(p, stages);
  } else {
    static_assert(kShares <= 4);
    if (threadIdx.x == 0) return load_share<Format, kTokens, 0, 1>(p, stages);
    if (threadIdx.x == 32) return load_share<Format, kTokens, 1, 2>(p, stages);
    if (threadIdx.x == 64 && kShares > 2) return load_share<Format, kTokens, 2, 3>(p, stages);
    if (threadIdx.x == 96 && kShares > 3) return load_share<Format, kTokens, 3, 4>(p, stages);
  }
  wait_for_inputs();
}

template <typename Format, int kTokens>
concept HasFinishInputs = requires {
  typename Format::template FinishInputs<kTokens>;
};
template <typename Format, int kTokens>
struct FinishInputsOf {
  struct Type {};
};
template <typename Format, int kTokens>
requires HasFinishInputs<Format, kTokens>
struct FinishInputsOf<Format, kTokens> {
  using Type = typename Format::template FinishInputs<kTokens>;
};

// What finish() reads of W comes to L2 while a tile's first k is multiplied.
template <typename Format>
__device__ inline void prefetch_finish(const typename Format::Params& p, const Segment& segment, int thread) {
  if constexpr (requires { Format::prefetch_finish(p, 0); }) {
    if (segment.begin == 0 && thread % 8 == 0 && thread < kWgmmaTileRows) {
      Format::prefetch_finish(p, segment.row + thread);
    }
  }
}

// What all lanes have, of tiles of 256 tokens from one of them, so that the compiler knows it: descriptors of such an
// address stay in uniform registers, and no product waits until they are moved there. With fewer tokens decode gained
// nothing.
template <int kTokens, typename Value>
__device__ inline Value uniform(Value value) {
  return kTokens > 128 ? __shfl_sync(0xffffffffu, value, 0) : value;
}

// The stages of a segment, whose sums are those of its last step when wgmma_wait<0>() has returned. last_stage: the one
// that is then to be given back.
template <typename Format, int kTokens>
__device__ inline void multiply_segment(const typename Format::Params& p, const Stages<Format, kTokens>& stages,
                                        Place<Stages<Format, kTokens>::kCount>& place, const Segment& segment,
                                        typename Format::Sum (&sums)[kTokens / 2], int consumer, int& last_stage) {
  const int lane = threadIdx.x % 32;
  typename Format::Operand first, second;  // one is read while the other is filled
  const auto give_back_last = [&] {
    wgmma_commit();
    wgmma_wait<1>();  // the step before has been read
    if (last_stage >= 0 && lane == 0) stages.give_back(last_stage);
    last_stage = place.stage;
    place.advance();
  };
  if constexpr (!HasSource<Format>) {
    int step = segment.begin;
    const auto multiply_stage = [&](typename Format::Operand& operand) {
      const uint32_t weight = uniform<kTokens>(stages.weight(place.stage));
      wait_barrier(stages.full(place.stage), place.parity);
      Format::take(p, operand, weight, consumer);
      wgmma_fence();
      Format::template multiply<kTokens>(sums, operand, weight, weight + Format::kStageWeightBytes, consumer);
      give_back_last();
      return ++step < segment.end;
    };
    while (multiply_stage(first) && multiply_stage(second)) {
    }
  } else {
    constexpr int kSteps = Format::kStageSteps;
    typename Format::Reader reader(p, consumer);
    int step = segment.begin / kSteps * kSteps;
    const auto multiply_stage = [&](typename Format::Operand& operand) {
      wait_barrier(stages.full(place.stage), place.parity);
      reader.read(stages.weight(place.stage));
      reader.take(operand, 0);
      const uint32_t x = stages.x(place.stage);
      wgmma_fence();
      Format::template multiply<kTokens>(sums, operand, x);
      give_back_last();
      if constexpr (kSteps == 2) {
        reader.take(second, 1);
        wgmma_fence();
        Format::template multiply<kTokens>(sums, second, x + Stages<Format, kTokens>::kStepXBytes);
        wgmma_commit();
        wgmma_wait<1>();
      }
      step += kSteps;
      return step < segment.end;
    };
    if constexpr (kSteps == 1) {
      while (multiply_stage(first) && multiply_stage(second)) {
      }
    } else {
      while (multiply_stage(first)) {
      }
    }
  }
}

template <typename Format, int kTokens>
__device__ inline void multiply_stages(const typename Format::Params& p, const Stages<Format, kTokens>& stages) {
  const LinearWgmmaKernelParams& tiles = Format::tiles(p);
  const int thread = static_cast<int>(threadIdx.x) - 128, lane = thread % 32;
  const int consumer = uniform<kTokens>(thread / 128);
  constexpr int kTeam = Stages<Format, kTokens>::kTeam;
  __shared__ typename FinishInputsOf<Format, kTokens>::Type finish_inputs[2];
  [[maybe_unused]] int turn = 0;
  Work work(tiles, kTokens, kTeam);
  Segment segment;
  bool has_segment = work.next(segment);
  wait_for_inputs();
  Place<Stages<Format, kTokens>::kCount> place;
  typename Format::Sum sums[kTokens / 2];
  for (; has_segment; has_segment = work.next(segment)) {
    if constexpr (HasFinishInputs<Format, kTokens>) {
      if (segment.begin == 0) {
        turn ^= 1;  // a warpgroup may still read those of the tile before
        Format::template fetch_finish<kTokens>(p, finish_inputs[turn], segment.row, segment.token, thread);
        commit_copies();
      }
    } else {
      prefetch_finish<Format>(p, segment, thread);
    }
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) sums[i] = 0;
    int last_stage = -1;
    multiply_segment<Format, kTokens>(p, stages, place, segment, sums, consumer, last_stage);
    wgmma_wait<0>();
    if (lane == 0) stages.give_back(last_stage);
    if (segment.begin > 0) {
      leave_sums<kTokens / 2>(tiles, sums, thread);
      continue;
    }
    if (segment.end < tiles.num_steps) {
      const SharedSteps steps(tiles);
      add_sums<kTokens / 2, kTeam>(tiles, sums, thread, tiles.num_steps - segment.end,
                                   [&](int cta) { return steps.first(cta); });
    }
    const int row = segment.row + consumer * kWgmmaRows + thread % 128 / 32 * 16;
    float values[kTokens / 2];
    const OutlierSteps<Format, kTokens> outlier_steps{p, stages, place};
    if constexpr (HasFinishInputs<Format, kTokens>) {
      wait_copies<0>();
      sync_consumers();
      Format::template finish<kTokens>(p, finish_inputs[turn], sums, values, row, segment.token, outlier_steps);
    } else {
      Format::template finish<kTokens>(p, sums, values, row, segment.token, outlier_steps);
    }
    if constexpr (wgmma_staging_bytes(kTokens) > 0) {
      const int first_row = segment.row + consumer * kWgmmaRows;
      if (can_stage_tile(tiles, first_row)) {
        store_staged_tile<Format::kHasSilu, kTokens>(tiles, values, first_row, segment.token, stages.staging(consumer));
        continue;
      }
    }
    if constexpr (Format::kHasSilu) {
      store_silu_tile<kTokens>(tiles, values, row, segment.token);
    } else {
      store_tile<kTokens>(tiles, values, row, segment.token);
    }
  }
}

// The warps that neither load nor multiply.
template <typename Format, typename Ring>
__device__ inline void gather_beside(const typename Format::Params& p, const Ring& stages) {
  const int thread = static_cast<int>(threadIdx.x) - 32, count = rank_columns(p, thread);
  if (thread == 0) {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(stages.counted() + 8), "r"(count) : "memory");
    arrive(stages.counted());
  }
  if (count == 0) return;
  gather_outliers<Format>(p, min(count, p.outlier_capacity), thread);
}

template <typename Format, int kTokens>
__device__ inline void linear_wgmma(const typename Format::Params& p) {
  extern __shared__ char smem[];
  Stages<Format, kTokens> stages{(shared_address(smem) + 1023) / 1024 * 1024};
  // Else it is computed anew for each stage.
  if constexpr (HasSource<Format>) asm volatile("" : "+r"(stages.base));
  constexpr int kTeam = Stages<Format, kTokens>::kTeam;
  let_dependents_launch();
  if (threadIdx.x == 0) {
    prefetch_map(Format::tiles(p).weight);
    prefetch_map(Format::tiles(p).x);
    for (int stage = 0; stage < Stages<Format, kTokens>::kCount; ++stage) {
      init_barrier(stages.full(stage), Stages<Format, kTokens>::kLoaders);
      init_barrier(stages.empty(stage), kTeam * kConsumerThreads / 32);
    }
    init_barrier(stages.counted(), 1);
    fence_barrier_init();
  }
  if constexpr (kTeam > 1) {
    __syncwarp();
    cluster_barrier();
  } else {
    __syncthreads();
  }
  if (threadIdx.x < 128) {
    // What the loading warps give up must cover what the others take, or those wait for ever.
    if constexpr (kTokens > 64) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if constexpr (HasSource<Format>) {
      load_shares<Format, kTokens>(p, stages);
    } else {
      if (threadIdx.x == 0) {
        load_stages<Format, kTokens>(p, stages);
        if constexpr (kTeam == 1) return;
      } else {
        wait_for_inputs();
      }
      if constexpr (Format::kOutlierRows > 0) {
        if (threadIdx.x >= 32 && may_have_outlier_steps<Format>(p)) gather_beside<Format>(p, stages);
      }
    }
  } else {
    if constexpr (kTokens > 64) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    multiply_stages<Format, kTokens>(p, stages);
  }
  if constexpr (kTeam > 1) {  // the other CTA may still copy here and give stages back
    __syncwarp();
    cluster_barrier();
  }
}

// prefix_n8 to prefix_n256. A format whose last one takes long to compile has it in a program of its own.
#define SPATE_WGMMA_KERNEL(prefix, Format, tokens)                   \
  extern "C" __global__ void __launch_bounds__(kWgmmaThreads, 1)     \
      prefix##_n##tokens(const __grid_constant__ Format::Params p) { \
    linear_wgmma<Format, tokens>(p);                                 \
  }
#define SPATE_WGMMA_TEAM_KERNEL(prefix, Format)                                                         \
  extern "C" __global__ void __cluster_dims__(kWgmmaTeamCtas, 1, 1) __launch_bounds__(kWgmmaThreads, 1) \
      prefix##_n256(const __grid_constant__ Format::Params p) {                                         \
    static_assert(kHasTeams<Format>);                                                                   \
    linear_wgmma<Format, 256>(p);                                                                       \
  }
#define SPATE_WGMMA_KERNELS_TO_128(prefix, Format) \
  SPATE_WGMMA_KERNEL(prefix, Format, 8)            \
  SPATE_WGMMA_KERNEL(prefix, Format, 16)           \
  SPATE_WGMMA_KERNEL(prefix, Format, 32)           \
  SPATE_WGMMA_KERNEL(prefix, Format, 64)           \
  SPATE_WGMMA_KERNEL(prefix, Format, 128)
#define SPATE_WGMMA_KERNELS(prefix, Format)  \
  SPATE_WGMMA_KERNELS_TO_128(prefix, Format) \
  SPATE_WGMMA_KERNEL(prefix, Format, 256)

}  // namespace spate::cuda
