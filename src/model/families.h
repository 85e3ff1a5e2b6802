// The families of models that Spate runs. A new one: a file like qwen3.cpp, its declaration here, a line in
// families.cpp.
#pragma once

#include <span>
#include <string_view>

#include "model/decoder_spec.h"

namespace spate {

DecoderSpec ernie4_5_spec(const ModelConfig& config);
DecoderSpec llama_spec(const ModelConfig& config);
DecoderSpec mistral_spec(const ModelConfig& config);
DecoderSpec qwen2_spec(const ModelConfig& config);
DecoderSpec qwen3_spec(const ModelConfig& config);

struct ModelFamily {
  std::string_view architecture;  // architectures[0] of config.json
  DecoderSpec (*spec)(const ModelConfig& config);
};
std::span<const ModelFamily> model_families();  // sorted by architecture

// Errors list the known architectures.
Result<DecoderSpec> make_decoder_spec(const ModelConfig& config);

}  // namespace spate
