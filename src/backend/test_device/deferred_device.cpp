#include "backend/test_device/deferred_device.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace spate {
namespace {

using Clock = std::chrono::steady_clock;

class DeferredDevice final : public InterceptingDevice {
 public:
  DeferredDevice(std::unique_ptr<Device> inner, DeferredLog* log) : InterceptingDevice(std::move(inner)), log_(log) {}
  ~DeferredDevice() override { run_until(num_launched()); }

  Result<Buffer> allocate(size_t bytes, MemoryKind kind) override {
    ASSIGN_OR_RETURN(Buffer buffer, inner().allocate(bytes, kind));
    if (kind == MemoryKind::kDevice) return buffer;
    Buffer outer(buffer.data(), bytes, kind, this);
    const std::lock_guard lock(mutex_);
    pinned_.emplace(static_cast<const char*>(outer.data()), std::move(buffer));
    return outer;
  }
  void deallocate(void* data, size_t, MemoryKind) noexcept override {
    const std::lock_guard lock(mutex_);
    pinned_.erase(static_cast<const char*>(data));
  }

  std::unique_ptr<Event> create_event() override;
  void copy_to_device(Stream& stream, void* dst, const void* src_host, size_t bytes) override {
    if (is_pinned(src_host)) return InterceptingDevice::copy_to_device(stream, dst, src_host, bytes);
    const char* src = static_cast<const char*>(src_host);
    on_launch({.text = "copy_to_device", .run = [dst, staged = std::vector<char>(src, src + bytes)] {
                 if (!staged.empty()) std::memcpy(dst, staged.data(), staged.size());
               }});
  }
  void copy_to_host(Stream& stream, void* dst_host, const void* src, size_t bytes) override {
    InterceptingDevice::copy_to_host(stream, dst_host, src, bytes);
    if (!is_pinned(dst_host)) synchronize(stream);
  }
  void synchronize(Stream&) override { run_until(num_launched()); }
  void run_step(Stream&, const StepKey&, const std::function<void()>& step) override {
    ++log_->num_steps;
    step();
  }

  void on_launch(Launch launch) override {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(launch));
    ++num_launched_;
    ++log_->num_launched;
  }
  int64_t num_launched() {
    const std::lock_guard lock(mutex_);
    return num_launched_;
  }
  // Runs the queue up to its launch number `end`.
  void run_until(int64_t end) {
    const std::lock_guard one_at_a_time(run_mutex_);
    while (num_run_ < end) {
      Launch launch;
      {
        const std::lock_guard lock(mutex_);
        launch = std::move(queue_.front());
        queue_.pop_front();
      }
      launch.run();
      ++num_run_;
      ++log_->num_run;
    }
  }

 private:
  bool is_pinned(const void* data) {
    const char* address = static_cast<const char*>(data);
    const std::lock_guard lock(mutex_);
    const auto after = pinned_.upper_bound(address);
    if (after == pinned_.begin()) return false;
    const auto& [begin, buffer] = *std::prev(after);
    return address < begin + buffer.bytes();
  }

  DeferredLog* log_;
  std::mutex mutex_;  // of the queue and pinned_
  std::deque<Launch> queue_;
  int64_t num_launched_ = 0;
  std::map<const char*, Buffer> pinned_;
  std::mutex run_mutex_;
  int64_t num_run_ = 0;
};

class DeferredEvent final : public Event {
 public:
  explicit DeferredEvent(DeferredDevice& device) : device_(device) {}
  void record(Stream&) override {
    device_.on_launch({.text = "record", .run = [this] { reached_ = Clock::now(); }});
    end_ = device_.num_launched();
  }
  void stream_wait(Stream&) override {}  // one queue
  void host_wait() override { device_.run_until(end_); }
  double seconds_since(const Event& earlier) const override {
    return std::chrono::duration<double>(reached_ - static_cast<const DeferredEvent&>(earlier).reached_).count();
  }

 private:
  DeferredDevice& device_;
  int64_t end_ = 0;
  Clock::time_point reached_;
};

std::unique_ptr<Event> DeferredDevice::create_event() { return std::make_unique<DeferredEvent>(*this); }

}  // namespace

std::unique_ptr<Device> make_deferred_device(std::unique_ptr<Device> inner, DeferredLog* log) {
  return std::make_unique<DeferredDevice>(std::move(inner), log);
}

}  // namespace spate
