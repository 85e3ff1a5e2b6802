// Rows of x, or of activations, as integers for expert_stream_kernel.h.
//
// The 128 elements of a step of a row have a unit: the power of two by which the largest of them is in [2^12, 2^13).
// x is then an integer of 13 bits and a sign, a signed low byte and a high one, which are two columns of the tensor
// core's product: four rows make a block of 8 columns. Nothing is an outlier.
#pragma once

#include "backend/cuda/kernel/expert/expert_integers.h"
#include "backend/cuda/kernel/expert/expert_stream.h"
#include "backend/cuda/kernel/primitive/async_copy.h"
#include "backend/cuda/kernel/primitive/piece.h"
#include "backend/cuda/kernel/primitive/reduce.h"
#include "backend/cuda/kernel/primitive/shared_load.h"

namespace spate::cuda {

// A tile's rows stand in shared memory as [blocks of 4 rows][steps] places of kExpertStreamBlockStepBytes: [halves of a
// step][lanes] quads, as the lanes of the product read them, then a unit a row, of a product with 16 times the codes of
// W.
constexpr int kStreamUnits = kExpertStreamBlockStepBytes - 16;  // of a place

// Elements [first, first + 8) of row `row`, of the lanes of a warp 256 neighbours. All lanes call it.
__device__ inline void put_stream_piece(const Piece<Bf16>& piece, int first, int row, int num_steps, uint32_t rows) {
  const uint32_t largest = largest_bits<kIntegerTileK / kPieceElems>(piece);
  const int step = first / kIntegerTileK;
  if (step >= num_steps) return;
  const uint32_t exponent = max(largest >> 7, 17u);
  const float power = __uint_as_float((127 + 12 + 127 - exponent) << 23);
  const int lane = first / kPieceElems % 16;
  const uint32_t place =
      rows + static_cast<uint32_t>((row / 4 * num_steps + step) * kExpertStreamBlockStepBytes + row % 4 * 4);
  const uint32_t at = place + static_cast<uint32_t>(row % 4 * 124 + lane / 8 * 512 + lane % 2 * 32 + lane / 4 % 2 * 8 +
                                                    lane / 2 % 2 * 4);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const IntegerBytes bytes = integer_bytes(piece, i, power);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + 16 * i), "r"(bytes.high) : "memory");
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + 64 + 16 * i), "r"(bytes.low) : "memory");
  }
  if (lane == 0) {  // codes of W are 16 times too large. NaN, infinity: NaN.
    const uint32_t unit = exponent == 255 ? 0x7fc00000u : (exponent - 16) << 23;
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(place + kStreamUnits), "r"(unit) : "memory");
  }
}

__device__ inline Piece<Bf16> piece_of(const uint4& words) {
  Piece<Bf16> piece;
  piece.words[0] = words.x;
  piece.words[1] = words.y;
  piece.words[2] = words.z;
  piece.words[3] = words.w;
  return piece;
}

// Of rows as they are, pieces of 256 neighbours.
__device__ inline int stream_raw_bytes(int num_rows, int num_steps) { return num_rows * ((num_steps + 1) / 2) * 512; }

// All warps: starts the copies of the tile's rows, which row_of() finds, a warp 256 neighbours at a time.
__device__ inline void copy_stream_rows(int num_rows, int width, int num_steps, uint32_t raw, auto row_of) {
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));  // nothing of this is kept in registers from tile to tile
  const int warp = thread / 32, lane = thread % 32, of_row = (num_steps + 1) / 2, count = num_rows * of_row;
#pragma unroll 1
  for (int item = warp; item < count; item += kExpertStreamWarps) {
    const int row = item / of_row, first = (item - row * of_row) * 256 + lane * kPieceElems;
    const Bf16* from = row_of(row);
    copy_async_16(raw + static_cast<uint32_t>(item * 512 + lane * 16), from + (first < width ? first : 0),
                  first < width);
  }
}

// All warps: what a lane has copied, and what has arrived, becomes integers.
__device__ inline void put_stream_rows(int num_rows, int width, int num_steps, uint32_t raw, uint32_t rows) {
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  const int warp = thread / 32, lane = thread % 32, of_row = (num_steps + 1) / 2, count = num_rows * of_row;
#pragma unroll 2
  for (int item = warp; item < count; item += kExpertStreamWarps) {
    const int row = item / of_row, first = (item - row * of_row) * 256 + lane * kPieceElems;
    uint4 words = load_shared_16(raw + static_cast<uint32_t>(item * 512 + lane * 16));
    if (first >= width) words = make_uint4(0, 0, 0, 0);
    put_stream_piece(piece_of(words), first, row, num_steps, rows);
  }
}

// The same without a copy in shared memory. meanwhile() is called while the first loads are on their way.
__device__ inline void make_stream_rows(int num_rows, int width, int num_steps, uint32_t rows, auto row_of,
                                        auto meanwhile) {
  constexpr int kBatch = 4;
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  const int warp = thread / 32, lane = thread % 32, of_row = (num_steps + 1) / 2, count = num_rows * of_row;
#pragma unroll 1
  for (int item = warp; item == warp || item < count; item += kBatch * kExpertStreamWarps) {
    uint4 words[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = item + i * kExpertStreamWarps, row = at / of_row, first = (at - row * of_row) * 256 + lane * 8;
      words[i] = make_uint4(0, 0, 0, 0);
      if (at < count && first < width) words[i] = __ldcg(reinterpret_cast<const uint4*>(row_of(row) + first));
    }
    if (item == warp) meanwhile();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = item + i * kExpertStreamWarps, row = at / of_row, first = (at - row * of_row) * 256 + lane * 8;
      if (at < count) put_stream_piece(piece_of(words[i]), first, row, num_steps, rows);
    }
  }
}

}  // namespace spate::cuda
