// IdleModels: unloads models that no request has used for their idle_unload_seconds, and loads them again for the next
// one, which waits.
//
// Thread-safe. A thread of its own looks for idle models and unloads them; loading is left to `post_load`, which runs
// one task after the other on another thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "server/model_registry.h"

namespace spate {

class IdleModels {
 public:
  using PostLoad = std::function<void(std::function<void()> task)>;
  IdleModels(ModelRegistry& registry, PostLoad post_load);
  ~IdleModels();  // stop()
  IdleModels(const IdleModels&) = delete;
  IdleModels& operator=(const IdleModels&) = delete;

  // A request for a model that comes back. False: it cannot wait, and the waiter is not called.
  bool wait_for(const std::shared_ptr<ServedModel>& model, const ModelWaiter& waiter);
  void stop();  // nothing is unloaded any more; tasks that were posted may still run

 private:
  void run();
  void unload(const std::shared_ptr<ServedModel>& model);
  void post_wake(const std::shared_ptr<ServedModel>& model);

  ModelRegistry& registry_;
  const PostLoad post_load_;
  std::mutex mutex_;  // guards is_stopping_
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::mutex stop_mutex_;  // of stop()
  std::thread thread_;     // last: it uses all of the above
};

}  // namespace spate
