// The runs of tiles of a CTA of latent_wgmma.cu, the rows of q and what is left of them.
#pragma once

#include "backend/cuda/kernel/latent/latent_wgmma.h"

#include "backend/cuda/kernel/latent/latent_work.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/bf16.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {

constexpr int kConsumerThreads = 128 * kLatentConsumers;
constexpr int kHalf = kLatentRank / 2;  // columns of the values a warpgroup has

// A run of tiles of one item; num_rows 0: of none, beside a team whose others have items; -1: no more work.
struct Segment {
  int first_token;  // of the sequence, in the step
  int first_row, num_rows;
  int first_limit;  // keys that the first query token sees
  int seq_len;
  int begin_tile, end_tile;
  int slot;  // of partial sums; -1: the segment is the whole item
};

// The segments of a CTA; a warp asks for them.
class Work {
 public:
  __device__ explicit Work(const LatentWgmmaKernelParams& p) : p_(p), lane_(static_cast<int>(threadIdx.x) % kWarpSize) {
    if (lane_ < p.attention.num_seqs) table_row_ = p.attention.seq_rows[lane_];
    int num_units = 0;
#pragma unroll 4
    for (int seq = lane_; seq < p.attention.num_seqs; seq += kWarpSize) num_units += units_of(seq);
    num_units = __reduce_add_sync(kAllLanes, num_units);
    if (p.splits) {
      find_run(num_units);
    } else {
      next_ = static_cast<int>(blockIdx.x);
      end_ = num_units;
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
    const int table_row = p.num_seqs <= kWarpSize ? __shfl_sync(kAllLanes, table_row_, seq) : p.seq_rows[seq];
    blocks_ = p.block_table + table_row * p.block_table_stride;
    // Without splits the items with the most keys first.
    const int item = p_.splits ? in_seq / s.num_tiles * p_.team_size + static_cast<int>(blockIdx.x) % p_.team_size
                               : s.num_items - 1 - in_seq;
    segment.first_token = s.first_token;
    segment.first_row = item < s.num_items ? item * kLatentRows : 0;
    segment.num_rows = item < s.num_items ? min(kLatentRows, s.query_len * p.num_heads - segment.first_row) : 0;
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
    return p_.splits ? num_rounds(s, p_.team_size) * s.num_tiles : s.num_items;
  }
  __device__ int scan(int value) const {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, value, distance);
      if (lane_ >= distance) value += other;
    }
    return value;
  }
  // The team's run, cut and uncut: which it is is known when the longest uncut one is.
  __device__ void find_run(int num_units) {
    const int num_seqs = p_.attention.num_seqs, team = static_cast<int>(blockIdx.x) / p_.team_size;
    const int run = LatentSplit::run_of(num_units, p_.num_ctas / p_.team_size);
    const LatentSplit cut{run, LatentSplit::cut_reach_of(run)}, uncut{run, LatentSplit::kUncut};
    const int first_border = team * run, last_border = first_border + run;
    int begin = first_border < num_units ? 0 : num_units, end = last_border < num_units ? 0 : num_units;
    int uncut_begin = 0, uncut_end = 0;  // own sequences' units before them
    int longest = 0, last_team = -1, last_begin = 0, before = 0;
    for (int first = 0; first < num_seqs; first += kWarpSize) {
      const int seq = first + lane_, units = units_of(seq), sum = scan(units), first_unit = before + sum - units;
      if (blockIdx.x == 0 && seq < num_seqs) p_.first_unit[seq] = first_unit;
      const auto border_in = [&](int border) {
        if (border < first_unit || border >= first_unit + units) return 0;
        const int tiles = latent_sequence(p_.attention, seq).num_tiles;
        return cut.moved(border, first_unit + (border - first_unit) / tiles * tiles, tiles);
      };
      begin = max(begin, border_in(first_border));
      end = max(end, border_in(last_border));
      // Uncut, a sequence is taken for one item.
      const int of_team = uncut.first_team(first_unit, units);
      uncut_begin += of_team < team ? units : 0;
      uncut_end += of_team <= team ? units : 0;
      int team_before = __shfl_up_sync(kAllLanes, of_team, 1);
      if (lane_ == 0) team_before = last_team;
      const uint32_t begins = __ballot_sync(kAllLanes, of_team != team_before) & ((2u << lane_) - 1);
      const int begin_lane = begins == 0 ? 0 : kWarpSize - 1 - __clz(static_cast<int>(begins));
      int team_begin = __shfl_sync(kAllLanes, first_unit, begin_lane);
      if (begins == 0) team_begin = last_begin;
      longest = max(longest, first_unit + units - team_begin);
      last_team = __shfl_sync(kAllLanes, of_team, kWarpSize - 1);
      last_begin = __shfl_sync(kAllLanes, team_begin, kWarpSize - 1);
      before += __shfl_sync(kAllLanes, sum, kWarpSize - 1);
    }
    const int reach = LatentSplit::reach_of(run, __reduce_max_sync(kAllLanes, longest));
    const bool is_cut = reach != LatentSplit::kUncut;
    next_ = is_cut ? __reduce_max_sync(kAllLanes, begin) : __reduce_add_sync(kAllLanes, uncut_begin);
    end_ = is_cut ? __reduce_max_sync(kAllLanes, end) : __reduce_add_sync(kAllLanes, uncut_end);
    if (blockIdx.x == 0 && lane_ == 0) {
      p_.split[0] = run;
      p_.split[1] = reach;
    }
  }
  // The sequence of a unit, and the units before that sequence.
  __device__ int find(int unit, int& first_unit) const {
    int before = 0;
    for (int first = 0; first < p_.attention.num_seqs; first += kWarpSize) {
      const int units = units_of(first + lane_), sum = scan(units);
      const uint32_t behind = __ballot_sync(kAllLanes, before + sum > unit);
      if (behind != 0) {
        const int idx = __ffs(static_cast<int>(behind)) - 1;
        first_unit = before + __shfl_sync(kAllLanes, sum - units, idx);
        return first + idx;
      }
      before += __shfl_sync(kAllLanes, sum, kWarpSize - 1);
    }
    return 0;
  }

  const LatentWgmmaKernelParams& p_;
  const int lane_;
  int table_row_ = 0;  // of the sequence `lane`
  const int32_t* blocks_ = nullptr;
  int next_, end_;
};

