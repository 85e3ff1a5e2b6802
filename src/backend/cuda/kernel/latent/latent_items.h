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
  int first_team, num_parts;  // of an item that several teams have
};

// The segments of a CTA; a warp asks for them. A lane has neighbouring sequences of the step, and reads them again
// whenever it needs them: from L1.
template <bool kNotesParts>
class Work {
 public:
  __device__ explicit Work(const LatentWgmmaKernelParams& p) : p_(p), lane_(static_cast<int>(threadIdx.x) % kWarpSize) {
    touch();
    int num_units = 0;
    for_each_seq([&](int, int units) { num_units += units; });
    const int up_to = scan(num_units);
    first_unit_ = up_to - num_units;
    num_units_ = __shfl_sync(kAllLanes, up_to, kWarpSize - 1);
    if (p.splits) {
      find_run();
    } else {
      next_ = static_cast<int>(blockIdx.x);
      end_ = num_units_;
    }
  }

  // The same in all lanes.
  __device__ bool next(Segment& segment) {
    if (next_ >= end_) return false;
    int first_unit = 0, table_row = 0;
    const int seq = find(next_, first_unit, table_row);
    const AttentionLatentKernelParams& p = p_.attention;
    const LatentSequence s = latent_sequence(p, seq);
    const int in_seq = next_ - first_unit;
    blocks_ = p.block_table + table_row * p.block_table_stride;
    // Without splits the items with the most keys first.
    const int round = in_seq < s.num_tiles ? 0 : in_seq / s.num_tiles;
    const int item =
        p_.splits ? round * p_.team_size + static_cast<int>(blockIdx.x) % p_.team_size : s.num_items - 1 - in_seq;
    segment.first_token = s.first_token;
    segment.first_row = item < s.num_items ? item * kLatentRows : 0;
    segment.num_rows = item < s.num_items ? min(kLatentRows, s.query_len * p.num_heads - segment.first_row) : 0;
    segment.first_limit = s.seq_len - s.query_len + 1;
    segment.seq_len = s.seq_len;
    segment.slot = -1;
    if (p_.splits) {
      segment.begin_tile = in_seq - round * s.num_tiles;
      segment.end_tile = min(s.num_tiles, segment.begin_tile + end_ - next_);
      next_ += segment.end_tile - segment.begin_tile;
      const bool is_first = segment.begin_tile == 0;
      if (!is_first || segment.end_tile < s.num_tiles) {
        segment.slot = 2 * static_cast<int>(blockIdx.x) + is_first;
        if constexpr (kNotesParts) {
          const LatentSplit split{find_run_length(), reach_};
          const int item_first_unit = next_ - segment.end_tile;
          segment.first_team = split.first_team(item_first_unit, s.num_tiles);
          segment.num_parts = split.last_team(item_first_unit, s.num_tiles) - segment.first_team + 1;
        }
      }
    } else {
      const int last_token = (segment.first_row + segment.num_rows - 1) / p.num_heads;
      segment.begin_tile = 0;
      segment.end_tile = (segment.first_limit + last_token + kLatentKeys - 1) / kLatentKeys;
      next_ += static_cast<int>(gridDim.x);
    }
    return true;
  }
  __device__ const int32_t* blocks() const { return blocks_; }
  __device__ int reach() const { return reach_; }  // of LatentSplit
  // After the wait for the kernel before, once: what latent_combine is told. `first` is what next() gave first.
  __device__ void publish(bool has_work, const Segment& first, int reach) const {
    if (!p_.splits) return;
    const LatentCut cut = !has_work || first.begin_tile == 0 ? LatentCut{} : cut_of(first);
    if (lane_ == 0) p_.cuts[blockIdx.x] = cut;
    if (blockIdx.x != 0) return;
    if (lane_ == 0) {
      p_.split[0] = find_run_length();
      p_.split[1] = reach;
    }
    int first_unit = first_unit_;
    for_each_seq([&](int seq, int units) {
      p_.first_unit[seq] = first_unit;
      first_unit += units;
    });
  }

