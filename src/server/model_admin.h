// ModelAdmin: what /admin/models does: loads models beside those that serve, unloads them, tells their states; and what
// vLLM has for those who train: sleep, wake up, forget cached prefixes.
//
// Thread-safe. The work is done on two threads of its own: one loads, one unloads, each one model after the other.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "server/http_server.h"
#include "server/model_loader.h"
#include "server/model_registry.h"
#include "server/work_pool.h"

namespace spate {

class ModelAdmin {
 public:
  ModelAdmin(ModelRegistry& registry, std::chrono::milliseconds unload_timeout)
      : registry_(registry), unload_timeout_(unload_timeout) {}

  // Before the server is ready: list() may run already, load() may not.
  void set_loader(ModelLoader loader) { loader_ = std::move(loader); }

  // An error is for the caller to answer; else the answer is given, or comes when the work is done.
  std::optional<ApiError> list(HttpResponder& responder) const;
  std::optional<ApiError> load(std::string_view body, std::shared_ptr<HttpResponder> responder);
  std::optional<ApiError> unload(std::string_view body, std::shared_ptr<HttpResponder> responder);

  // Of `model`, or of all where it is empty. They change nothing where none has the name, or one cannot sleep.
  std::optional<ApiError> reset_prefix_cache(std::string_view model, std::shared_ptr<HttpResponder> responder);
  std::optional<ApiError> sleep(std::string_view model, std::string_view query,
                                std::shared_ptr<HttpResponder> responder);
  std::optional<ApiError> wake_up(std::string_view model, std::string_view query,
                                  std::shared_ptr<HttpResponder> responder);
  std::optional<ApiError> is_sleeping(std::string_view model, HttpResponder& responder) const;

  // Behind the loads that were asked for; counts as one.
  void post_load(std::function<void()> task);
  bool is_loading() const { return num_loads_ > 0; }

 private:
  ApiResult<std::vector<std::shared_ptr<ServedModel>>> models_of(std::string_view name) const;
  void run_load(const ModelSpec& spec, const std::shared_ptr<ServedModel>& model, HttpResponder& responder);

  ModelRegistry& registry_;
  ModelLoader loader_;
  const std::chrono::milliseconds unload_timeout_;
  std::atomic<int> num_loads_{0};
  WorkPool load_pool_{1}, unload_pool_{1};  // last: their tasks use all of the above
};

}  // namespace spate
