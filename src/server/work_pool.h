// WorkPool: runs tasks on its own threads, in the order given (exactly so with one thread). A task must not throw.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace spate {

class WorkPool {
 public:
  // `nice` above 0: the threads give way to others (setpriority).
  explicit WorkPool(int num_threads, int nice = 0);
  ~WorkPool();  // runs what was posted, then joins
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  void post(std::function<void()> task);  // any thread

 private:
  void run(int nice);

  const bool is_single_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable has_work_;
  std::deque<std::function<void()>> tasks_;
  bool is_stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace spate
