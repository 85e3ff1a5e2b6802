// The loop of prefill attention on wgmma and TMA: attention_prefill_wgmma.cu over a paged cache,
// kernel/latent/latent_expanded_wgmma.cu over keys and values that lie in a row.
//
// An item is 128 rows of a sequence: heads that share keys times query tokens. One CTA an SM takes items from a list that
// the lengths on the device define. One warp loads; two warpgroups have 64 rows each and take turns: while one
// multiplies, the other computes its softmax. Each starts the scores of its next tile, of the next item too, beside the
// values of the last. Sums of a row are scaled down only when its maximum grows by 2^8.
//
// A class Tiles says what a kernel reads and where it lies. Its members:
//   Params                         the kernel's: attention (AttentionPagedKernelParams), q, work_counters, packed_heads,
//                                  num_head_tiles, and its own
//   kKeyDim, kValueDim, kQStages   widths of a head's keys and values, multiples of 64; 1 or 2
//   kPartBytes                     in shared memory, from 64 columns of a tile to the next 64
//   kKeyGroupBytes, kValueGroupBytes   from 8 keys of a tile to the next 8
//   place_of(params, i, n)         tile of queries and of heads of item i of a sequence's n
//   prefetch(params)               its tensor maps
//   Tiles(params, work, item)      for the warp that loads
//   find(tile)                     what must be known to load a tile; asked a tile ahead
//   load_keys(tile, found, shared, barrier), load_values(...)
//   load_key_scales(...)           optional: factors of the keys' scores, f32; load_keys expects their bytes too
#pragma once

#include "backend/cuda/kernel/attention/attention_prefill_wgmma.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/grid_dependency.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/primitive/tma.h"
#include "backend/cuda/kernel/primitive/wgmma_attention.h"

namespace spate::cuda {

constexpr int kConsumerWarps = 4 * kPrefillWgmmaConsumers;
// Probabilities may exceed 1 by as much before all sums are scaled down: most tiles spare themselves that.
constexpr float kBaseSlackLog2 = 8.0f;

template <class Tiles>
constexpr bool kHasKeyScales = requires(const Tiles& tiles) { &Tiles::load_key_scales; };

// 128 rows: what the warpgroups that multiply must know of them. The warp that loads leaves it in shared memory.
struct AttentionItem {
  int first_token;  // of the step
  int num_queries;
  int first_head;
  int first_position;
  int begin_key, end_key;  // that any of its queries sees, half-open
  int first_key;           // of the first tile of keys
  int num_tiles;           // of keys; 0: no more work
};

__device__ inline int tile_first_key(const AttentionItem& item, int tile) {
  return item.first_key + tile * kPrefillWgmmaKeys;
}

// Stages of Q, K and V, then a barrier for each that says it is full and one that it is empty.
template <class Tiles>
struct AttentionShared {
  static constexpr uint32_t kQBytes = kPrefillWgmmaRows * Tiles::kKeyDim * 2,
                            kKeyBytes = kPrefillWgmmaKeys * Tiles::kKeyDim * 2,
                            kValueBytes = kPrefillWgmmaKeys * Tiles::kValueDim * 2;
  uint32_t base;

  __device__ uint32_t q(int stage) const { return base + static_cast<uint32_t>(stage) * kQBytes; }
  __device__ uint32_t k(int stage) const { return q(Tiles::kQStages) + static_cast<uint32_t>(stage) * kKeyBytes; }
  __device__ uint32_t v(int stage) const {
    return k(kPrefillWgmmaStages) + static_cast<uint32_t>(stage) * kValueBytes;
  }
  __device__ uint32_t q_full(int stage) const { return barrier(0, stage); }
  __device__ uint32_t q_empty(int stage) const { return barrier(1, stage); }
  __device__ uint32_t k_full(int stage) const { return barrier(2, stage); }
  __device__ uint32_t k_empty(int stage) const { return barrier(3, stage); }
  __device__ uint32_t v_full(int stage) const { return barrier(4, stage); }
  __device__ uint32_t v_empty(int stage) const { return barrier(5, stage); }
  __device__ uint32_t key_scales(int stage) const {
    return barrier(6, 0) + static_cast<uint32_t>(stage) * kPrefillWgmmaKeys * 4;
  }

