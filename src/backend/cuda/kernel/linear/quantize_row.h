// A row of activations that a CTA, or the CTAs of a cluster, hold in registers, as 8-bit codes with a scale, outliers
// set aside. For kernels that read rows and for those that make them. sm_90.
//
// NUMERICS   quant/outlier_rule.h, then quantize_activations() of quant/quantize.h, to the bit, however the row is
//            shared out: maxima and whole numbers alone are joined. A row with a NaN or an infinity has the scale NaN
//            and codes of zero.
// WORK       Three joins of all threads for a row of ordinary numbers (the largest |x|, how many are above its share,
//            the sum of the codes), two more for each round of outliers. A warp's part goes to every CTA of the cluster
//            at once, by stores that a barrier in shared memory counts: a barrier of the cluster fences the whole GPU.
#pragma once

#include "backend/cuda/kernel/linear/integer_weight.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/cluster.h"
#include "backend/cuda/kernel/primitive/codes.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/primitive/tma.h"

namespace spate::cuda {

constexpr int kQuantizeMaxWarps = kQuantizeMaxThreads / kWarpSize;

// Which cluster of the grid this CTA is in; without clusters the CTA itself.
__device__ inline int cluster_idx() {
  uint32_t idx = blockIdx.x;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(idx));
#endif
  return static_cast<int>(idx);
}

struct RowShared {
  uint64_t joined[2];  // of a cluster: the parts of all warps of it have come
  uint32_t of_warp[2][kQuantizeMaxCtas * kQuantizeMaxWarps];
  // Of the cluster's first CTA: what all of its CTAs have found.
  Outlier found[kMaxOutliers];
  int32_t num_found;
};
// Of a warp that has a row for itself.
struct RowFound {
  Outlier found[kMaxOutliers];
  int32_t num_found;
};

// The threads that share a row. Every one of them makes the same calls.
class RowTeam {
 public:
  // Before any global memory is touched.
  __device__ RowTeam(RowShared& shared, int num_ctas)
      : shared_(shared), num_ctas_(num_ctas), rank_(num_ctas > 1 ? cluster_rank() : 0) {
    if (threadIdx.x == 0) shared.num_found = 0;
    if (num_ctas == 1) return;
    if (threadIdx.x == 0) {
      for (uint64_t& joined : shared.joined) init_barrier(shared_address(&joined), 1);
      fence_barrier_init();
      for (uint64_t& joined : shared.joined) expect_parts(shared_address(&joined));
    }
    cluster_arrive();
  }
  // Once, before the other calls: all CTAs of the cluster have begun.
  __device__ void meet() const {
    if (num_ctas_ > 1) cluster_wait();
  }
  // What put_outlier() wrote is there when the next join ends; joins of a cluster alone order nothing.
  __device__ void publish_outliers() const {
    if (num_ctas_ > 1) cluster_barrier();
  }

  __device__ int rank() const { return rank_; }
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int first_of(int piece) const {
    return ((piece * num_ctas_ + rank_) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kPieceElems;
  }
  __device__ uint32_t max_of(uint32_t value) {
    return join(__reduce_max_sync(0xffffffffu, value), Max(),
                [](uint32_t of_lanes) { return __reduce_max_sync(0xffffffffu, of_lanes); });
  }
  __device__ uint32_t sum_of(uint32_t value) {
    return join(__reduce_add_sync(0xffffffffu, value), Sum(),
                [](uint32_t of_lanes) { return __reduce_add_sync(0xffffffffu, of_lanes); });
  }
  __device__ void put_outlier(int k, float x) {
    int32_t* num_found = &shared_.num_found;
    Outlier* found = shared_.found;
    if (rank_ > 0) {
      num_found = of_cluster_cta(num_found, 0);
      found = of_cluster_cta(found, 0);
    }
    found[atomicAdd(num_found, 1)] = {k, x};
  }

 private:
  // of_warp: the same in all lanes. Two joins in turn take different places: what is written here was read before the
  // barrier of the other.
  template <typename Combine, typename OfLanes>
  __device__ uint32_t join(uint32_t of_warp, Combine combine, OfLanes of_lanes) {
    const int lane = threadIdx.x % kWarpSize, num_warps = static_cast<int>(blockDim.x) / kWarpSize;
    const int turn = num_joins_ % 2;
    uint32_t* places = shared_.of_warp[turn];
    const uint32_t parity = num_joins_++ / 2 % 2;
    uint32_t* own = places + rank_ * num_warps + threadIdx.x / kWarpSize;
    if (num_ctas_ == 1) {
      if (lane == 0) *own = of_warp;
      __syncthreads();
      return of_lanes(lane < num_warps ? places[lane] : 0);
    }
    const uint32_t joined = shared_address(&shared_.joined[turn]);
    if (lane < num_ctas_) send_word(shared_of(shared_address(own), lane), of_warp, shared_of(joined, lane));
    wait_cluster_barrier(joined, parity);
    if (threadIdx.x == 0) expect_parts(joined);  // of the next join but one, which waits for this warp's next part
    uint32_t result = 0;
#pragma unroll
    for (int i = 0; i < kQuantizeMaxCtas * kQuantizeMaxWarps; i += kWarpSize) {
      if (i + lane < num_ctas_ * num_warps) result = combine(result, places[i + lane]);
    }
    return of_lanes(result);
  }

  __device__ void expect_parts(uint32_t joined) const {
    arrive_expecting(joined, static_cast<uint32_t>(num_ctas_) * blockDim.x / kWarpSize * sizeof(uint32_t));
  }

  RowShared& shared_;
  int num_ctas_, rank_;
  uint32_t num_joins_ = 0;
};

// A warp that has a row for itself, where rows are many and narrow: no barrier.
class RowWarp {
 public:
  __device__ explicit RowWarp(RowFound& shared) : shared_(shared), lane_(static_cast<int>(threadIdx.x) % kWarpSize) {
    if (lane_ == 0) shared.num_found = 0;
    __syncwarp();
  }
  __device__ void meet() const {}
  __device__ void publish_outliers() const {}
  __device__ int rank() const { return 0; }
  __device__ int thread() const { return lane_; }
  __device__ int first_of(int piece) const { return (piece * kWarpSize + lane_) * kPieceElems; }
  __device__ uint32_t max_of(uint32_t value) const { return __reduce_max_sync(0xffffffffu, value); }
  __device__ uint32_t sum_of(uint32_t value) const {
    __syncwarp();  // orders what was found
    return __reduce_add_sync(0xffffffffu, value);
  }
  __device__ void put_outlier(int k, float x) { shared_.found[atomicAdd(&shared_.num_found, 1)] = {k, x}; }

