// From what the command line says to what load_model() takes.
#pragma once

#include <functional>
#include <string>

#include "cli/arguments.h"
#include "llm/loaded_model.h"

namespace spate {

// Errors name the flag.
Result<Quantization> quantization_of(const ModelArguments& arguments);  // --quantization, --activation-dtype
Result<LlmConfig> llm_config(const ModelArguments& arguments);
Result<std::unique_ptr<LoadedModel>> load_model(const ModelArguments& arguments,
                                                const std::function<void(double)>& progress = {});

DeviceOptions device_options(const ModelArguments& arguments);
DType act_dtype_of(const ModelArguments& arguments);  // --dtype
DType kv_dtype_of(const ModelArguments& arguments);   // --kv-cache-dtype

// A progress bar on a terminal; elsewhere one log line for each tenth.
std::function<void(double)> progress_bar(std::string title);

}  // namespace spate
