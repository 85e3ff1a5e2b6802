// Seconds of the steady clock, for figures that people read.
#pragma once

#include <chrono>

namespace spate {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace spate
