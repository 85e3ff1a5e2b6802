// The products of attention on wgmma (sm_90a; wgmma.h has the rules and the layout of an accumulator): scores from two
// operands in shared memory, values with probabilities in registers and V as it lies in the cache.
//
// Operands in shared memory are atoms of 8 rows of 128 bytes, 1,024 bytes, swizzled as TMA's 128-byte mode does it.
// Where atoms stand is free: a descriptor names the distances.
#pragma once

#include "backend/cuda/kernel/primitive/wgmma_values.h"

namespace spate::cuda {

// Rows of 64 elements along k: the next 8 rows are row_stride bytes away.
__device__ inline uint64_t wgmma_rows(uint32_t shared, int row_stride) {
  return uint64_t{1} << 62 | static_cast<uint64_t>(row_stride >> 4) << 32 | uint64_t{1} << 16 |
         (shared & 0x3ffff) >> 4;
}
// The compiler moves no use of the registers across: products in flight write them.
template <int kCount>
__device__ inline void fence_registers(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// acc[64][kColumns] (+)= a[64][16] b[kColumns][16]^T.
template <int kColumns>
__device__ inline void wgmma_scores(float (&acc)[kColumns / 2], uint64_t a, uint64_t b, bool accumulates);

#define SPATE_ACC_8(i)                                                                                     \
  "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3]), "+f"(acc[i + 4]), "+f"(acc[i + 5]), \
      "+f"(acc[i + 6]), "+f"(acc[i + 7])

template <>
__device__ inline void wgmma_scores<128>(float (&acc)[64], uint64_t a, uint64_t b, bool accumulates) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %66, 0; "
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0; }"
      : SPATE_ACC_8(0), SPATE_ACC_8(8), SPATE_ACC_8(16), SPATE_ACC_8(24), SPATE_ACC_8(32), SPATE_ACC_8(40),
        SPATE_ACC_8(48), SPATE_ACC_8(56)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulates)));
}

template <>
__device__ inline void wgmma_values_from_registers<64>(float (&acc)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
      : SPATE_ACC_8(0), SPATE_ACC_8(8), SPATE_ACC_8(16), SPATE_ACC_8(24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

template <>
__device__ inline void wgmma_values_from_registers<128>(float (&acc)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : SPATE_ACC_8(0), SPATE_ACC_8(8), SPATE_ACC_8(16), SPATE_ACC_8(24), SPATE_ACC_8(32), SPATE_ACC_8(40),
        SPATE_ACC_8(48), SPATE_ACC_8(56)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef SPATE_ACC_8

}  // namespace spate::cuda
