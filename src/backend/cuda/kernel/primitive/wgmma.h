// The tensor core's asynchronous product of a warpgroup (wgmma, sm_90a): both operands from shared memory.
//
// A tile in shared memory has 64 elements of k in rows of 128 bytes, swizzled as TMA's 128-byte mode does it: chunk c
// of 16 bytes of row r stands at c ^ (r % 8). Tiles start at multiples of 1,024 bytes.
#pragma once

#include <cstdint>

namespace spate::cuda {

constexpr int kWgmmaK = 16;

// Describes rows of such a tile from `shared` on; both operands are read along k. The next eight rows are
// eight_rows_bytes away.
__device__ inline uint64_t wgmma_descriptor(uint32_t shared, int eight_rows_bytes = 1024) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | static_cast<uint64_t>(eight_rows_bytes >> 4) << 32 | uint64_t{1} << 16 | (shared & 0x3ffff) >> 4;
}
// The same without swizzling, for operand a: 8 rows by 16 bytes of k lie together, the next 8 rows eight_rows_bytes
// away, the next 16 bytes of k k_bytes.
__device__ inline uint64_t wgmma_plain_descriptor(uint32_t shared, int k_bytes, int eight_rows_bytes) {
  return static_cast<uint64_t>(eight_rows_bytes >> 4) << 32 | static_cast<uint64_t>(k_bytes >> 4) << 16 |
         (shared & 0x3ffff) >> 4;
}
// The next 16 elements of k.
__device__ inline uint64_t next_wgmma_k(uint64_t descriptor, int steps) {
  return descriptor + static_cast<uint64_t>(steps * kWgmmaK * 2 >> 4);
}

// Registers written before may be used by wgmma after it.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the kPending groups committed last are done.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// acc[64][kColumns] += a[64][16] b[kColumns][16]^T in fp32. Warp w of the warpgroup has rows 16 w to 16 w + 15; with
// group = lane / 4 and pair = lane % 4:
//   acc[4 j], acc[4 j + 1]      row 16 w + group,      columns 8 j + 2 pair and the next
//   acc[4 j + 2], acc[4 j + 3]  row 16 w + group + 8
template <int kColumns>
__device__ inline void wgmma_bf16(float (&acc)[kColumns / 2], uint64_t a, uint64_t b);

#define SPATE_ACC_4(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])

template <>
__device__ inline void wgmma_bf16<8>(float (&acc)[4], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3}, "
      "%4, %5, 1, 1, 1, 0, 0;"
      : SPATE_ACC_4(0)
      : "l"(a), "l"(b));
}

template <>
__device__ inline void wgmma_bf16<16>(float (&acc)[8], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7}, "
      "%8, %9, 1, 1, 1, 0, 0;"
      : SPATE_ACC_4(0), SPATE_ACC_4(4)
      : "l"(a), "l"(b));
}

template <>
__device__ inline void wgmma_bf16<32>(float (&acc)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, 1, 1, 1, 0, 0;"
      : SPATE_ACC_4(0), SPATE_ACC_4(4), SPATE_ACC_4(8), SPATE_ACC_4(12)
      : "l"(a), "l"(b));
}

template <>
__device__ inline void wgmma_bf16<40>(float (&acc)[20], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n40k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19}, "
      "%20, %21, 1, 1, 1, 0, 0;"
      : SPATE_ACC_4(0), SPATE_ACC_4(4), SPATE_ACC_4(8), SPATE_ACC_4(12), SPATE_ACC_4(16)
      : "l"(a), "l"(b));
}

template <>
__device__ inline void wgmma_bf16<64>(float (&acc)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, 1, 1, 1, 0, 0;"
      : SPATE_ACC_4(0), SPATE_ACC_4(4), SPATE_ACC_4(8), SPATE_ACC_4(12), SPATE_ACC_4(16), SPATE_ACC_4(20),
        SPATE_ACC_4(24), SPATE_ACC_4(28)
      : "l"(a), "l"(b));
}

template <>
__device__ inline void wgmma_bf16<128>(float (&acc)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, 1, 1, 1, 0, 0;"
      : SPATE_ACC_4(0), SPATE_ACC_4(4), SPATE_ACC_4(8), SPATE_ACC_4(12), SPATE_ACC_4(16), SPATE_ACC_4(20),
        SPATE_ACC_4(24), SPATE_ACC_4(28), SPATE_ACC_4(32), SPATE_ACC_4(36), SPATE_ACC_4(40), SPATE_ACC_4(44),
        SPATE_ACC_4(48), SPATE_ACC_4(52), SPATE_ACC_4(56), SPATE_ACC_4(60)
      : "l"(a), "l"(b));
}

template <>
__device__ inline void wgmma_bf16<256>(float (&acc)[128], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, 1, 1, 1, 0, 0;"
      : SPATE_ACC_4(0), SPATE_ACC_4(4), SPATE_ACC_4(8), SPATE_ACC_4(12), SPATE_ACC_4(16), SPATE_ACC_4(20),
        SPATE_ACC_4(24), SPATE_ACC_4(28), SPATE_ACC_4(32), SPATE_ACC_4(36), SPATE_ACC_4(40), SPATE_ACC_4(44),
        SPATE_ACC_4(48), SPATE_ACC_4(52), SPATE_ACC_4(56), SPATE_ACC_4(60), SPATE_ACC_4(64), SPATE_ACC_4(68),
        SPATE_ACC_4(72), SPATE_ACC_4(76), SPATE_ACC_4(80), SPATE_ACC_4(84), SPATE_ACC_4(88), SPATE_ACC_4(92),
        SPATE_ACC_4(96), SPATE_ACC_4(100), SPATE_ACC_4(104), SPATE_ACC_4(108), SPATE_ACC_4(112), SPATE_ACC_4(116),
        SPATE_ACC_4(120), SPATE_ACC_4(124)
      : "l"(a), "l"(b));
}

#undef SPATE_ACC_4

}  // namespace spate::cuda
