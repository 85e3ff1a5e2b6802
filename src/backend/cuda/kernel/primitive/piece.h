// A piece: 8 neighbours of a row in registers, the unit in which the small kernels read and write rows. It is one
// access of 16 bytes in bf16 and two in f32 where rows start at multiples of 16 bytes; else, and at the end of a row,
// it goes element by element, with the same values.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/bf16.h"

namespace spate::cuda {

constexpr int kPieceElems = 8;

template <typename T>
struct Piece {
  static constexpr int kQuads = kPieceElems * sizeof(T) / 16;  // accesses of 16 bytes
  uint32_t words[kQuads * 4];
};

__device__ inline float value_of(const Piece<float>& piece, int i) { return __uint_as_float(piece.words[i]); }
__device__ inline float value_of(const Piece<Bf16>& piece, int i) {
  return i % 2 == 0 ? low_float(piece.words[i / 2]) : high_float(piece.words[i / 2]);
}

// The values rounded to T.
template <typename T>
__device__ inline Piece<T> to_piece(const float (&values)[kPieceElems]);

template <>
__device__ inline Piece<float> to_piece<float>(const float (&values)[kPieceElems]) {
  Piece<float> piece;
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) piece.words[i] = __float_as_uint(values[i]);
  return piece;
}

template <>
__device__ inline Piece<Bf16> to_piece<Bf16>(const float (&values)[kPieceElems]) {
  Piece<Bf16> piece;
#pragma unroll
  for (int i = 0; i < kPieceElems; i += 2) piece.words[i / 2] = pack_bf16(values[i], values[i + 1]);
  return piece;
}

// Elements [first, first + 8) of a row of `width`, zeros beyond it. is_aligned: the row starts at a multiple of 16
// bytes.
template <typename T>
__device__ inline Piece<T> load_piece(const T* row, int first, int width, bool is_aligned) {
  Piece<T> piece;
  if (is_aligned && first + kPieceElems <= width) {
#pragma unroll
    for (int q = 0; q < Piece<T>::kQuads; ++q) {
      const uint4 quad = reinterpret_cast<const uint4*>(row + first)[q];
      piece.words[4 * q] = quad.x;
      piece.words[4 * q + 1] = quad.y;
      piece.words[4 * q + 2] = quad.z;
      piece.words[4 * q + 3] = quad.w;
    }
    return piece;
  }
  float values[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) values[i] = first + i < width ? to_float(row[first + i]) : 0.0f;
  return to_piece<T>(values);
}

// The same of what no kernel writes, which may be read before wait_for_inputs(): ld.global.nc, in program order.
__device__ inline float load_constant(const float* address) {
  float value;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(address));
  return value;
}
__device__ inline float load_constant(const Bf16* address) {
  Bf16 value;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(value.bits) : "l"(address));
  return to_float(value);
}
template <typename T>
__device__ inline Piece<T> load_constant_piece(const T* row, int first, int width, bool is_aligned) {
  Piece<T> piece;
  if (is_aligned && first + kPieceElems <= width) {
#pragma unroll
    for (int q = 0; q < Piece<T>::kQuads; ++q) {
      uint32_t* words = piece.words + 4 * q;
      asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "l"(reinterpret_cast<const uint4*>(row + first) + q));
    }
    return piece;
  }
  float values[kPieceElems];
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) values[i] = first + i < width ? load_constant(row + first + i) : 0.0f;
  return to_piece<T>(values);
}

// Elements [first, first + 8) of a row that starts at a multiple of 16 bytes, past L1: of what other CTAs of the grid
// have written. With a width, a multiple of 8, zeros beyond it.
__device__ inline Piece<Bf16> load_fresh_piece(const void* row, int first) {
  Piece<Bf16> piece;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(piece.words[0]), "=r"(piece.words[1]), "=r"(piece.words[2]), "=r"(piece.words[3])
               : "l"(static_cast<const Bf16*>(row) + first)
               : "memory");
  return piece;
}
__device__ inline Piece<Bf16> load_fresh_piece(const Bf16* row, int first, int width) {
  return first < width ? load_fresh_piece(row, first) : Piece<Bf16>{};
}

template <typename T>
__device__ inline void store_piece(T* row, int first, int width, bool is_aligned, const Piece<T>& piece) {
  if (is_aligned && first + kPieceElems <= width) {
#pragma unroll
    for (int q = 0; q < Piece<T>::kQuads; ++q) {
      const uint32_t* words = piece.words + 4 * q;
      reinterpret_cast<uint4*>(row + first)[q] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPieceElems; ++i) {
    if (first + i < width) row[first + i] = from_float<T>(value_of(piece, i));
  }
}

}  // namespace spate::cuda
