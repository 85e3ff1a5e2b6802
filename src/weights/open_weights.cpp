#include "weights/open_weights.h"

#include <algorithm>

#include "base/log.h"
#include "weights/gguf/gguf_path.h"
#include "weights/gguf_checkpoint.h"
#include "weights/quantized_checkpoint.h"
#include "weights/safetensors.h"

namespace spate {

Result<std::unique_ptr<WeightSource>> open_weights(const std::filesystem::path& path) {
  if (is_gguf_path(path)) {
    ASSIGN_OR_RETURN(std::unique_ptr<GgufCheckpoint> gguf, GgufCheckpoint::open(path));
    const auto requantized = std::count_if(gguf->entries().begin(), gguf->entries().end(),
                                           [](const TensorEntry& entry) { return entry.dtype_name == "Q6_K"; });
    if (requantized > 0) {
      log_info("weights",
               "gguf: {} matrices of Q6_K are quantised again as int8 in groups of 32; that moves a weight by at "
               "most 1/254 of the largest of its group, about an eighth of a step of Q6_K",
               requantized);
    }
    return std::unique_ptr<WeightSource>(std::move(gguf));
  }
  std::error_code error;
  const auto dir = std::filesystem::is_directory(path, error) ? path : path.parent_path();
  ASSIGN_OR_RETURN(const std::optional<QuantizationConfig> quantization, load_quantization_config(dir));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(dir));
  if (!quantization) return std::unique_ptr<WeightSource>(std::make_unique<Checkpoint>(std::move(checkpoint)));
  Result<std::unique_ptr<QuantizedCheckpoint>> opened = QuantizedCheckpoint::open(std::move(checkpoint), *quantization);
  if (!opened.ok()) return opened.status().with_context(dir.string());
  return std::unique_ptr<WeightSource>(std::move(opened).value());
}

}  // namespace spate
