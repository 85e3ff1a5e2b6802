// Which instruction set the CPU kernels use: found by cpuid, capped by an option.
#pragma once

#include <string>
#include <string_view>

#include "backend/cpu/kernels.h"
#include "base/status.h"

namespace spate::cpu {

enum class Isa { kAvx2, kAvx512, kAvx512Bf16, kAmx };

std::string_view isa_name(Isa isa);         // "avx2": what --isa takes
std::string_view isa_description(Isa isa);  // "AVX-512 + AMX"

// The best of this machine. Asks the kernel for the AMX tile registers, which a process must do once before it uses them.
Isa best_isa();
// `cap` is "" or a name; an unknown name or one that this machine lacks is an error that names what there is.
Result<Isa> choose_isa(const std::string& cap);

const KernelTable& kernels_of(Isa isa);

}  // namespace spate::cpu
