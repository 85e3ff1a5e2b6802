#include "engine/inbox.h"

#include <algorithm>
#include <utility>

namespace spate {

Status Inbox::submit(std::vector<Request> requests, double arrival_seconds) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) return closed_;
    if (stopping_) return stop_reason_;
    const bool is_new = std::ranges::any_of(requests, [](const Request& request) { return !request.is_continued; });
    if (draining_ && is_new) return unavailable("the server is shutting down and takes no new requests");
    if (num_queued_ >= max_num_waiting_ && is_new) {
      ++num_refused_;
      return resource_exhausted("{} requests wait already (--max-num-waiting {}): try again later", num_queued_,
                                max_num_waiting_);
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      if (alive_.insert(requests[i].id).second) continue;
      for (size_t j = 0; j < i; ++j) alive_.erase(requests[j].id);
      return invalid_argument("a request with id {} is running", requests[i].id);
    }
    num_queued_ += static_cast<int>(requests.size());
    num_submits_ += static_cast<int>(requests.size());
    for (Request& request : requests) commands_.emplace_back(SubmitCommand{std::move(request), arrival_seconds});
  }
  work_.notify_one();
  return ok_status();
}

void Inbox::cancel(const CancelCommand& command) {
  {
    const std::lock_guard lock(mutex_);
    if (!alive_.contains(command.id)) return;
    commands_.emplace_back(command);
  }
  work_.notify_one();
}

void Inbox::complete_transfer(const CompleteTransferCommand& command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.emplace_back(command);
  }
  work_.notify_one();
}

void Inbox::inspect(InspectCommand command) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) return command.answer->set_value({});
    commands_.emplace_back(std::move(command));
  }
  work_.notify_one();
}

void Inbox::forget_prefixes(ForgetPrefixesCommand command) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) return command.answer->set_value(0);
    commands_.emplace_back(std::move(command));
  }
  work_.notify_one();
}

Status Inbox::health() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

int Inbox::num_submitted() const {
  const std::lock_guard lock(mutex_);
  return num_submits_;
}

uint64_t Inbox::num_refused() const {
  const std::lock_guard lock(mutex_);
  return num_refused_;
}

void Inbox::refuse_new() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

void Inbox::request_stop(Status reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) stop_reason_ = std::move(reason);
    stopping_ = true;
  }
  work_.notify_one();
}

bool Inbox::wait_until_idle(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, timeout, [this] { return alive_.empty() && resting_; });
}

void Inbox::receive(std::vector<Command>& commands) {
  commands.clear();
  const std::lock_guard lock(mutex_);
  commands.swap(commands_);
  num_submits_ = 0;
}

void Inbox::wait_for_work() {
  std::unique_lock lock(mutex_);
  resting_ = true;
  idle_.notify_all();
  work_.wait(lock, [this] { return !commands_.empty() || stopping_; });
  resting_ = false;
}

bool Inbox::stop_requested() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

Status Inbox::stop_reason() const {
  const std::lock_guard lock(mutex_);
  return stop_reason_;
}

bool Inbox::may_sleep() const {
  const std::lock_guard lock(mutex_);
  return commands_.empty() && !stopping_;
}

void Inbox::request_started() {
  const std::lock_guard lock(mutex_);
  --num_queued_;
}

void Inbox::request_ended(RequestId id, bool had_started) {
  const std::lock_guard lock(mutex_);
  alive_.erase(id);
  if (!had_started) --num_queued_;
  if (alive_.empty()) idle_.notify_all();
}

void Inbox::close(Status status, std::vector<Command>& commands) {
  commands.clear();
  const std::lock_guard lock(mutex_);
  if (closed_.ok()) closed_ = std::move(status);
  resting_ = true;
  commands.swap(commands_);
  num_submits_ = 0;
}

}  // namespace spate
