// What `ptxas --verbose` says of each kernel.
#pragma once

#include <map>
#include <string>

namespace spate::cuda {

struct KernelUsage {
  int registers = -1;  // of a thread; -1: not said
  int stack_bytes = -1;
  int spill_bytes = -1;  // stores and loads
  int shared_bytes = 0;  // static
};

// By kernel.
std::map<std::string, KernelUsage> parse_ptxas_log(const std::string& log);

}  // namespace spate::cuda
