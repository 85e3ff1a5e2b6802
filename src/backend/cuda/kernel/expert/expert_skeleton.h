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
//
// A stage of gate_up holds 64 rows of gate and the same of up such that a thread has both of a feature in neighbouring
// registers, and silu needs no exchange: 8 rows of each by turns, or, where W goes through registers, wherever they lie.
#pragma once

#include "backend/cuda/kernel/expert/expert_wgmma.h"
#include "backend/cuda/kernel/linear/linear_skeleton.h"
#include "backend/cuda/kernel/primitive/reduce.h"

namespace spate::cuda {

enum class ExpertKind { kGateUp, kGateUpDense, kDown, kHeads };

// Whether the kernel can make the order for itself.
constexpr bool makes_order(ExpertKind kind, int rows) {
  return (kind == ExpertKind::kGateUp || kind == ExpertKind::kDown) && cta_order_pairs(rows) > 0;
}

constexpr bool has_silu(ExpertKind kind) { return kind == ExpertKind::kGateUp || kind == ExpertKind::kGateUpDense; }

// A run of steps of k of one tile.
struct ExpertSegment {
  int matrix;
  int weight_tile;
  int first_row, num_rows;
  int begin, end;
};

// How the tiles of a call are shared out, from the number that the device counted.
struct ExpertShares {
  int num_whole;         // the first tiles, computed by one CTA each
  int num_shared_steps;  // of k, of all other tiles one behind the other
  int num_sharing_ctas;  // which have equal runs of them

  __device__ ExpertShares(const ExpertWgmmaKernelParams& p, int num_row_tiles) {
    constexpr int kMinSteps = 8;  // of k a CTA: fewer take longer to add than to multiply
    constexpr int kSumSteps = 4;  // that could be loaded while CTAs pass sums on
    const int num_ctas = static_cast<int>(gridDim.x), num_tiles = num_row_tiles * p.num_weight_tiles;
    // A last round of tiles that leaves few SMs idle is not cut, nor one that leaves them idle for a short time.
    const int rest = num_tiles % num_ctas, num_idle = rest > 0 ? num_ctas - rest : 0;
    const bool is_rest_large = num_tiles >= num_ctas && 10 * rest > 7 * num_ctas;
    const bool is_idle_short = num_idle * p.num_steps <= kSumSteps * num_ctas;
    num_whole = p.is_whole || is_idle_short || (p.is_many && is_rest_large) ? num_tiles
                : p.is_many                                                ? num_tiles - rest
                                                                           : 0;
    num_shared_steps = (num_tiles - num_whole) * p.num_steps;
    num_sharing_ctas = max(1, min(num_ctas, num_shared_steps / kMinSteps));
  }
  // A CTA has the shared steps from here to the next CTA's.
  __device__ int first_step(int cta) const {
    return static_cast<int>(static_cast<int64_t>(num_shared_steps) * min(cta, num_sharing_ctas) / num_sharing_ctas);
  }
};

// The CTA's segments, in order; the warps that load and those that multiply walk through them alike.
template <ExpertKind kKind>
class ExpertWork {
 public:
  __device__ ExpertWork(const ExpertWgmmaKernelParams& p, const ExpertOrder& order, int tile_rows)
      : p_(p),
        order_(order),
        tile_rows_(tile_rows),
        shares_(p, kKind == ExpertKind::kHeads ? p.num_matrices * ((p.num_rows + tile_rows - 1) / tile_rows)
                                               : *order.num_tiles) {
    tile_ = static_cast<int>(blockIdx.x);
    step_ = shares_.first_step(tile_);
    end_ = shares_.first_step(tile_ + 1);
  }

  __device__ const ExpertShares& shares() const { return shares_; }

