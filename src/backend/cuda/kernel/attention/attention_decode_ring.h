// Decode attention on Hopper, for every format of the cache: attention_decode_ring.cu, attention_decode_ring_int8.cu.
// What a format must have:
//
//   kHeadDim, kWarps, kStages     warps of a CTA; stages of the ring of each
//   Stage                         what a tile of 16 keys takes in shared memory; its size a multiple of 1,024 bytes
//   kBytes                        of it that copies bring
//   copy(params, place, at, bar)  starts the copies of a tile
//   Query                         operand B of the scores: column `group` is query head first_head + `group`.
//     fetch(p, token, first_head, num_heads), prepare(p)
//                                 starts the loads of q; makes of them what the products take
//     scores(stage, score)        scores times softmax_scale_log2e: of keys group and group + 8 (rows) by heads 2 pair
//                                 and 2 pair + 1
//   out_column(m, i)              which column is row group + 8 i of product m
//   values(stage, m, a)           operand A: 16 columns by keys, of the products m to m + kValuesAtOnce - 1
//   add_product(acc, a, b)        acc += values by weights; pack(a, b): two weights of b
//   value_scale(stage, key)       if kHasScales
//   clear_value(stage, key)       if not kHasScales: makes a value zeros; all lanes call it
//   kHasMerger                    whether a warp beside the others adds their sums while they go on with the next piece
#pragma once

#include "backend/cuda/kernel/attention/attention_decode_ring_params.h"
#include "backend/cuda/kernel/attention/attention_decode_work.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/cluster.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {

