#include "backend/cuda/ptxas_log.h"

#include <cstdio>
#include <sstream>

namespace spate::cuda {

// "Compiling entry function 'f' for 'sm_90a'", then "N bytes stack frame, N bytes spill stores, N bytes spill loads",
// then "Used N registers, used N barriers, N bytes smem, ...", each after a prefix.
std::map<std::string, KernelUsage> parse_ptxas_log(const std::string& log) {
  std::map<std::string, KernelUsage> usages;
  std::istringstream lines(log);
  std::string line, function;
  while (std::getline(lines, line)) {
    char name[256];
    int stack = 0, stores = 0, loads = 0, registers = 0;
    if (const size_t entry = line.find("Compiling entry function"); entry != std::string::npos) {
      if (std::sscanf(line.c_str() + entry, "Compiling entry function '%255[^']'", name) == 1) function = name;
    } else if (const size_t frame = line.find(" bytes stack frame"); frame != std::string::npos) {
      const size_t number = line.find_last_not_of("0123456789", frame - 1) + 1;
      if (std::sscanf(line.c_str() + number, "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads",
                      &stack, &stores, &loads) == 3) {
        usages[function].stack_bytes = stack;
        usages[function].spill_bytes = stores + loads;
      }
    } else if (const size_t used = line.find("Used "); used != std::string::npos) {
      if (std::sscanf(line.c_str() + used, "Used %d registers", &registers) == 1)
        usages[function].registers = registers;
      if (const size_t shared = line.find(" bytes smem"); shared != std::string::npos) {
        const size_t number = line.find_last_not_of("0123456789", shared - 1) + 1;
        std::sscanf(line.c_str() + number, "%d", &usages[function].shared_bytes);
      }
    }
  }
  return usages;
}

}  // namespace spate::cuda
