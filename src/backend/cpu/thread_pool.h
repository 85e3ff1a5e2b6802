// The compute threads of one CPU device: the caller's thread and num_threads - 1 workers.
//
// A fork and join costs about 1 us while a step runs: workers spin between the ops of a step for a bounded time
// (yielding after a while, so that another process on the core gets on) and then sleep on a futex. Nobody waits for a
// worker that has no core: others take its items, and who comes when all are begun does not join any more.
//
// Threads are bound only when homes are given: the kernel leaves a spinning thread of an idle machine where it is, and
// two servers or test runs on one machine, who know nothing of each other, would all choose the same cores. The
// caller's thread, which must also be the one that makes and ends the pool, is bound while the pool lives.
//
// One caller at a time. Nested calls are not allowed.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "base/cpu_cores.h"

namespace spate::cpu {

class ThreadPool {
 public:
  // homes: one a thread, the caller's first; empty: threads run where the kernel puts them.
  explicit ThreadPool(int num_threads, std::vector<ThreadHome> homes = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(cursors_.size()); }
  const std::vector<ThreadHome>& homes() const { return homes_; }
  int num_nodes() const { return num_nodes_; }  // of memory, that the homes lie on; 1 without homes

  // Calls fn(thread_idx, item) once for every item in [0, num_items), and returns when all are done. Each thread starts with
  // its own contiguous run of items (so that it streams its own part of a weight) and then takes items that others have not
  // begun, first of threads on its node.
  template <typename Fn>
  void parallel_for(int64_t num_items, const Fn& fn) {
    if (num_items <= 1 || num_threads() == 1) {
      for (int64_t item = 0; item < num_items; ++item) fn(0, item);
      return;
    }
    run(num_items, &invoke<Fn>, &fn);
  }
  // Calls fn(thread_idx) once on every thread.
  template <typename Fn>
  void on_each_thread(const Fn& fn) {
    takes_over_ = false;
    parallel_for(num_threads(), [&](int thread_idx, int64_t) { fn(thread_idx); });
    takes_over_ = true;
  }
  // The run that a thread starts with begins here; shares are as the homes' speeds. thread_idx num_threads(): num_items.
  int64_t first_item(int64_t num_items, int thread_idx) const { return first_item(num_items, thread_idx, num_threads()); }

  // Between these the workers spin longer before they sleep.
  void begin_step() { in_step_.store(true, std::memory_order_relaxed); }
  void end_step() { in_step_.store(false, std::memory_order_relaxed); }

 private:
  using Invoke = void (*)(const void* fn, int thread_idx, int64_t item);
  template <typename Fn>
  static void invoke(const void* fn, int thread_idx, int64_t item) {
    (*static_cast<const Fn*>(fn))(thread_idx, item);
  }

  struct alignas(64) Cursor {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void run(int64_t num_items, Invoke invoke_item, const void* fn);
  void work(int thread_idx, int num_participants);
  void take_over(int thread_idx, int num_participants, bool on_same_node);
  void run_items(int thread_idx, Cursor& cursor);
  int64_t first_item(int64_t num_items, int thread_idx, int num_participants) const;
  int node_of(int thread_idx) const { return homes_.empty() ? 0 : homes_[static_cast<size_t>(thread_idx)].node; }
  void worker_loop(int thread_idx);
  template <typename Value, typename Done>
  void wait_until(const std::atomic<Value>& word, const Done& done);

  bool join(uint32_t job_word);

  // Number of the job and how many threads take part in it, in one word, so that a thread that does not take part never reads the job.
  std::atomic<uint32_t> job_word_{0};
  // Number of the job, whether it is closed, whether all must come, and the workers that the caller waits for: those
  // that have joined, or all.
  alignas(64) std::atomic<uint32_t> team_{0};
  alignas(64) std::atomic<bool> in_step_{false};
  std::atomic<bool> stopping_{false};
  Invoke invoke_ = nullptr;
  const void* fn_ = nullptr;
  bool takes_over_ = true;  // items of others; of the job
  std::vector<Cursor> cursors_;
  const std::vector<ThreadHome> homes_;
  int num_nodes_ = 1;
  std::vector<int64_t> speed_before_;  // [num_threads + 1] of the threads before one together
  std::optional<CoreBinding> caller_binding_;
  std::vector<std::thread> workers_;
};

}  // namespace spate::cpu
