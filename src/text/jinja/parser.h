// Tokens to the syntax tree, with jinja2's grammar (3.1) and the extensions transformers turns on: break, continue
// and {% generation %}. include, import and extends have nothing to refer to here and are refused.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace spate::jinja {

Body parse_template(std::string_view source);  // throws Error with a line

}  // namespace spate::jinja
