#include "server/head_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "server/api_key.h"
#include "server/api_response.h"
#include "server/http_message.h"
#include "server/messages_responder.h"
#include "server/request_log.h"
#include "server/routes.h"

namespace spate {
namespace {

constexpr size_t kMaxUnusedBodyBytes = 64 << 10;  // of a GET

// "/v1//models/" to "/v1/models": base URLs end with a slash or not, and paths begin with one.
std::string without_extra_slashes(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (c != '/' || !out.ends_with('/')) out += c;
  }
  if (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out;
}

std::string no_route_text(std::string_view path) {
  const ForeignPath* foreign = find_foreign_path(path);
  return fmt::format("There is no {} here.{}{}", printable(path), foreign ? " " : "", foreign ? foreign->help : "");
}

// In Anthropic's shape at its path and below.
HttpResponse refusal(const HttpRequest& request, const ApiError& error) {
  if (request.path != "/v1/messages" && !request.path.starts_with("/v1/messages/")) return http_response_of(error);
  HttpResponse response = messages_error_response(error);
  response.headers.emplace_back(kMessagesIdHeader, request.request_id);
  return response;
}

}  // namespace

std::optional<HttpResponse> check_head(const ServerConfig& config, HttpRequest& request) {
  const std::string& root = config.root_path;
  if (!root.empty() && request.path.starts_with(root) &&
      (request.path.size() == root.size() || request.path[root.size()] == '/')) {
    request.path.erase(0, root.size());
    if (request.path.empty()) request.path = "/";
  }
  const Route* route = find_route(request.path, request.method);
  if (!route) {
    if (std::string path = without_extra_slashes(request.path); (route = find_route(path, request.method))) {
      request.path = std::move(path);
    }
  }
  if (request.path == "*" && request.method == "OPTIONS") {  // of the server as a whole
    return HttpResponse{.status = 204, .headers = {{"Allow", "GET, HEAD, POST, DELETE, OPTIONS"}}};
  }
  if (!route) return refusal(request, http_error(404, no_route_text(request.path)));
  if (request.method == "OPTIONS") return HttpResponse{.status = 204, .headers = {{"Allow", allowed_methods(*route)}}};
  if (is_admin(route->endpoint) && (!config.enable_admin || !config.asks_for_key())) {
    return http_response_of(
        http_error(403, "Models are not loaded and unloaded here: that needs --enable-admin and --api-key."));
  }
  const bool needs_key = route->needs_key || (route->endpoint == Endpoint::kMetrics && config.metrics_auth);
  if (needs_key && config.asks_for_key() && !has_valid_api_key(request, config.api_key, config.api_key_hashes)) {
    HttpResponse response =
        refusal(request, http_error(401, "The API key is missing or wrong: send it as \"Authorization: Bearer KEY\"."));
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (!takes_method(*route, request.method)) {
    HttpResponse response =
        refusal(request, http_error(405, fmt::format("{} takes {}, not {}.", route->path, taken_methods(*route),
                                                     printable(request.method))));
    response.headers.emplace_back("Allow", allowed_methods(*route));
    return response;
  }
  if (request.is_on_reserve && needs_model(route->endpoint)) {
    return refusal(
        request, http_error(503, fmt::format("There are {} connections, no more are taken.", config.max_connections)));
  }
  if (request.method != "POST") request.max_body_bytes = std::min(request.max_body_bytes, kMaxUnusedBodyBytes);
  return std::nullopt;
}

}  // namespace spate
