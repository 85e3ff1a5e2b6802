// What the head of a request alone decides, before its body is read.
#pragma once

#include <optional>

#include "server/http_server.h"
#include "server/server_config.h"

namespace spate {

// The answer to a request that goes no further: no route (404), another method (405, OPTIONS), no key (401), models of
// --enable-admin (403), no connection left (503). Nothing: find_route() knows request.path, from which config.root_path
// and slashes too many have been taken. Thread-safe.
std::optional<HttpResponse> check_head(const ServerConfig& config, HttpRequest& request);

}  // namespace spate
