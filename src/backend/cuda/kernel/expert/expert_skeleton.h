// Products of rows with one of several matrices on the skeleton of linear_skeleton.h: its ring of stages, its formats
// of weights, its sums that several CTAs share. What is different here: tiles are those of an ExpertOrder, counted on
// the device; rows of x may lie apart; what becomes of a tile is the kind's.
//
//   kGateUp       act[r] = silu(x[token of r] Wg_e^T) * (x[token of r] Wu_e^T), rows of x gathered in the load
//   kGateUpDense  the same, rows of x copied before
//   kDown         y[r] = act[r] Wd_e^T
//   kHeads        out[t, h] = x[t, h] W_h^T
//
// A format beside what linear_skeleton.h asks of it:
//
//   static constexpr bool kHasWeightMap;                                       // else p.weight is none
//   static uint32_t stage_weight_bytes<kKind>(p);                              // that load_weight copies
//   static void load_weight<kKind>(p, shared, segment, step, barrier);
//   static void take<kKind>(p, operand, weight, consumer);
//   static void finish<kKind, kColumns>(p, order, sums, values, segment, first_row);  // values that are stored
//   static constexpr bool kHasScales;      // of tiles of many rows the same takes what has come to shared memory
//   before: static void fetch_scales<kKind>(p, scales, segment, thread);  // starts copies, a thread of those that
//   multiply static void finish_scaled<kKind, kColumns>(p, order, scales, sums, values, segment, first_row);
//
// A stage of gate_up holds 64 rows of gate and the same of up such that a thread has both of a feature in neighbouring
// registers, and silu needs no exchange: 8 rows of each by turns, or, where W goes through registers, wherever they
// lie.
#pragma once

#include "backend/cuda/kernel/expert/expert_cta_order.h"
#include "backend/cuda/kernel/expert/expert_tile_store.h"
#include "backend/cuda/kernel/expert/expert_work.h"
#include "backend/cuda/kernel/linear/linear_skeleton.h"

