// What include/spate.h declares, on LocalApi: the handlers of the server, called without a socket.
#include "spate.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/version.h"
#include "cli/arguments.h"
#include "cli/find_models.h"
#include "cli/llm_arguments.h"
#include "cli/serving.h"
#include "server/local_api.h"

struct spate_engine {
  std::unique_ptr<spate::LoadedModel> model;
  std::unique_ptr<spate::LocalApi> api;
};

struct spate_request {
  std::shared_ptr<spate::LocalResponder> responder;
};

namespace spate {
namespace {

char* copy_of(std::string_view text) {
  auto* copy = new char[text.size() + 1];
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

Result<std::unique_ptr<spate_engine>> open_engine(const char* const* flags, size_t num_flags) {
  std::vector<const char*> argv{"spate", "serve"};
  argv.insert(argv.end(), flags, flags + num_flags);
  ASSIGN_OR_RETURN(Arguments arguments, parse_arguments(static_cast<int>(argv.size()), argv.data()));
  if (arguments.command != "serve") return invalid_argument("spate_open: the flags must name a model and be those of serve");
  if (!arguments.serve.specs.empty()) {
    return invalid_argument("spate_open: one engine has one model; --model NAME=PATH is for the server");
  }
  RETURN_IF_ERROR(check_serving(arguments));
  set_log_level(parse_log_level(arguments.log_level));
  RETURN_IF_ERROR(find_models(arguments.model));
  auto engine = std::make_unique<spate_engine>();
  ASSIGN_OR_RETURN(engine->model, load_model(arguments.model));
  if (!engine->model->tokenizer) {
    return not_found("{}: a tokenizer.json is needed; use --tokenizer with a folder that has one", arguments.model.model);
  }
  ASSIGN_OR_RETURN(ServingModel serving, serving_model(arguments, *engine->model));
  engine->model->engine->start();
  engine->api = std::make_unique<LocalApi>(std::make_shared<Frontend>(std::move(serving), nullptr));
  return engine;
}

}  // namespace
}  // namespace spate

extern "C" {

int spate_abi_version(void) { return SPATE_ABI_VERSION; }
const char* spate_version(void) { return spate::kVersion; }
void spate_free(char* text) { delete[] text; }

spate_engine* spate_open(const char* const* flags, size_t num_flags, char** error) {
  if (error != nullptr) *error = nullptr;
  auto engine = spate::open_engine(flags, num_flags);
  if (engine.ok()) return std::move(engine).value().release();
  if (error != nullptr) *error = spate::copy_of(engine.status().message());
  return nullptr;
}

void spate_close(spate_engine* engine) {
  if (engine == nullptr) return;
  engine->model->engine->stop();
  delete engine;
}

spate_request* spate_start(spate_engine* engine, const char* path, const char* body) {
  return new spate_request{engine->api->start(path, body)};
}

int spate_next(spate_request* request, double timeout_seconds, char** json) {
  *json = nullptr;
  std::optional<spate::LocalResponder::Piece> piece = request->responder->next(timeout_seconds);
  if (!piece) return SPATE_TIMEOUT;
  if (!piece->json.empty()) *json = spate::copy_of(piece->json);
  switch (piece->kind) {
    case spate::LocalResponder::Kind::kChunk:
      return SPATE_CHUNK;
    case spate::LocalResponder::Kind::kDone:
      return SPATE_DONE;
    case spate::LocalResponder::Kind::kFailed:
      break;
  }
  return SPATE_FAILED;
}

void spate_cancel(spate_request* request) { request->responder->disconnect(); }

void spate_request_free(spate_request* request) {
  if (request == nullptr) return;
  request->responder->disconnect();
  delete request;
}

}  // extern "C"
