#include "server/model_admin.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "server/json_parse.h"
#include "server/json_writer.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;

constexpr double kMaxTimeoutSeconds = 86400;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

ApiResult<std::shared_ptr<const Json>> parse_object(std::string_view body) {
  ApiResult<std::shared_ptr<const Json>> json = parse_json(body);
  if (json.ok() && !(*json)->is_object()) return bad_request("", "The request body must be a JSON object");
  return json;
}

// A text that must be there.
ApiResult<std::string> text_of(const Json& json, const char* key, const char* what) {
  const auto found = json.find(key);
  const bool is_text = found != json.end() && found->is_string() && !found->get_ref<const std::string&>().empty();
  if (!is_text) return bad_request(key, fmt::format("{} must be {}", key, what));
  return found->get<std::string>();
}

std::optional<ApiError> read_aliases(const Json& value, std::vector<std::string>& aliases) {
  const auto add = [&](const Json& alias) {
    if (alias.is_string() && !alias.get_ref<const std::string&>().empty()) aliases.push_back(alias.get<std::string>());
    return alias.is_string();
  };
  bool is_valid = true;
  if (value.is_array()) {
    for (const Json& alias : value) is_valid &= add(alias);
  } else {
    is_valid = add(value);
  }
  if (is_valid) return std::nullopt;
  return bad_request("alias", "alias must be a name or a list of names");
}

ApiResult<ModelSpec> spec_of(const Json& json) {
  ModelSpec spec;
  ApiResult<std::string> name = text_of(json, "name", "the name that requests will use");
  if (!name.ok()) return name.error();
  ApiResult<std::string> path = text_of(json, "path", "the model's folder, *.gguf file or name in the Hugging Face cache");
  if (!path.ok()) return path.error();
  spec.name = *name;
  spec.path = *path;
  for (const auto& [key, value] : json.items()) {
    if (key == "name" || key == "path" || value.is_null()) continue;
    if (key == "alias") {
      if (std::optional<ApiError> error = read_aliases(value, spec.aliases)) return *error;
      continue;
    }
    if (value.is_array()) return bad_request(key, fmt::format("{} must be one value, got a list", key));
    spec.settings.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return spec;
}

// A model that does not fit is no fault of a queue, and not of the request's form.
ApiError load_error(const Status& status) {
  if (status.code() == StatusCode::kResourceExhausted) {
    ApiError error = http_error(409, status.message());
    error.code = "does_not_fit";
    return error;
  }
  if (status.code() == StatusCode::kNotFound) return bad_request("path", status.message());
  return api_error_of(status);
}

}  // namespace

std::optional<ApiError> ModelAdmin::list(HttpResponder& responder) const {
  JsonWriter json;
  json.begin_object().key("models").begin_array();
  for (const auto& model : registry_.all()) {
    json.begin_object().field("name", model->names().front()).field("state", model_state_name(model->state()));
    json.key("aliases").begin_array();
    for (size_t i = 1; i < model->names().size(); ++i) json.value(model->names()[i]);
    json.end_array().field("progress", model->progress()).field("num_requests", model->num_uses());
    json.field("idle_unload_seconds", model->idle_unload_seconds())
        .field("num_waiting", model->num_waiters())
        .end_object();
  }
  responder.respond({.body = json.end_array().end_object().take()});
  return std::nullopt;
}

std::optional<ApiError> ModelAdmin::load(std::string_view body, std::shared_ptr<HttpResponder> responder) {
  if (!loader_.load) return http_error(501, "This program cannot load models while it serves.");
  ApiResult<std::shared_ptr<const Json>> json = parse_object(body);
  if (!json.ok()) return json.error();
  ApiResult<ModelSpec> spec = spec_of(**json);
  if (!spec.ok()) return spec.error();
  if (const Status status = loader_.check(*spec); !status.ok()) return load_error(status);
  std::vector<std::string> names{spec->name};
  names.insert(names.end(), spec->aliases.begin(), spec->aliases.end());
  if (const Status status = check_model_names(names); !status.ok()) return bad_request("name", status.message());
  Result<std::shared_ptr<ServedModel>> model = registry_.add(names);
  if (!model.ok()) return http_error(409, model.status().message());
  post_load([this, spec = std::move(*spec), model = *model, responder = std::move(responder)] {
    run_load(spec, model, *responder);
  });
  return std::nullopt;
}

