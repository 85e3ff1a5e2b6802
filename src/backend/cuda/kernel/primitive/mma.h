// The tensor core's products of a warp, one instruction each (sm_80 and later).
#pragma once

#include <cstdint>

namespace spate::cuda {

// acc[16][8] += a[16][16] b[16][8], b given by columns; fp32 sums. With group = lane / 4, pair = lane % 4, a register
// holds two bf16 neighbours along k, the first in the low half:
//   a[0] row group,     k 2 pair      a[1] row group + 8, k 2 pair      b[0] column group, k 2 pair
//   a[2] row group,     k 2 pair + 8  a[3] row group + 8, k 2 pair + 8  b[1] column group, k 2 pair + 8
//   acc[0], acc[1] row group, columns 2 pair, 2 pair + 1;  acc[2], acc[3] row group + 8
__device__ inline void mma_m16n8k16_bf16(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same of fp16.
__device__ inline void mma_m16n8k16_f16(float (&acc)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// An 8x8 matrix of which lane l has row l / 4, columns 2 (l % 4) and the next: the same of the transposed one.
__device__ inline uint32_t transpose_8x8(uint32_t row) {
  uint32_t column;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column) : "r"(row));
  return column;
}

// acc[16][8] += a[16][32] b[32][8] of 8-bit codes, exact. A register holds four neighbours along k, the first in the
// lowest byte: where above it is 2 pair and 2 pair + 8, here it is 4 pair and 4 pair + 16.
#define SPATE_MMA_INT8(name, a_type, b_type)                                                                   \
  __device__ inline void mma_m16n8k32_##name(int32_t(&acc)[4], const uint32_t(&a)[4], const uint32_t(&b)[2]) { \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." a_type "." b_type                                    \
                 ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "                                                \
                 "{%0,%1,%2,%3};"                                                                              \
                 : "+r"(acc[0]), "+r"(acc[1]), "+r"(acc[2]), "+r"(acc[3])                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                          \
  }
SPATE_MMA_INT8(s8, "s8", "s8")
SPATE_MMA_INT8(u8_s8, "u8", "s8")
SPATE_MMA_INT8(s8_u8, "s8", "u8")
#undef SPATE_MMA_INT8

}  // namespace spate::cuda