// Swizzled rows of 128 bytes: where 16 bytes of one lie.
__device__ inline uint32_t swizzled(uint32_t rows, int row, int chunk) {
  return rows + static_cast<uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

// Within 2 ulp, as exp2f; but results below 2^-126 become 0. 0 of -infinity.
__device__ inline float fast_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// 2^-n of 2^n, -126 <= n <= 126; 2^127 of 0.
__device__ inline float inverse_of_power(float power) { return __uint_as_float(0x7f000000u - __float_as_uint(power)); }

// True in one lane, that the compiler knows to be one: operands of copies need no loop over lanes. All lanes call it.
__device__ inline bool elect_lane() {
  uint32_t is_elected;
  asm volatile(
      "{ .reg .pred elected; elect.sync _|elected, 0xffffffff; "
      "selp.u32 %0, 1, 0, elected; }"
      : "=r"(is_elected));
  return is_elected != 0;
}

// Brings a line that another kernel may still write to L2, where writes meet: no value is read.
__device__ inline void prefetch_line(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// What this thread wrote, or saw written, is seen by threads of other CTAs that see what it writes next.
__device__ inline void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ inline int decode_tiles(KeyRange keys) { return (keys.end - keys.begin + kTile - 1) / kTile; }

// The work of all CTAs is a list of tiles: sequence by sequence, in each kv head by kv head (or 8 query heads of one:
// a head tile). A CTA has an equal run of it, which is pieces of the lists of one head tile. Where a run would end
// less than kDecodeRingMinCut tiles from an end of a head tile it ends there: sums of few tiles cost more to add than
// they balance. Of an INT8 cache, where all sequences have as many tiles, runs of whole head tiles are taken if they
// are at most 1/16 longer: 3 us less at 32 x 2,048 keys (not measured in bf16). Uniform in a warp.
struct DecodePiece {
  int seq = 0, head_tile = 0;
  int first = 0, count = 0;    // of the head tile's tiles
  int before = 0, behind = 0;  // tiles of the run
  int seq_tiles_before = 0;    // of the list, before the sequence
  int num_tiles = 0;           // of the sequence and a head tile
  KeyRange keys = {};

  __device__ void set_sequence(const AttentionPagedKernelParams& p, int id) {
    seq = id;
    keys = seen_keys(p, id);
    num_tiles = decode_tiles(keys);
  }

  // The sequence of tile `at` of the list. lane_tiles: of sequence `lane` and a head tile.
  __device__ void find_sequence(const AttentionPagedKernelParams& p, int num_head_tiles, int lane_tiles, int at) {
    const int lane = threadIdx.x % kWarpSize;
    seq_tiles_before = 0;
    int tiles = lane_tiles * num_head_tiles;
#pragma unroll 1
    for (int first_seq = 0;; first_seq += kWarpSize) {
      if (first_seq > 0) {
        const int mine = first_seq + lane;
        tiles = mine < p.num_seqs ? decode_tiles(seen_keys(p, mine)) * num_head_tiles : 0;
      }
      int through = tiles;  // up to this sequence
#pragma unroll
      for (int delta = 1; delta < kWarpSize; delta *= 2) {
        const int lower = __shfl_up_sync(0xffffffffu, through, delta);
        if (lane >= delta) through += lower;
      }
      const uint32_t reach = __ballot_sync(0xffffffffu, seq_tiles_before + through > at);
      if (reach != 0) {
        const int found = __ffs(static_cast<int>(reach)) - 1;
        seq_tiles_before += __shfl_sync(0xffffffffu, through - tiles, found);
        set_sequence(p, first_seq + found);
        break;
      }
      seq_tiles_before += __shfl_sync(0xffffffffu, through, kWarpSize - 1);
    }
  }

  // The first piece of run `run_idx`; false if the run is empty. list_tiles: of the list.
  __device__ bool seek(const AttentionPagedKernelParams& p, int num_head_tiles, int lane_tiles, int list_tiles,
                       int run_tiles, int run_idx) {
    int begin = 0, end = list_tiles;
#pragma unroll 1
    for (int bound = run_idx + 1; bound >= run_idx; --bound) {
      const int at = bound * run_tiles;
      if (at >= list_tiles) continue;
      find_sequence(p, num_head_tiles, lane_tiles, at);
      head_tile = (at - seq_tiles_before) / num_tiles;
      first = at - seq_tiles_before - head_tile * num_tiles;
      if (min(first, num_tiles - first) < kDecodeRingMinCut) {
        head_tile += 2 * first > num_tiles ? 1 : 0;
        first = 0;
      }
      begin = seq_tiles_before + head_tile * num_tiles + first;
      if (bound > run_idx) end = begin;
    }
    if (begin >= end) return false;
    if (head_tile == num_head_tiles) next_sequence(p, num_head_tiles);
    count = min(num_tiles - first, end - begin);
    behind = end - begin - count;
    return true;
  }
  __device__ void next_sequence(const AttentionPagedKernelParams& p, int num_head_tiles) {
    head_tile = 0;
    seq_tiles_before += num_head_tiles * num_tiles;
    do set_sequence(p, seq + 1);
    while (num_tiles == 0);
  }
  __device__ bool next(const AttentionPagedKernelParams& p, int num_head_tiles) {
    if (behind == 0) return false;
    if (++head_tile == num_head_tiles) next_sequence(p, num_head_tiles);
    first = 0;
    before += count;
    count = min(num_tiles, behind);
    behind -= count;
    return true;
  }
  // The tiles of a run are dealt to the warps by turns: the first of the piece that `warp` has.
  template <int kWarps>
  __device__ int first_idx(int warp) const {
    return (warp + kWarps - before % kWarps) % kWarps;
  }
  __device__ int first_key(int idx) const { return keys.begin + (first + idx) * kTile; }
};

// A tile in the cache.
struct TilePlace {
  int block_id, kv_head, token_in_block;
};

// What the warps have summed of a piece.
template <typename Format>
struct WarpSums {
  float acc[Format::kWarps][kHeads][Format::kHeadDim + 4];  // 4: the lanes of a store hit different banks
  float max[Format::kWarps][kHeads], sum[Format::kWarps][kHeads];
};

template <typename Format>
struct DecodeRingShared {
  typename Format::Stage ring[Format::kWarps][Format::kStages];
  WarpSums<Format> sums;
  uint64_t full[Format::kWarps][Format::kStages];
  uint64_t summed, merged;  // the sums are there; the merging warp has read them
  bool is_last;
};

// Copies the warp's tiles into its ring, those of all pieces of its CTA's run one behind the other.
template <typename Format>
class TileLoader {
 public:
  // seq_row: of the piece's sequence.
  __device__ TileLoader(const AttentionDecodeRingParams& params, DecodePiece piece, int seq_row, uint32_t ring,
                        uint32_t full, int tiles_per_kv_head, int num_head_tiles)
      : params_(params),
        piece_(piece),
        seq_row_(seq_row),
        ring_(ring),
        full_(full),
        tiles_per_kv_head_(tiles_per_kv_head),
        num_head_tiles_(num_head_tiles),
        idx_(piece.first_idx<Format::kWarps>(warp())) {
    find_blocks();
  }
  // Whether there is a next copy in this piece and it brings no key of this step, which is the sequence's last.
  __device__ bool is_next_old() const {
    return idx_ < piece_.count && piece_.first_key(idx_) + kTile < piece_.keys.end;
  }
  // Starts the next copy, if there is one. All lanes have read what the stage held.
  __device__ void load(int stage) {
    const AttentionPagedKernelParams& p = params_.attention;
    bool is_found = found_ < kWarpSize;
    while (idx_ >= piece_.count) {
      const int seq = piece_.seq;
      if (!piece_.next(p, num_head_tiles_)) return;
      if (piece_.seq != seq) seq_row_ = p.seq_rows[piece_.seq];
      idx_ = piece_.template first_idx<Format::kWarps>(warp());
      is_found = false;
    }
    if (!is_found) find_blocks();
    const int block_id = __shfl_sync(0xffffffffu, block_id_, found_++);
    if (elect_lane()) {
      const uint32_t bar = full_ + 8 * static_cast<uint32_t>(stage);
      arrive_expecting(bar, Format::kBytes);
      Format::copy(params_, {block_id, kv_head_, piece_.first_key(idx_) & (p.kv.kv_block_size - 1)},
                   ring_ + static_cast<uint32_t>(stage) * static_cast<uint32_t>(sizeof(typename Format::Stage)), bar);
    }
    idx_ += Format::kWarps;
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarpSize; }
  // Lane i: the block of the i-th next tile of the warp in the piece.
  __device__ void find_blocks() {
    const AttentionPagedKernelParams& p = params_.attention;
    const int idx = idx_ + Format::kWarps * static_cast<int>(threadIdx.x % kWarpSize);
    const int shift = 31 - __clz(p.kv.kv_block_size);
    const int32_t* blocks = p.block_table + seq_row_ * p.block_table_stride;
    block_id_ = idx < piece_.count ? blocks[piece_.first_key(idx) >> shift] : 0;
    found_ = 0;
    kv_head_ = piece_.head_tile / tiles_per_kv_head_;
  }

  const AttentionDecodeRingParams& params_;
  DecodePiece piece_;
  int seq_row_;
  uint32_t ring_, full_;
  int tiles_per_kv_head_, num_head_tiles_;
  int idx_;  // in the piece, of the next tile
  int block_id_ = 0, found_ = 0, kv_head_ = 0;
};

// Weighted sums of parts of an item's keys, in order: part i has the largest score max(i), the sum of 2^ sum(i) and
// the sums of values(i).
template <int kAtOnce, typename MaxOf, typename SumOf, typename ValuesOf>
__device__ inline void merge_parts(int num_parts, MaxOf max_of, SumOf sum_of, ValuesOf values_of, float& total_max,
                                   float& total_sum, float4& total) {
  total_max = -kInfinity;
  total_sum = 0.0f;
  total = {};
#pragma unroll 1
  for (int first = 0; first < num_parts; first += kAtOnce) {
    float max[kAtOnce], sum[kAtOnce], base = total_max;
    float4 values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int part = min(first + i, num_parts - 1);
      max[i] = first + i < num_parts ? max_of(part) : -kInfinity;
      sum[i] = sum_of(part);
      values[i] = values_of(part);
      base = fmaxf(base, max[i]);
    }
    if (base == -kInfinity) continue;  // warps without keys
    const float shrink = fast_exp2(total_max - base);
    total_max = base;
    total_sum *= shrink;
    total = {total.x * shrink, total.y * shrink, total.z * shrink, total.w * shrink};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float weight = fast_exp2(max[i] - base);
      total_sum = __fmaf_rn(sum[i], weight, total_sum);
      total.x = __fmaf_rn(values[i].x, weight, total.x);
      total.y = __fmaf_rn(values[i].y, weight, total.y);
      total.z = __fmaf_rn(values[i].z, weight, total.z);
      total.w = __fmaf_rn(values[i].w, weight, total.w);
    }
  }
}

