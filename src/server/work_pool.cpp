#include "server/work_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <system_error>
#include <utility>

namespace spate {

WorkPool::WorkPool(int num_threads, int nice) : is_single_(num_threads == 1) {
  for (int i = 0; i < num_threads; ++i) {
    try {
      threads_.emplace_back([this, nice] { run(nice); });
    } catch (const std::system_error&) {  // the system lends no more
      if (i == 0) throw;
      break;  // fewer do the same work
    }
  }
}

WorkPool::~WorkPool() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkPool::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  has_work_.notify_one();
}

void WorkPool::run(int nice) {
  if (nice > 0) ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), nice);  // of this thread alone, on Linux
  std::deque<std::function<void()>> taken;
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [this] { return is_stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    if (is_single_) {  // nobody else could run them meanwhile: all at once
      taken.swap(tasks_);
    } else {
      taken.push_back(std::move(tasks_.front()));
      tasks_.pop_front();
    }
    lock.unlock();
    for (std::function<void()>& task : taken) {
      task();
      task = nullptr;  // what it owns is freed outside the lock
    }
    taken.clear();
    lock.lock();
  }
}

}  // namespace spate
