// Rows of x, or of activations, as codes for expert_stream_kernel.h: a warp makes those of a row.
#pragma once

#include "backend/cuda/kernel/expert/expert_stream.h"
#include "backend/cuda/kernel/linear/quantize_row.h"
#include "backend/cuda/kernel/primitive/piece.h"

namespace spate::cuda {

// The tile's rows of x, or of activations, beside their codes.
template <int kRows>
struct StreamRows {
  float scales[kRows];
  int32_t code_sums[kRows], num_outliers[kRows];
};

// code_of() of a piece, 0 of outliers, which go to the row's list.
__device__ inline uint2 codes_beside_outliers(const Piece<Bf16>& piece, float inverse, float limit, int first,
                                              Outlier* found, int32_t* num_found) {
  int codes[kPieceElems];
#pragma unroll
  for (int j = 0; j < kPieceElems; ++j) {
    const float x = value_of(piece, j);
    const bool is_outlier = fabsf(x) > limit;
    if (is_outlier) found[atomicAdd(num_found, 1)] = {first + j, x};
    codes[j] = is_outlier ? 0 : code_of(x, inverse);
  }
  return pack_codes(codes);
}

// Where word `word` (4 codes) of row `row` stands: a lane of the product finds the 8 of a step of its in two quads, and
// lanes of two neighbouring rows read different banks.
__device__ inline int stream_word(int row, int word, int row_words) {
  const int in_step = word % 32, pair = in_step % 4, half = in_step / 4 % 2, step = in_step / 8;
  return row * row_words + word / 32 * 32 + ((pair * 2 + step / 2) ^ row % 2) * 4 + step % 2 * 2 + half;
}

// quantize_row.h, by a warp that has a row for itself. One of the tile's, where it has outliers or no codes: it is read
// again and again, since such rows are few.
template <int kRows>
__device__ inline void put_row_with_outliers(const Bf16* x, int width, int row_bytes, int row, float top, uint32_t* to,
                                             Outlier* found, StreamRows<kRows>& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float limit = kInfinity;
#pragma unroll 1
  while (top < kInfinity && top >= kSmallestScaled) {
    const float share = top * kOutlierShare;
    uint32_t count = 0;
    float largest_below = 0.0f;
#pragma unroll 1
    for (int first = lane * kPieceElems; first < width; first += 32 * kPieceElems) {
      const Piece<Bf16> piece = load_fresh_piece(x, first, width);
      count += num_above(piece, share);
#pragma unroll
      for (int j = 0; j < kPieceElems; ++j) {
        const float magnitude = fabsf(value_of(piece, j));
        if (magnitude <= share) largest_below = Max()(largest_below, magnitude);
      }
    }
    if (__reduce_add_sync(0xffffffffu, count) > max_outliers(width)) break;
    limit = share;
    top = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(largest_below)));
  }
  const CodeScale scale = code_scale(top);
  int32_t code_sum = 0;
#pragma unroll 1
  for (int first = lane * kPieceElems; first < row_bytes; first += 32 * kPieceElems, to += 64) {
    const uint2 both = codes_beside_outliers(load_fresh_piece(x, first, width), scale.inverse, limit, first, found,
                                             &rows.num_outliers[row]);
    code_sum = __dp4a(static_cast<int>(both.x), 0x01010101, code_sum);
    code_sum = __dp4a(static_cast<int>(both.y), 0x01010101, code_sum);
    to[0] = both.x;
    to[8] = both.y;
  }
  code_sum = __reduce_add_sync(0xffffffffu, code_sum);
  __syncwarp();
  const int count = rows.num_outliers[row];
  const Outlier own = lane < count ? found[lane] : Outlier{};
  int rank = 0;  // by rising k
  for (int i = 0; i < count; ++i) rank += found[i].k < own.k;
  __syncwarp();
  if (lane < count) found[rank] = own;
  if (lane == 0) {
    rows.scales[row] = scale.scale;
    rows.code_sums[row] = code_sum;
  }
}

// A row that a warp has in registers.
struct StreamRow {
  static constexpr int kPieces = kExpertStreamMaxWidth / (8 * 32);
  const Bf16* x;
  Piece<Bf16> pieces[kPieces];

  __device__ void load(const Bf16* from, int width) {
    int lane = static_cast<int>(threadIdx.x) % 32;
    asm volatile("" : "+r"(lane));
    x = from;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces[i] = load_fresh_piece(x, (i * 32 + lane) * kPieceElems, width);
  }
};

// Row `row` of the tile. width: a multiple of 8. Whether it has outliers.
template <int kRows>
__device__ inline bool put_stream_row(const StreamRow& own, int width, int row_bytes, int row, uint32_t* codes,
                                      Outlier* outliers, StreamRows<kRows>& rows) {
  constexpr int kPieces = StreamRow::kPieces;
  const Piece<Bf16>(&pieces)[kPieces] = own.pieces;
  int lane = static_cast<int>(threadIdx.x) % 32;
  asm volatile("" : "+r"(lane));  // nothing of this is kept in registers from row to row
  if (lane == 0) rows.num_outliers[row] = 0;
  __syncwarp();
  uint32_t own_top = 0, own_count = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) own_top = max(own_top, top_bits(pieces[i]));
  const float top = __uint_as_float(__reduce_max_sync(0xffffffffu, own_top));
  const CodeScale scale = code_scale(top);
  if (scale.inverse > 0.0f) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) own_count += num_above(pieces[i], top * kOutlierShare);
  }
  // The second of the two words of a piece stands 8 words behind the first, a warp's next piece 64.
  uint32_t* to = codes + stream_word(row, lane * 2, row_bytes / 4);
  if (__reduce_add_sync(0xffffffffu, own_count) <= max_outliers(width)) {
    put_row_with_outliers<kRows>(own.x, width, row_bytes, row, top, to, outliers + row * kMaxOutliers, rows);
    return rows.num_outliers[row] > 0;
  }
  int32_t code_sum = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int first = (i * 32 + lane) * kPieceElems;
    if (first >= row_bytes) break;
    const uint2 both = codes_of(pieces[i], scale.inverse);
    code_sum = __dp4a(static_cast<int>(both.x), 0x01010101, code_sum);
    code_sum = __dp4a(static_cast<int>(both.y), 0x01010101, code_sum);
    to[i * 64] = both.x;
    to[i * 64 + 8] = both.y;
  }
  code_sum = __reduce_add_sync(0xffffffffu, code_sum);
  if (lane == 0) {
    rows.scales[row] = scale.scale;
    rows.code_sums[row] = code_sum;
  }
  return false;
}

}  // namespace spate::cuda
