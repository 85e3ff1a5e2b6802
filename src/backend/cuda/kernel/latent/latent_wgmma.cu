// WHAT       attention_latent.cu's formula on wgmma: few query tokens over long caches, or prompts.
// SHAPES     As AttentionLatentKernelParams says, bf16, kv_lora_rank 512, qk_rope_head_dim 64.
// LAYOUT     latent.h; every row of q at a multiple of 16 bytes.
// NUMERICS   Scores, maxima and sums in fp32; probabilities are rounded to bf16 for the product with the latent
//            vectors, their sum is not. Online softmax over tiles of 64 keys at absolute positions. Where a sequence's
//            keys are split depends on the step's lengths.
// WORK       A CTA takes 64 rows (query token, head) and a run of tiles. One warp loads tiles by TMA, two in flight;
//            each is keys (all 576 columns) and values (the first 512) at once. Warpgroup 0 multiplies q and keys and
//            makes the probabilities; both multiply them with the values, 256 columns each: 0 from its registers, 1 from
//            shared memory. So a tile takes about 2,200 clocks of the tensor core, where its 72 KB take 4,000 of an SM's
//            share of the memory.
//            latent_combine merges what several CTAs have of an item.
// ROOFLINE   1,152 bytes a key over 4.65 TB/s, up to about 90 rows a sequence; else 2,176 FLOP a row and key.
// WARM       1 s: fast, bf16, latent
// LIMITS     sm_90a.
// TESTS      spate-conformance --backend cuda --filter attention_latent
#include "backend/cuda/kernel/latent/latent_wgmma.h"

#include "backend/cuda/kernel/latent/latent_work.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/tma.h"
#include "backend/cuda/kernel/primitive/wgmma.h"
#include "backend/cuda/kernel/primitive/wgmma_values.h"

namespace spate::cuda {

constexpr int kBuffers = 2;
constexpr int kGroups = 3;  // of parts of a tile, a barrier each: the first scores need not wait for the whole tile
constexpr int kPartsOfGroup = kLatentParts / kGroups;
constexpr int kConsumerThreads = 128 * kLatentConsumers;
constexpr int kHalf = kLatentRank / 2;  // columns of the values a warpgroup has
constexpr int kSlots = 2;               // of segments on their way to the consumers

// A run of tiles of one item; num_rows 0: no more work.
struct Segment {
  int first_token;  // of the sequence, in the step
  int first_row, num_rows;
  int first_limit;  // keys that the first query token sees
  int seq_len;
  int begin_tile, end_tile;
  int slot;  // of partial sums; -1: the segment is the whole item
};

struct Shared {
  uint32_t base;

  __device__ uint32_t q() const { return base; }
  __device__ uint32_t tile(int buffer) const {
    return base + static_cast<uint32_t>(1 + buffer) * kLatentTileBytes;
  }
  __device__ uint32_t probs() const { return base + 3 * kLatentTileBytes; }
  __device__ uint32_t barrier(int i) const { return probs() + kLatentPartBytes + static_cast<uint32_t>(i) * 8; }
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
};
static_assert(Shared::kNumBarriers * 8 <= 128 && sizeof(SharedWords) <= 384);

struct Place {
  int buffer = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++buffer < kBuffers) return;
    buffer = 0;
    parity ^= 1;
  }
};

// --- the warp that loads ---------------------------------------------------------------------------------------------

class Work {
 public:
  __device__ explicit Work(const LatentWgmmaKernelParams& p) : p_(p), lane_(static_cast<int>(threadIdx.x) % kWarpSize) {
    int before = 0;
    for (int first = 0; first < p.attention.num_seqs; first += kWarpSize) {
      const int units = units_of(first + lane_), sum = scan(units);
      if (p.splits && blockIdx.x == 0 && first + lane_ < p.attention.num_seqs) {
        p.first_unit[first + lane_] = before + sum - units;
      }
      before += __shfl_sync(0xffffffffu, sum, kWarpSize - 1);
    }
    const int cta = static_cast<int>(blockIdx.x);
    if (p.splits) {
      if (cta == 0 && lane_ == 0) *p.num_units = before;
      const int num_of_cta = units_of_cta(before, p.num_ctas);
      next_ = min(cta * num_of_cta, before);
      end_ = min(next_ + num_of_cta, before);
    } else {
      next_ = cta;
      end_ = before;
    }
  }