namespace spate::cuda {

// What the end of a tile takes of products by codes, in shared memory: of rows of x and of W, those of gate and of up
// one behind the other.
template <int kRows>
struct alignas(16) ExpertTileScales {
  QuantizedRow rows[kRows];
  float scales[kWgmmaTileRows];
};
template <typename Format, ExpertKind kKind, int kRows>
constexpr bool kFetchesScales = Format::kHasScales&& kHasManyRows<kKind, kRows>;

template <typename Format, int kRows>
struct ExpertStages : Stages<Format, kRows, expert_ring_bytes(kRows)> {
  using Base = Stages<Format, kRows, expert_ring_bytes(kRows)>;
  __device__ uint32_t tokens() const { return this->base + Base::kCount * (Base::kBytes + 16); }
  // Of the segment that begins with a stage.
  __device__ uint32_t segment(int stage) const {
    return tokens() + kRows * 4 + static_cast<uint32_t>(stage * kExpertSegmentBytes);
  }
  // Of a warpgroup.
  __device__ uint32_t staging(int consumer) const {
    static_assert(Base::kCount <= 8 || kRows < 128);
    if constexpr (kRows < 256) return segment(8) + static_cast<uint32_t>(consumer * kWgmmaStagingBytes);
    return (segment(Base::kCount) + 1023) / 1024 * 1024 + static_cast<uint32_t>(consumer * 2 * kWgmmaStagingBytes);
  }
  // One lane of each warp that multiplies: the warp has read the stage.
  template <int kTeam>
  __device__ void give_back_to(int stage) const {
    arrive(this->empty(stage));
    if constexpr (kTeam > 1) arrive_at_cta(this->empty(stage), cluster_rank() ^ 1);
  }
};

// --- the warps that load ---------------------------------------------------------------------------------------------

// One thread: W, and x where its rows follow each other. Of down with an order of its own the first stages of W are on
// their way before the grid waits for gate_up.
template <typename Format, ExpertKind kKind, int kRows>
__device__ inline void load_expert_stages(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                          const ExpertStages<Format, kRows>& stages) {
  constexpr bool kGathers = kKind == ExpertKind::kGateUp;
  constexpr int kCount = ExpertStages<Format, kRows>::kCount;
  constexpr int kTeam = kExpertTeam<kKind, kRows>;
  auto work = [&] {
    if constexpr (kTeam > 1) {
      return TeamTiles<kKind>(p, order, stages.tokens());
    } else {
      return ExpertWork<kKind>(p, order, kRows);
    }
  }();
  ExpertSegment segment;
  Place<ExpertStages<Format, kRows>::kCount> place;
  constexpr int kBoxRows = expert_box_rows(kRows);
  constexpr uint32_t kBoxBytes = kBoxRows * kWgmmaStageRowBytes;
  const uint32_t weight_bytes = Format::template stage_weight_bytes<kKind>(p);
  const auto boxes_of = [](const ExpertSegment& of) { return kGathers ? 0 : (of.num_rows + kBoxRows - 1) / kBoxRows; };
  const auto load_weight = [&](const ExpertSegment& of, int stage, int step) {
    arrive_expecting(stages.full(stage), weight_bytes + static_cast<uint32_t>(boxes_of(of)) * kBoxBytes);
    ExpertSegment own = of;  // behind the last rows a team's second CTA has none, and multiplies any
    if constexpr (kTeam > 1) own.weight_tile = min(own.weight_tile, p.num_weight_tiles - 1);
    Format::template load_weight<kKind>(p, stages.weight(stage), own, step, stages.full(stage));
  };
  int num_loaded = 0;
  if constexpr (kKind == ExpertKind::kDown && makes_order(kKind, kRows)) {
    if (p.expert_ids != nullptr) {
      ExpertWork<kKind> ahead(p, order, kRows);
      while (num_loaded < kCount && ahead.next(segment)) {
        for (int step = segment.begin; step < segment.end && num_loaded < kCount; ++step) {
          load_weight(segment, num_loaded++, step);
        }
      }
    }
    wait_for_inputs();
  }
  while (work.next(segment)) {
    const int num_boxes = boxes_of(segment);
    for (int step = segment.begin; step < segment.end; ++step) {
      const uint32_t full = stages.full(place.stage);
      if (num_loaded > 0) {
        --num_loaded;
      } else {
        wait_barrier(stages.empty(place.stage), place.parity ^ 1);
        if constexpr (kHasManyRows<kKind, kRows>) {
          if (step == segment.begin) publish_segment(stages.segment(place.stage), segment);
        }
        load_weight(segment, place.stage, step);
        if constexpr (kTeam > 1) {
          if (step + 1 == segment.end) work.tell_next();
        }
      }
      if constexpr (!kGathers) {
        const int column = (kKind == ExpertKind::kHeads ? segment.matrix * p.x_matrix_columns : 0) + step * Format::kTileK;
        for (int box = 0; box < num_boxes; ++box) {
          const uint32_t to = stages.x(place.stage) + static_cast<uint32_t>(box) * kBoxBytes;
          if constexpr (kTeam == 1) {
            copy_box(to, p.x, column, segment.first_row + box * kBoxRows, full);
          } else if (box % kTeam == cluster_rank()) {
            copy_box_to_ctas(to, p.x, column, segment.first_row + box * kBoxRows, full, (1 << kTeam) - 1);
          }
        }
      }
      place.advance();
    }
  }
  if constexpr (kHasManyRows<kKind, kRows>) {
    wait_barrier(stages.empty(place.stage), place.parity ^ 1);
    segment.matrix = -1;
    publish_segment(stages.segment(place.stage), segment);
    arrive(stages.full(place.stage));
  }
}

__device__ inline void sync_gatherers() { asm volatile("bar.sync 4, %0;" ::"n"(kExpertGatherThreads) : "memory"); }

// 96 threads: the rows of x of an expert's tokens. What the stage holds beyond num_rows makes columns that nobody reads.
template <typename Format, int kRows>
__device__ inline void gather_expert_stages(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                            const ExpertStages<Format, kRows>& stages, int thread) {
  constexpr int kChunks = kWgmmaStageRowBytes / 16;
  ExpertWork<ExpertKind::kGateUp> work(p, order, kRows);
  ExpertSegment segment;
  Place<ExpertStages<Format, kRows>::kCount> place;
  const int chunk = thread % kChunks, first_row = thread / kChunks;
  const char* x = static_cast<const char*>(p.x_rows) + chunk * 16;
  while (work.next(segment)) {
    sync_gatherers();  // the tokens before have been read
    for (int row = thread; row < segment.num_rows; row += kExpertGatherThreads) {
      const int token = order.row_tokens[segment.first_row + row];
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(stages.tokens() + static_cast<uint32_t>(row) * 4), "r"(token));
    }
    sync_gatherers();
    for (int step = segment.begin; step < segment.end; ++step) {
      const int offset = step * kWgmmaStageRowBytes;
      const bool exists = offset + chunk * 16 < p.x_row_bytes;
      wait_barrier(stages.empty(place.stage), place.parity ^ 1);
#pragma unroll 4
      for (int row = first_row; row < segment.num_rows; row += kExpertGatherThreads / kChunks) {
        int token;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(token) : "r"(stages.tokens() + static_cast<uint32_t>(row) * 4));
        const char* from = x + token * p.x_stride_bytes + (exists ? offset : 0);
        const uint32_t to = stages.x(place.stage) + static_cast<uint32_t>(row * 128 + (chunk ^ row % 8) * 16);
        copy_async_16(to, from, exists);
      }
      arrive_with_copies(stages.full(place.stage));
      place.advance();
    }
  }
}

