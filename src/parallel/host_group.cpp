#include "parallel/host_group.h"

#include <fmt/format.h>

#include <cstring>
#include <thread>

namespace spate {

HostGroup::HostGroup(const GroupOptions& options)
    : offers(static_cast<size_t>(options.size)),
      name_(options.name),
      size_(options.size),
      time_limit_s_(options.time_limit_s),
      time_limit_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.time_limit_s))),
      num_meetings_(std::make_unique<std::atomic<uint64_t>[]>(static_cast<size_t>(options.size))),
      messages_(static_cast<size_t>(options.size * options.size)) {}

// Spins for some microseconds (ranks run in step, so the wait is usually short), then sleeps: with fewer cores than
// ranks a spinning rank would take the core that the others need.
Status HostGroup::meet(int rank, const char* op) {
  if (has_failed()) return leave();
  const uint64_t meeting = ++num_meetings_[static_cast<size_t>(rank)];
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    num_arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1);  // before num_asleep_ is read: a sleeper counts itself before it looks at the phase
    if (num_asleep_.load() > 0) {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
    }
    return ok_status();
  }
  for (int spin = 0; spin < 2000; ++spin) {
    if (phase_.load(std::memory_order_acquire) != phase) return ok_status();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  bool all_came = false;
  {
    std::unique_lock lock(mutex_);
    ++num_asleep_;
    const auto has_ended = [&] {
      all_came = phase_.load() != phase;
      return all_came || has_failed();
    };
    changed_.wait_until(lock, Clock::now() + time_limit_, has_ended);
    --num_asleep_;
  }
  if (all_came) return ok_status();
  if (!has_failed()) {
    fail(unavailable("{} of {} ranks: {} did not come to {} within {} s", name_, size_, absent_ranks(meeting), op,
                     time_limit_s_));
  }
  return leave();
}

bool HostGroup::begin_access() {
  ++num_accesses_;
  if (!has_failed()) return true;
  --num_accesses_;
  return false;
}

void HostGroup::end_access() { --num_accesses_; }

void HostGroup::fail(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (has_failed()) return;
  error_ = reason;
  failed_.store(true);
  changed_.notify_all();
}

Status HostGroup::error() const {
  if (!has_failed()) return ok_status();
  const std::lock_guard lock(mutex_);
  return error_;
}

Status HostGroup::leave() {
  while (num_accesses_.load() > 0) std::this_thread::yield();
  return error();
}

std::string HostGroup::absent_ranks(uint64_t num_meetings) const {
  std::string ranks;
  for (int r = 0; r < size_; ++r) {
    if (num_meetings_[static_cast<size_t>(r)].load() >= num_meetings) continue;
    ranks += fmt::format("{}rank {}", ranks.empty() ? "" : ", ", r);
  }
  return ranks;
}

template <typename Ready>
Status HostGroup::wait(std::unique_lock<std::mutex>& lock, const char* op, int peer, const Ready& ready) {
  const auto has_ended = [&] { return ready() || has_failed(); };
  if (changed_.wait_until(lock, Clock::now() + time_limit_, has_ended)) return ready() ? ok_status() : error_;
  error_ =
      unavailable("{} of {} ranks: rank {} did not answer a {} within {} s", name_, size_, peer, op, time_limit_s_);
  failed_.store(true);
  changed_.notify_all();
  return error_;
}

Status HostGroup::send(int from, int to, const Tensor& x) {
  CHECK(to >= 0 && to < size_ && to != from, "{}: rank {} sends to {}", name_, from, to);
  CHECK(x.is_contiguous(), "send of a strided tensor {}", x.shape_string());
  std::unique_lock lock(mutex_);
  if (has_failed()) return error_;
  Message& box = message(from, to);
  RETURN_IF_ERROR(wait(lock, "send", to, [&] { return !box.is_full; }));
  const auto* begin = static_cast<const std::byte*>(x.raw());
  box.dtype = x.dtype();
  box.dims.clear();
  for (int i = 0; i < x.rank(); ++i) box.dims.push_back(x.dim(i));
  box.bytes.assign(begin, begin + x.num_bytes());
  box.is_full = true;
  changed_.notify_all();
  return ok_status();
}

// A message that was sent is received, also when its sender has left since.
Status HostGroup::receive(int from, int to, const Tensor& x) {
  CHECK(from >= 0 && from < size_ && to != from, "{}: rank {} receives from {}", name_, to, from);
  CHECK(x.is_contiguous(), "receive of a strided tensor {}", x.shape_string());
  std::unique_lock lock(mutex_);
  Message& box = message(from, to);
  RETURN_IF_ERROR(wait(lock, "receive", from, [&] { return box.is_full; }));
  bool is_same = box.dtype == x.dtype() && static_cast<int>(box.dims.size()) == x.rank();
  for (int i = 0; is_same && i < x.rank(); ++i) is_same = box.dims[static_cast<size_t>(i)] == x.dim(i);
  if (!is_same) {
    error_ = internal_error("{}: rank {} sent {} [{}], rank {} receives {} {}", name_, from, dtype_name(box.dtype),
                            fmt::join(box.dims, ", "), to, dtype_name(x.dtype()), x.shape_string());
    failed_.store(true);
    changed_.notify_all();
    return error_;
  }
  std::memcpy(x.raw(), box.bytes.data(), box.bytes.size());
  box.is_full = false;
  changed_.notify_all();
  return ok_status();
}

}  // namespace spate