 private:
  __device__ uint32_t barrier(int kind, int stage) const {
    return v(kPrefillWgmmaStages) + static_cast<uint32_t>(kind * kPrefillWgmmaStages + stage) * 8;
  }
};

// A place in a ring of stages.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// --- the warp that loads ---------------------------------------------------------------------------------------------

// The items of the CTA. Sequence by sequence, section of heads by section, the last queries, which have the most keys,
// first. Lane i counts for the i-th of 32 sequences, so that a hundred without items (decode rows that another kernel
// has) cost four reads instead of a hundred, one behind the other. All lanes call.
template <class Tiles>
class AttentionWork {
 public:
  using Params = typename Tiles::Params;
  __device__ explicit AttentionWork(const Params& p) : p_(p), next_(static_cast<int>(blockIdx.x)) {
    tile_queries_ = kPrefillWgmmaRows / p.packed_heads;
    read_sequences();
  }
  // False: none left.
  __device__ bool next(AttentionItem& item) {
    const AttentionPagedKernelParams& p = p_.attention;
    const int idx = next_ = __shfl_sync(0xffffffffu, next_, 0);
    uint32_t reach = 0;
    while ((reach = __ballot_sync(0xffffffffu, first_item_ + through_ > idx)) == 0) {
      if (first_seq_ + kWarpSize >= p.num_seqs) return false;
      first_item_ += __shfl_sync(0xffffffffu, through_, kWarpSize - 1);
      first_key_ += __shfl_sync(0xffffffffu, keys_through_, kWarpSize - 1);
      first_seq_ += kWarpSize;
      read_sequences();
    }
    if (threadIdx.x % kWarpSize == 0) next_ = static_cast<int>(gridDim.x + atomicAdd(p_.work_counters, 1u));
    const int found = __ffs(static_cast<int>(reach)) - 1;
    seq_ = first_seq_ + found;
    const int first_token = p.cu_seqlens_q[seq_], query_len = p.cu_seqlens_q[seq_ + 1] - first_token;
    const int seq_len = p.seq_lens[seq_], num_items = num_items_of(query_len);
    first_key_row_ = first_key_ + __shfl_sync(0xffffffffu, keys_through_, found) - seq_len;
    const int item_idx = idx - first_item_ - (__shfl_sync(0xffffffffu, through_, found) - num_items);
    const auto [tile, head_tile] = Tiles::place_of(p_, item_idx, num_items);
    const int first_query = tile * tile_queries_;
    item.first_token = first_token + first_query;
    item.num_queries = min(tile_queries_, query_len - first_query);
    item.first_head = head_tile * p_.packed_heads;
    item.first_position = seq_len - query_len + first_query;
    item.end_key = item.first_position + item.num_queries;
    item.begin_key = p.window > 0 ? max(0, item.first_position - p.window + 1) : 0;
    item.first_key = item.begin_key / kPrefillWgmmaBoxKeys * kPrefillWgmmaBoxKeys;
    item.num_tiles = (item.end_key - item.first_key + kPrefillWgmmaKeys - 1) / kPrefillWgmmaKeys;
    return true;
  }
  // Of the item.
  __device__ int seq() const { return seq_; }
  // Keys of the sequences before it.
  __device__ int first_key_row() const { return first_key_row_; }

 private:
  __device__ int num_items_of(int query_len) const {
    return (query_len + tile_queries_ - 1) / tile_queries_ * p_.num_head_tiles;
  }
  // Sequence first_seq_ + lane.
  __device__ void read_sequences() {
    const AttentionPagedKernelParams& p = p_.attention;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, seq = first_seq_ + lane;
    through_ = keys_through_ = 0;
    if (seq < p.num_seqs) {
      const int query_len = p.cu_seqlens_q[seq + 1] - p.cu_seqlens_q[seq];
      keys_through_ = p.seq_lens[seq];
      if (keys_through_ > 0 && !(p.skips_decodes && query_len == 1)) through_ = num_items_of(query_len);
    }
#pragma unroll
    for (int delta = 1; delta < kWarpSize; delta *= 2) {
      const int lower = __shfl_up_sync(0xffffffffu, through_, delta);
      const int lower_keys = __shfl_up_sync(0xffffffffu, keys_through_, delta);
      if (lane >= delta) {
        through_ += lower;
        keys_through_ += lower_keys;
      }
    }
  }

