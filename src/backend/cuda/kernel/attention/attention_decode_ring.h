// Decode attention on Hopper, for every format of the cache: attention_decode_ring.cu, attention_decode_ring_int8.cu.
// What a format must have:
//
//   kHeadDim, kWarps, kStages     warps of a CTA; stages of the ring of each
//   Stage                         what a tile of 16 keys takes in shared memory; its size a multiple of 1,024 bytes
//   kBytes                        of it that copies bring
//   copy(params, place, at, bar)  starts the copies of a tile
//   q_column(c, i), out_column(m, i)
//                                 which column is k 2 pair + 8 i of product c; which is row group + 8 i of product m
//   keys(stage, c, a)             operand A: keys by 16 of k, of the products c to c + kKeysAtOnce - 1
//   values(stage, m, a)           operand A: 16 columns by keys, of the products m to m + kValuesAtOnce - 1
//   key_scale(stage, key), value_scale(stage, key), if kHasScales
#pragma once

#include "backend/cuda/kernel/attention/attention_decode_ring_params.h"
#include "backend/cuda/kernel/attention/attention_decode_work.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {

// Swizzled rows of 128 bytes: where 16 bytes of one lie.
__device__ inline uint32_t swizzled(uint32_t rows, int row, int chunk) {
  return rows + static_cast<uint32_t>(row * 128 + ((chunk ^ row % 8) << 4));
}

// The work of all CTAs is a list of tiles: sequence by sequence, in each kv head by kv head (or 8 query heads of one:
// a head tile). A CTA has an equal run of it, which is pieces of the lists of one head tile. Uniform in a warp.
struct DecodePiece {
  int seq = 0, head_tile = 0;
  int first = 0, count = 0;  // of the head tile's tiles
  int before = 0, behind = 0;  // tiles of the run
  int seq_tiles_before = 0;  // of the list, before the sequence
  int num_tiles = 0;         // of the sequence and a head tile
  KeyRange keys = {};

  __device__ void set_sequence(const AttentionPagedKernelParams& p, int id) {
    seq = id;
    keys = seen_keys(p, id);
    num_tiles = decode_tiles(keys);
  }
  __device__ static int decode_tiles(KeyRange keys) { return (keys.end - keys.begin + kTile - 1) / kTile; }

