// Fuzzes the header of safetensors files: the input is a whole file. An accepted file must have its tensors inside of
// it, one after the other, each as large as its shape says.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spate;
  const auto entries = parse_safetensors_header({reinterpret_cast<const char*>(data), size}, size);
  if (!entries.ok()) {
    CHECK(!entries.status().message().empty());
    return 0;
  }
  uint64_t end = 0;
  for (const TensorEntry& entry : *entries) {
    CHECK(entry.offset >= end && entry.num_bytes <= size && entry.offset <= size - entry.num_bytes, "{} {}",
          entry.offset, size);
    if (entry.dtype) CHECK(entry.num_elements() * dtype_bytes(*entry.dtype) == static_cast<int64_t>(entry.num_bytes));
    end = entry.offset + entry.num_bytes;
  }
  return 0;
}
