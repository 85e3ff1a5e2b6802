#include "server/idle_models.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"

namespace spate {
namespace {

using SteadyClock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr Seconds kLongestWait{1.0},
    kShortestWait{0.01};  // between two looks; a fifth of the shortest idle_unload_seconds

}  // namespace

IdleModels::IdleModels(ModelRegistry& registry, PostLoad post_load)
    : registry_(registry), post_load_(std::move(post_load)), thread_([this] { run(); }) {}

IdleModels::~IdleModels() { stop(); }

void IdleModels::stop() {
  const std::lock_guard stop_lock(stop_mutex_);
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool IdleModels::wait_for(const std::shared_ptr<ServedModel>& model, const ModelWaiter& waiter) {
  switch (registry_.wait_for(*model, waiter)) {
    case ModelRegistry::Wait::kRefused:
      return false;
    case ModelRegistry::Wait::kRetry:
      waiter(ok_status());
      return true;
    case ModelRegistry::Wait::kWake:
      post_wake(model);
      return true;
    case ModelRegistry::Wait::kWaits:
      return true;
  }
  return false;
}

void IdleModels::run() {
  while (true) {
    Seconds wait = kLongestWait;
    for (const auto& model : registry_.all()) {
      const double idle_seconds = model->idle_unload_seconds();
      if (idle_seconds > 0) wait = std::clamp(Seconds(idle_seconds / 5), kShortestWait, wait);
      if (registry_.begin_idle(*model, SteadyClock::now())) unload(model);
    }
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, wait, [this] { return is_stopping_; })) return;
  }
}

void IdleModels::unload(const std::shared_ptr<ServedModel>& model) {
  const auto start = SteadyClock::now();
  const bool is_wanted = registry_.finish_idle(*model);
  ::malloc_trim(0);  // what malloc keeps of it goes back to the system
  log_info("idle", "the model {} is unloaded in {:.3f} s, after {:g} s without a request; the next one loads it again",
           model->names().front(), Seconds(SteadyClock::now() - start).count(), model->idle_unload_seconds());
  if (is_wanted) post_wake(model);
}

void IdleModels::post_wake(const std::shared_ptr<ServedModel>& model) {
  post_load_([&registry = registry_, model] {
    const auto start = SteadyClock::now();
    const std::string& name = model->names().front();
    log_info("idle", "loading the model {} again for a request", name);
    const Status status = registry.wake(*model);
    if (!status.ok()) return log_error("idle", "the model {} could not be loaded again: {}", name, status.message());
    log_info("idle", "the model {} is ready again after {:.3f} s", name, Seconds(SteadyClock::now() - start).count());
  });
}

}  // namespace spate