  // The first piece of the tiles [begin, end) of the list.
  __device__ void seek(const AttentionPagedKernelParams& p, int num_head_tiles, int begin, int end) {
    const int lane = threadIdx.x % kWarpSize;
    for (int first_seq = 0;; first_seq += kWarpSize) {
      const int mine = first_seq + lane;
      const int tiles = mine < p.num_seqs ? decode_tiles(seen_keys(p, mine)) * num_head_tiles : 0;
      int through = tiles;  // up to this sequence
#pragma unroll
      for (int delta = 1; delta < kWarpSize; delta *= 2) {
        const int lower = __shfl_up_sync(0xffffffffu, through, delta);
        if (lane >= delta) through += lower;
      }
      const uint32_t reach = __ballot_sync(0xffffffffu, seq_tiles_before + through > begin);
      if (reach != 0) {
        const int found = __ffs(static_cast<int>(reach)) - 1;
        seq_tiles_before += __shfl_sync(0xffffffffu, through - tiles, found);
        set_sequence(p, first_seq + found);
        break;
      }
      seq_tiles_before += __shfl_sync(0xffffffffu, through, kWarpSize - 1);
    }
    head_tile = (begin - seq_tiles_before) / num_tiles;
    first = (begin - seq_tiles_before) % num_tiles;
    count = min(num_tiles - first, end - begin);
    behind = end - begin - count;
  }
  __device__ bool next(const AttentionPagedKernelParams& p, int num_head_tiles) {
    if (behind == 0) return false;
    if (++head_tile == num_head_tiles) {
      head_tile = 0;
      seq_tiles_before += num_head_tiles * num_tiles;
      do set_sequence(p, seq + 1);
      while (num_tiles == 0);
    }
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

template <typename Format>
struct DecodeRingShared {
  typename Format::Stage ring[Format::kWarps][Format::kStages];
  float acc[Format::kWarps][kHeads][Format::kHeadDim + 4];  // 4: the lanes of a store hit different banks
  float max[Format::kWarps][kHeads], sum[Format::kWarps][kHeads];
  uint64_t full[Format::kWarps][Format::kStages];
  bool is_last;
};

// Copies the warp's tiles into its ring, those of all pieces of its CTA's run one behind the other.
template <typename Format>
class TileLoader {
 public:
  __device__ TileLoader(const AttentionDecodeRingParams& params, DecodePiece piece, uint32_t ring, uint32_t full,
                        int tiles_per_kv_head, int num_head_tiles)
      : params_(params),
        piece_(piece),
        ring_(ring),
        full_(full),
        tiles_per_kv_head_(tiles_per_kv_head),
        num_head_tiles_(num_head_tiles),
        idx_(piece.first_idx<Format::kWarps>(warp())) {
    find_blocks();
  }
  // Starts the next copy, if there is one. All lanes have read what the stage held.
  __device__ void load(int stage) {
    const AttentionPagedKernelParams& p = params_.attention;
    while (idx_ >= piece_.count) {
      if (!piece_.next(p, num_head_tiles_)) return;
      idx_ = piece_.template first_idx<Format::kWarps>(warp());
      find_blocks();
    }
    if (found_ == kWarpSize) find_blocks();
    const int block_id = __shfl_sync(0xffffffffu, block_id_, found_++);
    if (threadIdx.x % kWarpSize == 0) {
      const uint32_t bar = full_ + 8 * static_cast<uint32_t>(stage);
      arrive_expecting(bar, Format::kBytes);
      Format::copy(params_,
                   {block_id, piece_.head_tile / tiles_per_kv_head_, piece_.first_key(idx_) & (p.kv.kv_block_size - 1)},
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
    const int32_t* blocks = p.block_table + p.seq_rows[piece_.seq] * p.block_table_stride;
    block_id_ = idx < piece_.count ? blocks[piece_.first_key(idx) >> shift] : 0;
    found_ = 0;
  }

  const AttentionDecodeRingParams& params_;
  DecodePiece piece_;
  uint32_t ring_, full_;
  int tiles_per_kv_head_, num_head_tiles_;
  int idx_;  // in the piece, of the next tile
  int block_id_ = 0, found_ = 0;
};

// Weighted sums of parts of an item's keys, in order: part i has the largest score max(i), the sum of 2^ sum(i) and
// the sums of values(i).
template <int kAtOnce, typename MaxOf, typename SumOf, typename ValuesOf>
__device__ inline void merge_parts(int num_parts, MaxOf max_of, SumOf sum_of, ValuesOf values_of, float& total_max,
                                   float& total_sum, float4& total) {
  total_max = -kInfinity;
  total_sum = 0.0f;
  total = {};
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
    const float shrink = exp2f(total_max - base);
    total_max = base;
    total_sum *= shrink;
    total = {total.x * shrink, total.y * shrink, total.z * shrink, total.w * shrink};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float weight = exp2f(max[i] - base);
      total_sum = __fmaf_rn(sum[i], weight, total_sum);
      total.x = __fmaf_rn(values[i].x, weight, total.x);
      total.y = __fmaf_rn(values[i].y, weight, total.y);
      total.z = __fmaf_rn(values[i].z, weight, total.z);
      total.w = __fmaf_rn(values[i].w, weight, total.w);
    }
  }
}

template <typename Format>
__device__ inline void attention_decode_ring(const AttentionDecodeRingParams& params) {
  using Shared = DecodeRingShared<Format>;
  constexpr int kHeadDim = Format::kHeadDim, kWarps = Format::kWarps, kStages = Format::kStages;
  constexpr int kProducts = kHeadDim / 16;  // along k of scores; along the columns of the sums
  constexpr int kStageBytes = sizeof(typename Format::Stage);
  static_assert(kStageBytes % 1024 == 0);
  static_assert(sizeof(Shared) + 1024 <= decode_ring_shared_bytes(kHeadDim, Format::kHasScales, kWarps));
  extern __shared__ char dynamic_shared[];
  const uint32_t dynamic_begin = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared));
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared + (1024 - dynamic_begin % 1024) % 1024);
  let_dependents_launch();
  const AttentionPagedKernelParams& p = params.attention;
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, group = lane / 4, pair = lane % 4;
  const uint32_t full = static_cast<uint32_t>(__cvta_generic_to_shared(&shared.full[warp][0]));
  const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(&shared.ring[warp][0]));
  if (lane == 0) {
    prefetch_map(params.kv);
    for (int stage = 0; stage < kStages; ++stage) init_barrier(full + 8 * static_cast<uint32_t>(stage), 1);
    fence_barrier_init();
  }
  __syncwarp();
  wait_for_inputs();

  // --- this CTA's run
  const int tiles_per_kv_head = (p.heads_per_kv_head + kHeads - 1) / kHeads;
  const int num_head_tiles = p.kv.num_kv_heads * tiles_per_kv_head;
  int num_tiles = 0;
  for (int seq = lane; seq < p.num_seqs; seq += kWarpSize) num_tiles += DecodePiece::decode_tiles(seen_keys(p, seq));
  num_tiles = warp_reduce(num_tiles, Sum()) * num_head_tiles;
  const int num_ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  const int run_tiles = max((num_tiles + num_ctas - 1) / num_ctas, kDecodeRingMinTiles);
  if (cta * run_tiles >= num_tiles) return;
  DecodePiece piece;
  piece.seek(p, num_head_tiles, cta * run_tiles, min(num_tiles, (cta + 1) * run_tiles));
  TileLoader<Format> loader(params, piece, ring, full, tiles_per_kv_head, num_head_tiles);
  for (int stage = 0; stage < kStages; ++stage) loader.load(stage);

  int stage = 0;
  uint32_t phase = 0;
  do {
    const int first_in_group = piece.head_tile % tiles_per_kv_head * kHeads;
    const int num_heads_here = min(kHeads, p.heads_per_kv_head - first_in_group);
    const int first_head = piece.head_tile / tiles_per_kv_head * p.heads_per_kv_head + first_in_group;
    const int64_t token = p.cu_seqlens_q[piece.seq];
    const int begin = p.window > 0 ? max(0, piece.keys.end - p.window) : 0, end = piece.keys.end;

    // Operand B of the scores: column `group` is query head `group`.
    uint32_t q[kProducts][2];
    const Bf16* q_row = static_cast<const Bf16*>(p.q) + token * p.q_token_stride +
                        static_cast<int64_t>(first_head + group) * p.q_head_stride;
#pragma unroll
    for (int c = 0; c < kProducts; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        q[c][i] = group < num_heads_here ? *reinterpret_cast<const uint32_t*>(q_row + Format::q_column(c, i)) : 0;
      }
    }

    float acc[kProducts][4] = {};                           // columns of v by heads 2 pair, 2 pair + 1
    float base[2] = {-kInfinity, -kInfinity}, sum[2] = {};  // of both heads; sums of this lane's keys
    for (int idx = piece.first_idx<kWarps>(warp); idx < piece.count; idx += kWarps) {
      const int first_key = piece.first_key(idx);
      const bool is_cut = first_key < begin || first_key + kTile > end;
      const auto is_seen = [&](int key) { return first_key + key >= begin && first_key + key < end; };
      wait_barrier(full + 8 * static_cast<uint32_t>(stage), phase);
      const auto& tile = shared.ring[warp][stage];

      // Scores of keys group, group + 8 (rows) and both heads.
      float dots[2][4] = {};
#pragma unroll
      for (int c = 0; c < kProducts; c += Format::kKeysAtOnce) {
        uint32_t a[Format::kKeysAtOnce][4];
        Format::keys(tile, c, a);
#pragma unroll
        for (int n = 0; n < Format::kKeysAtOnce; ++n) mma_m16n8k16_bf16(dots[(c + n) % 2], a[n], q[c + n]);
      }
      float score[4], value_scale[2] = {1.0f, 1.0f};
#pragma unroll
      for (int i = 0; i < 4; ++i) score[i] = dots[0][i] + dots[1][i];
      if constexpr (Format::kHasScales) {
#pragma unroll
        for (int i = 0; i < 4; ++i) score[i] *= Format::key_scale(tile, group + i / 2 * 8);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          value_scale[i] = !is_cut || is_seen(group + 8 * i) ? Format::value_scale(tile, group + 8 * i) : 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) score[i] *= p.softmax_scale_log2e;
      if (is_cut) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!is_seen(group + i / 2 * 8)) score[i] = -kInfinity;
        }
      }

      // Sums are scaled down only when a maximum grows by 2^8.
      const float highest[2] = {fmaxf(score[0], score[2]), fmaxf(score[1], score[3])};
      if (__any_sync(0xffffffffu, highest[0] > base[0] + 8.0f || highest[1] > base[1] + 8.0f)) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float new_base = fmaxf(highest[j], shuffle_xor(highest[j], 4));
          new_base = fmaxf(new_base, shuffle_xor(new_base, 8));
          new_base = fmaxf(base[j], fmaxf(new_base, shuffle_xor(new_base, 16)));
          const float shrink = exp2f(base[j] - new_base);
          base[j] = new_base;
          sum[j] *= shrink;