// What a warp sums of the keys of a piece.
template <typename Format>
struct HeadSums {
  static constexpr int kProducts = Format::kHeadDim / 16;  // along k of scores; along the columns of the sums
  float acc[kProducts][4];                                 // columns of v by heads 2 pair, 2 pair + 1
  float base[2], sum[2];                                   // of both heads; sums of this lane's keys
  float per_unit;                                          // if kHasScales: 2^-n; acc is in units of 2^n

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[m][i] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      base[j] = -kInfinity;
      sum[j] = 0.0f;
    }
    per_unit = 0x1p126f;
  }

  // The tile of keys first_key to first_key + 15, of which the query sees [begin, end).
  __device__ void add(typename Format::Stage& tile, const typename Format::Query& q, int first_key, int begin,
                      int end) {
    const int group = threadIdx.x % kWarpSize / 4;
    const bool is_cut = first_key < begin || first_key + kTile > end;
    const auto is_seen = [&](int key) { return first_key + key >= begin && first_key + key < end; };

    float score[4], value_scale[2] = {1.0f, 1.0f};
    q.scores(tile, score);
    if constexpr (Format::kHasScales) {
#pragma unroll
      for (int i = 0; i < 2; ++i) value_scale[i] = Format::value_scale(tile, group + 8 * i);
    }
    if (is_cut) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!is_seen(group + i / 2 * 8)) score[i] = -kInfinity;
      }
      if constexpr (Format::kHasScales) {
#pragma unroll
        for (int i = 0; i < 2; ++i) value_scale[i] = is_seen(group + 8 * i) ? value_scale[i] : 0.0f;
      } else {  // values that no sequence has may be NaN
#pragma unroll 1
        for (int key = 0; key < kTile; ++key) {
          if (!is_seen(key)) Format::clear_value(tile, key);
        }
        fence_async_proxy();
        __syncwarp();
      }
    }

    // Sums are scaled down only when a maximum grows by 2^8, or a value's scale by 2^6: weights stay below 2^15.
    const float highest[2] = {fmaxf(score[0], score[2]), fmaxf(score[1], score[3])};
    bool has_grown = highest[0] > base[0] + 8.0f || highest[1] > base[1] + 8.0f;
    const float largest_scale = fmaxf(value_scale[0], value_scale[1]);
    if constexpr (Format::kHasScales) has_grown = has_grown || largest_scale * per_unit >= 64.0f;
    if (__any_sync(0xffffffffu, has_grown)) {
      float unit_shrink = 1.0f;
      if constexpr (Format::kHasScales) {
        float largest = fmaxf(largest_scale, shuffle_xor(largest_scale, 4));
        largest = fmaxf(largest, shuffle_xor(largest, 8));
        largest = fminf(fmaxf(largest, shuffle_xor(largest, 16)), 0x1p126f);
        const float grown = fminf(per_unit, inverse_of_power(__uint_as_float(__float_as_uint(largest) & 0x7f800000u)));
        unit_shrink = grown * inverse_of_power(per_unit);
        per_unit = grown;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float new_base = fmaxf(highest[j], shuffle_xor(highest[j], 4));
        new_base = fmaxf(new_base, shuffle_xor(new_base, 8));
        new_base = fmaxf(base[j], fmaxf(new_base, shuffle_xor(new_base, 16)));
        const float shrink = fast_exp2(base[j] - new_base);
        base[j] = new_base;
        sum[j] *= shrink;
        const float acc_shrink = Format::kHasScales ? shrink * unit_shrink : shrink;
#pragma unroll
        for (int m = 0; m < kProducts; ++m) {
          acc[m][j] *= acc_shrink;
          acc[m][2 + j] *= acc_shrink;
        }
      }
    }
    float prob[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) prob[i] = fast_exp2(score[i] - base[i % 2]);
    uint32_t rows[2];
    if constexpr (Format::kHasScales) {
      sum[0] += prob[0] + prob[2];
      sum[1] += prob[1] + prob[3];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float weight = value_scale[i] * per_unit;
        rows[i] = Format::pack(prob[2 * i] * weight, prob[2 * i + 1] * weight);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) rows[i] = Format::pack(prob[2 * i], prob[2 * i + 1]);
      sum[0] += low_float(rows[0]) + low_float(rows[1]);
      sum[1] += high_float(rows[0]) + high_float(rows[1]);
    }
    const uint32_t b[2] = {transpose_8x8(rows[0]), transpose_8x8(rows[1])};