  __device__ bool next(ExpertSegment& segment) {
    int tile = tile_;
    if (tile < shares_.num_whole) {
      segment.begin = 0;
      segment.end = p_.num_steps;
      tile_ += static_cast<int>(gridDim.x);
    } else if (step_ < end_) {
      tile = shares_.num_whole + step_ / p_.num_steps;
      segment.begin = step_ % p_.num_steps;
      segment.end = min(p_.num_steps, segment.begin + end_ - step_);
      step_ += segment.end - segment.begin;
    } else {
      return false;
    }
    if constexpr (kKind == ExpertKind::kHeads) {
      const int tiles_of_rows = (p_.num_rows + tile_rows_ - 1) / tile_rows_;
      const int tiles_of_matrix = tiles_of_rows * p_.num_weight_tiles, in_matrix = tile % tiles_of_matrix;
      segment.matrix = tile / tiles_of_matrix;
      segment.weight_tile = in_matrix / tiles_of_rows;
      segment.first_row = in_matrix % tiles_of_rows * tile_rows_;
      segment.num_rows = min(tile_rows_, p_.num_rows - segment.first_row);
    } else {
      // The tiles of an expert take num_of_expert * num_weight_tiles places from that of its first on.
      const int place = tile / p_.num_weight_tiles;
      const ExpertTile any = order_.tiles[place];
      const int first = place - any.idx_of_expert, in_expert = tile - first * p_.num_weight_tiles;
      const ExpertTile own = order_.tiles[first + in_expert % any.num_of_expert];
      segment.matrix = own.expert;
      segment.weight_tile = in_expert / any.num_of_expert;
      segment.first_row = own.first_row;
      segment.num_rows = own.num_rows;
    }
    return true;
  }

 private:
  const ExpertWgmmaKernelParams& p_;
  const ExpertOrder& order_;
  const int tile_rows_;
  const ExpertShares shares_;
  int tile_;        // of the whole ones
  int step_, end_;  // of all steps of the shared ones
};

template <typename Format, int kRows>
struct ExpertStages : Stages<Format, kRows, expert_ring_bytes(kRows)> {
  using Base = Stages<Format, kRows, expert_ring_bytes(kRows)>;
  __device__ uint32_t tokens() const { return this->base + Base::kCount * (Base::kBytes + 16); }
};

// --- the warps that load ---------------------------------------------------------------------------------------------

// One thread: W, and x where its rows follow each other. Of down with an order of its own the first stages of W are on
// their way before the grid waits for gate_up.
template <typename Format, ExpertKind kKind, int kRows>
__device__ inline void load_expert_stages(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                          const ExpertStages<Format, kRows>& stages) {
  constexpr bool kGathers = kKind == ExpertKind::kGateUp;
  constexpr int kCount = ExpertStages<Format, kRows>::kCount;
  ExpertWork<kKind> work(p, order, kRows);
  ExpertSegment segment;
  Place<ExpertStages<Format, kRows>::kCount> place;
  constexpr int kBoxRows = expert_box_rows(kRows);
  constexpr uint32_t kBoxBytes = kBoxRows * kWgmmaStageRowBytes;
  const uint32_t weight_bytes = Format::template stage_weight_bytes<kKind>(p);
  const auto boxes_of = [](const ExpertSegment& of) { return kGathers ? 0 : (of.num_rows + kBoxRows - 1) / kBoxRows; };
  const auto load_weight = [&](const ExpertSegment& of, int stage, int step) {
    arrive_expecting(stages.full(stage), weight_bytes + static_cast<uint32_t>(boxes_of(of)) * kBoxBytes);
    Format::template load_weight<kKind>(p, stages.weight(stage), of, step, stages.full(stage));
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
        load_weight(segment, place.stage, step);
      }
      if constexpr (!kGathers) {
        const int column = (kKind == ExpertKind::kHeads ? segment.matrix * p.x_matrix_columns : 0) + step * Format::kTileK;
        for (int box = 0; box < num_boxes; ++box) {
          copy_box(stages.x(place.stage) + static_cast<uint32_t>(box) * kBoxBytes, p.x, column,
                   segment.first_row + box * kBoxRows, full);
        }
      }
      place.advance();
    }
  }
}

__device__ inline void sync_gatherers() { asm volatile("bar.sync 2, %0;" ::"n"(kExpertGatherThreads) : "memory"); }

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

