// The instruction sets of x86-64, by cpuid.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cpu/isa.h"

namespace spate::cpu {
namespace {

bool has_avx2() { return true; }  // the baseline of the program

bool has_avx_vnni() {
  constexpr unsigned kAvxVnni = 1u << 4;  // leaf 7.1, eax
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & kAvxVnni);
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

bool has_avx512_bf16() {
  constexpr unsigned kAvx512Bf16 = 1u << 5;  // leaf 7.1, eax
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!has_avx512() || !__builtin_cpu_supports("avx512vbmi")) return false;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & kAvx512Bf16);
}

// VDPBF16PS has twice the rate of FMA on AMD's CPUs and half of it on a Xeon, whose codes are read as fast by `avx512`.
// By the maker and not by a measured rate: the sums of bf16 differ, and a start must not choose others than the last
// one.
bool has_fast_avx512_bf16() { return has_avx512_bf16() && !__builtin_cpu_is("intel"); }

bool has_amx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAvx512Fp16 = 1u << 23, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;  // leaf 7, edx
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  constexpr unsigned kAll = kAmxBf16 | kAvx512Fp16 | kAmxTile | kAmxInt8;
  if ((edx & kAll) != kAll) return false;
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;  // asm/prctl.h, Linux 5.16
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

constexpr Isa kIsas[] = {{"avx2", "AVX2", avx2_kernels, has_avx2, has_avx2},
                         {"avxvnni", "AVX2 + VNNI", avxvnni_kernels, has_avx_vnni, has_avx_vnni},
                         {"avx512", "AVX-512", avx512_kernels, has_avx512, has_avx512},
                         {"avx512bf16", "AVX-512 + BF16", avx512bf16_kernels, has_avx512_bf16, has_fast_avx512_bf16},
                         {"amx", "AVX-512 + AMX", amx_kernels, has_amx, has_amx}};

}  // namespace

std::span<const Isa> all_isas() { return kIsas; }

}  // namespace spate::cpu
