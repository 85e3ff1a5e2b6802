// What latent_wgmma.cu and latent_wgmma_int8.cu share: all but how tiles get into shared memory.
#pragma once

#include "backend/cuda/kernel/latent/latent_items.h"
#include "backend/cuda/kernel/latent/latent_merge.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/tma.h"
#include "backend/cuda/kernel/primitive/wgmma.h"
#include "backend/cuda/kernel/primitive/wgmma_values.h"

namespace spate::cuda {

constexpr int kBuffers = 2;
constexpr int kGroups = 3;  // of parts of a tile of codes, a barrier each: the first scores need not wait for all
constexpr int kPartsOfGroup = kLatentParts / kGroups;
constexpr int kSlots = 2;  // of segments on their way to the consumers

struct Shared {
  uint32_t base;

  __device__ uint32_t q() const { return base; }
  __device__ uint32_t tile(int buffer) const { return base + static_cast<uint32_t>(1 + buffer) * kLatentTileBytes; }
  __device__ uint32_t probs() const { return base + 3 * kLatentTileBytes; }
  __device__ uint32_t barrier(int i) const { return probs() + kLatentPartBytes + static_cast<uint32_t>(i) * 8; }
  // Of the keys of a tile of codes: the scales of the compressed elements, then those of the rotated ones over them.
  __device__ uint32_t key_scales(int buffer) const {
    return probs() + kLatentPartBytes + 512 + static_cast<uint32_t>(buffer) * kLatentKeys * 8;
  }
  __device__ uint32_t full(int buffer, int group) const { return barrier(buffer * kGroups + group); }
  __device__ uint32_t empty(int buffer) const { return barrier(kBuffers * kGroups + buffer); }
  __device__ uint32_t segment_full(int slot) const { return barrier(kBuffers * (kGroups + 1) + slot); }
  __device__ uint32_t segment_empty(int slot) const { return barrier(kBuffers * (kGroups + 1) + kSlots + slot); }
  static constexpr int kNumBarriers = kBuffers * (kGroups + 1) + 2 * kSlots;
};

// Behind the barriers.
struct SharedWords {
  Segment segments[kSlots];
  float row_scales[kLatentRows];
  int32_t reach;  // of LatentSplit, for the lane that publishes it
  CutItem cuts[2];  // of the segments in slots 2 c and 2 c + 1
};
static_assert(Shared::kNumBarriers * 8 <= 128 && sizeof(SharedWords) <= 384);
static_assert(kBuffers * kLatentKeys * 8 == kLatentKeyScalesBytes);

// Where a tile has its parts, and the next eight keys. Of bf16 a block's keys lie together as one copy brings them.
template <bool kIsCodes>
struct Tile {
  static constexpr int kPartBytes = kIsCodes ? kLatentPartBytes : 1024;
  static constexpr int kEightKeysBytes = kIsCodes ? 1024 : kLatentParts * 1024;
  static constexpr int kWaits = kIsCodes ? kGroups : 1;
};

struct Place {
  int buffer = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++buffer < kBuffers) return;
    buffer = 0;
    parity ^= 1;
  }
};

// What a score may exceed the largest one that its row's sums are scaled to, a power of two: then few tiles have them
// scaled again. Probabilities up to 2^kSlack lose nothing in bf16, nor their sums in fp32.
constexpr float kSlack = 8.0f;

// --- one warp that loads ---------------------------------------------------------------------------------------------

// From a segment that next() gave to the next one that has rows; false: none is left.
__device__ inline bool find_rows(auto& work, Segment& segment, bool has_work) {
  while (has_work && segment.num_rows == 0) has_work = work.next(segment);
  return has_work;
}

// The n-th segment to the consumers, or that there is none.
__device__ inline void give_segment(const Shared& shared, SharedWords& words, int n, int lane, Segment segment,
                                    bool has_work) {
  if (!has_work) segment.num_rows = -1;
  const int slot = n % kSlots;
  wait_barrier(shared.segment_empty(slot), (n / kSlots & 1) ^ 1);
  if (lane == 0) {
    words.segments[slot] = segment;
    arrive(shared.segment_full(slot));
  }
}

