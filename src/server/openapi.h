// What the tables of routes and request fields say, for programs and for people.
#pragma once

#include <string>
#include <string_view>

namespace spate {

std::string openapi_json(std::string_view version);  // OpenAPI 3.1
std::string api_reference_markdown();                // docs/api.md

}  // namespace spate
