#include "model/families.h"

#include <fmt/format.h>

#include <vector>

#include "model/decoder.h"

namespace spate {
namespace {

constexpr ModelFamily kFamilies[] = {
    {"DeepseekV2ForCausalLM", make_deepseek_v2},
    {"DeepseekV3ForCausalLM", make_deepseek_v3},
    {"Ernie4_5ForCausalLM", make_ernie4_5},
    {"Ernie4_5_ForCausalLM", make_ernie4_5},  // as Baidu's own repositories spell it
    {"Ernie4_5_MoeForCausalLM", make_ernie4_5_moe},
    {"Glm4MoeForCausalLM", make_glm4_moe},
    {"LlamaForCausalLM", make_llama},
    {"MistralForCausalLM", make_mistral},
    {"MixtralForCausalLM", make_mixtral},
    {"Qwen2ForCausalLM", make_qwen2},
    {"Qwen2MoeForCausalLM", make_qwen2_moe},
    {"Qwen3ForCausalLM", make_qwen3},
    {"Qwen3MoeForCausalLM", make_qwen3_moe},
};

}  // namespace

std::span<const ModelFamily> model_families() { return kFamilies; }

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const ModelFamily& family : kFamilies) names.emplace_back(family.architecture);
  return names;
}

Result<const ModelFamily*> find_family(const ModelConfig& config) {
  for (const ModelFamily& family : kFamilies) {
    if (family.architecture == config.architecture) return &family;
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
