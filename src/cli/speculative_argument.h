// --speculative-config: a JSON object, or the same as a YAML mapping in the --config file.
#pragma once

#include <string>

#include "core/speculative_config.h"

namespace spate {

// Empty text: no speculation. Errors name the field and the bound.
Result<SpeculativeConfig> parse_speculative_config(const std::string& text);

// `text`, which parses, with another draft model or head.
std::string with_draft_model(const std::string& text, const std::string& model);

}  // namespace spate
