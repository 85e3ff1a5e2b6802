// JSON to template values. The one header of the folder that needs the JSON library: include it in .cpp files only.
#pragma once

#include <nlohmann/json.hpp>

#include "text/jinja/value.h"

namespace spate::jinja {

// Objects keep their order. Integers beyond 64 bits become floats. Throws Error when the nesting is too deep or
// there is invalid UTF-8.
Value from_json(const nlohmann::ordered_json& json);

}  // namespace spate::jinja