// --- the warps that multiply -----------------------------------------------------------------------------------------

// The steps of k of a segment whose rows fit kColumns columns, into the first of the sums.
template <typename Format, ExpertKind kKind, int kRows, int kColumns, int kSums>
__device__ inline void multiply_steps(const ExpertWgmmaKernelParams& p, const ExpertStages<Format, kRows>& stages,
                                      const ExpertSegment& segment, Place<ExpertStages<Format, kRows>::kCount>& place,
                                      typename Format::Sum (&sums)[kSums], int consumer) {
  constexpr int kTeam = kExpertTeam<kKind, kRows>;
  static_assert(kColumns / 2 <= kSums);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int last_stage = -1, step = segment.begin;
  const auto multiply_stage = [&](typename Format::Operand& operand) {
    const uint32_t weight = uniform<kRows>(stages.weight(place.stage));
    wait_barrier(stages.full(place.stage), place.parity);
    if constexpr (kKind == ExpertKind::kGateUp) fence_async_proxy();  // x came by copies of threads
    Format::template take<kKind>(p, operand, weight, consumer);
    wgmma_fence();
    Format::template multiply<kColumns>(reinterpret_cast<typename Format::Sum(&)[kColumns / 2]>(sums), operand, weight,
                                        weight + Format::kStageWeightBytes, consumer);
    wgmma_commit();
    wgmma_wait<1>();  // the step before has been read
    if (last_stage >= 0 && lane == 0) stages.template give_back_to<kTeam>(last_stage);
    last_stage = place.stage;
    place.advance();
    return ++step < segment.end;
  };
  typename Format::Operand first, second;  // one is read while the other is filled
  while (multiply_stage(first) && multiply_stage(second)) {
  }
  wgmma_wait<0>();
  if (lane == 0) stages.template give_back_to<kTeam>(last_stage);
}

// The same with as many columns of kUnit by kUnit as the rows need, no fewer than kUnit.
template <typename Format, ExpertKind kKind, int kRows, int kColumns, int kUnit, int kSums>
__device__ inline void multiply_fitting_steps(const ExpertWgmmaKernelParams& p,
                                              const ExpertStages<Format, kRows>& stages, const ExpertSegment& segment,
                                              Place<ExpertStages<Format, kRows>::kCount>& place,
                                              typename Format::Sum (&sums)[kSums], int consumer) {
  constexpr int kFewer = kColumns - (kColumns <= 128 ? 2 * kUnit : kUnit);
  if constexpr (kFewer >= 64) {
    if (segment.num_rows <= kFewer) {
      multiply_fitting_steps<Format, kKind, kRows, kFewer, kUnit>(p, stages, segment, place, sums, consumer);
      return;
    }
  }
  multiply_steps<Format, kKind, kRows, kColumns>(p, stages, segment, place, sums, consumer);
}