#pragma unroll
    for (int m = 0; m < kProducts; m += Format::kValuesAtOnce) {
      uint32_t a[Format::kValuesAtOnce][4];
      Format::values(tile, m, a);
#pragma unroll
      for (int n = 0; n < Format::kValuesAtOnce; ++n) Format::add_product(acc[m + n], a[n], b);
    }
  }

  __device__ void store(WarpSums<Format>& sums) {
    const int warp = threadIdx.x / kWarpSize, group = threadIdx.x % kWarpSize / 4, pair = threadIdx.x % 4;
    if constexpr (Format::kHasScales) {
      const float unit = inverse_of_power(per_unit);
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[m][i] *= unit;
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int mask = 4; mask < kWarpSize; mask *= 2) sum[j] += shuffle_xor(sum[j], mask);
      if (group == 0) {
        sums.max[warp][2 * pair + j] = base[j];
        sums.sum[warp][2 * pair + j] = sum[j];
      }
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
        sums.acc[warp][2 * pair + j][Format::out_column(m, 0)] = acc[m][j];
        sums.acc[warp][2 * pair + j][Format::out_column(m, 1)] = acc[m][2 + j];
      }
    }
  }
};

// Of 4 columns of a head.
template <typename Format>
__device__ inline void merge_warps(const WarpSums<Format>& sums, int head, int quad, float& max, float& sum,
                                   float4& total) {
  merge_parts<4>(
      Format::kWarps, [&](int w) { return sums.max[w][head]; }, [&](int w) { return sums.sum[w][head]; },
      [&](int w) { return *reinterpret_cast<const float4*>(&sums.acc[w][head][4 * quad]); }, max, sum, total);
}

