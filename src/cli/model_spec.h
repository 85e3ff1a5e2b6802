// "NAME=PATH,key=value,...": a model beside others, as --model takes it.
#pragma once

#include <string>

#include "base/status.h"
#include "server/model_loader.h"

namespace spate {

// Whether `text` is meant so, and not as the path of a model.
bool is_model_spec(const std::string& text);
// Commas inside brackets and quotes do not part: values may be JSON. "alias" may come several times.
Result<ModelSpec> parse_model_spec(const std::string& text);

}  // namespace spate
