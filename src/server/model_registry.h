// ModelRegistry: the models that a server has, by name: each with its front-end, its metrics and its live feed. The
// first is the default of requests that name none.
//
//   registry.add({"b"})                 // loading: a request for it hears of the progress
//   registry.set_ready(*b, serving)     // requests find it
//   registry.use("b")                   // a request has it; it stays until the last of these is let go
//   registry.begin_unload("b"), registry.finish_unload(b, 30s)  // the others go on meanwhile
//   registry.begin_idle(b, now), registry.finish_idle(b)        // memory goes back, the name stays
//   registry.wait_for(b, waiter)        // the next request; idle_models.h loads what is waited for
//
// Thread-safe. finish_unload() waits for requests; nothing else waits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/frontend.h"
#include "server/live_feed.h"
#include "server/serving_metrics.h"

namespace spate {

// From kReady a model goes by kUnloading to its end; or by kFallingIdle to kIdle, and by kWaking to kReady again. One
// that is put to sleep goes the same way, and is_asleep() until it is told to wake up.
enum class ModelState : uint8_t { kLoading, kReady, kUnloading, kFallingIdle, kIdle, kWaking };
constexpr int kNumModelStates = 6;
std::string_view model_state_name(ModelState state);  // "loading"; of the last three "unloading", "idle", "loading"

// What is known of a model that is served, loaded or not.
struct ModelCard {
  std::vector<std::string> names;
  std::string root;
  int64_t created = 0;
  int max_model_len = 0;
};
ModelCard card_of(const Frontend& frontend);

// Called once, on any thread: ok where the model is ready, else why it is not.
using ModelWaiter = std::function<void(const Status& status)>;
constexpr size_t kMaxModelWaiters = 1024;
constexpr auto kReloadDelay = std::chrono::seconds(5);  // after a load that failed

// One model, from the order to load it to the end of its last request.
class ServedModel {
 public:
  explicit ServedModel(std::vector<std::string> names)
      : names_(std::move(names)), live_feed_(metrics_, [this] { return frontend(); }) {}

  const std::vector<std::string>& names() const { return names_; }
  ModelState state() const { return state_; }
  // Unloaded because nobody used it, or on the way there or back: a request for it may wait.
  bool comes_back() const {
    const ModelState state = state_;
    return state == ModelState::kFallingIdle || state == ModelState::kIdle || state == ModelState::kWaking;
  }
  bool is_asleep() const { return is_asleep_; }                        // unloaded by /sleep: no request brings it back
  double idle_unload_seconds() const { return idle_unload_seconds_; }  // 0: it stays
  double progress() const { return progress_; }
  void set_progress(double progress) { progress_ = progress; }  // 0 to 1
  std::shared_ptr<Frontend> frontend() const;                   // null while it loads and when it has been unloaded
  int num_uses() const { return uses_->count; }
  int num_waiters() const { return num_waiters_; }  // requests that wait until it is loaded again
  LiveFeed& live_feed() { return live_feed_; }
  void render_metrics(MetricsWriter& out) const;

 private:
  friend class ModelRegistry;
  using Clock = std::chrono::steady_clock;
  // Of requests that have the model. Apart, because a request may let go on a thread that ends with the front-end.
  struct Uses {
    std::atomic<int> count{0};
    std::atomic<Clock::rep> last_end{0};  // of the latest, or when the model became ready
  };
  void stop(const Status& reason);  // the feed, then the engine, whose requests end with `reason`
  const std::vector<std::string> names_;  // the first is in answers
  ServingMetrics metrics_;
  std::atomic<ModelState> state_{ModelState::kLoading};
  std::atomic<double> progress_{0};
  std::atomic<bool> is_asleep_{false};
  std::atomic<double> idle_unload_seconds_{0};
  std::atomic<int> num_loads_{0}, num_idle_unloads_{0}, num_failed_reloads_{0}, num_waiters_{0};
  mutable std::mutex mutex_;  // guards frontend_ and what is known of it, which stays when it goes
  std::shared_ptr<Frontend> frontend_;
  std::optional<ModelCard> card_;
  ServingMetrics::ModelLabels labels_;
  std::function<Result<ServingModel>(const std::function<void(double)>&)> reload_;
  // Guarded by the registry's mutex.
  std::vector<ModelWaiter> waiters_;
  Status last_failure_;         // of a load on demand
  Clock::time_point retry_at_;  // not before
  std::mutex stop_mutex_;  // of stop(): the server may end while the model is unloaded
  const std::shared_ptr<Uses> uses_ = std::make_shared<Uses>();
  LiveFeed live_feed_;  // last: it uses all of the above
};

// A request's hold on a model. `hold` is let go after the last use of the front-end.
struct ModelUse {
  std::shared_ptr<ServedModel> model;  // null: there is none of this name
  std::shared_ptr<Frontend> frontend;  // null: it is not ready
  std::shared_ptr<void> hold;
};

// Unloading a model that nobody can load again would be its end.
Status check_idle_unload(const ServingModel& model);

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
  std::vector<ModelCard> cards() const;    // of those that are ready, or come back for a request
  std::vector<std::string> names() const;  // of the same

  // Ready, and for its idle_unload_seconds without a use: from now on use() finds it not ready, and finish_idle() is
  // due.
  bool begin_idle(ServedModel& model, std::chrono::steady_clock::time_point now);
  // Frees its memory. True: a request waits by now, and wake() is due.
  bool finish_idle(ServedModel& model);
  // Ready or idle: from now on use() finds them not ready and wait_for() refuses. An error: one cannot sleep, and none
  // does. finish_sleep() then ends the requests of one with an error, after `timeout`, and frees its memory; an error:
  // some still hold it. Those that wait are refused.
  Status begin_sleep(std::span<const std::shared_ptr<ServedModel>> models);
  Status finish_sleep(ServedModel& model, std::chrono::milliseconds timeout);
  // True: it slept, and wake() is due; false: it is awake. An error: it is about to sleep.
  Result<bool> begin_wake_up(ServedModel& model);
  // kRetry: it is ready by now. kRefused: it does not come back, too many wait, or it could not be loaded a moment ago.
  // kWake: the waiter waits, and wake() is due.
  enum class Wait : uint8_t { kWaits, kWake, kRetry, kRefused };
  Wait wait_for(ServedModel& model, ModelWaiter waiter);
  // Loads it, on the calling thread; then the waiters are called. An error goes to them too, and it is idle again.
  Status wake(ServedModel& model);
  std::optional<Status> recent_failure(const ServedModel& model) const;  // to load it on demand
  void end_waits(const Status& reason);  // of all models; from now on wait_for() refuses

  // From now on use() finds it not ready. Errors: not_found; unavailable where it is neither ready nor idle.
  Result<std::shared_ptr<ServedModel>> begin_unload(std::string_view name);
  // Waits until its requests have ended, ends those that are left with an error after `timeout`, frees its memory.
  // Returns how many were ended so. An error: some still hold it although its engine has stopped; its memory stays.
  Result<int> finish_unload(const std::shared_ptr<ServedModel>& model, std::chrono::milliseconds timeout);

  void stop();   // every engine: what runs ends with an error
  void clear();  // stop(), then frees all; no request may be running any more

 private:
  std::shared_ptr<ServedModel> find_locked(std::string_view name) const;

  void end_waits_of(ServedModel& model, const Status& status);

  mutable std::mutex mutex_;      // guards what follows, and the state and the waiters of every model
  bool has_ended_waits_ = false;  // end_waits() has been called
  std::vector<std::shared_ptr<ServedModel>> models_;
};

}  // namespace spate
