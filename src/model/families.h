// The families of models that Spate runs. A new one: a file like qwen3.cpp, its declaration here, a line in
// families.cpp (docs/adding-a-model.md).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/model_config.h"

namespace spate {

struct DecoderParts;
class PartFactory;

Result<DecoderParts> make_deepseek_v2(const PartFactory& make);
Result<DecoderParts> make_deepseek_v3(const PartFactory& make);
Result<DecoderParts> make_ernie4_5(const PartFactory& make);
Result<DecoderParts> make_ernie4_5_moe(const PartFactory& make);
Result<DecoderParts> make_glm4_moe(const PartFactory& make);
Result<DecoderParts> make_llama(const PartFactory& make);
Result<DecoderParts> make_mistral(const PartFactory& make);
Result<DecoderParts> make_mixtral(const PartFactory& make);
Result<DecoderParts> make_qwen2(const PartFactory& make);
Result<DecoderParts> make_qwen2_moe(const PartFactory& make);
Result<DecoderParts> make_qwen3(const PartFactory& make);
Result<DecoderParts> make_qwen3_moe(const PartFactory& make);

struct ModelFamily {
  std::string_view architecture;  // architectures[0] of config.json
  Result<DecoderParts> (*make)(const PartFactory& make);
};
std::span<const ModelFamily> model_families();  // sorted by architecture

// Errors list the known architectures.
Result<const ModelFamily*> find_family(const ModelConfig& config);

// The window of each layer where layer_types, or else max_window_layers, says which layers slide. `window` 0: none
// does.
std::vector<int64_t> layer_windows(const ModelConfig& config, int64_t window);

}  // namespace spate
