// What a model's files say about embeddings: sentence-transformers' modules.json and 1_Pooling/config.json, or
// <architecture>.pooling_type of a GGUF file. Files that say nothing give Pooling::kNone.
#pragma once

#include <filesystem>
#include <string_view>

#include "core/pooling.h"

namespace spate {

// `model`: a model directory or a *.gguf file. Errors are of files that cannot be read; a way of pooling that is not
// built is PoolingConfig::problem.
Result<PoolingConfig> load_pooling_config(const std::filesystem::path& model);

// The text of 1_Pooling/config.json.
Result<PoolingConfig> parse_pooling_module(std::string_view json);

}  // namespace spate