// Of 16 features and 8 columns as wgmma has them (a lane: feature group and group + 8 of columns 2 pair and 2 pair + 1):
// four neighbouring features of one column, by exchanges with the lanes of group ^ 1 and group ^ 2.
struct FourFeatures {
  int feature, column;  // column: of the lane's two
  float4 values;

  __device__ FourFeatures(const float* own, int group) {
    const bool is_odd = group % 2 != 0, is_high = group / 2 % 2 != 0;
    float2 pairs[2];  // features group - group % 2 and the next, of the low 8 and of the high 8
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float even = own[2 * i], odd = own[2 * i + 1];
      const float got = __shfl_xor_sync(0xffffffffu, is_odd ? even : odd, 4);
      pairs[i] = is_odd ? make_float2(got, odd) : make_float2(even, got);
    }
    const float2 kept = is_high ? pairs[1] : pairs[0], sent = is_high ? pairs[0] : pairs[1];
    const float2 got = make_float2(__shfl_xor_sync(0xffffffffu, sent.x, 8), __shfl_xor_sync(0xffffffffu, sent.y, 8));
    values = is_high ? make_float4(got.x, got.y, kept.x, kept.y) : make_float4(kept.x, kept.y, got.x, got.y);
    column = is_odd;
    feature = 8 * is_high + group / 4 * 4;
  }
};

// values: as wgmma has them. first: the warp's first row of W in the matrix.
template <ExpertKind kKind, int kColumns>
__device__ inline void store_expert_tile(const ExpertWgmmaKernelParams& p, const float (&values)[kColumns / 2],
                                         const ExpertSegment& segment, int first) {
  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  Bf16* out = static_cast<Bf16*>(p.out) + segment.first_row * p.out_stride + segment.matrix * p.out_matrix_stride;
  float* out_f32 = static_cast<float*>(p.out) + segment.first_row * p.out_stride;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    if (8 * j >= segment.num_rows) break;
    const float* own = values + 4 * j;
    const int row = 8 * j + group, column = 8 * j + 2 * pair;  // after a transposition; without
    if constexpr (has_silu(kKind)) {
      if (p.is_act_f32) {
        const int feature = first / 2 + group;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (column + i >= segment.num_rows || feature >= p.out_features) continue;
          out_f32[(column + i) * p.out_stride + feature] = silu_times<float>(own[i], own[2 + i]);
        }
        continue;
      }
      const int feature = first / 2 + 2 * pair;
      const uint32_t both = silu_of_8x8(own);
      if (row < segment.num_rows && feature < p.out_features) {
        *reinterpret_cast<uint32_t*>(out + row * p.out_stride + feature) = both;
      }
    } else if constexpr (kKind == ExpertKind::kHeads) {
      const uint32_t low = transpose_8x8(pack_bf16(own[0], own[1]));
      const uint32_t high = transpose_8x8(pack_bf16(own[2], own[3]));
      const int feature = first + 2 * pair;
      if (row >= segment.num_rows) continue;
      if (feature < p.out_features) *reinterpret_cast<uint32_t*>(out + row * p.out_stride + feature) = low;
      if (feature + 8 < p.out_features) *reinterpret_cast<uint32_t*>(out + row * p.out_stride + feature + 8) = high;
    } else {
      const FourFeatures four(own, group);
      const int own_column = 8 * j + 2 * pair + four.column, feature = first + four.feature;
      if (own_column < segment.num_rows && feature < p.out_features) {
        *reinterpret_cast<float4*>(out_f32 + own_column * p.out_stride + feature) = four.values;
      }
    }
  }
}

