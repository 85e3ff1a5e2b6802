// wgmma of 8-bit integers (sm_90a): as wgmma.h, with 32 elements of k a product and exact 32-bit sums. A tile in shared
// memory has 128 elements of k in rows of 128 bytes, swizzled alike, so that wgmma_descriptor() and next_wgmma_k()
// hold.
#pragma once

#include <cstdint>

#include "backend/cuda/kernel/primitive/wgmma.h"

namespace spate::cuda {

// Rows of a from registers. Warp w of the warpgroup has rows 16 w to 16 w + 15; with group = lane / 4 and pair = lane %
// 4:
//   words[0]  row group, k 4 pair to 4 pair + 3, the first in the lowest byte;  words[1]  the same of row group + 8
//   words[2], words[3]  the same of k + 16
struct WgmmaRows {
  uint32_t words[4];
};

// sums[64][kColumns] += a[64][32] b[kColumns][32]^T. a and b are signed.
template <int kColumns>
__device__ inline void wgmma_s8(int32_t (&sums)[kColumns / 2], uint64_t a, uint64_t b);
// The same with unsigned a from registers.
template <int kColumns>
__device__ inline void wgmma_u8_s8(int32_t (&sums)[kColumns / 2], const WgmmaRows& a, uint64_t b);

#define SPATE_SUM_4(i) "+r"(sums[i]), "+r"(sums[i + 1]), "+r"(sums[i + 2]), "+r"(sums[i + 3])

template <>
__device__ inline void wgmma_s8<8>(int32_t (&sums)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {"
      "%0, %1, %2, %3}, "
      "%4, %5, 1;"
      : SPATE_SUM_4(0)
      : "l"(a), "l"(b));
}
template <>
__device__ inline void wgmma_u8_s8<8>(int32_t (&sums)[4], const WgmmaRows& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 {"
      "%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, %8, 1;"
      : SPATE_SUM_4(0)
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "l"(b));
}

template <>
__device__ inline void wgmma_s8<16>(int32_t (&sums)[8], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7}, "
      "%8, %9, 1;"
      : SPATE_SUM_4(0), SPATE_SUM_4(4)
      : "l"(a), "l"(b));
}
template <>
__device__ inline void wgmma_u8_s8<16>(int32_t (&sums)[8], const WgmmaRows& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, %12, 1;"
      : SPATE_SUM_4(0), SPATE_SUM_4(4)
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "l"(b));
}

template <>
__device__ inline void wgmma_s8<32>(int32_t (&sums)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, 1;"
      : SPATE_SUM_4(0), SPATE_SUM_4(4), SPATE_SUM_4(8), SPATE_SUM_4(12)
      : "l"(a), "l"(b));
}
template <>
__device__ inline void wgmma_u8_s8<32>(int32_t (&sums)[16], const WgmmaRows& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, 1;"
      : SPATE_SUM_4(0), SPATE_SUM_4(4), SPATE_SUM_4(8), SPATE_SUM_4(12)
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "l"(b));
}

template <>
__device__ inline void wgmma_s8<64>(int32_t (&sums)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, 1;"
      : SPATE_SUM_4(0), SPATE_SUM_4(4), SPATE_SUM_4(8), SPATE_SUM_4(12), SPATE_SUM_4(16), SPATE_SUM_4(20),
        SPATE_SUM_4(24), SPATE_SUM_4(28)
      : "l"(a), "l"(b));
}
template <>
__device__ inline void wgmma_u8_s8<64>(int32_t (&sums)[32], const WgmmaRows& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1;"
      : SPATE_SUM_4(0), SPATE_SUM_4(4), SPATE_SUM_4(8), SPATE_SUM_4(12), SPATE_SUM_4(16), SPATE_SUM_4(20),
        SPATE_SUM_4(24), SPATE_SUM_4(28)
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "l"(b));
}

