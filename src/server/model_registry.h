// ModelRegistry: the models that a server has, by name: each with its front-end, its metrics and its live feed. The first is
// the default of requests that name none.
//
//   registry.add({"b"})                 // loading: a request for it hears of the progress
//   registry.set_ready(*b, serving)     // requests find it
//   registry.use("b")                   // a request has it; it stays until the last of these is let go
//   registry.begin_unload("b"), registry.finish_unload(b, 30s)  // the others go on meanwhile
//
// Thread-safe. finish_unload() waits for requests; nothing else waits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/frontend.h"
#include "server/live_feed.h"
#include "server/serving_metrics.h"

namespace spate {

enum class ModelState : uint8_t { kLoading, kReady, kUnloading };
std::string_view model_state_name(ModelState state);  // "loading"

// One model, from the order to load it to the end of its last request.
class ServedModel {
 public:
  explicit ServedModel(std::vector<std::string> names)
      : names_(std::move(names)), live_feed_(metrics_, [this] { return frontend(); }) {}

  const std::vector<std::string>& names() const { return names_; }
  ModelState state() const { return state_; }
  double progress() const { return progress_; }
  void set_progress(double progress) { progress_ = progress; }  // 0 to 1
  std::shared_ptr<Frontend> frontend() const;                   // null while it loads and when it has been unloaded
  int num_uses() const { return *num_uses_; }
  LiveFeed& live_feed() { return live_feed_; }
  void render_metrics(MetricsWriter& out) const;

 private:
  friend class ModelRegistry;
  void stop(const Status& reason);  // the feed, then the engine, whose requests end with `reason`
  const std::vector<std::string> names_;  // the first is in answers
  ServingMetrics metrics_;
  std::atomic<ModelState> state_{ModelState::kLoading};
  std::atomic<double> progress_{0};
  mutable std::mutex mutex_;  // guards frontend_
  std::shared_ptr<Frontend> frontend_;
  std::mutex stop_mutex_;  // of stop(): the server may end while the model is unloaded
  // Of requests that have the model. Apart, because a request may let go on a thread that ends with the front-end.
  const std::shared_ptr<std::atomic<int>> num_uses_ = std::make_shared<std::atomic<int>>(0);
  LiveFeed live_feed_;  // last: it uses all of the above
};

// A request's hold on a model. `hold` is let go after the last use of the front-end.
struct ModelUse {
  std::shared_ptr<ServedModel> model;  // null: there is none of this name
  std::shared_ptr<Frontend> frontend;  // null: it is not ready
  std::shared_ptr<void> hold;
};

// Of the names of one model: each is text of one line and at most 256 bytes.
Status check_model_names(const std::vector<std::string>& names);

class ModelRegistry {
 public:
  ModelRegistry() = default;
  ~ModelRegistry();  // clear()

  // Behind those there are; a name that comes twice counts once. An error (invalid_argument) names the name that another
  // model has.
  Result<std::shared_ptr<ServedModel>> add(const std::vector<std::string>& names);
  void set_ready(ServedModel& model, ServingModel serving);  // serving.names are the model's
  void remove(const ServedModel& model);                     // one that did not load

  std::vector<std::shared_ptr<ServedModel>> all() const;           // in order
  std::shared_ptr<ServedModel> find(std::string_view name) const;  // empty: the first; null: there is none
  ModelUse use(std::string_view name) const;                       // the same
  std::vector<std::string> names() const;                          // of those that are ready

  // From now on use() finds it not ready. Errors: not_found; unavailable where it is not ready.
  Result<std::shared_ptr<ServedModel>> begin_unload(std::string_view name);
  // Waits until its requests have ended, ends those that are left with an error after `timeout`, frees its memory.
  // Returns how many were ended so. An error: some still hold it although its engine has stopped; its memory stays.
  Result<int> finish_unload(const std::shared_ptr<ServedModel>& model, std::chrono::milliseconds timeout);

  void stop();   // every engine: what runs ends with an error
  void clear();  // stop(), then frees all; no request may be running any more

 private:
  std::shared_ptr<ServedModel> find_locked(std::string_view name) const;

  mutable std::mutex mutex_;  // guards what follows, and the state of every model
  std::vector<std::shared_ptr<ServedModel>> models_;
};

}  // namespace spate