 private:
  __device__ int first_seq() const { return lane_ * ((p_.attention.num_seqs + kWarpSize - 1) / kWarpSize); }
  __device__ int end_seq() const {
    return min(first_seq() + (p_.attention.num_seqs + kWarpSize - 1) / kWarpSize, p_.attention.num_seqs);
  }
  __device__ static void touch(const int32_t* address) { asm volatile("prefetch.global.L1 [%0];" ::"l"(address)); }
  // All at once into L1.
  __device__ void touch() const {
    const AttentionLatentKernelParams& p = p_.attention;
    const int end = end_seq();
#pragma unroll 4
    for (int seq = first_seq(); seq < end; ++seq) {
      touch(p.cu_seqlens_q + seq);
      touch(p.seq_lens + seq);
      touch(p.seq_rows + seq);
    }
  }
  __device__ int find_run_length() const { return LatentSplit::run_of(num_units_, p_.num_ctas / p_.team_size); }
  // Of the segment that next() gave last.
  __device__ LatentCut cut_of(const Segment& segment) const {
    const int run = find_run_length(), item_first_unit = next_ - segment.end_tile;
    const int num_tiles = (segment.seq_len + kLatentKeys - 1) / kLatentKeys;
    const LatentSplit split{run, LatentSplit::cut_reach_of(run)};
    const int team = static_cast<int>(blockIdx.x) / p_.team_size;
    if (split.first_team(item_first_unit, num_tiles) != team - 1) return {};
    return {segment.first_token, segment.first_row, segment.num_rows,
            split.last_team(item_first_unit, num_tiles) - (team - 1)};
  }
  __device__ int units_of(int query_len, int seq_len) const {
    if (seq_len <= 0 || query_len <= 0) return 0;
    LatentSequence s;
    s.num_items = (query_len * p_.attention.num_heads + kLatentRows - 1) / kLatentRows;
    if (!p_.splits) return s.num_items;
    const int num_tiles = (seq_len + kLatentKeys - 1) / kLatentKeys;
    return s.num_items <= p_.team_size ? num_tiles : num_rounds(s, p_.team_size) * num_tiles;
  }
  // Calls use(sequence, its units) for this lane's sequences in their order.
  __device__ void for_each_seq(auto use) const {
    const int end = end_seq();
#pragma unroll 1
    for (int seq = first_seq(); seq < end; ++seq) {
      const LatentSequence s = latent_sequence(p_.attention, seq);
      use(seq, units_of(s.query_len, s.seq_len));
    }
  }
  __device__ int scan(int value) const {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, value, distance);
      if (lane_ >= distance) value += other;
    }
    return value;
  }
  __device__ int scan_max(int value) const {
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, value, distance);
      if (lane_ >= distance) value = max(value, other);
    }
    return value;
  }
  // The team's run, uncut if the longest uncut one is short enough.
  __device__ void find_run() {
    const int num_units = num_units_, run = find_run_length(), team = static_cast<int>(blockIdx.x) / p_.team_size;
    const LatentSplit uncut{run, LatentSplit::kUncut};
    // Uncut, a sequence is taken for one item. Teams begin with the first sequence of theirs.
    int first_unit = first_unit_, before = 0, up_to = 0;  // the team's
    int first_team = -1, last_team = -1, begin = -1, longest = 0, end_of_first = 0;
    for_each_seq([&](int, int units) {
      const int of_team = uncut.first_team(first_unit, units);
      before += of_team < team ? units : 0;
      up_to += of_team <= team ? units : 0;
      if (first_team < 0) first_team = of_team;
      if (of_team != last_team) begin = first_unit;
      last_team = of_team;
      first_unit += units;
      if (of_team == first_team) {
        end_of_first = first_unit;
      } else {
        longest = max(longest, first_unit - begin);
      }
    });
    // The lane's first team may have begun in lanes before it, its last one's begin is in this lane or there.
    const int team_before = __shfl_up_sync(kAllLanes, last_team, 1);
    const bool begins_here = lane_ == 0 || team_before != first_team;
    const int own_begin = first_team < 0 ? -1 : first_team != last_team ? begin : begins_here ? first_unit_ : -1;
    const int begin_before = __shfl_up_sync(kAllLanes, scan_max(own_begin), 1);
    if (first_team >= 0) longest = max(longest, end_of_first - (begins_here ? first_unit_ : begin_before));
    reach_ = LatentSplit::reach_of(run, __reduce_max_sync(kAllLanes, longest));
    if (reach_ == LatentSplit::kUncut) {
      next_ = __reduce_add_sync(kAllLanes, before);
      end_ = __reduce_add_sync(kAllLanes, up_to);
    } else {
      const LatentSplit cut{run, reach_};
      const int first_border = team * run, last_border = first_border + run;
      int cut_begin = first_border < num_units ? 0 : num_units, cut_end = last_border < num_units ? 0 : num_units;
      first_unit = first_unit_;
      for_each_seq([&](int seq, int units) {
        const auto border_in = [&](int border) {
          if (border < first_unit || border >= first_unit + units) return 0;
          const int tiles = latent_sequence(p_.attention, seq).num_tiles;
          return cut.moved(border, first_unit + (border - first_unit) / tiles * tiles, tiles);
        };
        cut_begin = max(cut_begin, border_in(first_border));
        cut_end = max(cut_end, border_in(last_border));
        first_unit += units;
      });
      next_ = __reduce_max_sync(kAllLanes, cut_begin);
      end_ = __reduce_max_sync(kAllLanes, cut_end);
    }
  }
  // The sequence of a unit, the units before that sequence, and its row of the block table.
  __device__ int find(int unit, int& first_unit, int& table_row) const {
    int own_seq = -1, own_first = 0, at = first_unit_;
    for_each_seq([&](int seq, int units) {
      if (unit >= at && unit < at + units) {
        own_seq = seq;
        own_first = at;
      }
      at += units;
    });
    const int own_row = own_seq >= 0 ? p_.attention.seq_rows[own_seq] : 0;
    const int from = __ffs(static_cast<int>(__ballot_sync(kAllLanes, own_seq >= 0))) - 1;
    first_unit = __shfl_sync(kAllLanes, own_first, from);
    table_row = __shfl_sync(kAllLanes, own_row, from);
    return __shfl_sync(kAllLanes, own_seq, from);
  }

  const LatentWgmmaKernelParams& p_;
  const int lane_;
  int first_unit_;  // units of the sequences of the lanes before
  const int32_t* blocks_ = nullptr;
  int next_, end_, num_units_;
  int reach_ = 0;
};

// --- the warpgroups that multiply ------------------------------------------------------------------------------------

// Both: what was written before is seen after.
__device__ inline void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory"); }

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float2 load_shared_two(uint32_t from) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(from) : "memory");
  return two;
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