  const Params& p_;
  int next_, tile_queries_;
  int first_seq_ = 0, first_item_ = 0, first_key_ = 0;  // of the 32 sequences
  int through_ = 0, keys_through_ = 0;                  // items and keys of the 32 up to the lane's
  int seq_ = 0, first_key_row_ = 0;
};

template <class Tiles>
__device__ inline void load_tiles(const typename Tiles::Params& params, const AttentionShared<Tiles>& shared,
                                  AttentionItem* slots) {
  using Shared = AttentionShared<Tiles>;
  const int lane = threadIdx.x % kWarpSize;
  AttentionWork<Tiles> work(params);
  AttentionItem item;
  RingPlace<Tiles::kQStages> q_place;
  RingPlace<kPrefillWgmmaStages> k_place, v_place;
  while (work.next(item)) {
    const auto load_q = [&] {
      wait_barrier(shared.q_empty(q_place.stage), q_place.parity ^ 1);
      if (lane == 0) {
        const uint32_t full = shared.q_full(q_place.stage);
        slots[q_place.stage] = item;
        arrive_expecting(full, Shared::kQBytes);
#pragma unroll
        for (int part = 0; part < Tiles::kKeyDim / 64; ++part) {
          copy_box_3d(shared.q(q_place.stage) + part * (kPrefillWgmmaRows * 128), params.q, 64 * part, item.first_head,
                     item.first_token, full);
        }
      }
      q_place.advance();
    };
    const Tiles tiles(params, work, item);
    auto place = tiles.find(item.num_tiles - 1), last_place = place;
    for (int tile = item.num_tiles - 1; tile >= -1; --tile) {
      const auto next_place = tiles.find(tile - 1);
      if (tile >= 0) {
        wait_barrier(shared.k_empty(k_place.stage), k_place.parity ^ 1);
        tiles.load_keys(tile, place, shared.k(k_place.stage), shared.k_full(k_place.stage));
        if constexpr (kHasKeyScales<Tiles>) {
          tiles.load_key_scales(tile, place, shared.key_scales(k_place.stage), shared.k_full(k_place.stage));
        }
        k_place.advance();
        if (tile == item.num_tiles - 1) load_q();
      }
      if (tile + 1 < item.num_tiles) {
        wait_barrier(shared.v_empty(v_place.stage), v_place.parity ^ 1);
        tiles.load_values(tile + 1, last_place, shared.v(v_place.stage), shared.v_full(v_place.stage));
        v_place.advance();
      }
      last_place = place;
      place = next_place;
    }
  }
  wait_barrier(shared.q_empty(q_place.stage), q_place.parity ^ 1);
  if (lane == 0) {
    slots[q_place.stage].num_tiles = 0;
    arrive(shared.q_full(q_place.stage));
    // The last CTA to find no more work resets the counters for the next launch.
    if (atomicAdd(params.work_counters + 1, 1u) == gridDim.x - 1) {
      params.work_counters[0] = 0;
      params.work_counters[1] = 0;
    }
  }
}

// --- the warpgroups that multiply -------------------------------------------------------------------------------------

// Named barriers: one a warpgroup for its turn to multiply, then one a warpgroup for its own threads.
__device__ inline void wait_for_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory"); }
__device__ inline void give_turn(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory"); }
__device__ inline void sync_group(int group) { asm volatile("bar.sync %0, 128;" ::"r"(3 + group) : "memory"); }

template <class Tiles>
struct Consumer {
  using Shared = AttentionShared<Tiles>;
  static constexpr int kValueDim = Tiles::kValueDim;

  const typename Tiles::Params& params;
  const Shared& shared;
  const AttentionItem* slots;
  int group_idx, thread, head_shift;
  RingPlace<Tiles::kQStages> q_place;
  RingPlace<kPrefillWgmmaStages> k_place, v_place;
  float s[kPrefillWgmmaKeys / 2], o[kValueDim / 2];
  float base[2], sum[2];  // of two rows: probabilities are 2^(score - base); this thread's part of their sum
  uint32_t prob[kPrefillWgmmaKeys / 16][4];

  __device__ int lane() const { return thread % kWarpSize; }
  __device__ int row() const { return 64 * group_idx + thread / kWarpSize * 16 + lane() / 4; }

  template <int kCount>
  __device__ static void clear(float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = 0.0f;
  }

  __device__ void multiply_scores() {
    const uint32_t q = shared.q(q_place.stage) + static_cast<uint32_t>(group_idx) * 64 * 128;
    const uint32_t tile = shared.k(k_place.stage);
    fence_registers(s);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Tiles::kKeyDim / kWgmmaK; ++k) {
      const uint32_t part = static_cast<uint32_t>(k / 4), offset = static_cast<uint32_t>(k % 4) * 32;
      wgmma_scores<kPrefillWgmmaKeys>(s, wgmma_rows(q + part * kPrefillWgmmaRows * 128 + offset, 1024),
                                      wgmma_rows(tile + part * Tiles::kPartBytes + offset, Tiles::kKeyGroupBytes),
                                      k > 0);
    }
    wgmma_commit();
  }
  __device__ void multiply_values() {
    const uint32_t tile = shared.v(v_place.stage);
    fence_registers(o);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kPrefillWgmmaKeys / kWgmmaK; ++k) {
      wgmma_values_from_registers<kValueDim>(o, prob[k],
                                             wgmma_columns(tile + static_cast<uint32_t>(k) * 2 * Tiles::kValueGroupBytes,
                                                           Tiles::kPartBytes, Tiles::kValueGroupBytes));
    }
    wgmma_commit();
  }
  __device__ void release(uint32_t empty) const {
    if (lane() == 0) arrive(empty);
  }

