// Which instruction set the CPU kernels use: the best that this machine has, capped by an option.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "backend/cpu/kernels.h"
#include "base/status.h"

namespace spate::cpu {

struct Isa {
  std::string_view name;         // "avx2": what --isa takes
  std::string_view description;  // "AVX-512 + AMX"
  const KernelTable& (*kernels)();
  bool (*is_present)();  // on this machine
  bool (*is_preferred)();  // is present, and here not slower than those before it: what is taken without a cap
};

// Of the architecture that the program is built for, the better behind the others (isa_x86.cpp, isa_arm.cpp): a machine
// may lack one and have a better one, as servers with AVX-512 lack AVX-VNNI. Their names are kCpuInstructionSets. The
// first is there on every machine.
std::span<const Isa> all_isas();

// The last that this machine prefers. The first call asks the kernel for what a process must ask for once, such as AMX
// tile registers.
const Isa& best_isa();
// `cap` is "" or a name; an unknown name or one that this machine lacks is an error that names what there is.
Result<const Isa*> choose_isa(const std::string& cap);

}  // namespace spate::cpu
