// Fuzzes config.json and generation_config.json: whatever parses must also be sized up, or refused, without a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/model.h"
#include "weights/generation_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spate;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  if (const auto generation = parse_generation_config(json); !generation.ok())
    CHECK(!generation.status().message().empty());
  const auto config = parse_model_config(json);
  if (!config.ok()) return 0;
  for (const int tp_size : {1, 2}) {
    const auto memory = Model::memory(*config, {.rank = tp_size - 1, .size = tp_size}, {});
    if (memory.ok()) CHECK(memory->weight_bytes > 0 && !memory->kv_layers.empty() && memory->workspace_bytes > 0);
  }
  return 0;
}
