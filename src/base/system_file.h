// Files of the kernel under /sys and /proc.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

namespace spate {

// All of it; empty when it cannot be read. Some open and then fail: those of a control group that was removed, say.
inline std::string read_system_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();  // an iterator over the buffer would throw
  return text.str();
}

}  // namespace spate