#pragma unroll
          for (int m = 0; m < kProducts; ++m) {
            acc[m][j] *= shrink;
            acc[m][2 + j] *= shrink;
          }
        }
      }
      float prob[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) prob[i] = exp2f(score[i] - base[i % 2]);
      uint32_t rows[2] = {pack_bf16(prob[0], prob[1]), pack_bf16(prob[2], prob[3])};
      sum[0] += low_float(rows[0]) + low_float(rows[1]);
      sum[1] += high_float(rows[0]) + high_float(rows[1]);
      if constexpr (Format::kHasScales) {
#pragma unroll
        for (int i = 0; i < 2; ++i) rows[i] = pack_bf16(prob[2 * i] * value_scale[i], prob[2 * i + 1] * value_scale[i]);
      }
      const uint32_t b[2] = {transpose_8x8(rows[0]), transpose_8x8(rows[1])};

      uint32_t mask[2] = {0xffffffffu, 0xffffffffu};  // of values that no sequence has: they may be NaN
      if (is_cut) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          mask[i] = (is_seen(2 * pair + 8 * i) ? 0xffffu : 0u) | (is_seen(2 * pair + 8 * i + 1) ? 0xffff0000u : 0u);
        }
      }
#pragma unroll
      for (int m = 0; m < kProducts; m += Format::kValuesAtOnce) {
        uint32_t a[Format::kValuesAtOnce][4];
        Format::values(tile, m, a);
#pragma unroll
        for (int n = 0; n < Format::kValuesAtOnce; ++n) {
          if (!Format::kHasScales && is_cut) {
#pragma unroll
            for (int i = 0; i < 4; ++i) a[n][i] &= mask[i / 2];
          }
          mma_m16n8k16_bf16(acc[m + n], a[n], b);
        }
      }
      __syncwarp();
      loader.load(stage);
      if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
    }

    // --- the sums of all warps
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int mask = 4; mask < kWarpSize; mask *= 2) sum[j] += shuffle_xor(sum[j], mask);
      if (group == 0) {
        shared.max[warp][2 * pair + j] = base[j];
        shared.sum[warp][2 * pair + j] = sum[j];
      }
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
        shared.acc[warp][2 * pair + j][Format::out_column(m, 0)] = acc[m][j];
        shared.acc[warp][2 * pair + j][Format::out_column(m, 1)] = acc[m][2 + j];
      }
    }
    __syncthreads();
    const bool has_first = piece.first == 0, is_whole = has_first && piece.count == piece.num_tiles;
    // CTAs that share a head tile leave partial sums: that with its first tile in slot 2 cta + 1, others in 2 cta.
    const int item_begin = piece.seq_tiles_before + piece.head_tile * piece.num_tiles;
    const int first_cta = item_begin / run_tiles, last_cta = (item_begin + piece.num_tiles - 1) / run_tiles;
    float* partial_stats = params.partial + int64_t{2} * num_ctas * kHeads * kHeadDim;
    const auto row_of = [&](int slot, int head) {
      return reinterpret_cast<float4*>(params.partial + (static_cast<int64_t>(slot) * kHeads + head) * kHeadDim);
    };
    Bf16* out = static_cast<Bf16*>(p.out) + token * p.out_token_stride;
    const auto store = [&](int head, int column, float4 total, float total_sum) {
      *reinterpret_cast<uint2*>(out + static_cast<int64_t>(first_head + head) * p.out_head_stride + column) =
          make_uint2(pack_bf16(total.x / total_sum, total.y / total_sum),
                     pack_bf16(total.z / total_sum, total.w / total_sum));
    };
    float total_max, total_sum;
    float4 total;
    for (int i = threadIdx.x; i < num_heads_here * (kHeadDim / 4); i += kWarps * kWarpSize) {
      const int head = i / (kHeadDim / 4), quad = i % (kHeadDim / 4);
      merge_parts<4>(
          kWarps, [&](int w) { return shared.max[w][head]; }, [&](int w) { return shared.sum[w][head]; },
          [&](int w) { return *reinterpret_cast<const float4*>(&shared.acc[w][head][4 * quad]); }, total_max, total_sum,
          total);
      if (is_whole) {
        store(head, 4 * quad, total, total_sum);
        continue;
      }
      const int slot = has_first ? 2 * cta + 1 : 2 * cta;
      row_of(slot, head)[quad] = total;
      if (quad == 0) {
        partial_stats[2 * (slot * kHeads + head)] = total_max;
        partial_stats[2 * (slot * kHeads + head) + 1] = total_sum;
      }
    }
    if (!is_whole) {  // the CTA that comes last adds the sums of all, in order
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) {
        const int before = static_cast<int>(atomicAdd(params.num_done + first_cta, 1u));
        shared.is_last = before == last_cta - first_cta;
        if (shared.is_last) params.num_done[first_cta] = 0;
        __threadfence();
      }
      __syncthreads();
      const auto slot_of = [&](int part) { return part == 0 ? 2 * first_cta + 1 : 2 * (first_cta + part); };
      for (int i = threadIdx.x; shared.is_last && i < num_heads_here * (kHeadDim / 4); i += kWarps * kWarpSize) {
        const int head = i / (kHeadDim / 4), quad = i % (kHeadDim / 4);
        const auto stats_of = [&](int part) { return partial_stats + 2 * (slot_of(part) * kHeads + head); };
        merge_parts<8>(
            last_cta - first_cta + 1, [&](int part) { return __ldcg(stats_of(part)); },
            [&](int part) { return __ldcg(stats_of(part) + 1); },
            [&](int part) { return __ldcg(row_of(slot_of(part), head) + quad); }, total_max, total_sum, total);
        store(head, 4 * quad, total, total_sum);
      }
    }
    __syncthreads();  // the sums are read
  } while (piece.next(p, num_head_tiles));
}

}  // namespace spate::cuda
