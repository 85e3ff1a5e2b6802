// generation_config.json: the sampling defaults that a model's makers recommend. A missing file is an empty config.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace spate {

struct GenerationConfig {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int64_t> top_k;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> max_new_tokens;
  std::optional<bool> do_sample;       // false: greedy unless the request says otherwise
  std::vector<int32_t> eos_token_ids;  // empty when the file has none
};

Result<GenerationConfig> parse_generation_config(std::string_view json);
// `model`: a model directory or a *.gguf file, which may hold the same in its metadata.
Result<GenerationConfig> load_generation_config(const std::filesystem::path& model);

}  // namespace spate
