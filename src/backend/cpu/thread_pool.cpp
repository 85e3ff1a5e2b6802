#include "backend/cpu/thread_pool.h"

#include <sched.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace spate::cpu {
namespace {

// Leaves the core's units to its other thread, or to nobody, for some 40 cycles.
void pause() {
#ifdef __x86_64__
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // YIELD does nothing on cores without a second thread
#endif
}

constexpr uint32_t kParticipantBits = 12;
constexpr uint32_t kParticipantMask = (1u << kParticipantBits) - 1;

constexpr int kPausesPerLook = 32;
constexpr std::chrono::microseconds kSpinTime{30};      // pure spinning
constexpr std::chrono::microseconds kIdleTime{60};      // then yielding, outside a step
constexpr std::chrono::microseconds kStepIdleTime{500};  // ... inside a step: longer than any serial part of it

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::vector<int> core_ids)
    : cursors_(static_cast<size_t>(num_threads)), core_ids_(std::move(core_ids)) {
  CHECK(num_threads >= 1 && num_threads < static_cast<int>(kParticipantMask), "{} compute threads", num_threads);
  CHECK(core_ids_.empty() || static_cast<int>(core_ids_.size()) == num_threads, "{} threads, {} cores", num_threads,
        core_ids_.size());
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
  if (!core_ids_.empty()) caller_binding_.emplace(core_ids_[0]);  // behind the workers, who would inherit it
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  job_word_.fetch_add(1u << kParticipantBits, std::memory_order_release);
  job_word_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

template <typename Value, typename Done>
void ThreadPool::wait_until(const std::atomic<Value>& word, const Done& done) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (done(word.load(std::memory_order_acquire))) return;
      pause();
    }
    const auto waited = Clock::now() - start;
    if (waited < kSpinTime) continue;
    if (waited > (in_step_.load(std::memory_order_relaxed) ? kStepIdleTime : kIdleTime)) break;
    sched_yield();
  }
  for (Value value = word.load(std::memory_order_acquire); !done(value); value = word.load(std::memory_order_acquire)) {
    word.wait(value, std::memory_order_acquire);
  }
}

void ThreadPool::run(int64_t num_items, Invoke invoke_item, const void* fn) {
  const int participants = static_cast<int>(std::min<int64_t>(num_threads(), num_items));
  invoke_ = invoke_item;
  fn_ = fn;
  for (int t = 0; t < participants; ++t) {
    Cursor& cursor = cursors_[static_cast<size_t>(t)];
    cursor.next.store(num_items * t / participants, std::memory_order_relaxed);
    cursor.end = num_items * (t + 1) / participants;
  }
  num_running_.store(participants - 1, std::memory_order_relaxed);
  const uint32_t job = (job_word_.load(std::memory_order_relaxed) >> kParticipantBits) + 1;
  job_word_.store(job << kParticipantBits | static_cast<uint32_t>(participants), std::memory_order_release);
  job_word_.notify_all();
  work(0, participants);
  wait_until(num_running_, [](int32_t running) { return running == 0; });
}

void ThreadPool::work(int thread_idx, int num_participants) {
  for (int i = 0; i < num_participants; ++i) {
    Cursor& cursor = cursors_[static_cast<size_t>((thread_idx + i) % num_participants)];
    if (i > 0 && cursor.next.load(std::memory_order_relaxed) >= cursor.end) continue;
    for (;;) {
      const int64_t item = cursor.next.fetch_add(1, std::memory_order_relaxed);
      if (item >= cursor.end) break;
      invoke_(fn_, thread_idx, item);
    }
  }
}

void ThreadPool::worker_loop(int thread_idx) {
  std::optional<CoreBinding> binding;
  if (!core_ids_.empty()) binding.emplace(core_ids_[static_cast<size_t>(thread_idx)]);
  uint32_t seen = 0;
  for (;;) {
    wait_until(job_word_, [&](uint32_t word) { return word != seen; });
    seen = job_word_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    const int participants = static_cast<int>(seen & kParticipantMask);
    if (thread_idx >= participants) continue;
    work(thread_idx, participants);
    if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_running_.notify_one();
  }
}

}  // namespace spate::cpu