  // The same in all lanes.
  __device__ bool next(Segment& segment) {
    if (next_ >= end_) return false;
    int first_unit = 0;
    const int seq = find(next_, first_unit);
    const AttentionLatentKernelParams& p = p_.attention;
    const LatentSequence s = latent_sequence(p, seq);
    const int in_seq = next_ - first_unit;
    blocks_ = p.block_table + p.seq_rows[seq] * p.block_table_stride;
    // Without splits the items with the most keys first.
    const int item = p_.splits ? in_seq / s.num_tiles : s.num_items - 1 - in_seq;
    segment.first_token = s.first_token;
    segment.first_row = item * kLatentRows;
    segment.num_rows = min(kLatentRows, s.query_len * p.num_heads - segment.first_row);
    segment.first_limit = s.seq_len - s.query_len + 1;
    segment.seq_len = s.seq_len;
    segment.slot = -1;
    if (p_.splits) {
      segment.begin_tile = in_seq % s.num_tiles;
      segment.end_tile = min(s.num_tiles, segment.begin_tile + end_ - next_);
      next_ += segment.end_tile - segment.begin_tile;
      const bool is_first = segment.begin_tile == 0;
      if (!is_first || segment.end_tile < s.num_tiles) segment.slot = 2 * static_cast<int>(blockIdx.x) + is_first;
    } else {
      const int last_token = (segment.first_row + segment.num_rows - 1) / p.num_heads;
      segment.begin_tile = 0;
      segment.end_tile = (segment.first_limit + last_token + kLatentKeys - 1) / kLatentKeys;
      next_ += static_cast<int>(gridDim.x);
    }
    return true;
  }
  __device__ const int32_t* blocks() const { return blocks_; }

 private:
  __device__ int units_of(int seq) const {
    if (seq >= p_.attention.num_seqs) return 0;
    const LatentSequence s = latent_sequence(p_.attention, seq);
    return p_.splits ? s.num_items * s.num_tiles : s.num_items;
  }
  __device__ int scan(int value) const {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, value, distance);
      if (lane_ >= distance) value += other;
    }
    return value;
  }
  // The sequence of a unit, and the units before that sequence.
  __device__ int find(int unit, int& first_unit) const {
    int before = 0;
    for (int first = 0; first < p_.attention.num_seqs; first += kWarpSize) {
      const int units = units_of(first + lane_), sum = scan(units);
      const uint32_t behind = __ballot_sync(0xffffffffu, before + sum > unit);
      if (behind != 0) {
        const int idx = __ffs(static_cast<int>(behind)) - 1;
        first_unit = before + __shfl_sync(0xffffffffu, sum - units, idx);
        return first + idx;
      }
      before += __shfl_sync(0xffffffffu, sum, kWarpSize - 1);
    }
    return 0;
  }

  const LatentWgmmaKernelParams& p_;
  const int lane_;
  const int32_t* blocks_ = nullptr;
  int next_, end_;
};

__device__ inline void load_tiles(const LatentWgmmaKernelParams& p, const Shared& shared, SharedWords& words) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int block_size = p.attention.kv.kv_block_size;
  const uint32_t box_bytes = static_cast<uint32_t>(p.box_keys) * 128;
  Work work(p);
  Place place;
  for (int n = 0;; ++n) {
    Segment segment{};
    const bool has_work = work.next(segment);
    const int slot = n % kSlots;
    wait_barrier(shared.segment_empty(slot), (n / kSlots & 1) ^ 1);
    if (lane == 0) {
      words.segments[slot] = segment;
      arrive(shared.segment_full(slot));
    }
    if (!has_work) return;
    for (int tile = segment.begin_tile; tile < segment.end_tile; ++tile) {
      const int num_keys = min(kLatentKeys, segment.seq_len - tile * kLatentKeys);
      const int num_boxes = (num_keys + p.box_keys - 1) / p.box_keys;
      const int own_key = tile * kLatentKeys + min(lane, num_boxes - 1) * p.box_keys;
      const int own_row = work.blocks()[own_key / block_size] * block_size + own_key % block_size;
      wait_barrier(shared.empty(place.buffer), place.parity ^ 1);
      if (lane == 0) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          arrive_expecting(shared.full(place.buffer, group),
                           static_cast<uint32_t>(num_boxes * kPartsOfGroup) * box_bytes);
        }
      }
      __syncwarp();
      for (int first = 0; first < num_boxes * kLatentParts; first += kWarpSize) {
        const int i = first + lane, part = i / num_boxes, box = i % num_boxes;
        const int row = __shfl_sync(0xffffffffu, own_row, box);
        if (part >= kLatentParts) continue;
        copy_box(shared.tile(place.buffer) + static_cast<uint32_t>(part) * kLatentPartBytes +
                     static_cast<uint32_t>(box) * box_bytes,
                 p.kv, part * 64, row, shared.full(place.buffer, part / kPartsOfGroup));
      }
      place.advance();
    }
  }
}