template <typename Format, ExpertKind kKind, int kRows, int kColumns>
__device__ inline void multiply_segment(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                        const ExpertStages<Format, kRows>& stages,
                                        const ExpertWork<kKind>& work, const ExpertSegment& segment,
                                        Place<ExpertStages<Format, kRows>::kCount>& place) {
  const int thread = static_cast<int>(threadIdx.x) - 128, consumer = thread / 128, lane = thread % 32;
  typename Format::Sum sums[kColumns / 2];
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) sums[i] = 0;
  int last_stage = -1, step = segment.begin;
  const auto multiply_stage = [&](typename Format::Operand& operand) {
    wait_barrier(stages.full(place.stage), place.parity);
    if constexpr (kKind == ExpertKind::kGateUp) fence_async_proxy();  // x came by copies of threads
    Format::template take<kKind>(p, operand, stages.weight(place.stage), consumer);
    wgmma_fence();
    Format::template multiply<kColumns>(sums, operand, stages.weight(place.stage), stages.x(place.stage), consumer);
    wgmma_commit();
    wgmma_wait<1>();  // the step before has been read
    if (last_stage >= 0 && lane == 0) arrive(stages.empty(last_stage));
    last_stage = place.stage;
    place.advance();
    return ++step < segment.end;
  };
  typename Format::Operand first, second;  // one is read while the other is filled
  while (multiply_stage(first) && multiply_stage(second)) {
  }
  wgmma_wait<0>();
  if (lane == 0) arrive(stages.empty(last_stage));
  if (segment.begin > 0) return leave_sums<kRows / 2>(p, sums, thread);
  if (segment.end < p.num_steps) {
    const ExpertShares& shares = work.shares();
    add_sums<kRows / 2>(p, sums, thread, p.num_steps - segment.end, [&](int cta) { return shares.first_step(cta); });
  }
  const int first_row = segment.weight_tile * kWgmmaTileRows + thread / 32 * 16;
  float values[kColumns / 2];
  Format::template finish<kKind, kColumns>(p, order, sums, values, segment, first_row);
  store_expert_tile<kKind, kColumns>(p, values, segment, first_row);
}

template <typename Format, ExpertKind kKind, int kRows>
__device__ inline void multiply_expert_stages(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                              const ExpertStages<Format, kRows>& stages) {
  ExpertWork<kKind> work(p, order, kRows);
  ExpertSegment segment;
  Place<ExpertStages<Format, kRows>::kCount> place;
  while (work.next(segment)) {
    if constexpr (kRows >= 128) {  // the last tile of an expert may have few rows
      if (segment.num_rows <= kRows / 4) {
        multiply_segment<Format, kKind, kRows, kRows / 4>(p, order, stages, work, segment, place);
        continue;
      }
    }
    multiply_segment<Format, kKind, kRows, kRows>(p, order, stages, work, segment, place);
  }
}

// --- the order of a step that decodes --------------------------------------------------------------------------------

// Made by every CTA for itself, which takes less time than a kernel, and by the first one of gate_up for
// expert_combine. Which tokens chose an expert is a mask: the rank of a pair among those of its expert is the number of
// bits below its own.
//
// gate_up lets its dependents start when it has its inputs, not before. So whatever runs behind it may read the ids of
// the call without waiting: down makes its order, and loads W, while gate_up ends.
template <ExpertKind kKind, int kRows>
struct CtaOrder {
  static constexpr int kPairs = cta_order_pairs(kRows), kExperts = kCtaOrderExperts;
  ExpertOrder order;  // of the arrays below
  ExpertTile tiles[max_expert_tiles(kPairs, kExperts, kRows)];
  int32_t row_tokens[kKind == ExpertKind::kGateUp ? kPairs : 1];
  int32_t first_rows[kExperts];
  uint32_t of_warps[kExperts / 32];  // rows of a warp's experts, and their tiles << 16
  int32_t num_tiles;
};

// An id that a kernel before gate_up wrote, from L2.
__device__ inline int32_t load_expert_id(const int32_t* id) {
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(id) : "memory");
  return value;
}