void ModelAdmin::post_load(std::function<void()> task) {
  ++num_loads_;
  load_pool_.post([this, task = std::move(task)] {
    task();
    --num_loads_;
  });
}

void ModelAdmin::run_load(const ModelSpec& spec, const std::shared_ptr<ServedModel>& model, HttpResponder& responder) {
  const auto start = SteadyClock::now();
  log_info("admin", "loading the model {} from {}", spec.name, spec.path);
  Result<ServingModel> serving = load_or_error(
      spec.path, [&] { return loader_.load(spec, [&](double progress) { model->set_progress(progress); }); });
  if (!serving.ok()) {
    registry_.remove(*model);
    log_error("admin", "the model {} was not loaded: {}", spec.name, serving.status().message());
    return responder.respond(http_response_of(load_error(serving.status())));
  }
  if (const Status status = check_idle_unload(*serving); !status.ok()) {
    registry_.remove(*model);
    return responder.respond(http_response_of(load_error(status)));
  }
  registry_.set_ready(*model, std::move(serving).value());
  const double seconds = seconds_since(start);
  log_info("admin", "the model {} is ready after {:.3f} s", spec.name, seconds);
  JsonWriter json;
  json.begin_object().field("name", spec.name).field("state", "ready").field("seconds", seconds).end_object();
  responder.respond({.body = json.take()});
}

std::optional<ApiError> ModelAdmin::unload(std::string_view body, std::shared_ptr<HttpResponder> responder) {
  ApiResult<std::shared_ptr<const Json>> json = parse_object(body);
  if (!json.ok()) return json.error();
  ApiResult<std::string> name = text_of(**json, "name", "the name of a model that is ready");
  if (!name.ok()) return name.error();
  auto timeout = unload_timeout_;
  if (const auto given = (*json)->find("timeout"); given != (*json)->end() && !given->is_null()) {
    const double seconds = given->is_number() ? given->get<double>() : -1;
    if (!(seconds >= 0 && seconds <= kMaxTimeoutSeconds)) {
      return bad_request("timeout", fmt::format("timeout must be a number of seconds in [0, {:g}], got {}", kMaxTimeoutSeconds,
                                                given->dump().substr(0, 100)));
    }
    timeout = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  }
  for (const auto& [key, value] : (*json)->items()) {
    if (key != "name" && key != "timeout") return bad_request(key, fmt::format("unload takes name and timeout, got {}", key));
  }
  Result<std::shared_ptr<ServedModel>> model = registry_.begin_unload(*name);
  if (!model.ok() && model.status().code() == StatusCode::kNotFound) return model_not_found(*name, registry_.names());
  if (!model.ok()) return http_error(409, model.status().message());
  unload_pool_.post([this, model = *model, timeout, responder = std::move(responder)] {
    const auto start = SteadyClock::now();
    const std::string& unloaded = model->names().front();
    log_info("admin", "unloading the model {}: {} requests may end first", unloaded, model->num_uses());
    const Result<int> num_aborted = registry_.finish_unload(model, timeout);
    if (!num_aborted.ok()) {
      log_error("admin", "{}", num_aborted.status().message());
      return responder->respond(http_response_of(api_error_of(num_aborted.status())));
    }
    const double seconds = seconds_since(start);
    log_info("admin", "the model {} is unloaded after {:.3f} s, {} requests were cut", unloaded, seconds, *num_aborted);
    JsonWriter answer;
    answer.begin_object().field("name", unloaded).field("state", "unloaded").field("seconds", seconds);
    responder->respond({.body = answer.field("num_aborted", *num_aborted).end_object().take()});
  });
  return std::nullopt;
}

}  // namespace spate