// --- the warpgroups that multiply ------------------------------------------------------------------------------------

// Both: what was written before is seen after.
__device__ inline void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory"); }
// Warpgroup 1 has read the probabilities; warpgroup 0 waits for it before it writes the next ones.
__device__ inline void leave_probs() { asm volatile("bar.arrive 2, %0;" ::"n"(kConsumerThreads) : "memory"); }
__device__ inline void await_probs_left() { asm volatile("bar.sync 2, %0;" ::"n"(kConsumerThreads) : "memory"); }

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Where the consumers stand, and what they know of the segment.
struct Consumer {
  int thread, lane, group, pair;
  int row;  // of a warpgroup's 64: this thread has it and row + 8
};

__device__ inline uint32_t swizzled(int row, int chunk) {
  return static_cast<uint32_t>(row * 128 + ((chunk ^ row % 8) << 4));
}

// All consumers: the rows of q, zeros where there are none.
__device__ inline void load_q(const AttentionLatentKernelParams& p, const Shared& shared, const Segment& segment,
                              int thread) {
  constexpr int kChunks = kLatentWidth / 8;
  for (int i = thread; i < kLatentRows * kChunks; i += kConsumerThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool exists = row < segment.num_rows;
    const int flat = segment.first_row + (exists ? row : 0);
    const int64_t token = segment.first_token + flat / p.num_heads, head = flat % p.num_heads;
    const Bf16* from =
        chunk < kLatentRank / 8
            ? static_cast<const Bf16*>(p.q_latent) + token * p.q_latent_strides[0] + head * p.q_latent_strides[1] + chunk * 8
            : static_cast<const Bf16*>(p.q_rope) + token * p.q_rope_strides[0] + head * p.q_rope_strides[1] +
                  (chunk - kLatentRank / 8) * 8;
    copy_async_16(shared.q() + static_cast<uint32_t>(chunk / 8) * kLatentPartBytes + swizzled(row, chunk % 8), from,
                  exists);
  }
  commit_copies();
  wait_copies<0>();
  fence_async_proxy();
  sync_consumers();
}

// Takes the next segment; false: none is left.
__device__ inline bool next_segment(const Shared& shared, const SharedWords& words, int n, int lane, Segment& segment) {
  const int slot = n % kSlots;
  wait_barrier(shared.segment_full(slot), n / kSlots & 1);
  segment = words.segments[slot];
  __syncwarp();
  if (lane == 0) arrive(shared.segment_empty(slot));
  return segment.num_rows > 0;
}

// The sums of one warpgroup's 256 columns, over their rows' sums of probabilities or as they are.
__device__ inline void store_sums(const LatentWgmmaKernelParams& p, const Segment& segment, const float (&sums)[kHalf / 2],
                                  const Consumer& c, const float (&inverse)[2], int first_column) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = c.row + 8 * h;
    if (row >= segment.num_rows) continue;
    if (segment.slot >= 0) {
      float* to = p.partial_sums + (static_cast<int64_t>(segment.slot) * kLatentRows + row) * kLatentRank + first_column;
#pragma unroll
      for (int j = 0; j < kHalf / 8; ++j) {
        *reinterpret_cast<float2*>(to + 8 * j + 2 * c.pair) = make_float2(sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]);
      }
      continue;
    }
    const int flat = segment.first_row + row;
    const AttentionLatentKernelParams& a = p.attention;
    const int64_t token = segment.first_token + flat / a.num_heads, head = flat % a.num_heads;
    Bf16* to = static_cast<Bf16*>(a.out) + token * a.out_strides[0] + head * a.out_strides[1] + first_column;
