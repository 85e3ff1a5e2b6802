// Request bodies to JSON values, with limits that hold before memory or time is spent.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "server/api_error.h"

namespace spate {

constexpr int kMaxJsonDepth = 64;

// Strict JSON in valid UTF-8, at most kMaxJsonDepth deep. Linear in the size of the text whatever it holds. Of a key
// that comes twice in an object, the first counts. An error says line, column and what was expected.
ApiResult<std::shared_ptr<const nlohmann::ordered_json>> parse_json(std::string_view text);

}  // namespace spate
