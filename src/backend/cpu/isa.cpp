#include "backend/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace spate::cpu {
namespace {

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

bool has_amx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAvx512Fp16 = 1u << 23, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;  // leaf 7, edx
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!has_avx512_bf16() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  constexpr unsigned kAll = kAmxBf16 | kAvx512Fp16 | kAmxTile | kAmxInt8;
  if ((edx & kAll) != kAll) return false;
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;  // asm/prctl.h, Linux 5.16
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Bf16: return "avx512bf16";
    case Isa::kAmx: return "amx";
  }
  return "?";
}

std::string_view isa_description(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return "AVX2";
    case Isa::kAvx512: return "AVX-512";
    case Isa::kAvx512Bf16: return "AVX-512 + BF16";
    case Isa::kAmx: return "AVX-512 + AMX";
  }
  return "?";
}

Isa best_isa() {
  static const Isa best = has_amx()           ? Isa::kAmx
                          : has_avx512_bf16() ? Isa::kAvx512Bf16
                          : has_avx512()      ? Isa::kAvx512
                                              : Isa::kAvx2;
  return best;
}

Result<Isa> choose_isa(const std::string& cap) {
  if (cap.empty()) return best_isa();
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (cap != isa_name(isa)) continue;
    if (isa <= best_isa()) return isa;
    return invalid_argument("instruction set {}: this machine has only {}", cap, isa_name(best_isa()));
  }
  return invalid_argument("instruction set '{}' is unknown: use avx2, avx512, avx512bf16 or amx", cap);
}

const KernelTable& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kAvx512: return avx512_kernels();
    case Isa::kAvx512Bf16: return avx512bf16_kernels();
    case Isa::kAmx: return amx_kernels();
    case Isa::kAvx2: break;
  }
  return avx2_kernels();
}

}  // namespace spate::cpu
