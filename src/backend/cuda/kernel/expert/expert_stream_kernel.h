// Both products of a layer of int4 experts that have few rows each, in one launch: for expert_stream_int4.cu and its
// like.
//
//   act[r] = silu(x[token of r] Wg_e^T) * (x[token of r] Wu_e^T),   y[r] = act[r] Wd_e^T
//
// W is streamed: a warp takes 32 rows of it along k, a step of 128 elements at a time, from a ring of its own in shared
// memory that its copies fill, some steps ahead, through the ends of tiles and from one product into the next. The
// packed layout is that of the tensor core's operand, so a lane copies and reads the same 16 bytes, decodes them in
// registers and multiplies: no barrier of the CTA, no trip of decoded codes through shared memory. Two halves of the
// rows share what is read of x.
//
// A CTA has an equal run of the groups of 32 rows (of gate_up 16 gates and their 16 ups) of all tiles of each product,
// a tile being up to kRows rows of one expert. It goes through the run tile by tile: a phase. Its warps take groups of
// the phase, and where that cuts one along k the warp with its first k adds the sums of the others. Where there are
// nearly as many tiles as CTAs, a CTA has one: activations then stay in shared memory. x of a tile stands in shared
// memory as integers (expert_stream_rows.h). It comes there as it is while the tile before is multiplied, if it finds
// room: loads would wait for what the rings have asked for. A lane has two rows of W of each half and, of each 4 rows
// of x, one: the columns of its high and low bytes. A group of W has a multiplier, the sum over a step is then a whole
// number of 32 bits: |x| is at most 8,160, 16 times a code at most 128, a multiplier at most 16. down of a tile begins
// when all CTAs with groups of its gate_up have told so: those are neighbours, which end together.
#pragma once

#include "backend/cuda/kernel/elementwise/silu.h"
#include "backend/cuda/kernel/expert/expert_stream_order.h"
#include "backend/cuda/kernel/expert/expert_stream_rows.h"
#include "backend/cuda/kernel/expert/expert_stream_work.h"
#include "backend/cuda/kernel/primitive/flag.h"
#include "backend/cuda/kernel/primitive/mma.h"
#include "backend/cuda/kernel/primitive/shared_load.h"

namespace spate::cuda {

// (word & 0xf0f0f0f0) ^ 0x80808080: 16 times the signed codes in the high halves of bytes.
__device__ inline uint32_t stream_codes(uint32_t word) {
  uint32_t codes;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(codes) : "r"(word), "r"(0xf0f0f0f0u), "r"(0x80808080u));
  return codes;
}

// Of the 32 rows of W that a warp has, a lane one.
struct StreamScales {
  float own;

  __device__ StreamScales(const ExpertStreamKernelParams& p, int is_down, const char* matrix, int64_t scales_offset,
                          int group) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float* scales = reinterpret_cast<const float*>(matrix + scales_offset);
    const int first = is_down != 0 ? group * 32 : group * 16;
    own = scales[first + lane + (is_down == 0 && lane >= 16 ? p.intermediate_size - 16 : 0)];
  }
  // Of the row of half h that is the lane's first or second one.
  __device__ float of(int h, int r) const {
    return __shfl_sync(0xffffffffu, own, r * 16 + h * 8 + static_cast<int>(threadIdx.x) % 32 / 4);
  }
};

template <int kMultipliers, int kRows>
class StreamWarp {
 public:
  static constexpr int kBlocks = kRows / 4, kDepth = expert_stream_depth(kRows),
                       kStepBytes = expert_stream_step_bytes(kMultipliers);

  __device__ StreamWarp(const ExpertStreamKernelParams& p, const StreamOrder& order, StreamCursor& cursor,
                        uint32_t ring)
      : loads_(p, order, cursor),
        lane_(static_cast<int>(threadIdx.x) % 32),
        slot_(ring + static_cast<uint32_t>(lane_ * 16)),
        first_(slot_) {}
  // Starts the copies of the first steps.
  __device__ void fill() {
#pragma unroll 1
    for (int i = 0; i < kDepth - 1; ++i) loads_.next(slot_ + i * kStepBytes);
  }

  // Forgets what fill() has asked for.
  __device__ void reset() {
    wait_copies<0>();
    loads_.reset();
  }

