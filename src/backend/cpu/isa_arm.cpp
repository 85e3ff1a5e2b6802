// The instruction sets of ARM, as Linux tells them.
#include <sys/auxv.h>

#include "backend/cpu/isa.h"

namespace spate::cpu {
namespace {

bool has_neon() { return true; }  // the baseline of the program

constexpr unsigned long kDotProd = 1ul << 20, kI8mm = 1ul << 13,
                        kBf16 = 1ul << 14;  // HWCAP_ASIMDDP, HWCAP2_*: asm/hwcap.h
bool has_dotprod() { return (getauxval(AT_HWCAP) & kDotProd) != 0; }
bool has_i8mm() { return has_dotprod() && (getauxval(AT_HWCAP2) & kI8mm) != 0; }
bool has_bf16() { return has_i8mm() && (getauxval(AT_HWCAP2) & kBf16) != 0; }

constexpr Isa kIsas[] = {{"neon", "NEON", neon_kernels, has_neon, has_neon},
                         {"neondot", "NEON + dot products", neondot_kernels, has_dotprod, has_dotprod},
                         {"neoni8mm", "NEON + I8MM", neoni8mm_kernels, has_i8mm, has_i8mm},
                         {"neonbf16", "NEON + I8MM + BF16", neonbf16_kernels, has_bf16, has_bf16}};

}  // namespace

std::span<const Isa> all_isas() { return kIsas; }

}  // namespace spate::cpu