 private:
  RowFound& shared_;
  int lane_;
};

// The bits of the largest magnitude_of(), which order numbers from 0 on as their values.
__device__ inline uint32_t top_bits(const Piece<float>& piece) {
  uint32_t top = 0;
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) top = max(top, piece.words[i] & 0x7fffffffu);
  return min(top, __float_as_uint(kInfinity));
}
__device__ inline uint32_t top_bits(const Piece<Bf16>& piece) {
  uint32_t top = 0;  // of each half
#pragma unroll
  for (int i = 0; i < kPieceElems / 2; ++i) {
    asm("max.u16x2 %0, %0, %1;" : "+r"(top) : "r"(piece.words[i] & 0x7fff7fffu));
  }
  return min(max(top << 16, top & 0xffff0000u), __float_as_uint(kInfinity));
}

// How many |x| are above `share`, which is no NaN; in bf16 a bf16 number.
__device__ inline uint32_t num_above(const Piece<float>& piece, float share) {
  uint32_t count = 0;
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) count += fabsf(value_of(piece, i)) > share;
  return count;
}
__device__ inline uint32_t num_above(const Piece<Bf16>& piece, float share) {
  const uint32_t complement = (0x7fffu - (__float_as_uint(share) >> 16)) * 0x10001u;
  uint32_t counts = 0;  // of each half
#pragma unroll
  for (int i = 0; i < kPieceElems / 2; ++i) {  // the top bit of a half's sum: it is above
    counts += ((piece.words[i] & 0x7fff7fffu) + complement) >> 15 & 0x00010001u;
  }
  return (counts & 0xffff) + (counts >> 16);
}

// |x| above the result are outliers; `top` becomes the largest that is none.
template <typename Act, int kPieces, typename Team>
__device__ inline float outlier_limit(const Piece<Act> (&pieces)[kPieces], int64_t width, Team& team, float& top) {
  float limit = kInfinity;
  while (top < kInfinity && top >= kSmallestScaled) {
    const float share = top * kOutlierShare;
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) count += num_above(pieces[i], share);
    if (team.sum_of(count) > max_outliers(width)) break;
    limit = share;
    float largest_below = 0.0f;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) {
        const float magnitude = fabsf(value_of(pieces[i], j));
        if (magnitude <= share) largest_below = Max()(largest_below, magnitude);
      }
    }
    top = __uint_as_float(team.max_of(__float_as_uint(largest_below)));
  }
  return limit;
}

// code_of() of a piece without outliers, inverse > 0: adding 1.5 * 2^23 rounds to a whole number, which the low bits
// hold.
template <typename Act>
__device__ inline uint2 codes_of(const Piece<Act>& piece, float inverse) {
  constexpr float kWhole = 12582912.0f;
  uint32_t words[2];
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    uint32_t bits[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      bits[j] = __float_as_uint(__fadd_rn(__fmul_rn(value_of(piece, 4 * w + j), inverse), kWhole));
    }
    words[w] = __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
  }
  return make_uint2(words[0], words[1]);
}

// The same with outliers, which go to the team's list, or zeros where inverse is 0.
template <typename Act, typename Team>
__device__ inline uint2 codes_and_outliers_of(const Piece<Act>& piece, float inverse, float limit, int first,
                                              Team& team) {
  int codes[kPieceElems];
#pragma unroll
  for (int j = 0; j < kPieceElems; ++j) {
    const float x = value_of(piece, j);
    const bool is_outlier = fabsf(x) > limit;
    if (is_outlier) team.put_outlier(first + j, x);
    codes[j] = is_outlier ? 0 : code_of(x, inverse);
  }
  return pack_codes(codes);
}