  // sums += of the steps [begin, end) of a group: of each half of its rows and of each block of 4 rows of x the lane's
  // two rows of W by row lane % 4.
  __device__ void multiply(float (&sums)[2][kBlocks][2], uint32_t rows, int num_rows, int num_steps, int begin,
                           int end) {
    if constexpr (kBlocks > 2) {
      if (num_rows > 12) return multiply_blocks<4>(sums, rows, num_steps, begin, end);
      if (num_rows > 8) return multiply_blocks<3>(sums, rows, num_steps, begin, end);
    }
    if (num_rows > 4) return multiply_blocks<2>(sums, rows, num_steps, begin, end);
    return multiply_blocks<1>(sums, rows, num_steps, begin, end);
  }

 private:
  template <int kUsed>
  __device__ void multiply_blocks(float (&sums)[2][kBlocks][2], uint32_t rows, int num_steps, int begin, int end) {
    uint32_t x = rows + static_cast<uint32_t>(begin * kExpertStreamBlockStepBytes + lane_ * 16);
    const uint32_t x_block = static_cast<uint32_t>(num_steps * kExpertStreamBlockStepBytes);
    const uint32_t to_unit = static_cast<uint32_t>(kStreamUnits + lane_ % 4 * 4 - lane_ * 16);
    const uint32_t to_multipliers = static_cast<uint32_t>(2048 + lane_ / 4 * kMultipliers - lane_ * 16);
#pragma unroll 1
    for (int step = begin; step < end; ++step) {
      wait_copies<kDepth - 2>();
      __syncwarp();
      loads_.next(slot_ == first_ ? slot_ + (kDepth - 1) * kStepBytes : slot_ - kStepBytes);
      uint4 quads[2][2];
      int multipliers[2][2][kMultipliers];
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) quads[i / 2][i % 2] = load_shared_16(slot_ + 512 * (i / 2) + 1024 * (i % 2));
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
#pragma unroll
        for (int m = 0; m < kMultipliers; ++m) {
          multipliers[i / 2][i % 2][m] = static_cast<int>(
              load_shared_byte(slot_ + to_multipliers + (8 * (i / 2) + 16 * (i % 2)) * kMultipliers + m));
        }
      }
      slot_ = slot_ == first_ + (kDepth - 1) * kStepBytes ? first_ : slot_ + kStepBytes;
      uint32_t a[2][4][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t words[4] = {quads[h][r].x, quads[h][r].y, quads[h][r].z, quads[h][r].w};
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            a[h][s][r] = stream_codes(words[s] << 4);
            a[h][s][2 + r] = stream_codes(words[s]);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kUsed; ++j) {
        const uint32_t x_of_block = x + static_cast<uint32_t>(j) * x_block;
        const float unit = load_shared_float(x_of_block + to_unit);
        int32_t scaled[2][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 quad = load_shared_16(x_of_block + 512 * i);
          const uint32_t first[2] = {quad.x, quad.y}, second[2] = {quad.z, quad.w};
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            int32_t acc[2][4] = {};  // with a multiplier each
            mma_m16n8k32_s8(acc[0], a[h][2 * i], first);
            mma_m16n8k32_s8(acc[kMultipliers == 2 ? 0 : 1], a[h][2 * i + 1], second);
#pragma unroll
            for (int m = 0; m < kMultipliers / 2; ++m) {
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                const int32_t of_group = acc[m][2 * r] * 256 + acc[m][2 * r + 1];
                scaled[h][r] = of_group * multipliers[h][r][i * kMultipliers / 2 + m] + (i + m == 0 ? 0 : scaled[h][r]);
              }
            }
          }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            sums[h][j][r] = __fmaf_rn(static_cast<float>(scaled[h][r]), unit, sums[h][j][r]);
          }
        }
      }
      x += kExpertStreamBlockStepBytes;
    }
  }

  StreamLoads<kMultipliers, kRows> loads_;
  const int lane_;
  uint32_t slot_;  // the lane's place
  const uint32_t first_;
};

// Where a warp is, in shared memory: all that multiplying leaves registers for.
struct StreamState {
  StreamPhases phases;
  StreamPhase phase, next;  // without groups: none
  StreamShare share;        // what is left of the phase
  Bf16* act;                // where the activations of the tile's first row go
  int64_t act_stride;
  int32_t is_early, is_own;  // x of the next phase is copied meanwhile; is what the phase makes
};

