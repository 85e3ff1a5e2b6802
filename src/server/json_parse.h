// Request bodies to JSON values, with limits that hold before memory or time is spent.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/api_error.h"

namespace spate {

constexpr int kMaxJsonDepth = 64;
// Of the values in memory, not of the text: "" takes 3 bytes there and 64 here. A prompt of 16 million token ids fits;
// a list doubles its memory as it grows, which a power of two keeps from going beyond.
constexpr size_t kMaxJsonValueBytes = size_t{256} << 20;

// Strict JSON in valid UTF-8, at most kMaxJsonDepth deep and kMaxJsonValueBytes large. At most n log n in the size of
// the text, whatever it holds. Of a key that comes twice in an object, the last counts. An error says line, column and
// what was expected, behind `problem`.
ApiResult<std::shared_ptr<const nlohmann::ordered_json>> parse_json(
    std::string_view text, std::string_view problem = "The request body is not valid JSON: ");
// The text of the last "model" of the object, as parse_json takes it; empty where there is none. Of a text that is not
// JSON, the last before the error. Keeps nothing else.
std::string find_model_field(std::string_view text);

}  // namespace spate