  __device__ void scale_scores() {
    const uint32_t scales = shared.key_scales(k_place.stage) + static_cast<uint32_t>(lane() % 4) * 8;
#pragma unroll
    for (int n = 0; n < kPrefillWgmmaKeys / 8; ++n) {
      float scale[2];
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(scale[0]), "=f"(scale[1])
                   : "r"(scales + 32 * n)
                   : "memory");
#pragma unroll
      for (int i = 0; i < 4; ++i) s[4 * n + i] *= scale[i % 2];
    }
    __syncwarp();  // all lanes have read them before the stage is released
  }
  // Scores of keys that a row does not see.
  __device__ void mask(const AttentionItem& item, int first_key) {
    const int column = 2 * (lane() % 4), window = params.attention.window;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = item.first_position + ((row() + 8 * half) >> head_shift);
      const int last = position - first_key - column, before = window > 0 ? last - window : -1024;
#pragma unroll
      for (int n = 0; n < kPrefillWgmmaKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& value = s[4 * n + 2 * half + i];
          if (8 * n + i > last || 8 * n + i <= before) value = -kInfinity;
        }
      }
    }
  }
  // s becomes 2^(scores - base) of each row; `shrink` is what its sums so far must be multiplied with.
  __device__ void softmax(float (&shrink)[2]) {
    constexpr int kChains = 4;  // of maxima and of sums: what one has to wait for is a quarter
    const float scale = params.attention.softmax_scale_log2e;
    float minus_base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float chain[kChains];
#pragma unroll
      for (int i = 0; i < kPrefillWgmmaKeys / 4; ++i) {
        const float value = s[i / 2 * 4 + 2 * half + i % 2];
        chain[i % kChains] = i < kChains ? value : fmaxf(chain[i % kChains], value);
      }
      float largest = fmaxf(fmaxf(chain[0], chain[1]), fmaxf(chain[2], chain[3]));
      largest = fmaxf(largest, shuffle_xor(largest, 1));
      largest = scale * fmaxf(largest, shuffle_xor(largest, 2));
      const float old = base[half];
      if (largest > old + kBaseSlackLog2) base[half] = largest;
      minus_base[half] = base[half] == -kInfinity ? 0.0f : -base[half];  // a row that has seen no key yet
      shrink[half] = exp2_approx(old + minus_base[half]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float chain[kChains] = {};
#pragma unroll
      for (int i = 0; i < kPrefillWgmmaKeys / 4; ++i) {
        float& value = s[i / 2 * 4 + 2 * half + i % 2];
        value = exp2_approx(__fmaf_rn(value, scale, minus_base[half]));
        chain[i % kChains] += value;
      }
      sum[half] = __fmaf_rn(sum[half], shrink[half], (chain[0] + chain[1]) + (chain[2] + chain[3]));
    }
  }
  __device__ void pack_probabilities() {
#pragma unroll
    for (int k = 0; k < kPrefillWgmmaKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) prob[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
  }

  // Rows of V without a key that is seen may hold anything: zeros, since 0 times infinity is not 0.
  __device__ void clear_unseen_values(const AttentionItem& item, int tile) {
    const int first_key = tile_first_key(item, tile);
    if (first_key >= item.begin_key && first_key + kPrefillWgmmaKeys <= item.end_key) return;
    wait_barrier(shared.v_full(v_place.stage), v_place.parity);
    constexpr int kChunks = kValueDim / 8;
    for (int i = thread; i < kPrefillWgmmaKeys * kChunks; i += 128) {
      const int row = i / kChunks, chunk = i % kChunks;
      if (first_key + row >= item.begin_key && first_key + row < item.end_key) continue;
      const uint32_t to = shared.v(v_place.stage) + static_cast<uint32_t>(row / 8 * Tiles::kValueGroupBytes +
                                                                  chunk / 8 * Tiles::kPartBytes + row % 8 * 128 +
                                                                  chunk % 8 * 16);
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
    }
    fence_async_proxy();
    sync_group(group_idx);
  }

  __device__ void store(const AttentionItem& item, const float (&parts)[2]) {
    const AttentionPagedKernelParams& p = params.attention;
    const int pair = lane() % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = parts[half] + shuffle_xor(parts[half], 1);
      total += shuffle_xor(total, 2);
      const float factor = 1.0f / total;
      const int own_row = row() + 8 * half, query = own_row >> head_shift;
      const int head = item.first_head + (own_row & ((1 << head_shift) - 1));
      Bf16* out =
          static_cast<Bf16*>(p.out) + (item.first_token + query) * p.out_token_stride + head * p.out_head_stride;
#pragma unroll
      for (int i = 0; i < kValueDim / 32; ++i) {
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* value = &o[4 * (4 * i + j) + 2 * half];
          w[j] = pack_bf16(value[0] * factor, value[1] * factor);
        }
        // A transpose over the 4 lanes of a row: lane `pair` gets columns 32 i + 8 pair .. + 7.
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          const uint32_t other = shuffle_xor(pair & 1 ? w[j] : w[j + 1], 1);
          if (pair & 1) {
            w[j] = other;
          } else {
            w[j + 1] = other;
          }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t other = shuffle_xor(pair & 2 ? w[j] : w[j + 2], 2);
          if (pair & 2) {
            w[j] = other;
          } else {
            w[j + 2] = other;
          }
        }
        if (query < item.num_queries) {
          *reinterpret_cast<uint4*>(out + 32 * i + 8 * pair) = make_uint4(w[0], w[1], w[2], w[3]);
        }
      }
    }
  }

  __device__ void next_item(AttentionItem& item) const {
    wait_barrier(shared.q_full(q_place.stage), q_place.parity);
    item = slots[q_place.stage];
  }
  __device__ void start_rows() {
    base[0] = base[1] = -kInfinity;
    sum[0] = sum[1] = 0.0f;
  }
  // The scores are there: their operands are free, and what rows do not see becomes -infinity.
  __device__ void finish_scores(const AttentionItem& item, int tile) {
    fence_registers(s);
    if constexpr (kHasKeyScales<Tiles>) scale_scores();
    release(shared.k_empty(k_place.stage));
    k_place.advance();
    if (tile == 0) {
      release(shared.q_empty(q_place.stage));
      q_place.advance();
    }
    const int first_key = tile_first_key(item, tile), window = params.attention.window;
    if (first_key + kPrefillWgmmaKeys > item.first_position + 1 || (window > 0 && first_key < item.end_key - window)) {
      mask(item, first_key);
    }
  }
  __device__ void finish_values() {
    wgmma_wait<0>();
    fence_registers(o);
    release(shared.v_empty(v_place.stage));
    v_place.advance();
  }
  // Starts the next tile's scores and the values of the one that `prob` is of; leaves when the scores are there.
  __device__ void start_products() {
    wait_barrier(shared.k_full(k_place.stage), k_place.parity);
    wait_for_turn(group_idx);
    multiply_scores();
    wait_barrier(shared.v_full(v_place.stage), v_place.parity);
    multiply_values();
    give_turn(1 - group_idx);
    wgmma_wait<1>();
  }

  __device__ void run() {
    AttentionItem item;
    next_item(item);
    if (item.num_tiles == 0) return;
    if (group_idx == 1) give_turn(0);
    float shrink[2];
    start_rows();
    clear(o);
    wait_barrier(shared.k_full(k_place.stage), k_place.parity);
    multiply_scores();
    wgmma_wait<0>();
    finish_scores(item, item.num_tiles - 1);
    softmax(shrink);
    pack_probabilities();
    for (;;) {
      clear_unseen_values(item, item.num_tiles - 1);
#pragma unroll 1
      for (int tile = item.num_tiles - 2; tile >= 0; --tile) {
        start_products();
        finish_scores(item, tile);
        softmax(shrink);
        finish_values();
        pack_probabilities();
        if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
          for (int i = 0; i < kValueDim / 2; ++i) o[i] *= shrink[i / 2 % 2];
        }
      }
      if (item.num_tiles > 1) clear_unseen_values(item, 0);
      // The scores of the next item's first tile are computed beside the values of this one's last.
      AttentionItem next;
      next_item(next);
      if (next.num_tiles == 0) break;
      start_products();
      finish_scores(next, next.num_tiles - 1);
      const float last_sum[2] = {sum[0], sum[1]};
      start_rows();
      softmax(shrink);
      finish_values();
      pack_probabilities();
      store(item, last_sum);
      clear(o);
      item = next;
    }
    wait_barrier(shared.v_full(v_place.stage), v_place.parity);
    multiply_values();
    wgmma_wait<0>();
    fence_registers(o);
    store(item, sum);
  }
};

template <class Tiles>
__device__ inline void attention_prefill_wgmma(const typename Tiles::Params& params) {
  extern __shared__ char smem[];
  __shared__ AttentionItem slots[Tiles::kQStages];
  const AttentionShared<Tiles> shared{(shared_address(smem) + 1023) / 1024 * 1024};
  let_dependents_launch();
  if (threadIdx.x == 0) {
    prefetch_map(params.q);
    Tiles::prefetch(params);
    for (int stage = 0; stage < kPrefillWgmmaStages; ++stage) {
      init_barrier(shared.q_full(stage), 1);
      init_barrier(shared.k_full(stage), 1);
      init_barrier(shared.v_full(stage), 1);
      init_barrier(shared.q_empty(stage), kConsumerWarps);
      init_barrier(shared.k_empty(stage), kConsumerWarps);
      init_barrier(shared.v_empty(stage), kConsumerWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_inputs();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x < kWarpSize) load_tiles<Tiles>(params, shared, slots);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int thread = static_cast<int>(threadIdx.x) - 128;
    Consumer<Tiles> consumer{params, shared, slots, thread / 128, thread % 128, 31 - __clz(params.packed_heads)};
    consumer.run();
  }
}

}  // namespace spate::cuda
