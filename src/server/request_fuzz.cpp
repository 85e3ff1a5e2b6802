// libFuzzer target: any bytes as a request body end in a request within its limits, or in an error that is valid JSON;
// any bytes as a model's output end in the same parts however they are cut. The first byte chooses the endpoint, or the
// reader of outputs. Seeds: test/fuzz/request.  fuzz/request_fuzz -max_len=65536 <corpus> test/fuzz/request
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "server/api_request.h"
#include "server/chat_output_parser.h"
#include "server/json_parse.h"
#include "server/llama_request.h"
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

// A token for each byte.
spate::ApiResult<std::vector<int32_t>> encode(const std::string& text, bool) {
  return std::vector<int32_t>(text.begin(), text.end());
}

void read_llama(std::string_view body, bool is_infill) {
  const auto json = spate::parse_json(body);
  if (!json.ok() || !(**json).is_object()) return;
  nlohmann::ordered_json completion = **json;
  if (is_infill) {
    spate::ApiResult<spate::InfillText> text = spate::take_infill_text(completion);
    check(text);
    if (!text.ok()) return;
    completion["prompt"] = text->prefix + text->suffix + text->begun;
  }
  spate::LlamaOptions options;
  const auto problem = spate::take_llama_options(completion, options);
  if (problem) return check(spate::ApiResult<int>(*problem));
  const auto prompt_problem = spate::make_prompts_plain(completion, encode);
  if (prompt_problem) return check(spate::ApiResult<int>(*prompt_problem));
  check(spate::read_llama_completion(std::move(completion), kLimits, options));
}

// The endpoints for which the first byte has no number of its own.
void read_other(uint8_t endpoint, std::string_view body) {
  switch (endpoint % 8) {
    case 0:
      return read_llama(body, false);
    case 1:
      return read_llama(body, true);
    case 2:
      return check(spate::parse_embeddings_request(body, kLimits));
    case 3:
      return check(spate::parse_llama_embeddings_request(body, kLimits));
    case 4:
      return check(spate::parse_score_request(body, kLimits));
    case 5:
      return check(spate::parse_rerank_request(body, kLimits));
    case 6:
      return check(spate::parse_abort_request(body));
    case 7:
      return check(spate::parse_allowed_tokens_request(body, kLimits));
  }
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
      read_other(data[0] / 8, body);
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