// The sums of a group, times the scales of rows of W, are stored.
template <int kRows>
__device__ inline void finish_stream_group(const ExpertStreamKernelParams& p, int is_down, int group_of_tile,
                                           const StreamTile& tile, const StreamScales& scales, const StreamState& state,
                                           const float (&sums)[2][kRows / 4][2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, pair = lane % 4;
  const float of_rows[2][2] = {{scales.of(0, 0), scales.of(0, 1)}, {scales.of(1, 0), scales.of(1, 1)}};
#pragma unroll
  for (int j = 0; j < kRows / 4; ++j) {
    if (4 * j >= tile.num_rows) break;
    const int row = 4 * j + pair;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float values[2] = {sums[h][j][0] * of_rows[h][0], sums[h][j][1] * of_rows[h][1]};
      if (is_down != 0) {
        if (row < tile.num_rows) {
          float* y = p.y + (tile.first_row + row) * p.y_stride + group_of_tile * 32 + 8 * h + group;
          y[0] = values[0];
          y[16] = values[1];
        }
      } else {
        const float product = silu_times<Bf16>(round_to<Bf16>(values[0]), round_to<Bf16>(values[1]));
        const float next = __shfl_down_sync(0xffffffffu, product, 4);  // of the next row of W
        const int feature = group_of_tile * 16 + 8 * h + group;
        if (group % 2 == 0 && row < tile.num_rows) {
          *reinterpret_cast<uint32_t*>(state.act + row * state.act_stride + feature) = pack_bf16(product, next);
        }
      }
    }
  }
}

// The CTA has stored activations of groups of a tile. One thread, behind a barrier of all.
__device__ inline void tell_groups(const ExpertStreamKernelParams& p, int tile, int num_groups) {
  if (num_groups == 0) return;
  __threadfence();
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p.arrived + tile), "r"(num_groups) : "memory");
}

// All lanes of a warp: until the activations of a tile are there.
__device__ inline void wait_for_activations(const ExpertStreamKernelParams& p, int tile) {
  const uint32_t groups = static_cast<uint32_t>(p.intermediate_size / 16);
  if (threadIdx.x % 32 == 0) {
    const long long start = clock64();
    while (load_acquire(p.arrived + tile) < groups) {
      if (clock64() - start > 2000000000ll) __trap();
    }
  }
  __syncwarp();
}
// Whether they are, the same in all lanes.
__device__ inline bool has_activations(const ExpertStreamKernelParams& p, int tile) {
  uint32_t arrived = 0;
  if (threadIdx.x % 32 == 0) arrived = load_acquire(p.arrived + tile);
  return __shfl_sync(0xffffffffu, arrived, 0) >= static_cast<uint32_t>(p.intermediate_size / 16);
}

// Not kept in registers.
__device__ inline StreamTile read_again(const StreamTile& tile) {
  const volatile StreamTile& of = tile;
  StreamTile read;
  read.expert = of.expert;
  read.num_rows = of.num_rows;
  read.first_row = of.first_row;
  return read;
}

// What a warp has of a phase, which is number `number`.
template <int kMultipliers, int kRows>
__device__ inline void run_stream_phase(const ExpertStreamKernelParams& p, const StreamPhase& phase,
                                        const StreamTile* tiles, uint32_t rows,
                                        StreamWarp<kMultipliers, kRows>& multiplier, float* sums_of_warps,
                                        uint32_t* left_in, uint32_t number, StreamState& state) {
  constexpr int kSums = kRows / 4 * 4;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int num_steps = product_of(p, phase).layout.num_steps;
  state.share = StreamShare(phase, num_steps, warp);
  while (true) {
    __syncwarp();
    StreamShare own = state.share;
    if (!own.has_more()) break;
    const StreamSegment segment = own.next(num_steps);
    __syncwarp();
    state.share = own;  // the same of all lanes
    const StreamTile tile = read_again(tiles[phase.tile]);
    const volatile int& is_down = phase.is_down;  // not kept in registers
    const ExpertStreamProduct& product = is_down != 0 ? p.down : p.gate_up;
    const StreamScales scales(p, is_down, product.weight + tile.expert * product.layout.matrix_bytes,
                              product.layout.scales_offset, segment.group);
    float sums[2][kRows / 4][2] = {};
    multiplier.multiply(sums, rows, tile.num_rows, num_steps, segment.begin, segment.end);
    if (segment.begin > 0) {
      float* to = sums_of_warps + warp * kSums * 32 + lane;
#pragma unroll
      for (int i = 0; i < kSums; ++i) to[i * 32] = sums[i / (kSums / 2)][i / 2 % (kRows / 4)][i % 2];
      __threadfence_block();
      __syncwarp();
      if (lane == 0) *const_cast<volatile uint32_t*>(left_in + warp) = number;
    } else {
      int missing = num_steps - segment.end;
      for (int other = warp + 1; missing > 0; ++other) {
        const int count = StreamShare(phase, num_steps, other).count;
        if (count == 0) continue;
        while (*const_cast<volatile uint32_t*>(left_in + other) != number) {
        }
        __threadfence_block();
        const float* from = sums_of_warps + other * kSums * 32 + lane;
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i / (kSums / 2)][i / 2 % (kRows / 4)][i % 2] += from[i * 32];
        missing -= count;
      }
      finish_stream_group<kRows>(p, is_down, segment.group, read_again(tiles[phase.tile]), scales, state, sums);
    }
  }
}