__device__ inline void store_out(const AttentionPagedKernelParams& p, int token, int head, int quad, float4 total,
                                 float sum) {
  const float scale = __fdividef(1.0f, sum);  // 1 <= sum < 2^126: within 2 ulp
  Bf16* out = static_cast<Bf16*>(p.out) + token * p.out_token_stride + static_cast<int64_t>(head) * p.out_head_stride;
  *reinterpret_cast<uint2*>(out + 4 * quad) =
      make_uint2(pack_bf16(total.x * scale, total.y * scale), pack_bf16(total.z * scale, total.w * scale));
}

template <typename Shared>
__device__ inline Shared& aligned_shared(char* dynamic_shared) {
  const uint32_t begin = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared));
  return *reinterpret_cast<Shared*>(dynamic_shared + (1024 - begin % 1024) % 1024);
}

// Before the inputs are waited for. The kernel before may still write them.
template <bool kHasScales>
__device__ inline void prefetch_inputs(const AttentionDecodeRingParams& params, int first_seq) {
  const AttentionPagedKernelParams& p = params.attention;
  if (threadIdx.x == 0) prefetch_map(params.kv);
  if (threadIdx.x == 1) prefetch_line(p.seq_lens + first_seq);
  if (threadIdx.x == 2) prefetch_line(p.cu_seqlens_q + first_seq);
  if (threadIdx.x == 3) prefetch_line(p.seq_rows + first_seq);
  if constexpr (kHasScales) {
    if (threadIdx.x == 4) prefetch_map(params.scales);
  }
}

