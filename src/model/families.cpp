#include "model/families.h"

#include <fmt/format.h>

#include <vector>

#include "model/model.h"

namespace spate {
namespace {

constexpr ModelFamily kFamilies[] = {
    {"Ernie4_5ForCausalLM", ernie4_5_spec},
    {"Ernie4_5_ForCausalLM", ernie4_5_spec},  // as Baidu's own repositories
                                              // spell it
    {"LlamaForCausalLM", llama_spec},
    {"MistralForCausalLM", mistral_spec},
    {"Qwen2ForCausalLM", qwen2_spec},
    {"Qwen3ForCausalLM", qwen3_spec},
};

}  // namespace

std::span<const ModelFamily> model_families() { return kFamilies; }

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const ModelFamily& family : kFamilies) names.emplace_back(family.architecture);
  return names;
}

Result<DecoderSpec> make_decoder_spec(const ModelConfig& config) {
  for (const ModelFamily& family : kFamilies) {
    if (family.architecture == config.architecture) return family.spec(config);
  }
  return invalid_argument("architectures is \"{}\"; this build runs {}", config.architecture,
                          fmt::join(supported_architectures(), ", "));
}

std::vector<int64_t> layer_windows(const ModelConfig& config, int64_t window) {
  std::vector<int64_t> windows(static_cast<size_t>(config.num_layers), 0);
  CHECK(config.layer_types.empty() || config.layer_types.size() == windows.size(), "{} layer types, {} layers",
        config.layer_types.size(), windows.size());
  for (size_t i = 0; i < windows.size(); ++i) {
    const bool slides = config.layer_types.empty() ? static_cast<int64_t>(i) >= config.max_window_layers
                                                   : config.layer_types[i] == "sliding_attention";
    if (slides) windows[i] = window;
  }
  return windows;
}

}  // namespace spate