#pragma unroll
    for (int j = 0; j < kHalf / 8; ++j) {
      *reinterpret_cast<uint32_t*>(to + 8 * j + 2 * c.pair) =
          pack_bf16(sums[4 * j + 2 * h] * inverse[h], sums[4 * j + 2 * h + 1] * inverse[h]);
    }
  }
}

__device__ inline void scale_rows(float (&sums)[kHalf / 2], const float (&scale)[2]) {
#pragma unroll
  for (int i = 0; i < kHalf / 2; ++i) sums[i] *= scale[i / 2 % 2];
}

// Warpgroup 0: scores, probabilities, columns 0 to 255.
__device__ inline void attend_left(const LatentWgmmaKernelParams& p, const Shared& shared, SharedWords& words,
                                   const Consumer& c) {
  const float scale_log2e = p.attention.softmax_scale_log2e;
  const uint64_t q = wgmma_descriptor(shared.q());
  Segment segment;
  Place place;
  bool has_probs = false;
  float sums[kHalf / 2];
  for (int n = 0; next_segment(shared, words, n, c.lane, segment); ++n) {
    load_q(p.attention, shared, segment, c.thread);
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
        wait_barrier(shared.full(place.buffer, group), place.parity);
        wgmma_fence();
#pragma unroll
        for (int part = group * kPartsOfGroup; part < (group + 1) * kPartsOfGroup; ++part) {
          const uint64_t keys = wgmma_descriptor(shared.tile(place.buffer) + part * kLatentPartBytes);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            wgmma_bf16<kLatentKeys>(scores, next_wgmma_k(q + part * (kLatentPartBytes >> 4), k), next_wgmma_k(keys, k));
          }
        }
      }
      wgmma_commit();
      wgmma_wait<0>();

      const int first_key = tile * kLatentKeys;
      if (first_key + kLatentKeys > smallest_limit) {
#pragma unroll
        for (int i = 0; i < kLatentKeys / 2; ++i) {
          if (first_key + i / 4 * 8 + 2 * c.pair + i % 2 >= limits[i / 2 % 2]) scores[i] = -kInfinity;
        }
      }
      float shrink[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float tile_max = -kInfinity;
#pragma unroll
        for (int i = 0; i < kLatentKeys / 4; ++i) tile_max = fmaxf(tile_max, scores[i / 2 * 4 + 2 * h + i % 2]);
        tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, 1));
        tile_max = fmaxf(tile_max, __shfl_xor_sync(0xffffffffu, tile_max, 2));
        const float new_max = fmaxf(largest[h], tile_max * scale_log2e);
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
      uint32_t probs[kLatentKeys / 16][4];
#pragma unroll
      for (int k = 0; k < kLatentKeys / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) probs[k][i] = pack_bf16(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
      }
      if (has_probs) await_probs_left();
      has_probs = true;
#pragma unroll
      for (int k = 0; k < kLatentKeys / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t to = shared.probs() + swizzled(c.row + i % 2 * 8, 2 * k + i / 2) + static_cast<uint32_t>(c.pair) * 4;
          asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(probs[k][i]) : "memory");
        }
      }
      if (c.pair == 0) {
        words.row_scales[c.row] = shrink[0];
        words.row_scales[c.row + 8] = shrink[1];
      }
      fence_async_proxy();
      sync_consumers();
      scale_rows(sums, shrink);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kLatentKeys / 16; ++k) {
        const uint64_t values = wgmma_columns(shared.tile(place.buffer) + k * 2048, kLatentPartBytes, 1024);
        wgmma_values_from_registers<kHalf>(sums, probs[k], values);
      }
      wgmma_commit();
      wgmma_wait<0>();
      if (c.lane == 0) arrive(shared.empty(place.buffer));
      place.advance();
    }

    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      total[h] += __shfl_xor_sync(0xffffffffu, total[h], 1);
      total[h] += __shfl_xor_sync(0xffffffffu, total[h], 2);
      inverse[h] = 1.0f / total[h];
      if (c.pair != 0) continue;
      if (segment.slot >= 0) {
        float* stats = p.partial_stats + (static_cast<int64_t>(segment.slot) * kLatentRows + c.row + 8 * h) * 2;
        *reinterpret_cast<float2*>(stats) = make_float2(largest[h], total[h]);
      }
    }
    // Warpgroup 1 has read the last scales when it leaves the probabilities.
    await_probs_left();
    has_probs = false;
    if (c.pair == 0) {
      words.row_scales[c.row] = inverse[0];
      words.row_scales[c.row + 8] = inverse[1];
    }
    sync_consumers();
    store_sums(p, segment, sums, c, inverse, 0);
  }
}

