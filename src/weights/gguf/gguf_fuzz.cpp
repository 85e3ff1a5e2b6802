// libFuzzer target: any bytes as a GGUF file end in a Status, or in keys and tensors that lie inside the file.
// Seed: test/fuzz/gguf, the file that gguf_test.cpp writes.  fuzz/gguf_fuzz -max_len=4096 <corpus> test/fuzz/gguf
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "weights/gguf/gguf.h"

namespace {

// Everything that can be asked of a key; the bytes that come back are read.
uint64_t read_key(const spate::GgufFile& file, std::string_view key) {
  uint64_t sum = 0;
  const auto add_text = [&](std::string_view text) {
    for (const char c : text) sum += static_cast<unsigned char>(c);
  };
  if (const auto text = file.get_string(key); text.ok()) add_text(*text);
  if (const auto texts = file.get_strings(key); texts.ok()) {
    for (const std::string_view text : *texts) add_text(text);
  }
  if (const auto numbers = file.get_ints(key); numbers.ok()) {
    for (const int64_t number : *numbers) sum += static_cast<uint64_t>(number);
  }
  if (const auto numbers = file.get_floats(key); numbers.ok()) sum += numbers->size();
  if (const auto number = file.get_int(key); number.ok()) sum += static_cast<uint64_t>(*number);
  if (const auto flag = file.get_bool(key); flag.ok()) sum += *flag;
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace spate;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Result<GgufFile> file = GgufFile::parse(bytes);
  if (!file.ok()) {
    CHECK(!file.status().message().empty());
    return 0;
  }
  uint64_t sum = 0;
  for (const char* key :
       {"general.architecture", "general.alignment", "a.negative", "a.flag", "a.float", "tokens", "scores", "types"}) {
    sum += read_key(*file, key);
  }
  CHECK(file->data_start() <= size && file->num_keys() <= size);
  for (const GgufTensorInfo& tensor : file->tensors()) {
    CHECK(tensor.name.data() >= bytes.data() && tensor.name.data() + tensor.name.size() <= bytes.data() + size);
    CHECK(tensor.offset % file->alignment() == 0 && tensor.offset <= size - file->data_start());
    sum += tensor.name.size() + tensor.dims.size();
  }
  volatile uint64_t sink = sum;  // keeps the reads
  static_cast<void>(sink);
  return 0;
}
