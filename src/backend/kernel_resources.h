// What `spate kernels` asks of a back-end that compiles its kernels when it starts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace spate {

struct KernelCompileOptions {
  std::string architecture;      // as the back-end names it: "sm_90a"
  std::string kernel_dir;        // sources; empty: the embedded ones
  std::filesystem::path folder;  // gets the compiled kernels
};

struct KernelResources {
  std::string program;  // source file
  std::string kernel;
  int registers = 0;     // of a thread
  int shared_bytes = 0;  // of a block: static, and the most that it is launched with
  int stack_bytes = 0;   // of a thread
  int spill_bytes = 0;   // of a thread: stores and loads
};

}  // namespace spate
