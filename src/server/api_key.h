// The API key of a request.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_server.h"
#include "server/sha256.h"

namespace spate {

// "Authorization: Bearer KEY" or "X-Api-Key: KEY" with one of the keys, or with one that has one of the hashes. Takes
// the same time for every wrong key of a length.
bool has_valid_api_key(const HttpRequest& request, const std::vector<std::string>& keys,
                       std::span<const Sha256> hashes = {});

// The hashes of a file: a line each, as sha256sum writes them or as sha256:HEX; what follows a hash is a remark, as is
// a line that begins with #. Errors name the line, and quote nothing of it.
Result<std::vector<Sha256>> read_api_key_file(const std::string& path);

}  // namespace spate
