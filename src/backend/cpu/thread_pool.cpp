#include "backend/cpu/thread_pool.h"

#include <sched.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <set>
#include <system_error>

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
// Of the team's word: workers in the lowest bits, then these, then the job's number as far as it fits.
constexpr uint32_t kIsClosed = 1u << kParticipantBits, kMustCome = 2u << kParticipantBits;
constexpr uint32_t kTeamJobBits = 32 - kParticipantBits - 2;

uint32_t team_of(uint32_t job_word) { return job_word >> kParticipantBits << (32 - kTeamJobBits); }

constexpr int kPausesPerLook = 32;
constexpr std::chrono::microseconds kSpinTime{30};      // pure spinning
constexpr std::chrono::microseconds kIdleTime{60};      // then yielding, outside a step
constexpr std::chrono::microseconds kStepIdleTime{500};  // ... inside a step: longer than any serial part of it

void end_workers(std::atomic<bool>& stopping, std::atomic<uint32_t>& job_word, std::vector<std::thread>& workers) {
  stopping.store(true, std::memory_order_relaxed);
  job_word.fetch_add(1u << kParticipantBits, std::memory_order_release);
  job_word.notify_all();
  for (std::thread& worker : workers) worker.join();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::vector<ThreadHome> homes)
    : cursors_(static_cast<size_t>(num_threads)), homes_(std::move(homes)) {
  CHECK(num_threads >= 1 && num_threads < static_cast<int>(kParticipantMask), "{} compute threads", num_threads);
  CHECK(homes_.empty() || static_cast<int>(homes_.size()) == num_threads, "{} threads, {} homes", num_threads,
        homes_.size());
  speed_before_.push_back(0);
  std::set<int> nodes;
  for (int i = 0; i < num_threads; ++i) {
    speed_before_.push_back(speed_before_.back() + (homes_.empty() ? 1 : homes_[static_cast<size_t>(i)].speed));
    nodes.insert(node_of(i));
  }
  num_nodes_ = static_cast<int>(nodes.size());
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
  } catch (const std::system_error&) {  // the system lends no more threads: whoever wants the pool hears of it
    end_workers(stopping_, job_word_, workers_);
    throw;
  }
  if (!homes_.empty()) caller_binding_.emplace(homes_[0].core_ids);  // behind the workers, who would inherit it
}

ThreadPool::~ThreadPool() { end_workers(stopping_, job_word_, workers_); }

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
    // Without taking over, one item a thread.
    cursor.next.store(takes_over_ ? first_item(num_items, t, participants) : t, std::memory_order_relaxed);
    cursor.end = takes_over_ ? first_item(num_items, t + 1, participants) : t + 1;
  }
  const uint32_t job = (job_word_.load(std::memory_order_relaxed) >> kParticipantBits) + 1;
  const uint32_t job_word = job << kParticipantBits | static_cast<uint32_t>(participants);
  const uint32_t awaited = takes_over_ ? 0 : kMustCome | static_cast<uint32_t>(participants - 1);
  team_.store(team_of(job_word) | awaited, std::memory_order_relaxed);
  job_word_.store(job_word, std::memory_order_release);
  job_word_.notify_all();
  work(0, participants);
  if (takes_over_) team_.fetch_or(kIsClosed, std::memory_order_acq_rel);
  wait_until(team_, [](uint32_t team) { return (team & kParticipantMask) == 0; });
}

// False: the job is over, or all its items are begun. Else the caller waits until the worker has left the team.
bool ThreadPool::join(uint32_t job_word) {
  uint32_t team = team_.load(std::memory_order_acquire);
  while (team >> (32 - kTeamJobBits) == team_of(job_word) >> (32 - kTeamJobBits) && (team & kIsClosed) == 0) {
    if ((team & kMustCome) != 0) return true;
    if (team_.compare_exchange_weak(team, team + 1, std::memory_order_acq_rel, std::memory_order_acquire)) return true;
  }
  return false;
}

int64_t ThreadPool::first_item(int64_t num_items, int thread_idx, int num_participants) const {
  return num_items * speed_before_[static_cast<size_t>(thread_idx)] / speed_before_[static_cast<size_t>(num_participants)];
}

void ThreadPool::run_items(int thread_idx, Cursor& cursor) {
  for (;;) {
    const int64_t item = cursor.next.fetch_add(1, std::memory_order_relaxed);
    if (item >= cursor.end) return;
    invoke_(fn_, thread_idx, item);
  }
}

void ThreadPool::take_over(int thread_idx, int num_participants, bool on_same_node) {
  for (int i = 1; i < num_participants; ++i) {
    const int other = (thread_idx + i) % num_participants;
    if ((node_of(other) == node_of(thread_idx)) != on_same_node) continue;
    Cursor& cursor = cursors_[static_cast<size_t>(other)];
    if (cursor.next.load(std::memory_order_relaxed) < cursor.end) run_items(thread_idx, cursor);
  }
}

void ThreadPool::work(int thread_idx, int num_participants) {
  run_items(thread_idx, cursors_[static_cast<size_t>(thread_idx)]);
  if (!takes_over_) return;
  take_over(thread_idx, num_participants, true);
  if (num_nodes_ > 1) take_over(thread_idx, num_participants, false);
}

void ThreadPool::worker_loop(int thread_idx) {
  std::optional<CoreBinding> binding;
  if (!homes_.empty()) binding.emplace(homes_[static_cast<size_t>(thread_idx)].core_ids);
  uint32_t seen = 0;
  for (;;) {
    wait_until(job_word_, [&](uint32_t word) { return word != seen; });
    seen = job_word_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    const int participants = static_cast<int>(seen & kParticipantMask);
    if (thread_idx >= participants || !join(seen)) continue;
    work(thread_idx, participants);
    if ((team_.fetch_sub(1, std::memory_order_acq_rel) & kParticipantMask) == 1) team_.notify_one();
  }
}

}  // namespace spate::cpu
