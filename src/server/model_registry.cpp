#include "server/model_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "server/model_loader.h"

namespace spate {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMaxModelNameBytes = 256;
constexpr auto kLetGoTimeout = milliseconds(10'000);  // for requests to end once their engine has

// True when nothing uses it any more.
bool wait_for_uses(const ServedModel& model, milliseconds timeout) {
  const auto end = SteadyClock::now() + timeout;
  while (model.num_uses() > 0) {
    if (SteadyClock::now() >= end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

bool has_name(const ServedModel& model, std::string_view name) {
  return std::find(model.names().begin(), model.names().end(), name) != model.names().end();
}

std::vector<std::string> without_repeats(const std::vector<std::string>& names) {
  std::vector<std::string> kept;
  for (const std::string& name : names) {
    if (std::ranges::find(kept, name) == kept.end()) kept.push_back(name);
  }
  return kept;
}

}  // namespace

Status check_model_names(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name.empty() || name.size() > kMaxModelNameBytes) {
      return invalid_argument("the name of a model has 1 to {} bytes, got {}", kMaxModelNameBytes, name.size());
    }
    const auto is_control = [](char c) { return (c >= 0 && c < ' ') || c == 0x7F; };
    const auto found = std::ranges::find_if(name, is_control);
    if (found == name.end()) continue;
    return invalid_argument("the name of a model has no control characters, got byte {} at {}", static_cast<int>(*found),
                            found - name.begin());
  }
  return ok_status();
}

Status check_idle_unload(const ServingModel& model) {
  if (model.idle_unload_seconds <= 0 || model.reload) return ok_status();
  return invalid_argument("idle-unload-seconds {:g}: this program cannot load the model {} again",
                          model.idle_unload_seconds, model.names.empty() ? model.root : model.names.front());
}

std::string_view model_state_name(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
    case ModelState::kWaking:
      return "loading";
    case ModelState::kReady:
      return "ready";
    case ModelState::kUnloading:
    case ModelState::kFallingIdle:
      return "unloading";
    case ModelState::kIdle:
      return "idle";
  }
  return "";
}

ModelCard card_of(const Frontend& frontend) {
  const ServingModel& model = frontend.model();
  return {
      .names = model.names, .root = model.root, .created = model.created, .max_model_len = frontend.max_model_len()};
}

std::shared_ptr<Frontend> ServedModel::frontend() const {
  const std::lock_guard lock(mutex_);
  return frontend_;
}

namespace {

ServingMetrics::ModelLabels labels_of(const ServingModel& model) {
  const EngineConfig& engine = model.engine->config();
  MetricLabels cache{
      {"block_size", std::to_string(engine.limits.kv_block_size)},
      {"num_gpu_blocks", std::to_string(engine.num_kv_blocks)},
      {"kv_cache_size_tokens", std::to_string(engine.kv_cache_tokens())},
      {"kv_cache_max_concurrency", fmt::format("{:.2f}", static_cast<double>(engine.kv_cache_tokens()) /
                                                             static_cast<double>(std::max(1, engine.max_seq_len())))},
      {"cache_dtype", model.dtype},
      {"enable_prefix_caching", engine.enable_prefix_caching ? "True" : "False"}};
  cache.insert(cache.end(), model.cache_config.begin(), model.cache_config.end());
  return {.model_name = model.names.front(), .cache_config = std::move(cache)};
}

}  // namespace

void ServedModel::render_metrics(MetricsWriter& out) const {
  const std::string& name = names_.front();
  out.family("spate:model_state", "gauge", "1 for the state that the model is in.");
  for (const char* state : {"loading", "ready", "unloading", "idle"}) {
    out.sample("spate:model_state", {{"model_name", name}, {"state", state}},
               model_state_name(this->state()) == state ? 1 : 0);
  }
  out.counter("spate:model_loads_total", "Times that the model was loaded.", {{"model_name", name}}, num_loads_);
  out.counter("spate:model_idle_unloads_total", "Times that it was unloaded because nobody used it.",
              {{"model_name", name}}, num_idle_unloads_);
  out.counter("spate:model_failed_reloads_total", "Times that a request wanted it and it could not be loaded.",
              {{"model_name", name}}, num_failed_reloads_);
  out.gauge("spate:model_load_waiters", "Requests that wait for it to be loaded.", {{"model_name", name}},
            num_waiters_);
  const std::lock_guard lock(mutex_);
  if (!card_) return;
  ServingMetrics::ModelLabels labels = labels_;
  labels.is_asleep = is_asleep_;
  metrics_.render(out, frontend_ ? frontend_->model().engine->stats() : EngineStats{}, labels);
}

void ServedModel::stop(const Status& reason) {
  const std::lock_guard lock(stop_mutex_);
  live_feed_.stop();
  if (const std::shared_ptr<Frontend> ready = frontend()) ready->model().engine->stop(reason);
}

ModelRegistry::~ModelRegistry() { clear(); }

Result<std::shared_ptr<ServedModel>> ModelRegistry::add(const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  for (const auto& model : models_) {
    for (const std::string& name : names) {
      if (has_name(*model, name)) {
        return invalid_argument("the name {} is taken: the model {} has it, which is {}", name, model->names().front(),
                                model_state_name(model->state()));
      }
    }
  }
  models_.push_back(std::make_shared<ServedModel>(without_repeats(names)));
  return models_.back();
}

void ModelRegistry::set_ready(ServedModel& model, ServingModel serving) {
  serving.names = model.names();
  auto frontend = std::make_shared<Frontend>(std::move(serving), &model.metrics_);
  const ServingModel& loaded = frontend->model();
  {
    const std::lock_guard lock(model.mutex_);
    model.card_ = card_of(*frontend);
    model.labels_ = labels_of(loaded);
    model.reload_ = loaded.reload;
    model.idle_unload_seconds_ = loaded.idle_unload_seconds;
    model.frontend_ = std::move(frontend);
  }
  model.progress_ = 1;
  ++model.num_loads_;
  const std::lock_guard lock(mutex_);
  model.uses_->last_end = SteadyClock::now().time_since_epoch().count();
  model.is_asleep_ = false;
  model.state_ = ModelState::kReady;
}

void ModelRegistry::remove(const ServedModel& model) {
  std::shared_ptr<ServedModel> removed;  // destroyed outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(models_.begin(), models_.end(), [&](const auto& each) { return each.get() == &model; });
  if (found == models_.end()) return;
  removed = std::move(*found);
  models_.erase(found);
}

std::vector<std::shared_ptr<ServedModel>> ModelRegistry::all() const {
  const std::lock_guard lock(mutex_);
  return models_;
}

std::shared_ptr<ServedModel> ModelRegistry::find_locked(std::string_view name) const {
  if (name.empty()) return models_.empty() ? nullptr : models_.front();
  const auto found = std::find_if(models_.begin(), models_.end(), [&](const auto& each) { return has_name(*each, name); });
  return found == models_.end() ? nullptr : *found;
}

std::shared_ptr<ServedModel> ModelRegistry::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  return find_locked(name);
}

