// wgmma_bf16() of more numbers of columns, for tiles whose rows are counted on the device.
#pragma once

#include "backend/cuda/kernel/primitive/wgmma.h"

namespace spate::cuda {

// The registers of the first columns, as wgmma's text and as operands.
#define SPATE_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SPATE_REGISTERS_32 SPATE_REGISTERS_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SPATE_REGISTERS_48 SPATE_REGISTERS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SPATE_REGISTERS_64 SPATE_REGISTERS_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SPATE_REGISTERS_80 SPATE_REGISTERS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SPATE_REGISTERS_96 SPATE_REGISTERS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SPATE_REGISTERS_112 SPATE_REGISTERS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SPATE_REGISTERS_128 SPATE_REGISTERS_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SPATE_REGISTERS_144 SPATE_REGISTERS_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SPATE_REGISTERS_160 SPATE_REGISTERS_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define SPATE_REGISTERS_176 SPATE_REGISTERS_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define SPATE_REGISTERS_192 SPATE_REGISTERS_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define SPATE_REGISTERS_208 SPATE_REGISTERS_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SPATE_REGISTERS_224 SPATE_REGISTERS_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define SPATE_REGISTERS_240 SPATE_REGISTERS_224 ", %112, %113, %114, %115, %116, %117, %118, %119"

#define SPATE_SUMS_8(i)                                                                                   \
  "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3]), "+f"(acc[i + 4]), "+f"(acc[i + 5]), \
      "+f"(acc[i + 6]), "+f"(acc[i + 7])
#define SPATE_SUMS_OF_16 SPATE_SUMS_8(0)
#define SPATE_SUMS_OF_32 SPATE_SUMS_OF_16, SPATE_SUMS_8(8)
#define SPATE_SUMS_OF_48 SPATE_SUMS_OF_32, SPATE_SUMS_8(16)
#define SPATE_SUMS_OF_64 SPATE_SUMS_OF_48, SPATE_SUMS_8(24)
#define SPATE_SUMS_OF_80 SPATE_SUMS_OF_64, SPATE_SUMS_8(32)
#define SPATE_SUMS_OF_96 SPATE_SUMS_OF_80, SPATE_SUMS_8(40)
#define SPATE_SUMS_OF_112 SPATE_SUMS_OF_96, SPATE_SUMS_8(48)
#define SPATE_SUMS_OF_128 SPATE_SUMS_OF_112, SPATE_SUMS_8(56)
#define SPATE_SUMS_OF_144 SPATE_SUMS_OF_128, SPATE_SUMS_8(64)
#define SPATE_SUMS_OF_160 SPATE_SUMS_OF_144, SPATE_SUMS_8(72)
#define SPATE_SUMS_OF_176 SPATE_SUMS_OF_160, SPATE_SUMS_8(80)
#define SPATE_SUMS_OF_192 SPATE_SUMS_OF_176, SPATE_SUMS_8(88)
#define SPATE_SUMS_OF_208 SPATE_SUMS_OF_192, SPATE_SUMS_8(96)
#define SPATE_SUMS_OF_224 SPATE_SUMS_OF_208, SPATE_SUMS_8(104)
#define SPATE_SUMS_OF_240 SPATE_SUMS_OF_224, SPATE_SUMS_8(112)

// a, b: the numbers of the operands behind the sums.
#define SPATE_WGMMA_BF16(columns, a_operand, b_operand)                                                       \
  template <>                                                                                                 \
  __device__ inline void wgmma_bf16<columns>(float(&acc)[columns / 2], uint64_t a, uint64_t b) {              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" SPATE_REGISTERS_##columns \
                 "}, %" #a_operand ", %" #b_operand ", 1, 1, 1, 0, 0;"                                        \
                 : SPATE_SUMS_OF_##columns                                                                    \
                 : "l"(a), "l"(b));                                                                           \
  }
SPATE_WGMMA_BF16(96, 48, 49)
SPATE_WGMMA_BF16(144, 72, 73)
SPATE_WGMMA_BF16(160, 80, 81)
SPATE_WGMMA_BF16(176, 88, 89)
SPATE_WGMMA_BF16(192, 96, 97)
SPATE_WGMMA_BF16(208, 104, 105)
SPATE_WGMMA_BF16(224, 112, 113)
SPATE_WGMMA_BF16(240, 120, 121)

#undef SPATE_REGISTERS_16
#undef SPATE_SUMS_OF_16
#undef SPATE_REGISTERS_32
#undef SPATE_SUMS_OF_32
#undef SPATE_REGISTERS_48
#undef SPATE_SUMS_OF_48
#undef SPATE_REGISTERS_64
#undef SPATE_SUMS_OF_64
#undef SPATE_REGISTERS_80
#undef SPATE_SUMS_OF_80
#undef SPATE_REGISTERS_96
#undef SPATE_SUMS_OF_96
#undef SPATE_REGISTERS_112
#undef SPATE_SUMS_OF_112
#undef SPATE_REGISTERS_128
#undef SPATE_SUMS_OF_128
#undef SPATE_REGISTERS_144
#undef SPATE_SUMS_OF_144
#undef SPATE_REGISTERS_160
#undef SPATE_SUMS_OF_160
#undef SPATE_REGISTERS_176
#undef SPATE_SUMS_OF_176
#undef SPATE_REGISTERS_192
#undef SPATE_SUMS_OF_192
#undef SPATE_REGISTERS_208
#undef SPATE_SUMS_OF_208
#undef SPATE_REGISTERS_224
#undef SPATE_SUMS_OF_224
#undef SPATE_REGISTERS_240
#undef SPATE_SUMS_OF_240
#undef SPATE_SUMS_8
#undef SPATE_WGMMA_BF16

}  // namespace spate::cuda
