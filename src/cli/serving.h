// What `spate serve` and the C interface have in common: a loaded model as the front-end wants it.
#pragma once

#include "base/log.h"
#include "cli/arguments.h"
#include "llm/loaded_model.h"
#include "server/serving_model.h"

namespace spate {

// Before the weights are read: a mistyped template, path or parser is said at once.
Status check_serving(const Arguments& arguments);
// The model has a tokenizer; its engine is started by the caller.
Result<ServingModel> serving_model(const Arguments& arguments, LoadedModel& model);
LogLevel parse_log_level(const std::string& name);  // checked before: an unknown one is info

}  // namespace spate