template <>
__device__ inline void wgmma_s8<128>(int32_t (&sums)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, 1;"
      : SPATE_SUM_4(0), SPATE_SUM_4(4), SPATE_SUM_4(8), SPATE_SUM_4(12), SPATE_SUM_4(16), SPATE_SUM_4(20),
        SPATE_SUM_4(24), SPATE_SUM_4(28), SPATE_SUM_4(32), SPATE_SUM_4(36), SPATE_SUM_4(40), SPATE_SUM_4(44),
        SPATE_SUM_4(48), SPATE_SUM_4(52), SPATE_SUM_4(56), SPATE_SUM_4(60)
      : "l"(a), "l"(b));
}
template <>
__device__ inline void wgmma_u8_s8<128>(int32_t (&sums)[64], const WgmmaRows& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1;"
      : SPATE_SUM_4(0), SPATE_SUM_4(4), SPATE_SUM_4(8), SPATE_SUM_4(12), SPATE_SUM_4(16), SPATE_SUM_4(20),
        SPATE_SUM_4(24), SPATE_SUM_4(28), SPATE_SUM_4(32), SPATE_SUM_4(36), SPATE_SUM_4(40), SPATE_SUM_4(44),
        SPATE_SUM_4(48), SPATE_SUM_4(52), SPATE_SUM_4(56), SPATE_SUM_4(60)
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "l"(b));
}

template <>
__device__ inline void wgmma_s8<256>(int32_t (&sums)[128], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, 1;"
      : SPATE_SUM_4(0), SPATE_SUM_4(4), SPATE_SUM_4(8), SPATE_SUM_4(12), SPATE_SUM_4(16), SPATE_SUM_4(20),
        SPATE_SUM_4(24), SPATE_SUM_4(28), SPATE_SUM_4(32), SPATE_SUM_4(36), SPATE_SUM_4(40), SPATE_SUM_4(44),
        SPATE_SUM_4(48), SPATE_SUM_4(52), SPATE_SUM_4(56), SPATE_SUM_4(60), SPATE_SUM_4(64), SPATE_SUM_4(68),
        SPATE_SUM_4(72), SPATE_SUM_4(76), SPATE_SUM_4(80), SPATE_SUM_4(84), SPATE_SUM_4(88), SPATE_SUM_4(92),
        SPATE_SUM_4(96), SPATE_SUM_4(100), SPATE_SUM_4(104), SPATE_SUM_4(108), SPATE_SUM_4(112), SPATE_SUM_4(116),
        SPATE_SUM_4(120), SPATE_SUM_4(124)
      : "l"(a), "l"(b));
}
template <>
__device__ inline void wgmma_u8_s8<256>(int32_t (&sums)[128], const WgmmaRows& a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k32.s32.u8.s8 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, 1;"
      : SPATE_SUM_4(0), SPATE_SUM_4(4), SPATE_SUM_4(8), SPATE_SUM_4(12), SPATE_SUM_4(16), SPATE_SUM_4(20),
        SPATE_SUM_4(24), SPATE_SUM_4(28), SPATE_SUM_4(32), SPATE_SUM_4(36), SPATE_SUM_4(40), SPATE_SUM_4(44),
        SPATE_SUM_4(48), SPATE_SUM_4(52), SPATE_SUM_4(56), SPATE_SUM_4(60), SPATE_SUM_4(64), SPATE_SUM_4(68),
        SPATE_SUM_4(72), SPATE_SUM_4(76), SPATE_SUM_4(80), SPATE_SUM_4(84), SPATE_SUM_4(88), SPATE_SUM_4(92),
        SPATE_SUM_4(96), SPATE_SUM_4(100), SPATE_SUM_4(104), SPATE_SUM_4(108), SPATE_SUM_4(112), SPATE_SUM_4(116),
        SPATE_SUM_4(120), SPATE_SUM_4(124)
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "l"(b));
}

#undef SPATE_SUM_4

}  // namespace spate::cuda