// --- the warpgroups that multiply ------------------------------------------------------------------------------------

// Warpgroup 1 has read the probabilities; warpgroup 0 waits for it before it writes the next ones.
__device__ inline void leave_probs() { asm volatile("bar.arrive 2, %0;" ::"n"(kConsumerThreads) : "memory"); }
__device__ inline void await_probs_left() { asm volatile("bar.sync 2, %0;" ::"n"(kConsumerThreads) : "memory"); }

// The parts in their order: of codes the rotated elements come first.
template <bool kIsCodes>
__device__ inline int part_of(int i) {
  if (!kIsCodes) return i;
  return i == 0 ? kLatentParts - 1 : i - 1;
}

// 16 keys of the values' columns from a part on, the k-th.
template <bool kIsCodes>
__device__ inline uint64_t values_of(uint32_t tile, int first_part, int k) {
  using T = Tile<kIsCodes>;
  return wgmma_columns(tile + first_part * T::kPartBytes + k * 2 * T::kEightKeysBytes, T::kPartBytes,
                       T::kEightKeysBytes);
}

// Eight columns of scores or probabilities, the j-th, times their keys' scales.
__device__ inline void scale_columns(float (&scores)[kLatentKeys / 2], int j, uint32_t key_scales, int pair) {
  float2 scale;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(scale.x), "=f"(scale.y)
               : "r"(key_scales + static_cast<uint32_t>(pair) * 8 + static_cast<uint32_t>(j) * 32)
               : "memory");
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    scores[4 * j + 2 * h] *= scale.x;
    scores[4 * j + 2 * h + 1] *= scale.y;
  }
}

// Takes the next segment; false: none is left.
__device__ inline bool next_segment(const Shared& shared, const SharedWords& words, int n, int lane, Segment& segment) {
  const int slot = n % kSlots;
  wait_barrier(shared.segment_full(slot), n / kSlots & 1);
  segment = words.segments[slot];
  __syncwarp();
  if (lane == 0) arrive(shared.segment_empty(slot));
  return segment.num_rows >= 0;
}

// What a warpgroup has of a segment. Nobody reads q any more.
__device__ inline void store_sums(const LatentWgmmaKernelParams& p, const Shared& shared, const Segment& segment,
                                  const float (&sums)[kHalf / 2], const Consumer& c, const float (&inverse)[2],
                                  int half) {
  if (segment.slot >= 0) return store_partial_sums(p, segment, sums, half);
  const int warp = half * 4 + c.thread / kWarpSize;
  store_result(p.attention, segment, sums, inverse, half, shared.q() + static_cast<uint32_t>(warp) * 16 * kHalf * 2);
}

// Keys that a thread's two rows do not see.
__device__ inline void mask_keys(float (&scores)[kLatentKeys / 2], int first_key, const int (&limits)[2], int pair) {
#pragma unroll
  for (int i = 0; i < kLatentKeys / 2; ++i) {
    if (first_key + i / 4 * 8 + 2 * pair + i % 2 >= limits[i / 2 % 2]) scores[i] = -kInfinity;
  }
}

// Scores of a tile become probabilities, of the two rows of a thread. What was added before is to be scaled by
// `shrink`.
__device__ inline void soften(float (&scores)[kLatentKeys / 2], float (&largest)[2], float (&total)[2],
                              float (&shrink)[2], float scale_log2e) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float tile_max = -kInfinity;
