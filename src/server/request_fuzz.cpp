// libFuzzer target: any bytes as a request body end in a request within its limits, or in an error that is valid JSON.
// The first byte chooses the endpoint, or the reader of model outputs. Seeds: test/fuzz/request.  fuzz/request_fuzz
// -max_len=65536 <corpus> test/fuzz/request
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "server/api_request.h"
#include "server/chat_output_parser.h"
#include "server/responses_request.h"

namespace {

const spate::ParseLimits kLimits{.vocab_size = 1000, .max_model_len = 4096};

template <typename T>
void check(spate::ApiResult<T> result) {
  if (result.ok()) return;
  const auto json = nlohmann::json::parse(spate::error_json(result.error()), nullptr, false);
  if (json.is_discarded() || !json["error"]["message"].is_string()) std::abort();
}

std::string parse_output(size_t format, std::string_view text, size_t piece_size) {
  const auto reasoning = spate::reasoning_formats();
  const auto tools = spate::tool_formats();
  const spate::ToolFormat& tool_format = tools[format % tools.size()];
  const spate::ReasoningFormat& reasoning_format =
      tool_format.is_harmony ? reasoning[0] : reasoning[1 + format % (reasoning.size() - 1)];
  spate::ChatOutputParser parser({.reasoning = &reasoning_format, .tools = &tool_format});
  std::vector<spate::ChatPart> parts;
  for (size_t pos = 0; pos < text.size(); pos += piece_size) parser.append(text.substr(pos, piece_size), parts);
  parser.finish(parts);
  std::string joined[4];
  for (const spate::ChatPart& part : parts) joined[static_cast<size_t>(part.kind)] += part.text;
  return joined[0] + '\1' + joined[1] + '\1' + joined[2] + '\1' + joined[3];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 8) {
    case 0:
      check(spate::parse_chat_request(body, kLimits));
      break;
    case 1:
      check(spate::parse_completion_request(body, kLimits));
      break;
    case 2:
      check(spate::parse_tokenize_request(body, kLimits));
      break;
    case 3:
      check(spate::parse_detokenize_request(body, kLimits));
      break;
    case 4: {
      const size_t format = data[0] / 8;
      const std::string whole = parse_output(format, body, body.size() + 1);
      if (parse_output(format, body, 1) != whole || parse_output(format, body, 7) != whole) std::abort();
      break;
    }
    case 5:
      check(spate::parse_messages_request(body, kLimits, size % 2 == 0));
      break;
    case 6: {
      static spate::ResponseStore store;
      check(spate::parse_responses_request(body, kLimits, store));
      break;
    }
    case 7:
      check(spate::parse_tokens_request(body, kLimits));
      break;
  }
  return 0;
}