template <typename Format, ExpertKind kKind, int kRows, int kColumns, typename Work>
__device__ inline void multiply_segment(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                        const ExpertStages<Format, kRows>& stages, [[maybe_unused]] const Work& work,
                                        const ExpertSegment& segment, Place<ExpertStages<Format, kRows>::kCount>& place,
                                        [[maybe_unused]] ExpertTileScales<kRows>* scales) {
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const int consumer = uniform<kRows>(thread / 128);
  typename Format::Sum sums[kColumns / 2];
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sums[i] = 0;
  if constexpr (kFetchesScales<Format, kKind, kRows>) {
    if (segment.begin == 0) {
      Format::template fetch_scales<kKind>(p, *scales, segment, thread);
      commit_copies();
    }
  }
  if constexpr (kRows == 256) {
    multiply_fitting_steps<Format, kKind, kRows, kColumns, kExpertUnitRows>(p, stages, segment, place, sums, consumer);
  } else {
    multiply_steps<Format, kKind, kRows, kColumns>(p, stages, segment, place, sums, consumer);
  }
  if constexpr (kExpertTeam<kKind, kRows> == 1) {  // else no tile is cut
    if (segment.begin > 0) return leave_sums<kRows / 2>(p, sums, thread);
    if (segment.end < p.num_steps) {
      const ExpertShares& shares = work.shares();
      add_sums<kRows / 2>(p, sums, thread, p.num_steps - segment.end, [&](int cta) { return shares.first_step(cta); });
    }
  }
  const int first_row = segment.weight_tile * kWgmmaTileRows + thread / 32 * 16;
  float values[kColumns / 2];
  if constexpr (kFetchesScales<Format, kKind, kRows>) {
    wait_copies<0>();
    sync_consumers();
    Format::template finish_scaled<kKind, kColumns>(p, order, *scales, sums, values, segment, first_row);
  } else {
    Format::template finish<kKind, kColumns>(p, order, sums, values, segment, first_row);
  }
  if constexpr (kHasManyRows<kKind, kRows>) {
    const int first = segment.weight_tile * kWgmmaTileRows + consumer * kWgmmaRows;
    if (can_stage_expert_tile<kKind>(p, first)) {
      if constexpr (kStoresByCopies<kKind, kRows>) {
        store_tile_by_copies<kKind, kColumns>(p, values, segment, first, stages.staging(consumer));
      } else {
        store_staged_expert_tile<kKind, kColumns>(p, values, segment, first, stages.staging(consumer));
      }
      return;
    }
  }
  store_expert_tile<kKind, kColumns>(p, values, segment, first_row);
}

template <typename Format, ExpertKind kKind, int kRows>
__device__ inline void multiply_expert_stages(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                              const ExpertStages<Format, kRows>& stages) {
  constexpr bool kIsTeam = kExpertTeam < kKind, kRows >> 1;
  auto work = [&] {
    if constexpr (kIsTeam) {
      return 0;
    } else {
      return ExpertWork<kKind>(p, order, kRows);
    }
  }();
  ExpertSegment segment;
  Place<ExpertStages<Format, kRows>::kCount> place;
  constexpr bool kHasScales = kFetchesScales<Format, kKind, kRows>;
  __shared__ ExpertTileScales<kHasScales ? kRows : 1>
      scales_of[2];  // a warpgroup may still read those of the tile before
  ExpertTileScales<kRows>* scales = nullptr;
  int turn = 0;
  const auto next = [&] {
    if constexpr (kHasManyRows<kKind, kRows>) {
      wait_barrier(stages.full(place.stage), place.parity);
      segment = read_segment(stages.segment(place.stage));
      return segment.matrix >= 0;
    } else {
      return work.next(segment);
    }
  };
  while (next()) {
    if constexpr (kHasScales) scales = scales_of + (turn ^= segment.begin == 0);
    if constexpr (kRows == 128) {  // the last tile of an expert may have few rows
      if (segment.num_rows <= kRows / 4) {
        multiply_segment<Format, kKind, kRows, kRows / 4>(p, order, stages, work, segment, place, scales);
        continue;
      }
    }
    multiply_segment<Format, kKind, kRows, kRows>(p, order, stages, work, segment, place, scales);
  }
  if constexpr (kStoresByCopies<kKind, kRows>) {
    if (threadIdx.x % 128 == 0) wait_stores_read<0>();
  }
}

