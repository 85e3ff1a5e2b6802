// A model's weights, in whichever format they lie at `path`.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.h"
#include "weights/weight_source.h"

namespace spate {

// `path`: a model directory (safetensors; floats, or codes of GPTQ, AWQ, compressed-tensors), a config.json in one, or
// a
// *.gguf file.
Result<std::unique_ptr<WeightSource>> open_weights(const std::filesystem::path& path);

}  // namespace spate
