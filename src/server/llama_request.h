// What llama-server's /completion and /infill ask for: their own fields, taken out of a body that is then one of
// /v1/completions. Errors name the field.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/api_request.h"

namespace spate {

// What a completion of /v1/completions does not have.
struct LlamaOptions {
  bool is_prefill_only = false;              // n_predict 0: the prompt is read, into the prefix cache
  std::vector<std::string> response_fields;  // empty: the whole answer
  bool picks_fields = false;
  int64_t min_indent = 0;     // a line with less ends the answer before it
  double max_predict_ms = 0;  // since the first token, once there is a line break; 0: any time
  nlohmann::ordered_json asked = nlohmann::ordered_json::object();  // some fields as they came
  std::string settings;                                             // JSON, for the end of the answer
};

struct InfillText {
  struct File {
    std::string name, text;
  };
  std::string prefix, suffix;
  std::vector<File> extra;  // for context, the least important first
  std::string begun;        // what the middle begins with
};

// The tokens of a piece of a prompt; is_first: with those that every prompt begins with.
using EncodeText = std::function<ApiResult<std::vector<int32_t>>(const std::string& text, bool is_first)>;

std::optional<ApiError> take_llama_options(nlohmann::ordered_json& completion, LlamaOptions& options);
// Prompts that mix texts and token ids become token ids; objects with a text become the text.
std::optional<ApiError> make_prompts_plain(nlohmann::ordered_json& completion, const EncodeText& encode);
ApiResult<CompletionRequest> read_llama_completion(nlohmann::ordered_json completion, const ParseLimits& limits,
                                                   LlamaOptions& options);
ApiResult<InfillText> take_infill_text(nlohmann::ordered_json& body);

}  // namespace spate