#pragma unroll
    for (int i = 0; i < kLatentKeys / 4; ++i) tile_max = fmaxf(tile_max, scores[i / 2 * 4 + 2 * h + i % 2]);
    tile_max = fmaxf(tile_max, __shfl_xor_sync(kAllLanes, tile_max, 1));
    tile_max = fmaxf(tile_max, __shfl_xor_sync(kAllLanes, tile_max, 2));
    const float tile_largest = tile_max * scale_log2e;
    const float new_max = tile_largest > largest[h] + kSlack ? tile_largest : largest[h];
    const float offset = new_max == -kInfinity ? 0.0f : new_max;  // a row that has seen no key yet
    shrink[h] = exp2_approx(largest[h] - offset);
    largest[h] = new_max;
    total[h] *= shrink[h];
#pragma unroll
    for (int i = 0; i < kLatentKeys / 4; ++i) {
      float& score = scores[i / 2 * 4 + 2 * h + i % 2];
      score = exp2_approx(__fmaf_rn(score, scale_log2e, -offset));
      total[h] += score;
    }
  }
}

// The probabilities of 16 keys as operand a.
__device__ inline void pack_probs(uint32_t (&probs)[4], const float (&scores)[kLatentKeys / 2], int sixteen) {
#pragma unroll
  for (int i = 0; i < 4; ++i) probs[i] = pack_bf16(scores[8 * sixteen + 2 * i], scores[8 * sixteen + 2 * i + 1]);
}
__device__ inline void store_probs(uint32_t to, const uint32_t (&probs)[kLatentKeys / 16][4], const Consumer& c) {
#pragma unroll
  for (int k = 0; k < kLatentKeys / 16; ++k) {
    store_matrices(to + swizzled(c.thread / kWarpSize * 16 + c.lane % 16, 2 * k + c.lane / 16), probs[k]);
  }
}
__device__ inline void store_row_scales(SharedWords& words, const float (&scales)[2], const Consumer& c) {
  if (c.pair != 0) return;
  words.row_scales[c.row] = scales[0];
  words.row_scales[c.row + 8] = scales[1];
}

// Warpgroup 0 at the end of a segment: what its rows' sums are multiplied with. Warpgroup 1 has it after
// sync_consumers().
template <bool kMerges>
__device__ inline void finish_rows(const LatentWgmmaKernelParams& p, SharedWords& words, const Segment& segment,
                                   const float (&largest)[2], float (&total)[2], float (&inverse)[2],
                                   const Consumer& c) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    total[h] += __shfl_xor_sync(kAllLanes, total[h], 1);
    total[h] += __shfl_xor_sync(kAllLanes, total[h], 2);
    inverse[h] = 1.0f / total[h];
    if (c.pair != 0 || segment.slot < 0) continue;
    float* stats = p.partial_stats + (static_cast<int64_t>(segment.slot) * kLatentRows + c.row + 8 * h) * 2;
    *reinterpret_cast<float2*>(stats) = make_float2(largest[h], total[h]);
  }
  await_probs_left();  // with the last scales
  store_row_scales(words, inverse, c);
  if (kMerges && segment.slot >= 0 && c.thread == 0) {
    words.cuts[segment.slot % 2] = {segment.first_token, segment.first_row, segment.num_rows, segment.first_team,
                                    segment.num_parts};
  }
}