template <int kMultipliers, int kRows>
__device__ inline void expert_stream(const ExpertStreamKernelParams& p) {
  constexpr int kDepth = expert_stream_depth(kRows), kRingBytes = kDepth * expert_stream_step_bytes(kMultipliers);
  extern __shared__ __align__(128) char stream_shared[];
  __shared__ StreamOrder order;
  __shared__ StreamState states[kExpertStreamWarps];
  __shared__ StreamCursor cursors[kExpertStreamWarps];
  __shared__ uint32_t left_in[kExpertStreamWarps];  // the phase of which a warp has left sums
  let_dependents_launch();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, cta = static_cast<int>(blockIdx.x);
  if (thread < kExpertStreamWarps) left_in[thread] = 0;
  constexpr int kRoom = expert_stream_room_bytes(kRows);
  const uint32_t room = shared_address(stream_shared) + kExpertStreamWarps * kRingBytes;
  const auto num_steps_of = [&](const StreamPhase& of) { return product_of(p, of).layout.num_steps; };
  const auto integer_bytes_of = [&](const StreamPhase& of) {
    return (order.tiles[of.tile].num_rows + 3) / 4 * num_steps_of(of) * kExpertStreamBlockStepBytes;
  };
  // x of the next phase comes to the end of the room.
  const auto raw_bytes_of = [&](const StreamPhase& of) {
    return stream_raw_bytes(order.tiles[of.tile].num_rows, num_steps_of(of));
  };
  StreamWarp<kMultipliers, kRows> multiplier(p, order, cursors[warp],
                                             shared_address(stream_shared) + static_cast<uint32_t>(warp * kRingBytes));
  // Where rows are many enough that all experts should have some, a tile each, the first steps come before it is known.
  const bool is_guessed =
      StreamRuns::is_tile_each(p.num_experts) && p.num_pairs >= 6 * p.num_experts && cta < p.num_experts;
  if (is_guessed) {
    if (thread == 0) {
      order.num_tiles = p.num_experts;
      order.tiles[cta] = {static_cast<int16_t>(cta), 0, 0};
    }
    __syncthreads();
    multiplier.fill();
  }
  make_stream_order(p, kRows, order, reinterpret_cast<uint32_t*>(stream_shared + kExpertStreamWarps * kRingBytes));
  const bool is_filled = is_guessed && StreamRuns::is_tile_each(order.num_tiles) && cta < order.num_tiles &&
                         order.tiles[cta].expert == cta;
  if (is_guessed && !is_filled) multiplier.reset();
  StreamPhase &phase = states[warp].phase, &next = states[warp].next;
  const auto advance = [&] {
    StreamState state = states[warp];
    __syncwarp();
    state.phase = state.next;
    if (!state.phases.next(p, order.num_tiles, state.next)) state.next.num_groups = 0;
    states[warp] = state;  // the same of all lanes
    __syncwarp();
  };
  states[warp] = {{-1, 0, 0}, {}, {}, {}, nullptr, 0, 0, 0};
  __syncwarp();
  advance();
  const auto tell = [&] {
    if (thread == 0 && phase.is_down == 0 && states[0].is_own == 0) tell_groups(p, phase.tile, phase.num_groups);
  };
  // Phase 0 has no groups: x of the first one is made.
  for (uint32_t number = 0;; ++number) {
    const auto row_of = [&](int row) {
      const StreamTile& tile = order.tiles[next.tile];
      return next.is_down != 0 ? static_cast<const Bf16*>(p.act) + (tile.first_row + row) * p.act_stride
                               : static_cast<const Bf16*>(p.x) + order.row_tokens[tile.first_row + row] * p.x_stride;
    };
    StreamState& state = states[warp];
    if (number > 0) {
      // x of the next phase comes while this one is multiplied, if it is there and finds room.
      const int integers = integer_bytes_of(phase),
                sums = phase.num_groups % kExpertStreamWarps != 0 ? expert_stream_sums_bytes(kRows) : 0;
      const bool fits =
          next.num_groups > 0 && max(integers + sums, integer_bytes_of(next)) + raw_bytes_of(next) <= kRoom;
      const bool is_own = fits && phase.is_down == 0 && StreamRuns::is_tile_each(order.num_tiles);
      const bool is_early = fits && (next.is_down == 0 || (phase.is_down != 0 && has_activations(p, next.tile)));
      __syncwarp();
      state.act =
          is_own ? reinterpret_cast<Bf16*>(stream_shared + kExpertStreamWarps * kRingBytes + kRoom - raw_bytes_of(next))
                 : static_cast<Bf16*>(p.act) + order.tiles[phase.tile].first_row * p.act_stride;
      state.act_stride = is_own ? (num_steps_of(next) + 1) / 2 * 256 : p.act_stride;
      state.is_early = is_early ? 1 : 0;
      state.is_own = is_own ? 1 : 0;
      if (is_early) {
        copy_stream_rows(order.tiles[next.tile].num_rows, product_of(p, next).layout.width, num_steps_of(next),
                         room + static_cast<uint32_t>(kRoom - raw_bytes_of(next)), row_of);
      }
      run_stream_phase<kMultipliers, kRows>(
          p, phase, order.tiles, room, multiplier,
          reinterpret_cast<float*>(stream_shared + kExpertStreamWarps * kRingBytes + integers), left_in, number, state);
    }
    if (next.num_groups == 0) break;
    if (state.is_early != 0 && StreamShare(phase, num_steps_of(phase), warp).num_steps(num_steps_of(phase)) < kDepth) {
      commit_copies();
      wait_copies<0>();
    }
    __syncthreads();  // x has been read, activations have been stored
    tell();
    const int num_rows = order.tiles[next.tile].num_rows, width = product_of(p, next).layout.width;
    if (state.is_early != 0 || state.is_own != 0) {
      put_stream_rows(num_rows, width, num_steps_of(next), room + static_cast<uint32_t>(kRoom - raw_bytes_of(next)),
                      room);
    } else {
      if (next.is_down != 0) wait_for_activations(p, next.tile);
      make_stream_rows(num_rows, width, num_steps_of(next), room, row_of, [&] {
        if (number == 0 && !is_filled) multiplier.fill();
      });
    }
    advance();
    __syncthreads();
    // The last CTA to have read the activations of a tile makes its places zero again.
    if (thread == 0 && phase.is_down != 0 && states[0].is_own == 0) {
      uint32_t* num_readers = p.arrived + kExpertStreamMaxTiles + phase.tile;
      if (atomicAdd(num_readers, 1u) + 1 == static_cast<uint32_t>(num_down_ctas_of(p, order.num_tiles, phase.tile))) {
        *num_readers = 0;
        p.arrived[phase.tile] = 0;
      }
    }
  }
  __syncthreads();
  tell();
}

#define SPATE_EXPERT_STREAM_KERNEL(name, multipliers, rows)                \
  extern "C" __global__ void __launch_bounds__(kExpertStreamThreads, 1)    \
      name##_n##rows(const __grid_constant__ ExpertStreamKernelParams p) { \
    expert_stream<multipliers, rows>(p);                                   \
  }
#define SPATE_EXPERT_STREAM_KERNELS(name, multipliers) \
  SPATE_EXPERT_STREAM_KERNEL(name, multipliers, 8)     \
  SPATE_EXPERT_STREAM_KERNEL(name, multipliers, 16)

}  // namespace spate::cuda