ModelUse ModelRegistry::use(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  ModelUse use{.model = find_locked(name), .frontend = nullptr, .hold = nullptr};
  if (!use.model || use.model->state() != ModelState::kReady) return use;
  use.frontend = use.model->frontend();
  ++use.model->uses_->count;
  use.hold = std::shared_ptr<void>(nullptr, [uses = use.model->uses_](void*) {
    uses->last_end = SteadyClock::now().time_since_epoch().count();
    --uses->count;
  });
  return use;
}

std::vector<std::string> ModelRegistry::names() const {
  std::vector<std::string> names;
  for (const ModelCard& card : cards()) names.insert(names.end(), card.names.begin(), card.names.end());
  return names;
}

std::vector<ModelCard> ModelRegistry::cards() const {
  std::vector<ModelCard> cards;
  for (const auto& model : all()) {
    if (model->state() != ModelState::kReady && !model->comes_back()) continue;
    const std::lock_guard lock(model->mutex_);
    if (model->card_) cards.push_back(*model->card_);
  }
  return cards;
}

bool ModelRegistry::begin_idle(ServedModel& model, SteadyClock::time_point now) {
  const double idle_seconds = model.idle_unload_seconds_;
  if (idle_seconds <= 0) return false;
  const std::shared_ptr<Frontend> frontend = model.frontend();
  // One whose engine has failed stays, so that everybody hears of it.
  if (!frontend || !frontend->model().engine->health().ok()) return false;
  const std::lock_guard lock(mutex_);
  if (model.state_ != ModelState::kReady || model.uses_->count > 0) return false;
  const SteadyClock::time_point last_end{SteadyClock::duration(model.uses_->last_end)};
  if (std::chrono::duration<double>(now - last_end).count() < idle_seconds) return false;
  model.state_ = ModelState::kFallingIdle;
  return true;
}

