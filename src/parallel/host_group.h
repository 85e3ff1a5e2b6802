// HostGroup: where threads of one process meet. The ranks of parallel/in_process_communicator.cpp share one.
//
// A collective is: offer tensors, meet, touch each other's tensors, meet. Tensors belong to their ranks, so a rank that
// gives up must not return while another one touches them: begin_access() fails once the group has failed, and a rank
// returns an error only when no access is left. An access never waits, so this takes no longer than a copy.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "parallel/communicator.h"

namespace spate {

class HostGroup {
 public:
  explicit HostGroup(const GroupOptions& options);

  int size() const { return size_; }

  // Waits until all ranks have called it as often as this one, at most the time limit. `op`: for the error.
  Status meet(int rank, const char* op);

  // Between them a rank may touch what the others offer. False: the group has failed.
  bool begin_access();
  void end_access();

  // The first reason counts. Wakes all that wait.
  void fail(const Status& reason);
  bool has_failed() const { return failed_.load(); }
  Status error() const;
  // The error, when no rank touches another's tensors any more.
  Status leave();

  // Messages, one at most from each rank to each other.
  Status send(int from, int to, const Tensor& x);
  Status receive(int from, int to, const Tensor& x);

  // What a rank brings to the collective in progress.
  struct Offer {
    const char* op = "";
    Tensor in, out;
    Tensor send_counts, receive_counts;
  };
  std::vector<Offer> offers;

 private:
  using Clock = std::chrono::steady_clock;
  struct Message {
    bool is_full = false;
    DType dtype = DType::kF32;
    std::vector<int64_t> dims;
    std::vector<std::byte> bytes;
  };

  std::string absent_ranks(uint64_t num_meetings) const;
  Message& message(int from, int to) { return messages_[static_cast<size_t>(from * size_ + to)]; }
  template <typename Ready>
  Status wait(std::unique_lock<std::mutex>& lock, const char* op, int peer, const Ready& ready);

  const std::string name_;
  const int size_;
  const double time_limit_s_;
  const Clock::duration time_limit_;

  std::atomic<int> num_arrived_{0};
  std::atomic<uint32_t> phase_{0};
  std::unique_ptr<std::atomic<uint64_t>[]> num_meetings_;  // of each rank
  std::atomic<int> num_asleep_{0};
  std::atomic<int> num_accesses_{0};
  std::atomic<bool> failed_{false};

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status error_;                   // guarded by mutex_
  std::vector<Message> messages_;  // guarded by mutex_
};

}  // namespace spate
