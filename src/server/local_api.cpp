#include "server/local_api.h"

#include "base/log.h"
#include "server/api_handlers.h"
#include "server/routes.h"

namespace spate {

std::shared_ptr<LocalResponder> LocalApi::start(std::string_view path, std::string body) {
  auto responder = std::make_shared<LocalResponder>();
  try {
    run(path, std::move(body), responder);
  } catch (const std::exception& e) {  // of a JSON library: callers may be C
    responder->respond(http_response_of(http_error(500, e.what())));
  }
  return responder;
}

void LocalApi::run(std::string_view path, std::string body, const std::shared_ptr<LocalResponder>& responder) {
  const Route* route = find_route(path);
  if (route == nullptr || !needs_model(route->endpoint)) {
    return responder->respond(http_response_of(http_error(404, fmt::format("There is no {} here.", path))));
  }
  ApiCall call{.frontend = frontend_,
               .request = {.method = route->method, .path = std::string(path), .body = std::move(body)},
               .responder = responder,
               .responses = responses_,
               .all_models = {card_of(*frontend_)}};
  call.request.request_id = fmt::format("local-{}", ++num_requests_);
  IgnoredFields ignored;
  const ApiOutcome error = run_api_call(route->endpoint, call, ignored);
  for (const std::string& name : ignored.unknown) log_warning("spate", "the field \"{}\" is not known and is ignored", name);
  if (error) responder->respond(http_response_of(*error));
}

}  // namespace spate
