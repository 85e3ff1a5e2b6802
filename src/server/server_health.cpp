#include "server/server_health.h"

#include <fmt/format.h>

#include <chrono>
#include <string>

#include "server/api_response.h"

namespace spate {

Status engine_health(const ServedModel& model) {
  const std::shared_ptr<Frontend> frontend = model.frontend();
  if (!frontend || model.state() != ModelState::kReady) return ok_status();  // one that is unloaded has stopped
  return frontend->model().engine->health();
}

// The first failure of an engine; of one model where it is named.
Status ServerHealth::engines(const ServedModel* named) const {
  if (named != nullptr) return engine_health(*named);
  const auto all = models_.all();
  for (const auto& model : all) {
    const Status status = engine_health(*model);
    if (status.ok()) continue;
    return all.size() == 1 ? status : status.with_context(model->names().front());
  }
  return ok_status();
}

void ServerHealth::answer_unready(const ServedModel* model, HttpResponder& responder, Endpoint endpoint) const {
  ApiError error = unavailable_error("The model is loading.", 5);
  std::string extra = fmt::format(R"("status":"loading","progress":{:.3f})", progress_.load());
  const Status health = engines(model);
  if (state_ == ServerState::kDraining) {
    error = unavailable_error("The server is shutting down.", 5);
    extra = R"("status":"draining")";
  } else if (!health.ok()) {
    error = unavailable_error(fmt::format("The engine has failed: {}", health.message()), 0);
    extra = R"("status":"dead")";
  } else if (state_ == ServerState::kReady && model == nullptr) {
    error = unavailable_error("No model is loaded.", 5);
    extra = R"("status":"empty")";
  } else if (model != nullptr && model->is_asleep()) {
    error = unavailable_error(fmt::format("The model {} sleeps until POST /wake_up.", model->names().front()), 5);
    extra = R"("status":"asleep")";
  } else if (const auto failure = model != nullptr ? models_.recent_failure(*model) : std::nullopt) {
    const auto delay = std::chrono::duration_cast<std::chrono::seconds>(kReloadDelay).count();
    error = unavailable_error(
        fmt::format("The model {} could not be loaded again: {}", model->names().front(), failure->message()),
        static_cast<int>(delay));
    extra = R"("status":"idle")";
  } else if (model != nullptr && model->state() == ModelState::kIdle) {
    error = unavailable_error(
        fmt::format("The model {} is unloaded, as nobody used it: the next request for an answer loads it.",
                    model->names().front()),
        5);
    extra = R"("status":"idle")";
  } else if (model != nullptr && model_state_name(model->state()) == "unloading") {
    error = unavailable_error(fmt::format("The model {} is being unloaded.", model->names().front()), 5);
    extra = R"("status":"unloading")";
  } else if (model != nullptr) {
    const double share = model->progress();
    error =
        unavailable_error(fmt::format("The model {} is loading: {:.0f} %.", model->names().front(), share * 100), 5);
    extra = fmt::format(R"("status":"loading","progress":{:.3f})", share);
  }
  HttpResponse response = error_response(endpoint, error);
  response.body.insert(response.body.size() - 1, "," + extra);
  responder.respond(std::move(response));
}

// A model that comes or goes while the server runs does not change the server's health; one whose engine has failed
// does.
void ServerHealth::answer_health(HttpResponder& responder) const {
  if (state_ != ServerState::kReady || !engines(nullptr).ok()) return answer_unready(nullptr, responder);
  responder.respond({.body = R"({"status":"ok"})"});
}

void ServerHealth::answer_livez(HttpResponder& responder) const {
  if (state_ == ServerState::kReady && !engines(nullptr).ok()) return answer_unready(nullptr, responder);
  if (is_stuck_) {
    return responder.respond(http_response_of(unavailable_error("The engine makes no progress.", 0)));
  }
  responder.respond({.body = R"({"status":"alive"})"});
}

}  // namespace spate