template <typename Format>
__device__ inline void attention_decode_ring(const AttentionDecodeRingParams& params) {
  using Shared = DecodeRingShared<Format>;
  constexpr int kHeadDim = Format::kHeadDim, kWarps = Format::kWarps, kStages = Format::kStages;
  constexpr int kStageBytes = sizeof(typename Format::Stage);
  constexpr bool kHasMerger = Format::kHasMerger;
  static_assert(kStageBytes % 1024 == 0);
  static_assert(sizeof(Shared) + 1024 <= decode_ring_shared_bytes(kHeadDim, Format::kHasScales, kWarps));
  extern __shared__ char dynamic_shared[];
  Shared& shared = aligned_shared<Shared>(dynamic_shared);
  let_dependents_launch();
  const AttentionPagedKernelParams& p = params.attention;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const bool is_merger = kHasMerger && warp == kWarps;
  const uint32_t full = shared_address(&shared.full[is_merger ? 0 : warp][0]);
  const uint32_t ring = shared_address(&shared.ring[is_merger ? 0 : warp][0]);
  const uint32_t summed = shared_address(&shared.summed), merged = shared_address(&shared.merged);
  if (lane == 0) {
    if (is_merger) {
      init_barrier(summed, kWarps);
      init_barrier(merged, 1);
    } else {
      for (int stage = 0; stage < kStages; ++stage) init_barrier(full + 8 * static_cast<uint32_t>(stage), 1);
    }
    fence_barrier_init();
  }
  prefetch_inputs<Format::kHasScales>(params, 0);
  __syncthreads();
  if (!params.reads_early) wait_for_inputs();

  // --- this CTA's run
  const int tiles_per_kv_head = (p.heads_per_kv_head + kHeads - 1) / kHeads;
  const int num_head_tiles = p.kv.num_kv_heads * tiles_per_kv_head;
  const int lane_row = lane < p.num_seqs ? p.seq_rows[lane] : 0;
  const int lane_tiles = lane < p.num_seqs ? decode_tiles(seen_keys(p, lane)) : 0;
  int list_tiles = lane_tiles, most_tiles = lane_tiles;
  uint32_t least_tiles = static_cast<uint32_t>(lane_tiles) - 1;  // less 1, so that dummies do not count
  for (int seq = lane + kWarpSize; seq < p.num_seqs; seq += kWarpSize) {
    const int tiles = decode_tiles(seen_keys(p, seq));
    list_tiles += tiles;
    most_tiles = max(most_tiles, tiles);
    least_tiles = min(least_tiles, static_cast<uint32_t>(tiles) - 1);
  }
  list_tiles = __reduce_add_sync(0xffffffffu, list_tiles) * num_head_tiles;
  most_tiles = __reduce_max_sync(0xffffffffu, most_tiles);
  least_tiles = __reduce_min_sync(0xffffffffu, least_tiles) + 1;
  const int num_ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  int run_tiles = max((list_tiles + num_ctas - 1) / num_ctas, kDecodeRingMinRun);
  if (Format::kHasScales && most_tiles > 0 && static_cast<uint32_t>(most_tiles) == least_tiles) {
    const int whole_tiles = (run_tiles + most_tiles - 1) / most_tiles * most_tiles;
    if (whole_tiles - run_tiles <= run_tiles / 16) run_tiles = whole_tiles;
  }
  DecodePiece piece;
  if (cta * run_tiles >= list_tiles || !piece.seek(p, num_head_tiles, lane_tiles, list_tiles, run_tiles, cta)) {
    return wait_for_inputs();
  }
  const int shuffled_row = __shfl_sync(0xffffffffu, lane_row, piece.seq % kWarpSize);
  const int seq_row = piece.seq < kWarpSize ? shuffled_row : p.seq_rows[piece.seq];

  TileLoader<Format> loader(params, piece, seq_row, ring, full, tiles_per_kv_head, num_head_tiles);

  struct Heads {
    int token, first, count;
  };
  const auto heads_of = [&](const DecodePiece& of) {
    const int kv_head = of.head_tile / tiles_per_kv_head;
    const int first_in_group = (of.head_tile - kv_head * tiles_per_kv_head) * kHeads;
    return Heads{p.cu_seqlens_q[of.seq], kv_head * p.heads_per_kv_head + first_in_group,
                 min(kHeads, p.heads_per_kv_head - first_in_group)};
  };
  typename Format::Query q;
  HeadSums<Format> sums;
  int stage = 0, num_started = 0;
  uint32_t phase = 0, num_merged = 0;
  if (params.reads_early) {
    while (!is_merger && num_started < kStages && loader.is_next_old()) loader.load(num_started++);
  }
  wait_for_inputs();
#pragma unroll 1
  for (; !is_merger && num_started < kStages; ++num_started) loader.load(num_started);
  const auto fetch_query = [&] {
    const Heads heads = heads_of(piece);
    q.fetch(p, heads.token, heads.first, heads.count);
  };
  if (!is_merger) fetch_query();
#pragma unroll 1
  for (;;) {
    const bool all_merge = !kHasMerger || piece.behind == 0;  // of the last piece: nothing else is left to do
    if (!is_merger) {
      q.prepare(p);
      sums.clear();
      const int begin = p.window > 0 ? max(0, piece.keys.end - p.window) : 0, end = piece.keys.end;
#pragma unroll 1
      for (int idx = piece.template first_idx<kWarps>(warp); idx < piece.count; idx += kWarps) {
        wait_barrier(full + 8 * static_cast<uint32_t>(stage), phase);
        sums.add(shared.ring[warp][stage], q, piece.first_key(idx), begin, end);
        __syncwarp();
        loader.load(stage);
        if (++stage == kStages) {
          stage = 0;
          phase ^= 1;
        }
      }
      if (!all_merge) {  // the next query comes while the sums are stored
        piece.next(p, num_head_tiles);
        fetch_query();
      }
      if (kHasMerger && num_merged > 0) wait_barrier(merged, (num_merged - 1) & 1);
      sums.store(shared.sums);
      __syncwarp();
      if (!all_merge) {
        if (lane == 0) arrive(summed);
        ++num_merged;
        continue;
      }
    }
    const Heads heads = heads_of(piece);
    // The sums of all warps.
    const int thread = all_merge ? static_cast<int>(threadIdx.x) : lane;
    const int num_threads = all_merge ? static_cast<int>(blockDim.x) : kWarpSize;
    const auto sync = [&] {
      if (all_merge) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    };
    if (all_merge) {
      __syncthreads();
    } else {
      wait_barrier(summed, num_merged & 1);
    }
    const bool has_first = piece.first == 0, is_whole = has_first && piece.count == piece.num_tiles;
    const int num_quads = heads.count * (kHeadDim / 4);
    float* partial_stats = params.partial + int64_t{2} * num_ctas * kHeads * kHeadDim;
    const auto row_of = [&](int slot, int head) {
      return reinterpret_cast<float4*>(params.partial + (static_cast<int64_t>(slot) * kHeads + head) * kHeadDim);
    };
    float total_max, total_sum;
    float4 total;
#pragma unroll 1
    for (int i = thread; i < num_quads; i += num_threads) {
      const int head = i / (kHeadDim / 4), quad = i % (kHeadDim / 4);
      merge_warps(shared.sums, head, quad, total_max, total_sum, total);
      if (is_whole) {
        store_out(p, heads.token, heads.first + head, quad, total, total_sum);
        continue;
      }
      const int slot = has_first ? 2 * cta + 1 : 2 * cta;
      row_of(slot, head)[quad] = total;
      if (quad == 0) {
        partial_stats[2 * (slot * kHeads + head)] = total_max;
        partial_stats[2 * (slot * kHeads + head) + 1] = total_sum;
      }
    }
    if (kHasMerger && !all_merge) {
      __syncwarp();
      if (lane == 0) arrive(merged);
    }
    if (!is_whole) {  // the CTA that comes last adds the sums of all, in order
      // CTAs that share a head tile leave partial sums: that with its first tile in slot 2 cta + 1, others in 2 cta.
      // Each cut that seek() leaves in the head tile parts two of them, all with tiles of it: num_done counts them.
      const int item_begin = piece.seq_tiles_before + piece.head_tile * piece.num_tiles;
      const int first_cta = (item_begin + kDecodeRingMinCut + run_tiles - 1) / run_tiles - 1;
      const int last_cta = (item_begin + piece.num_tiles - kDecodeRingMinCut) / run_tiles;
      sync();
      if (thread == 0) {
        fence_device();
        const int before = static_cast<int>(atomicAdd(params.num_done + first_cta, 1u));
        shared.is_last = before == last_cta - first_cta;
        if (shared.is_last) params.num_done[first_cta] = 0;
        fence_device();
      }
      sync();
      const auto slot_of = [&](int part) { return part == 0 ? 2 * first_cta + 1 : 2 * (first_cta + part); };
#pragma unroll 1
      for (int i = thread; shared.is_last && i < num_quads; i += num_threads) {
        const int head = i / (kHeadDim / 4), quad = i % (kHeadDim / 4);
        const auto stats_of = [&](int part) { return partial_stats + 2 * (slot_of(part) * kHeads + head); };
        merge_parts<8>(
            last_cta - first_cta + 1, [&](int part) { return __ldcg(stats_of(part)); },
            [&](int part) { return __ldcg(stats_of(part) + 1); },
            [&](int part) { return __ldcg(row_of(slot_of(part), head) + quad); }, total_max, total_sum, total);
        store_out(p, heads.token, heads.first + head, quad, total, total_sum);
      }
    }
    if (!kHasMerger) __syncthreads();  // the sums are read
    if (!piece.next(p, num_head_tiles)) return;
    if (!is_merger) fetch_query();
    ++num_merged;
  }
}

