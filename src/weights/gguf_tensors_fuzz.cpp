// libFuzzer target: any bytes as the GGUF file of a model end in a Status, or in a config and in rows that lie inside
// the file. Seeds: the GGUF files of test/goldens/quantized.  fuzz/gguf_tensors_fuzz -max_len=16384 <corpus>
// test/fuzz/gguf
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "weights/gguf_checkpoint.h"

namespace {

// The rows at both ends; the values that come back are read.
double read_ends(const spate::GgufCheckpoint& gguf, const spate::TensorEntry& entry) {
  using namespace spate;
  double sum = 0;
  for (const int64_t row : {int64_t{0}, entry.shape[0] - 1}) {
    if (entry.quantized) {
      const Result<QuantizedHostRows> rows = gguf.quantized_rows(entry, row, row + 1);
      if (!rows.ok()) continue;
      const HostTensor values = dequantize_rows(*rows);
      for (const float value : values.span<float>()) sum += value;
      continue;
    }
    HostTensor scratch;
    const Tensor values = gguf.rows(entry, row, row + 1, scratch).value();
    const auto* bytes = static_cast<const unsigned char*>(values.raw());
    for (int64_t i = 0; i < values.num_bytes(); ++i) sum += bytes[i];
  }
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spate;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Result<std::unique_ptr<GgufCheckpoint>> gguf = GgufCheckpoint::parse({bytes});
  if (!gguf.ok()) {
    CHECK(!gguf.status().message().empty());
    return 0;
  }
  double sum = 0;
  for (const TensorEntry& entry : (*gguf)->entries()) {
    CHECK(entry.num_bytes <= size && entry.offset <= size - entry.num_bytes, "{}", entry.name);
    sum += read_ends(**gguf, entry);
  }
  if (const Result<ModelConfig> config = (*gguf)->model_config(); config.ok()) {
    CHECK(config->head_dim > 0 && config->num_heads % config->num_kv_heads == 0);
  }
  if (const Result<GenerationConfig> config = (*gguf)->generation_config(); config.ok())
    sum += config->top_k.value_or(0);
  volatile double sink = sum;  // keeps the reads
  static_cast<void>(sink);
  return 0;
}