// --- the warpgroups that multiply ------------------------------------------------------------------------------------

// Both: what was written before is seen after.
__device__ inline void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory"); }

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

// All consumers: the rows of q, zeros where there are none. Four threads a row, so that each finds its row once: with
// divisions for each piece of 16 bytes 128 x 4,096 of 128 heads took 17 us of 342 more.
__device__ inline void load_q(const AttentionLatentKernelParams& p, uint32_t q, const Segment& segment, int thread) {
  constexpr int kRowThreads = kConsumerThreads / kLatentRows, kPiece = 8, kStep = kRowThreads * kPiece;
  static_assert(kRowThreads == 4 && kLatentRank % kStep == 0);
  const int row = thread / kRowThreads, chunk = thread % kRowThreads;
  const bool exists = row < segment.num_rows;
  const int flat = segment.first_row + (exists ? row : 0);
  const int64_t token = segment.first_token + flat / p.num_heads, head = flat % p.num_heads;
  const Bf16* latent = static_cast<const Bf16*>(p.q_latent) + token * p.q_latent_strides[0] +
                       head * p.q_latent_strides[1] + chunk * kPiece;
  const Bf16* rope =
      static_cast<const Bf16*>(p.q_rope) + token * p.q_rope_strides[0] + head * p.q_rope_strides[1] + chunk * kPiece;
  const uint32_t half_parts[2] = {q + swizzled(row, chunk), q + swizzled(row, chunk + kRowThreads)};
#pragma unroll
  for (int i = 0; i < kLatentWidth / kStep; ++i) {
    const int column = i * kStep;
    copy_async_16(half_parts[i % 2] + static_cast<uint32_t>(i / 2) * kLatentPartBytes,
                  column < kLatentRank ? latent + column : rope + (column - kLatentRank), exists);
  }
  commit_copies();
  wait_copies<0>();
  fence_async_proxy();
  sync_consumers();
}