// All threads of the CTA. masks: num_matrices * ceil(num_tokens / 32) words where stages will lie. gate_up waits for
// the kernels before.
template <ExpertKind kKind, int kRows>
__device__ inline void make_cta_order(const ExpertWgmmaKernelParams& p, CtaOrder<kKind, kRows>& made, uint32_t* masks) {
  using Made = CtaOrder<kKind, kRows>;
  constexpr int kRounds = (Made::kPairs + kWgmmaThreads - 1) / kWgmmaThreads;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, k = p.num_experts_per_tok;
  const int num_experts = p.num_matrices, num_words = (p.num_pairs / k + 31) / 32;
  for (int i = thread; i < num_experts * num_words; i += kWgmmaThreads) masks[i] = 0;
  if (thread == 0) made.order = {&made.num_tiles, made.tiles, made.row_tokens, nullptr};
  __syncthreads();
  if constexpr (kKind == ExpertKind::kGateUp) {
    wait_for_inputs();
    let_dependents_launch();
  }
  int experts[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int pair = thread + i * kWgmmaThreads;
    experts[i] = pair < p.num_pairs ? load_expert_id(p.expert_ids + pair / k * p.ids_stride + pair % k) : -1;
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    if (static_cast<uint32_t>(experts[i]) >= static_cast<uint32_t>(num_experts)) experts[i] = -1;
    const int token = (thread + i * kWgmmaThreads) / k;
    if (experts[i] >= 0) atomicOr(masks + experts[i] * num_words + token / 32, 1u << (token % 32));
  }
  __syncthreads();

  // A thread an expert: its rows and tiles, and those of the experts before.
  uint32_t own = 0, through = 0;
  if (thread < Made::kExperts) {
    int num_rows = 0;
    if (thread < num_experts) {
      for (int w = 0; w < num_words; ++w) num_rows += __popc(masks[thread * num_words + w]);
    }
    own = static_cast<uint32_t>(num_rows | (num_rows + kRows - 1) / kRows << 16);
    through = sum_through_lane(own);
    if (lane == 31) made.of_warps[thread / 32] = through;
  }
  __syncthreads();
  if (thread < Made::kExperts) {
    uint32_t before = through - own;
    for (int warp = 0; warp < thread / 32; ++warp) before += made.of_warps[warp];
    const int first_row = static_cast<int>(before & 0xffff), first_tile = static_cast<int>(before >> 16);
    const int num_rows = static_cast<int>(own & 0xffff), num_tiles = static_cast<int>(own >> 16);
    made.first_rows[thread] = first_row;
    for (int i = 0; i < num_tiles; ++i) {
      made.tiles[first_tile + i] = {thread, first_row + i * kRows, min(kRows, num_rows - i * kRows),
                                    static_cast<int16_t>(i), static_cast<int16_t>(num_tiles)};
    }
    if (thread == Made::kExperts - 1) made.num_tiles = first_tile + num_tiles;
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < kRounds && kKind == ExpertKind::kGateUp; ++i) {
    const int pair = thread + i * kWgmmaThreads, token = pair / k;
    int row = -1;
    if (experts[i] >= 0) {
      const uint32_t* mask = masks + experts[i] * num_words;
      row = made.first_rows[experts[i]] + __popc(mask[token / 32] & ((1u << (token % 32)) - 1));
      for (int w = 0; w < token / 32; ++w) row += __popc(mask[w]);
      made.row_tokens[row] = token;
    }
    if (blockIdx.x == 0 && pair < p.num_pairs) {
      p.order.pair_rows[pair] = row;
    }
  }
  fence_async_proxy();  // stages come where the masks were
  __syncthreads();
}

template <typename Format, ExpertKind kKind, int kRows>
__device__ inline void run_expert_warps(const ExpertWgmmaKernelParams& p, const ExpertOrder& order,
                                        const ExpertStages<Format, kRows>& stages) {
  if (threadIdx.x < 128) {
    if constexpr (kRows == 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    if constexpr (kRows > 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
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
    if constexpr (kRows > 128) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
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
      init_barrier(stages.empty(stage), kConsumerThreads / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
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
  }
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
  SPATE_EXPERT_KERNEL(prefix##_gate_up_dense, Format, kGateUpDense, 128)
#define SPATE_EXPERT_DOWN_KERNELS(prefix, Format)       \
  SPATE_EXPERT_KERNEL(prefix##_down, Format, kDown, 8)  \
  SPATE_EXPERT_KERNEL(prefix##_down, Format, kDown, 32) \
  SPATE_EXPERT_KERNEL(prefix##_down, Format, kDown, 64) \
  SPATE_EXPERT_KERNEL(prefix##_down, Format, kDown, 128)

}  // namespace spate::cuda
