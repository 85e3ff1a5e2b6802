// /sleep, /wake_up, /is_sleeping and /reset_prefix_cache.
#include <malloc.h>

#include <algorithm>
#include <future>

#include "base/log.h"
#include "server/http_message.h"
#include "server/model_admin.h"

namespace spate {
namespace {

constexpr auto kForgetTimeout = std::chrono::seconds(30);  // of an engine in a long step

}  // namespace

ApiResult<std::vector<std::shared_ptr<ServedModel>>> ModelAdmin::models_of(std::string_view name) const {
  if (name.empty()) return registry_.all();
  const std::shared_ptr<ServedModel> model = registry_.find(name);
  if (!model) return model_not_found(name, registry_.names());
  return std::vector<std::shared_ptr<ServedModel>>{model};
}

std::optional<ApiError> ModelAdmin::reset_prefix_cache(std::string_view name,
                                                       std::shared_ptr<HttpResponder> responder) {
  ApiResult<std::vector<std::shared_ptr<ServedModel>>> models = models_of(name);
  if (!models.ok()) return models.error();
  unload_pool_.post([models = std::move(*models), responder = std::move(responder)] {
    int num_blocks = 0;
    for (const auto& model : models) {
      const std::shared_ptr<Frontend> frontend = model->frontend();
      if (!frontend) continue;  // what is not loaded has no cache
      std::future<int> forgotten = frontend->model().engine->forget_prefixes();
      if (forgotten.wait_for(kForgetTimeout) != std::future_status::ready) {
        return responder->respond(http_response_of(unavailable_error("The engine makes no progress.", 0)));
      }
      num_blocks += forgotten.get();
    }
    log_info("admin", "the prefix cache is empty: {} blocks were forgotten", num_blocks);
    responder->respond({.body = fmt::format(R"({{"success":true,"num_blocks":{}}})", num_blocks)});
  });
  return std::nullopt;
}

std::optional<ApiError> ModelAdmin::sleep(std::string_view name, std::string_view query,
                                          std::shared_ptr<HttpResponder> responder) {
  const std::string level = query_value(query, "level"), mode = query_value(query, "mode");
  if (!level.empty() && level != "1" && level != "2") {
    return bad_request("level",
                       fmt::format("level must be 1 or 2, which are the same here, got {}", level.substr(0, 40)));
  }
  if (!mode.empty() && mode != "abort" && mode != "wait") {
    return bad_request("mode", fmt::format("mode must be abort or wait, got {}", mode.substr(0, 40)));
  }
  ApiResult<std::vector<std::shared_ptr<ServedModel>>> models = models_of(name);
  if (!models.ok()) return models.error();
  std::erase_if(*models, [](const auto& model) { return model->is_asleep(); });
  const Status begun = registry_.begin_sleep(*models);
  if (!begun.ok()) return http_error(409, begun.message());
  const auto timeout = mode == "wait" ? unload_timeout_ : std::chrono::milliseconds(0);
  unload_pool_.post([this, models = std::move(*models), timeout, responder = std::move(responder)] {
    Status failure;
    for (const auto& model : models) {  // all of them: what has begun to sleep serves no more
      const Status status = registry_.finish_sleep(*model, timeout);
      if (status.ok()) log_info("admin", "the model {} sleeps", model->names().front());
      if (failure.ok()) failure = status;
    }
    ::malloc_trim(0);  // what malloc keeps of them goes back to the system
    if (!failure.ok()) return responder->respond(http_response_of(api_error_of(failure)));
    responder->respond({.body = "{}"});
  });
  return std::nullopt;
}

std::optional<ApiError> ModelAdmin::wake_up(std::string_view name, std::string_view query,
                                            std::shared_ptr<HttpResponder> responder) {
  if (!query_value(query, "tags").empty()) {
    return not_supported("tags", "tags is not supported: weights and KV cache come back together");
  }
  ApiResult<std::vector<std::shared_ptr<ServedModel>>> models = models_of(name);
  if (!models.ok()) return models.error();
  post_load([this, models = std::move(*models), responder = std::move(responder)] {
    for (const auto& model : models) {
      const Result<bool> sleeps = registry_.begin_wake_up(*model);
      if (!sleeps.ok()) return responder->respond(http_response_of(http_error(409, sleeps.status().message())));
      if (!*sleeps) continue;
      log_info("admin", "the model {} wakes up", model->names().front());
      const Status status = registry_.wake(*model);
      if (!status.ok()) return responder->respond(http_response_of(api_error_of(status)));
    }
    responder->respond({.body = "{}"});
  });
  return std::nullopt;
}

std::optional<ApiError> ModelAdmin::is_sleeping(std::string_view name, HttpResponder& responder) const {
  const ApiResult<std::vector<std::shared_ptr<ServedModel>>> models = models_of(name);
  if (!models.ok()) return models.error();
  const bool is_any = std::ranges::any_of(*models, [](const auto& model) { return model->is_asleep(); });
  responder.respond({.body = is_any ? R"({"is_sleeping":true})" : R"({"is_sleeping":false})"});
  return std::nullopt;
}

}  // namespace spate