// Four 8x8 matrices of 2 bytes, as load_matrices() reads them.
__device__ inline void store_matrices(uint32_t shared, const uint32_t (&in)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(in[0]), "r"(in[1]),
               "r"(in[2]), "r"(in[3])
               : "memory");
}

// A consumer's thread of its warpgroup, found again: with what follows from it kept over the loop of tiles registers do
// not suffice.
__device__ inline int find_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % 128;
}

// The sums of one warpgroup's 256 columns, in the order of its registers (LatentSums). In the order of columns an
// item's 128 KB took 3.6 us.
__device__ inline void store_partial_sums(const LatentWgmmaKernelParams& p, const Segment& segment,
                                          const float (&sums)[kHalf / 2], int half) {
  const int thread = find_thread(), row = thread / kWarpSize * 16 + thread % kWarpSize / 4;
  float4* to = reinterpret_cast<float4*>(p.partial_sums) + LatentSums::quad_of(segment.slot, half, 0, 0, thread);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row + 8 * h >= segment.num_rows) continue;
#pragma unroll
    for (int i = 0; i < LatentSums::kQuads; ++i) {
      to[LatentSums::quad_of(0, 0, h, i, 0)] =
          make_float4(sums[8 * i + 2 * h], sums[8 * i + 2 * h + 1], sums[8 * i + 4 + 2 * h], sums[8 * i + 5 + 2 * h]);
    }
  }
}

// The sums over their rows' sums of probabilities, as bf16. They go through `stage`, 8 KB of each warp, so that a warp
// stores whole lines: from the registers an item's 64 KB took 7.7 us, of 130.
__device__ inline void store_result(const AttentionLatentKernelParams& p, const Segment& segment,
                                    const float (&sums)[kHalf / 2], const float (&inverse)[2], int half,
                                    uint32_t stage) {
  constexpr int kRowBytes = kHalf * 2, kWarpRows = 16;
  const int thread = find_thread(), lane = thread % kWarpSize;
  const auto chunk_at = [&](int row, int chunk) {
    return stage + static_cast<uint32_t>(row * kRowBytes + ((chunk ^ row % 8) << 4));
  };
#pragma unroll
  for (int i = 0; i < kHalf / 16; ++i) {
    uint32_t packed[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      packed[k] = pack_bf16(sums[8 * i + 2 * k] * inverse[k % 2], sums[8 * i + 2 * k + 1] * inverse[k % 2]);
    }
    store_matrices(chunk_at(lane % 16, 2 * i + lane / 16), packed);
  }
  __syncwarp();
  const int first = thread / kWarpSize * kWarpRows, num_rows = min(kWarpRows, segment.num_rows - first);
  const int flat = segment.first_row + first;
  int head = flat % p.num_heads;
  Bf16* to = static_cast<Bf16*>(p.out) + (segment.first_token + flat / p.num_heads) * p.out_strides[0] +
             head * p.out_strides[1] + half * kHalf + lane * 8;
  for (int row = 0; row < num_rows; ++row) {
    uint4 piece;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                 : "r"(chunk_at(row, lane))
                 : "memory");
    *reinterpret_cast<uint4*>(to) = piece;
    to += p.out_strides[1];
    if (++head < p.num_heads) continue;
    head = 0;
    to += p.out_strides[0] - p.num_heads * p.out_strides[1];
  }
}

// By scales that are mostly 1.
__device__ inline void scale_rows(float (&sums)[kHalf / 2], const float (&scale)[2]) {
  if (!__any_sync(kAllLanes, scale[0] != 1.0f || scale[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < kHalf / 2; ++i) sums[i] *= scale[i / 2 % 2];
}

}  // namespace spate::cuda