// Warpgroup 0: scores, probabilities, columns 0 to 255.
template <bool kIsCodes, bool kMerges>
__device__ inline void attend_left(const LatentWgmmaKernelParams& p, const Shared& shared, SharedWords& words,
                                   const Consumer& c) {
  const float scale_log2e = p.attention.softmax_scale_log2e;
  const uint64_t q = wgmma_descriptor(shared.q());
  Segment segment;
  Place place;
  float sums[kHalf / 2];
  for (int n = 0; next_segment(shared, words, n, c.lane, segment); ++n) {
    sync_consumers();
    load_q(p.attention, shared.q(), segment, c.thread);
    int limits[2];  // keys that the two rows see
    float largest[2] = {-kInfinity, -kInfinity}, total[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      limits[h] = segment.first_limit + (segment.first_row + c.row + 8 * h) / p.attention.num_heads;
    }
    const int smallest_limit = segment.first_limit + segment.first_row / p.attention.num_heads;
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) sums[i] = 0.0f;
    for (int tile = segment.begin_tile; tile < segment.end_tile; ++tile) {
      float scores[kLatentKeys / 2];
#pragma unroll
      for (int i = 0; i < kLatentKeys / 2; ++i) scores[i] = 0.0f;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (group < Tile<kIsCodes>::kWaits) {
          wait_barrier(shared.full(place.buffer, group), place.parity);
          wgmma_fence();
        }
#pragma unroll
        for (int i = group * kPartsOfGroup; i < (group + 1) * kPartsOfGroup; ++i) {
          const int part = part_of<kIsCodes>(i);
          const uint64_t keys = wgmma_descriptor(shared.tile(place.buffer) + part * Tile<kIsCodes>::kPartBytes,
                                                 Tile<kIsCodes>::kEightKeysBytes);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            wgmma_bf16<kLatentKeys>(scores, next_wgmma_k(q + part * (kLatentPartBytes >> 4), k), next_wgmma_k(keys, k));
          }
          if constexpr (kIsCodes) {
            if (i > 0) continue;
            wgmma_commit();
            wgmma_wait<0>();
#pragma unroll
            for (int j = 0; j < kLatentKeys / 8; ++j) {
              scale_columns(scores, j, shared.key_scales(place.buffer) + kLatentKeys * 4, c.pair);
            }
            wgmma_fence();
          }
        }
      }
      wgmma_commit();
      wgmma_wait<0>();

      if constexpr (kIsCodes) {
#pragma unroll
        for (int j = 0; j < kLatentKeys / 8; ++j) scale_columns(scores, j, shared.key_scales(place.buffer), c.pair);
      }
      const int first_key = tile * kLatentKeys;
      if (first_key + kLatentKeys > smallest_limit) mask_keys(scores, first_key, limits, c.pair);
      float shrink[2];
      soften(scores, largest, total, shrink, scale_log2e);
      uint32_t probs[kLatentKeys / 16][4];
#pragma unroll
      for (int k = 0; k < kLatentKeys / 16; ++k) {
        if constexpr (kIsCodes) {
          scale_columns(scores, 2 * k, shared.key_scales(place.buffer), c.pair);
          scale_columns(scores, 2 * k + 1, shared.key_scales(place.buffer), c.pair);
        }
        pack_probs(probs[k], scores, k);
      }
      const auto give_probs = [&] {
        if (tile > segment.begin_tile) await_probs_left();
        store_probs(shared.probs(), probs, c);
        store_row_scales(words, shrink, c);
        fence_async_proxy();
        sync_consumers();
      };
      // bf16: its values first, from registers, then the probabilities to warpgroup 1. So this one is done sooner, and
      // the scores of the next tile run beside the other one's values.
      if (kIsCodes) {
        give_probs();
      } else if (segment.seq_len - first_key < kLatentKeys) {
        sync_consumers();  // warpgroup 1 has cleared values
      }
      scale_rows(sums, shrink);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kLatentKeys / 16; ++k) {
        const uint64_t values = values_of<kIsCodes>(shared.tile(place.buffer), 0, k);
        wgmma_values_from_registers<kHalf>(sums, probs[k], values);
      }
      wgmma_commit();
      if (!kIsCodes) give_probs();
      wgmma_wait<0>();
      if (c.lane == 0) arrive(shared.empty(place.buffer));
      place.advance();
    }

    float inverse[2];
    finish_rows<kMerges>(p, words, segment, largest, total, inverse, c);
    sync_consumers();
    store_sums(p, shared, segment, sums, c, inverse, 0);
  }
}

