// libFuzzer target: any bytes as tokenizer.json end in a tokenizer that encodes and decodes, or in a Status.
// Seeds: test/fuzz/tokenizer.  fuzz/tokenizer_fuzz -max_len=65536 <corpus> test/fuzz/tokenizer

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  spate::set_log_level(spate::LogLevel::kOff);
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = spate::Tokenizer::from_json(json, "");
  if (!tokenizer.ok()) return 0;
  const std::string_view text = "It's a <s> test,  123 \n\t ▁中文 e\xCC\x81 \xF0\x9F\x98\x80 \xFF <0x41> don't";
  for (const bool parse_special : {false, true}) {
    const auto ids = (*tokenizer)->encode(text, {.add_special_tokens = true, .parse_special = parse_special});
    if (!spate::is_valid_utf8((*tokenizer)->decode(ids, !parse_special))) std::abort();
  }
  for (int32_t id = -1; id < 20; ++id) (*tokenizer)->token_bytes(id);
  return 0;
}
