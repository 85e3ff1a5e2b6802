// The instruction sets of ARM, as the kernel tells them (Linux: HWCAP).
#include "backend/cpu/isa.h"

namespace spate::cpu {
namespace {

bool has_neon() { return true; }  // the baseline of the program

constexpr Isa kIsas[] = {{"neon", "NEON", neon_kernels, has_neon}};

}  // namespace

std::span<const Isa> all_isas() { return kIsas; }

}  // namespace spate::cpu