// Warpgroup 1: columns 256 to 511. It has time to clear the values behind the last key: a probability of zero times what
// lies there may be NaN.
__device__ inline void attend_right(const LatentWgmmaKernelParams& p, const Shared& shared, SharedWords& words,
                                    const Consumer& c) {
  Segment segment;
  Place place;
  float sums[kHalf / 2];
  for (int n = 0; next_segment(shared, words, n, c.lane, segment); ++n) {
    load_q(p.attention, shared, segment, 128 + c.thread);
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) sums[i] = 0.0f;
    for (int tile = segment.begin_tile; tile < segment.end_tile; ++tile) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) wait_barrier(shared.full(place.buffer, group), place.parity);
      const int num_keys = segment.seq_len - tile * kLatentKeys;
      if (num_keys < kLatentKeys) {
        const int pieces_of_part = (kLatentKeys - num_keys) * 8;
        for (int i = c.thread; i < pieces_of_part * (kLatentRank / 64); i += 128) {
          const uint32_t to = shared.tile(place.buffer) + static_cast<uint32_t>(i / pieces_of_part) * kLatentPartBytes +
                              static_cast<uint32_t>(num_keys * 128 + i % pieces_of_part * 16);
          asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
        }
        fence_async_proxy();
      }
      sync_consumers();
      const float shrink[2] = {words.row_scales[c.row], words.row_scales[c.row + 8]};
      scale_rows(sums, shrink);
      const uint64_t probs = wgmma_descriptor(shared.probs());
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kLatentKeys / 16; ++k) {
        const uint64_t values = wgmma_columns(shared.tile(place.buffer) + 4 * kLatentPartBytes + k * 2048, kLatentPartBytes, 1024);
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
    store_sums(p, segment, sums, c, inverse, kHalf);
  }
}

extern "C" __global__ void __launch_bounds__(kLatentThreads, 1)
    attention_latent_wgmma(const __grid_constant__ LatentWgmmaKernelParams p) {
  extern __shared__ char smem[];
  char* const aligned = smem + (1024 - shared_address(smem) % 1024) % 1024;
  const Shared shared{shared_address(aligned)};
  SharedWords& words = *reinterpret_cast<SharedWords*>(aligned + 3 * kLatentTileBytes + kLatentPartBytes + 128);
  let_dependents_launch();
  if (threadIdx.x == 0) {
    prefetch_map(p.kv);
    for (int buffer = 0; buffer < kBuffers; ++buffer) {
      for (int group = 0; group < kGroups; ++group) init_barrier(shared.full(buffer, group), 1);
      init_barrier(shared.empty(buffer), kConsumerThreads / 32);
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      init_barrier(shared.segment_full(slot), 1);
      init_barrier(shared.segment_empty(slot), kConsumerThreads / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_inputs();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x < 32) load_tiles(p, shared, words);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Consumer c;
    c.thread = static_cast<int>(threadIdx.x) % 128;
    c.lane = c.thread % 32;
    c.group = c.lane / 4;
    c.pair = c.lane % 4;
    c.row = c.thread / 32 * 16 + c.group;
    if (threadIdx.x < 256) {
      attend_left(p, shared, words, c);
    } else {
      attend_right(p, shared, words, c);
    }
  }
}

}  // namespace spate::cuda
