// PreparePools: the threads that parse, render and tokenise requests. Requests are sorted by the size of their bodies,
// and each size has threads of its own: a body of 60 MB takes seconds, and a small one must not wait for it.
//
// Owned by the server. post() from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "server/work_pool.h"

namespace spate {

class PreparePools {
 public:
  explicit PreparePools(int num_small_threads);
  ~PreparePools();  // runs what was posted

  // The task owns the request: its memory is counted as free when the task is destroyed.
  void post(size_t num_body_bytes, std::function<void()> task);

 private:
  struct SizeClass {
    size_t max_body_bytes;
    std::unique_ptr<WorkPool> pool;
  };
  void note_end_of_large(size_t num_body_bytes);

  std::atomic<int> num_large_{0};
  std::atomic<size_t> untrimmed_bytes_{0};
  std::vector<SizeClass> size_classes_;  // smallest first; after what its threads use
};

}  // namespace spate