Status ModelRegistry::begin_sleep(std::span<const std::shared_ptr<ServedModel>> models) {
  for (const auto& model : models) {
    const std::lock_guard lock(model->mutex_);
    if (!model->reload_) {
      return invalid_argument("this program cannot load the model {} again", model->names().front());
    }
  }
  const std::lock_guard lock(mutex_);
  for (const auto& model : models) {
    if (model->state_ != ModelState::kReady && model->state_ != ModelState::kIdle) {
      return unavailable("the model {} is {}: it can sleep when it is ready or idle", model->names().front(),
                         model_state_name(model->state()));
    }
  }
  for (const auto& model : models) {
    if (model->state_ == ModelState::kReady) model->state_ = ModelState::kFallingIdle;
    model->is_asleep_ = true;
  }
  return ok_status();
}

Status ModelRegistry::finish_sleep(ServedModel& model, milliseconds timeout) {
  const std::string& name = model.names().front();
  if (model.state_ == ModelState::kIdle) return ok_status();
  const Status reason = unavailable("the model {} was put to sleep", name);
  if (!wait_for_uses(model, timeout)) {
    {
      const std::lock_guard stop_lock(model.stop_mutex_);
      if (const std::shared_ptr<Frontend> ready = model.frontend()) ready->model().engine->stop(reason);
    }
    if (!wait_for_uses(model, kLetGoTimeout)) {
      return internal_error("{} requests still hold the model {}: its memory stays until the server ends",
                            model.num_uses(), name);
    }
  }
  finish_idle(model);
  return ok_status();
}

Result<bool> ModelRegistry::begin_wake_up(ServedModel& model) {
  const std::lock_guard lock(mutex_);
  if (model.is_asleep_ && model.state_ == ModelState::kFallingIdle) {
    return unavailable("the model {} is about to sleep: wake it up once it does", model.names().front());
  }
  if (!model.is_asleep_ || model.state_ != ModelState::kIdle) return false;
  model.state_ = ModelState::kWaking;
  return true;
}

bool ModelRegistry::finish_idle(ServedModel& model) {
  std::shared_ptr<Frontend> frontend;
  {
    // The server may end meanwhile, and stops each engine that it finds.
    const std::lock_guard stop_lock(model.stop_mutex_);
    model.live_feed_.without_frontend([&] {
      const std::lock_guard lock(model.mutex_);
      frontend = std::move(model.frontend_);
      if (frontend) model.metrics_.end_engine(frontend->model().engine->stats());
    });
    if (frontend) frontend->model().engine->stop(unavailable("the model {} was unloaded", model.names().front()));
  }
  frontend = nullptr;
  if (!model.is_asleep_) ++model.num_idle_unloads_;
  const std::lock_guard lock(mutex_);
  model.state_ = model.waiters_.empty() ? ModelState::kIdle : ModelState::kWaking;
  model.progress_ = 0;
  return model.state_ == ModelState::kWaking;
}

