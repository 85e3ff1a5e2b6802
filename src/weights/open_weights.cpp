#include "weights/open_weights.h"

#include <map>
#include <string_view>

#include "base/log.h"
#include "weights/gguf/gguf_blocks.h"
#include "weights/gguf/gguf_path.h"
#include "weights/gguf_checkpoint.h"
#include "weights/quantized_checkpoint.h"
#include "weights/safetensors.h"

namespace spate {

namespace {

void log_requantized(const GgufCheckpoint& gguf) {
  std::map<std::string_view, int64_t> counts;  // matrices by type
  for (const TensorEntry& entry : gguf.entries()) ++counts[entry.dtype_name];
  for (const auto& [type, count] : counts) {
    const GgufFormat* format = find_gguf_format(type);
    if (format == nullptr || format->requantized.empty()) continue;
    log_info("weights",
             "gguf: {} matrices of {} are quantised again as int8 in groups of 32; that moves a weight by at most {}",
             count, type, format->requantized);
  }
}

}  // namespace

Result<std::unique_ptr<WeightSource>> open_weights(const std::filesystem::path& path) {
  if (is_gguf_path(path)) {
    ASSIGN_OR_RETURN(std::unique_ptr<GgufCheckpoint> gguf, GgufCheckpoint::open(path));
    log_requantized(*gguf);
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
