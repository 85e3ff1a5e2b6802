// --pooler-config: last, mean or cls; or a JSON object with vLLM's names, or the same as a YAML mapping in the --config
// file.
#pragma once

#include <string>

#include "llm/llm_config.h"

namespace spate {

// Empty text: the model's files decide. Errors name the field.
Result<PoolingOverride> parse_pooler_config(const std::string& text);

}  // namespace spate