template <typename Format, ExpertKind kKind, int kRows>
__device__ inline void run_expert_warps(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                        const ExpertStages<Format, kRows>& stages) {
  if (threadIdx.x < 128) {
    if constexpr (kRows == 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    if constexpr (kRows > 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (threadIdx.x == 0) {
      load_expert_stages<Format, kKind, kRows>(p, order, stages);
    } else if constexpr (kKind != ExpertKind::kGateUp) {
      wait_for_inputs();
    }
    if constexpr (kKind == ExpertKind::kGateUp) {
      if (threadIdx.x >= 32) {
        gather_expert_stages<Format, kRows>(p, order, stages, static_cast<int>(threadIdx.x) - 32);
      }
    }
  } else {
    if constexpr (kRows == 128) asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    if constexpr (kRows > 128) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    wait_for_inputs();
    multiply_expert_stages<Format, kKind, kRows>(p, order, stages);
  }
}

template <typename Format, ExpertKind kKind, int kRows>
__device__ inline void expert_wgmma(const ExpertWgmmaKernelParams& p) {
  extern __shared__ char smem[];
  const ExpertStages<Format, kRows> stages{{(shared_address(smem) + 1023) / 1024 * 1024}};
  constexpr int kLoaders = kKind == ExpertKind::kGateUp ? 1 + kExpertGatherThreads : 1;
  constexpr bool kMakesOrder = makes_order(kKind, kRows);
  if (!(kMakesOrder && kKind == ExpertKind::kGateUp) || p.expert_ids == nullptr) let_dependents_launch();
  if (threadIdx.x == 0) {
    if constexpr (Format::kHasWeightMap) prefetch_map(p.weight);
    if constexpr (kKind != ExpertKind::kGateUp) prefetch_map(p.x);
    for (int stage = 0; stage < ExpertStages<Format, kRows>::kCount; ++stage) {
      init_barrier(stages.full(stage), kLoaders);
      init_barrier(stages.empty(stage), kExpertTeam<kKind, kRows> * kConsumerThreads / 32);
    }
    if constexpr (kExpertTeam < kKind, kRows >> 1) {
      for (int i = 0; i < TeamTiles<kKind>::kSlots; ++i) {
        init_barrier(stages.tokens() + static_cast<uint32_t>(i * TeamTiles<kKind>::kSlotBytes), 1);
      }
    }
    fence_barrier_init();
  }
  if constexpr (kExpertTeam < kKind, kRows >> 1) {
    __syncwarp();
    cluster_barrier();
  } else {
    __syncthreads();
  }
  if constexpr (kMakesOrder) {
    __shared__ CtaOrder<kKind, kRows> made;
    if (p.expert_ids != nullptr) {
      make_cta_order(p, made, reinterpret_cast<uint32_t*>(smem + (stages.base - shared_address(smem))));
    } else {
      if (threadIdx.x == 0) made.order = p.order;
      __syncthreads();
      wait_for_inputs();
    }
    run_expert_warps<Format, kKind, kRows>(p, made.order, stages);
  } else {
    wait_for_inputs();
    run_expert_warps<Format, kKind, kRows>(p, p.order, stages);
    if constexpr (kExpertTeam < kKind, kRows >> 1) {
      __syncwarp();
      cluster_barrier();
    }
  }
}

#define SPATE_EXPERT_TEAM_KERNEL(name, Format, kind, rows)                                                    \
  extern "C" __global__ void __cluster_dims__(kExpertTeam<ExpertKind::kind, rows>, 1, 1)                      \
      __launch_bounds__(kWgmmaThreads, 1) name##_n##rows(const __grid_constant__ ExpertWgmmaKernelParams p) { \
    expert_wgmma<Format, ExpertKind::kind, rows>(p);                                                          \
  }
#define SPATE_EXPERT_KERNEL(name, Format, kind, rows)                     \
  extern "C" __global__ void __launch_bounds__(kWgmmaThreads, 1)          \
      name##_n##rows(const __grid_constant__ ExpertWgmmaKernelParams p) { \
    expert_wgmma<Format, ExpertKind::kind, rows>(p);                      \
  }
// Those of one format. Many rows: gathering them in the load takes longer than the products, so that they are copied
// before. Tiles of 256 rows leave int4 no registers.
#define SPATE_EXPERT_GATE_UP_KERNELS(prefix, Format)          \
  SPATE_EXPERT_KERNEL(prefix##_gate_up, Format, kGateUp, 8)   \
  SPATE_EXPERT_KERNEL(prefix##_gate_up, Format, kGateUp, 32)  \
  SPATE_EXPERT_KERNEL(prefix##_gate_up, Format, kGateUp, 64)  \
  SPATE_EXPERT_KERNEL(prefix##_gate_up, Format, kGateUp, 128) \
  SPATE_EXPERT_TEAM_KERNEL(prefix##_gate_up_dense, Format, kGateUpDense, 128)
#define SPATE_EXPERT_DOWN_KERNELS(prefix, Format)       \
  SPATE_EXPERT_KERNEL(prefix##_down, Format, kDown, 8)  \
  SPATE_EXPERT_KERNEL(prefix##_down, Format, kDown, 32) \
  SPATE_EXPERT_KERNEL(prefix##_down, Format, kDown, 64) \
  SPATE_EXPERT_TEAM_KERNEL(prefix##_down, Format, kDown, 128)

}  // namespace spate::cuda
