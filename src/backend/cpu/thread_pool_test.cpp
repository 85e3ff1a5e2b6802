// Goal    Every item is run once, by a thread that is bound where it should be; without homes nothing is bound. Threads
//         begin with items as their speeds are to each other. Nobody waits for a thread that has no core.
// Method  Counters per item over many sizes; each thread asks the kernel for its own mask.
#include "backend/cpu/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "base/cpu_cores.h"
#include "base/test.h"

namespace spate::cpu {
namespace {

TEST_CASE("thread pool: every item once, whatever the number of items and threads") {
  for (const int num_threads : {1, 2, 5}) {
    ThreadPool pool(num_threads);
    for (const int64_t num_items : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> counts(static_cast<size_t>(num_items));
      for (int round = 0; round < 20; ++round) {
        pool.begin_step();
        pool.parallel_for(num_items, [&](int thread_idx, int64_t item) {
          CHECK_MESSAGE((thread_idx >= 0 && thread_idx < num_threads), thread_idx);
          ++counts[static_cast<size_t>(item)];
        });
        pool.end_step();
      }
      for (const auto& count : counts) CHECK(count == 20);
    }
  }
}

// The masks that the threads of a pool see, by thread; a thread that got no item in many rounds is missing.
std::vector<std::vector<int>> masks_of(ThreadPool& pool) {
  std::vector<std::vector<int>> masks(static_cast<size_t>(pool.num_threads()));
  std::atomic<int> num_waiting{0};
  // Nobody leaves before everybody has come: each thread gets one item.
  pool.parallel_for(pool.num_threads(), [&](int thread_idx, int64_t) {
    masks[static_cast<size_t>(thread_idx)] = allowed_cores();
    ++num_waiting;
    while (num_waiting < pool.num_threads()) std::this_thread::yield();
  });
  return masks;
}

TEST_CASE("thread pool: threads are bound to the cores given, the caller only while the pool lives") {
  const std::vector<int> before = allowed_cores();
  const std::vector<int>& usable = usable_cores();
  {
    ThreadPool pool(static_cast<int>(usable.size()), homes_on_cores(usable_topology(), usable));
    const auto masks = masks_of(pool);
    for (size_t i = 0; i < masks.size(); ++i) CHECK(masks[i] == std::vector<int>{usable[i]});
  }
  CHECK(allowed_cores() == before);
  ThreadPool free_pool(2);
  for (const auto& mask : masks_of(free_pool)) CHECK(mask == before);
}

std::atomic<bool> worker_is_held, worker_may_go_on;

void hold_worker(int) {
  worker_is_held = true;
  while (!worker_may_go_on) {
  }
}

// A signal's handler keeps the worker away as a busy core would.
TEST_CASE("thread pool: a worker that does not come holds nobody up") {
  ThreadPool pool(2);
  pthread_t worker{};
  pool.on_each_thread([&](int thread_idx) {
    if (thread_idx == 1) worker = pthread_self();
  });
  struct sigaction before {
  }, hold{};
  hold.sa_handler = hold_worker;
  REQUIRE(sigaction(SIGUSR2, &hold, &before) == 0);
  worker_is_held = worker_may_go_on = false;
  REQUIRE(pthread_kill(worker, SIGUSR2) == 0);
  while (!worker_is_held) std::this_thread::yield();
  std::atomic<bool> is_over{false};
  std::atomic<bool> gave_up{false};
  std::thread watch([&] {
    for (int i = 0; i < 1000 && !is_over; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (!is_over) gave_up = worker_may_go_on = true;
  });
  for (int round = 0; round < 1000; ++round) {
    std::vector<int> threads(7, -1);
    pool.parallel_for(7, [&](int thread_idx, int64_t item) { threads[static_cast<size_t>(item)] = thread_idx; });
    CHECK(threads == std::vector<int>(7, 0));
  }
  is_over = true;
  watch.join();
  CHECK_FALSE(gave_up);
  worker_may_go_on = true;
  for (int round = 0; round < 100; ++round) {
    std::vector<int> counts(2);
    pool.on_each_thread([&](int thread_idx) { ++counts[static_cast<size_t>(thread_idx)]; });
    CHECK(counts == std::vector<int>{1, 1});
  }
  sigaction(SIGUSR2, &before, nullptr);
}

TEST_CASE("thread pool: shares as speeds, of equal ones as ever; once on each thread") {
  const std::vector<int> all = allowed_cores();
  ThreadPool pool(3, {{.core_ids = all, .node = 0, .speed = 1024},
                      {.core_ids = all, .node = 1, .speed = 512},
                      {.core_ids = all, .node = 1, .speed = 512}});
  CHECK(pool.num_nodes() == 2);
  CHECK(pool.first_item(100, 0) == 0);
  CHECK(pool.first_item(100, 1) == 50);
  CHECK(pool.first_item(100, 2) == 75);
  CHECK(pool.first_item(100, 3) == 100);
  ThreadPool equal(3);
  CHECK(equal.num_nodes() == 1);
  for (int64_t num_items = 0; num_items < 20; ++num_items) {
    for (int i = 0; i <= 3; ++i) CHECK(equal.first_item(num_items, i) == num_items * i / 3);
  }
  for (int round = 0; round < 50; ++round) {
    std::vector<int> counts(3);
    pool.on_each_thread([&](int thread_idx) { ++counts[static_cast<size_t>(thread_idx)]; });
    CHECK(counts == std::vector<int>{1, 1, 1});
    std::vector<std::atomic<int>> items(40);
    pool.parallel_for(40, [&](int, int64_t item) { ++items[static_cast<size_t>(item)]; });
    for (const auto& count : items) CHECK(count == 1);
  }
}

}  // namespace
}  // namespace spate::cpu
