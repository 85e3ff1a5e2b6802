// Inbox: what other threads want from the engine thread, and the ids of the requests that are alive. The one lock
// between them; held for a few instructions, never while anything is computed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <variant>
#include <vector>

#include "base/status.h"
#include "core/request.h"
#include "engine/inspection.h"

namespace spate {

struct SubmitCommand {
  Request request;
  double arrival_seconds = 0;
};

struct CancelCommand {
  RequestId id = 0;
  int index = -1;
  FinishReason reason = FinishReason::kAbort;
};

struct CompleteTransferCommand {
  uint64_t ticket = 0;
};

struct InspectCommand {
  std::shared_ptr<std::promise<EngineInspection>> answer;
};

struct ForgetPrefixesCommand {
  std::shared_ptr<std::promise<int>> answer;
};

using Command =
    std::variant<SubmitCommand, CancelCommand, CompleteTransferCommand, InspectCommand, ForgetPrefixesCommand>;

class Inbox {
 public:
  explicit Inbox(int max_num_waiting) : max_num_waiting_(max_num_waiting) {}

  // --- Any thread ---
  // All requests or none. The queue takes them whole while it is not full, so that one with more prompts than
  // max_num_waiting runs too.
  Status submit(std::vector<Request> requests, double arrival_seconds);
  void cancel(const CancelCommand& command);
  void complete_transfer(const CompleteTransferCommand& command);
  void inspect(InspectCommand command);  // answered with an empty one when the inbox is closed
  void forget_prefixes(ForgetPrefixesCommand command);  // answered with 0 when the inbox is closed
  Status health() const;
  int num_submitted() const;  // in the inbox
  uint64_t num_refused() const;

  // --- The owner's thread ---
  void refuse_new();  // drain
  void request_stop(Status reason);  // the first reason holds
  // Until nothing is alive and the engine thread rests. False after the timeout.
  bool wait_until_idle(std::chrono::milliseconds timeout);

  // --- The engine thread ---
  // Takes all commands in order; `commands` is emptied first and its memory reused.
  void receive(std::vector<Command>& commands);
  // Sleeps until there is a command or a stop.
  void wait_for_work();
  bool stop_requested() const;
  Status stop_reason() const;
  bool may_sleep() const;  // no command, no stop
  void request_started();  // it leaves the queue that max_num_waiting bounds
  void request_ended(RequestId id, bool had_started);
  // No submit succeeds from now on, each gets this Status. Returns the commands that were waiting.
  void close(Status status, std::vector<Command>& commands);

 private:
  const int max_num_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable work_;  // the engine thread waits on it
  std::condition_variable idle_;  // drain waits on it
  std::vector<Command> commands_;
  std::unordered_set<RequestId> alive_;
  int num_queued_ = 0;   // requests submitted, not yet started
  int num_submits_ = 0;  // in commands_
  uint64_t num_refused_ = 0;
  bool draining_ = false;
  bool stopping_ = false;
  Status stop_reason_;
  bool resting_ = true;  // the engine thread has nothing to do, or there is none
  Status closed_;
};

}  // namespace spate
