// The API key of a request.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http_server.h"

namespace spate {

// "Authorization: Bearer KEY" or "X-Api-Key: KEY" with one of the keys. Takes the same time for every wrong key of a
// length.
bool has_valid_api_key(const HttpRequest& request, const std::vector<std::string>& keys);

}  // namespace spate