// Warpgroup 1: columns 256 to 511. It has time to clear the values behind the last key: a probability of zero times
// what lies there may be NaN. Of codes the last key lies there again.
template <bool kIsCodes>
__device__ inline void attend_right(const LatentWgmmaKernelParams& p, const Shared& shared, SharedWords& words,
                                    const Consumer& c) {
  Segment segment;
  Place place;
  float sums[kHalf / 2];
  for (int n = 0; next_segment(shared, words, n, c.lane, segment); ++n) {
    sync_consumers();
    load_q(p.attention, shared.q(), segment, 128 + c.thread);
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) sums[i] = 0.0f;
    for (int tile = segment.begin_tile; tile < segment.end_tile; ++tile) {
#pragma unroll
      for (int group = 0; group < Tile<kIsCodes>::kWaits; ++group) {
        wait_barrier(shared.full(place.buffer, group), place.parity);
      }
      const int num_keys = segment.seq_len - tile * kLatentKeys;
      if (!kIsCodes && num_keys < kLatentKeys) {
        const int pieces_of_part = (kLatentKeys - num_keys) * 8;
        for (int i = c.thread; i < pieces_of_part * (kLatentRank / 64); i += 128) {
          const int key = num_keys + i % pieces_of_part / 8;
          const uint32_t to =
              shared.tile(place.buffer) +
              static_cast<uint32_t>(i / pieces_of_part * Tile<kIsCodes>::kPartBytes +
                                    key / 8 * Tile<kIsCodes>::kEightKeysBytes + key % 8 * 128 + i % 8 * 16);
          asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
        }
        fence_async_proxy();
        sync_consumers();
      }
      sync_consumers();
      const float shrink[2] = {words.row_scales[c.row], words.row_scales[c.row + 8]};
      scale_rows(sums, shrink);
      const uint64_t probs = wgmma_descriptor(shared.probs());
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kLatentKeys / 16; ++k) {
        const uint64_t values = values_of<kIsCodes>(shared.tile(place.buffer), kHalf / 64, k);
        wgmma_values<kHalf>(sums, next_wgmma_k(probs, k), values);
      }
      wgmma_commit();
      wgmma_wait<0>();
      if (c.lane == 0) arrive(shared.empty(place.buffer));
      leave_probs();
      place.advance();
    }
    sync_consumers();
    const float inverse[2] = {words.row_scales[c.row], words.row_scales[c.row + 8]};
    store_sums(p, shared, segment, sums, c, inverse, 1);
  }
}

// Loader::load(p, shared, words) is called by all warps of the first warpgroup, before the wait for the kernel before.
template <typename Loader>
__device__ inline void attention_latent_wgmma(const LatentWgmmaKernelParams& p, char* smem) {
  char* const aligned = smem + (1024 - shared_address(smem) % 1024) % 1024;
  const Shared shared{shared_address(aligned)};
  SharedWords& words = *reinterpret_cast<SharedWords*>(aligned + 3 * kLatentTileBytes + kLatentPartBytes + 128);
  let_dependents_launch();
  if (threadIdx.x == 0) {
    if (Loader::kMerges) words.cuts[0].num_parts = words.cuts[1].num_parts = 0;
    if (!Loader::kIsCodes) prefetch_map(p.kv);
    for (int buffer = 0; buffer < kBuffers; ++buffer) {
      for (int group = 0; group < kGroups; ++group) init_barrier(shared.full(buffer, group), Loader::kArrivals);
      init_barrier(shared.empty(buffer), kConsumerThreads / 32);
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      init_barrier(shared.segment_full(slot), 1);
      init_barrier(shared.segment_empty(slot), kConsumerThreads / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Loader::kLoadRegisters));
    Loader::load(p, shared, words);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Loader::kRegisters));
    wait_for_inputs();
    Consumer c;
    c.thread = static_cast<int>(threadIdx.x) % 128;
    c.lane = c.thread % 32;
    c.group = c.lane / 4;
    c.pair = c.lane % 4;
    c.row = c.thread / 32 * 16 + c.group;
    if (threadIdx.x < 256) {
      attend_left<Loader::kIsCodes, Loader::kMerges>(p, shared, words, c);
    } else {
      attend_right<Loader::kIsCodes>(p, shared, words, c);
    }
    if constexpr (Loader::kMerges) merge_cuts(p, words.cuts, shared.q());
  }
}

}  // namespace spate::cuda