// --- few head tiles: a cluster each

template <typename Format>
struct DecodeClusterShared {
  typename Format::Stage ring[Format::kWarps][Format::kStages];
  WarpSums<Format> sums;
  float4 parts[kDecodeClusterCtas][Format::kHeadDim / 4];  // of query head `rank`: the sums of each CTA
  float4 part_ends[kDecodeClusterCtas];                    // their largest score and sum of 2^
  uint64_t full[Format::kWarps][Format::kStages];
  uint64_t has_parts;
};

// A cluster has the tiles of a head tile, dealt by turns to the warps of its CTAs. CTA `rank` adds the sums of query
// head `rank`, which the others have written to its shared memory.
template <typename Format>
__device__ inline void attention_decode_cluster(const AttentionDecodeRingParams& params) {
  using Shared = DecodeClusterShared<Format>;
  constexpr int kHeadDim = Format::kHeadDim, kWarps = Format::kWarps, kStages = Format::kStages;
  constexpr int kCtas = kDecodeClusterCtas, kTurn = kCtas * kWarps;
  static_assert(kCtas == kHeads);
  static_assert(sizeof(Shared) + 1024 <= decode_cluster_shared_bytes(kHeadDim, Format::kHasScales));
  extern __shared__ char dynamic_shared[];
  Shared& shared = aligned_shared<Shared>(dynamic_shared);
  let_dependents_launch();
  const AttentionPagedKernelParams& p = params.attention;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, rank = cluster_rank();
  const int first_in_group = static_cast<int>(blockIdx.x) / kCtas * kHeads, kv_head = static_cast<int>(blockIdx.y);
  const int seq = static_cast<int>(blockIdx.z);
  const int first_head = kv_head * p.heads_per_kv_head + first_in_group;
  const int num_heads = min(kHeads, p.heads_per_kv_head - first_in_group);
  const uint32_t full = shared_address(&shared.full[warp][0]), ring = shared_address(&shared.ring[warp][0]);
  if (lane == 0) {
    for (int stage = 0; stage < kStages; ++stage) init_barrier(full + 8 * static_cast<uint32_t>(stage), 1);
    if (warp == 0) init_barrier(shared_address(&shared.has_parts), 1);
    fence_barrier_init();
  }
  prefetch_inputs<Format::kHasScales>(params, seq);
  __syncwarp();
  if (threadIdx.x == 0 && rank < num_heads) {
    arrive_expecting(shared_address(&shared.has_parts), kCtas * (kHeadDim / 4 + 1) * 16);
  }
  cluster_arrive_relaxed();  // this CTA runs: its shared memory may be written
  if (!params.reads_early) wait_for_inputs();

  const int seq_row = p.seq_rows[seq], token = p.cu_seqlens_q[seq];
  const KeyRange keys = seen_keys(p, seq);
  const int num_tiles = decode_tiles(keys), first = warp * kCtas + rank;
  const int32_t* blocks = p.block_table + seq_row * p.block_table_stride;
  const int shift = 31 - __clz(p.kv.kv_block_size);
  int block_id = 0, found = kWarpSize, next = first;
  const auto load = [&](int stage) {
    if (next >= num_tiles) return;
    if (found == kWarpSize) {  // lane i: the block of the i-th next tile of the warp
      const int tile = next + kTurn * lane;
      block_id = tile < num_tiles ? blocks[(keys.begin + tile * kTile) >> shift] : 0;
      found = 0;
    }
    const int block = __shfl_sync(0xffffffffu, block_id, found++);
    if (elect_lane()) {
      const uint32_t bar = full + 8 * static_cast<uint32_t>(stage);
      arrive_expecting(bar, Format::kBytes);
      Format::copy(params, {block, kv_head, (keys.begin + next * kTile) & (p.kv.kv_block_size - 1)},
                   ring + static_cast<uint32_t>(stage) * static_cast<uint32_t>(sizeof(typename Format::Stage)), bar);
    }
    next += kTurn;
  };
  int num_started = 0;
  if (params.reads_early) {
    while (num_started < kStages && next < num_tiles - 1) load(num_started++);  // the last one has the step's key
  }
  wait_for_inputs();
#pragma unroll 1
  for (; num_started < kStages; ++num_started) load(num_started);

  HeadSums<Format> sums;
  sums.clear();
  typename Format::Query q;
  if (first < num_tiles) {
    q.fetch(p, token, first_head, num_heads);
    q.prepare(p);
  }
  const int begin = p.window > 0 ? max(0, keys.end - p.window) : 0;
  int stage = 0;
  uint32_t phase = 0;
#pragma unroll 1
  for (int tile = first; tile < num_tiles; tile += kTurn) {
    wait_barrier(full + 8 * static_cast<uint32_t>(stage), phase);
    sums.add(shared.ring[warp][stage], q, keys.begin + tile * kTile, begin, keys.end);
    __syncwarp();
    load(stage);
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  sums.store(shared.sums);
  __syncthreads();

  cluster_wait();  // all CTAs run
  float max, sum;
  float4 total;
#pragma unroll 1
  for (int i = threadIdx.x; i < num_heads * (kHeadDim / 4); i += kWarps * kWarpSize) {
    const int head = i / (kHeadDim / 4), quad = i % (kHeadDim / 4);
    merge_warps(shared.sums, head, quad, max, sum, total);
    const uint32_t bar = shared_of(shared_address(&shared.has_parts), head);
    send_four(shared_of(shared_address(&shared.parts[rank][quad]), head), total.x, total.y, total.z, total.w, bar);
    if (quad == 0) send_four(shared_of(shared_address(&shared.part_ends[rank]), head), max, sum, 0.0f, 0.0f, bar);
  }
  if (rank >= num_heads || threadIdx.x >= kHeadDim / 4) return;
  wait_cluster_barrier(shared_address(&shared.has_parts), 0);  // who has been sent all of it may end
  if (num_tiles == 0) return;
  merge_parts<kCtas>(
      kCtas, [&](int cta) { return shared.part_ends[cta].x; }, [&](int cta) { return shared.part_ends[cta].y; },
      [&](int cta) { return shared.parts[cta][threadIdx.x]; }, max, sum, total);
  store_out(p, token, first_head + rank, static_cast<int>(threadIdx.x), total, sum);
}

}  // namespace spate::cuda