__device__ inline OutlierColumns* columns_of(const RowCodes& p, int64_t token) {
  return p.outlier_columns == nullptr ? nullptr : p.outlier_columns + token / kIntegerTokensAtOnce;
}

// By one thread of the row.
__device__ inline void store_row(const RowCodes& p, int64_t token, float scale, int32_t code_sum, int32_t count) {
  static_assert(sizeof(QuantizedRow) == sizeof(uint4));
  *reinterpret_cast<uint4*>(p.rows + token) =
      make_uint4(__float_as_uint(scale), static_cast<uint32_t>(code_sum), static_cast<uint32_t>(count), 0);
  OutlierColumns* columns = columns_of(p, token);
  if (token % kIntegerTokensAtOnce == 0 && columns != nullptr) columns->is_gathered = 0;
}

// By all threads that have the row's outliers in shared memory.
__device__ inline void store_row_end(const RowCodes& p, int64_t token, float scale, int32_t code_sum, int32_t count,
                                     const Outlier* found, int thread) {
  if (thread == 0) store_row(p, token, scale, code_sum, count);
  if (thread >= count) return;
  const Outlier own = found[thread];
  int rank = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) rank += found[i].k < own.k;
  p.outliers[token * kMaxOutliers + rank] = own;
  OutlierColumns* columns = columns_of(p, token);
  if (columns == nullptr) return;
  const uint32_t bit = 1u << own.k % 32;
  uint32_t* word = columns->marks + own.k / 32;
  if ((__ldcg(word) & bit) == 0) atomicOr(word, bit);
}

// The codes of a row without outliers, or what was found of another one.
template <int kPieces>
struct EncodedRow {
  uint2 codes[kPieces];
  CodeScale scale;
  float limit;
  int32_t code_sum;
  bool is_ordinary;
};

// pieces[i] is at team.first_of(i) of the row, zeros behind the width; all threads of the team (RowTeam, RowWarp) call
// it, behind team.meet(). It touches no global memory.
template <typename Act, int kPieces, typename Team>
__device__ inline EncodedRow<kPieces> encode_row(const RowCodes& p, const Piece<Act> (&pieces)[kPieces], Team& team) {
  EncodedRow<kPieces> row;
  uint32_t own_top = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) own_top = max(own_top, top_bits(pieces[i]));
  float top = __uint_as_float(team.max_of(own_top));
  row.limit = outlier_limit(pieces, p.width, team, top);
  row.scale = code_scale(top);
  row.is_ordinary = row.limit == kInfinity && row.scale.inverse > 0.0f;
  row.code_sum = 0;
  if (!row.is_ordinary) return row;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    row.codes[i] = codes_of(pieces[i], row.scale.inverse);
    row.code_sum = __dp4a(static_cast<int>(row.codes[i].x), 0x01010101, row.code_sum);
    row.code_sum = __dp4a(static_cast<int>(row.codes[i].y), 0x01010101, row.code_sum);
  }
  row.code_sum = static_cast<int32_t>(team.sum_of(static_cast<uint32_t>(row.code_sum)));
  return row;
}

// What encode_row() gave becomes row `token`. The last call of the team's threads.
template <typename Act, int kPieces, typename Shared, typename Team>
__device__ inline void store_encoded(const RowCodes& p, int64_t token, const Piece<Act> (&pieces)[kPieces],
                                     const EncodedRow<kPieces>& row, Shared& shared, Team& team) {
  int8_t* to = p.codes + token * p.codes_bytes;
  if (!row.is_ordinary) {
    int32_t code_sum = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int first = team.first_of(i);
      if (first >= p.row_bytes) break;
      const uint2 codes = codes_and_outliers_of(pieces[i], row.scale.inverse, row.limit, first, team);
      code_sum = __dp4a(static_cast<int>(codes.x), 0x01010101, code_sum);
      code_sum = __dp4a(static_cast<int>(codes.y), 0x01010101, code_sum);
      *reinterpret_cast<uint2*>(to + first) = codes;
    }
    team.publish_outliers();
    code_sum = static_cast<int32_t>(team.sum_of(static_cast<uint32_t>(code_sum)));
    if (team.rank() > 0) return;
    return store_row_end(p, token, row.scale.scale, code_sum, shared.num_found, shared.found, team.thread());
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    if (team.first_of(i) < p.row_bytes) *reinterpret_cast<uint2*>(to + team.first_of(i)) = row.codes[i];
  }
  if (team.rank() == 0 && team.thread() == 0) store_row(p, token, row.scale.scale, row.code_sum, 0);
}

// Both.
template <typename Act, int kPieces, typename Shared, typename Team>
__device__ inline void quantize_row(const RowCodes& p, int64_t token, const Piece<Act> (&pieces)[kPieces],
                                    Shared& shared, Team& team) {
  team.meet();
  store_encoded(p, token, pieces, encode_row(p, pieces, team), shared, team);
}

}  // namespace spate::cuda