ModelRegistry::Wait ModelRegistry::wait_for(ServedModel& model, ModelWaiter waiter) {
  const std::lock_guard lock(mutex_);
  if (model.state_ == ModelState::kReady) return Wait::kRetry;
  if (model.is_asleep_ && model.state_ != ModelState::kWaking) return Wait::kRefused;
  if (!model.comes_back() || has_ended_waits_ || model.waiters_.size() >= kMaxModelWaiters) return Wait::kRefused;
  const bool is_idle = model.state_ == ModelState::kIdle;
  if (is_idle && SteadyClock::now() < model.retry_at_) return Wait::kRefused;
  model.waiters_.push_back(std::move(waiter));
  ++model.num_waiters_;
  if (is_idle) model.state_ = ModelState::kWaking;
  return is_idle ? Wait::kWake : Wait::kWaits;
}

Status ModelRegistry::wake(ServedModel& model) {
  std::function<Result<ServingModel>(const std::function<void(double)>&)> reload;
  {
    const std::lock_guard lock(model.mutex_);
    reload = model.reload_;
  }
  Result<ServingModel> serving = load_or_error(
      model.names().front(), [&] { return reload([&](double progress) { model.set_progress(progress); }); });
  const Status status = serving.status();
  if (status.ok()) {
    set_ready(model, std::move(serving).value());
  } else {
    ++model.num_failed_reloads_;
    const std::lock_guard lock(mutex_);
    model.state_ = ModelState::kIdle;
    model.last_failure_ = status;
    model.retry_at_ = SteadyClock::now() + kReloadDelay;
  }
  end_waits_of(model, status);
  return status;
}

std::optional<Status> ModelRegistry::recent_failure(const ServedModel& model) const {
  const std::lock_guard lock(mutex_);
  if (model.state_ != ModelState::kIdle || SteadyClock::now() >= model.retry_at_) return std::nullopt;
  return model.last_failure_;
}

void ModelRegistry::end_waits_of(ServedModel& model, const Status& status) {
  std::vector<ModelWaiter> waiters;  // called outside the lock
  {
    const std::lock_guard lock(mutex_);
    waiters.swap(model.waiters_);
    model.num_waiters_ = 0;
  }
  for (const ModelWaiter& waiter : waiters) waiter(status);
}

void ModelRegistry::end_waits(const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    has_ended_waits_ = true;
  }
  for (const auto& model : all()) end_waits_of(*model, reason);
}

Result<std::shared_ptr<ServedModel>> ModelRegistry::begin_unload(std::string_view name) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<ServedModel> model = find_locked(name);
  if (!model) return not_found("there is no model {}", name);
  if (model->state() != ModelState::kReady && model->state() != ModelState::kIdle) {
    return unavailable("the model {} is {}: it can be unloaded when it is ready or idle", name,
                       model_state_name(model->state()));
  }
  model->state_ = ModelState::kUnloading;
  return model;
}

Result<int> ModelRegistry::finish_unload(const std::shared_ptr<ServedModel>& model, milliseconds timeout) {
  const bool has_ended = wait_for_uses(*model, timeout);
  const int num_aborted = has_ended ? 0 : model->num_uses();
  model->stop(unavailable("the model {} was unloaded", model->names().front()));
  if (!has_ended && !wait_for_uses(*model, kLetGoTimeout)) {
    return internal_error("{} requests still hold the model {}: its memory stays until the server ends", model->num_uses(),
                          model->names().front());
  }
  {
    std::shared_ptr<Frontend> frontend;  // destroyed outside the lock
    const std::lock_guard lock(model->mutex_);
    frontend = std::move(model->frontend_);
  }
  remove(*model);
  return num_aborted;
}

void ModelRegistry::stop() {
  for (const auto& model : all()) model->stop(unavailable("the server is shutting down"));
}

void ModelRegistry::clear() {
  stop();
  std::vector<std::shared_ptr<ServedModel>> models;  // destroyed outside the lock
  const std::lock_guard lock(mutex_);
  models.swap(models_);
}

}  // namespace spate
