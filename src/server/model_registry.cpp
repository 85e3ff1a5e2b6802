#include "server/model_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

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

std::string_view model_state_name(ModelState state) {
  return state == ModelState::kLoading ? "loading" : state == ModelState::kReady ? "ready" : "unloading";
}

std::shared_ptr<Frontend> ServedModel::frontend() const {
  const std::lock_guard lock(mutex_);
  return frontend_;
}

void ServedModel::render_metrics(MetricsWriter& out) const {
  const std::shared_ptr<Frontend> ready = frontend();
  if (!ready) return;
  const ServingModel& model = ready->model();
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
  metrics_.render(out, model.engine->stats(), {.model_name = names_.front(), .cache_config = std::move(cache)});
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
  {
    const std::lock_guard lock(model.mutex_);
    model.frontend_ = std::move(frontend);
  }
  model.progress_ = 1;
  const std::lock_guard lock(mutex_);
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
  ++*use.model->num_uses_;
  use.hold = std::shared_ptr<void>(nullptr, [count = use.model->num_uses_](void*) { --*count; });
  return use;
}

std::vector<std::string> ModelRegistry::names() const {
  std::vector<std::string> names;
  for (const auto& model : all()) {
    if (model->state() == ModelState::kReady) names.insert(names.end(), model->names().begin(), model->names().end());
  }
  return names;
}

Result<std::shared_ptr<ServedModel>> ModelRegistry::begin_unload(std::string_view name) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<ServedModel> model = find_locked(name);
  if (!model) return not_found("there is no model {}", name);
  if (model->state() != ModelState::kReady) {
    return unavailable("the model {} is {}: it can be unloaded when it is ready", name, model_state_name(model->state()));
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
