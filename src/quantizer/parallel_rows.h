// Rows of a matrix shared out over threads that live for one call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace spate {

// body(begin, end) for even shares of [0, num_rows), at the same time.
template <typename Body>
void parallel_rows(int64_t num_rows, int num_threads, const Body& body) {
  const int64_t count = std::clamp<int64_t>(num_threads, 1, std::max<int64_t>(num_rows, 1));
  std::vector<std::jthread> threads;  // joined also where the system lends no more: the error reaches the caller then
  for (int64_t i = 1; i < count; ++i) {
    threads.emplace_back([&body, begin = num_rows * i / count, end = num_rows * (i + 1) / count] { body(begin, end); });
  }
  body(int64_t{0}, num_rows / count);
}

}  // namespace spate
