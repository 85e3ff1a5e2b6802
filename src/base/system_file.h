// Files of the kernel under /sys and /proc.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

namespace spate {

// All of it; empty when it cannot be read.
inline std::string read_system_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace spate
