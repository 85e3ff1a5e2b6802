// Parts of answers that chat and completions share. Internal to the server.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/step_executor.h"
#include "server/api_error.h"
#include "server/generation.h"
#include "server/json_writer.h"
#include "text/tokenizer.h"

namespace spate {

// What every answer to one request repeats.
struct ResponseInfo {
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;
  std::string model;
  std::string system_fingerprint;
  const Tokenizer* tokenizer = nullptr;  // outlives the answer
  bool force_include_usage = false;
  bool force_metrics = false;
};

// -inf and NaN have no place in JSON; vLLM's substitute is -9999.
float json_logprob(float logprob);
// The token's text, or "token_id:N".
std::string token_label(const Tokenizer& tokenizer, int32_t token_id, bool as_id);
// "stop", "length" or "tool_calls": OpenAI's names only.
std::string_view api_finish_reason(FinishReason reason, bool has_tool_calls);

void write_head(JsonWriter& json, const ResponseInfo& info, std::string_view object);
// vLLM's stop_reason and SGLang's matched_stop: the text or token id that ended the choice. An end token of the model's
// is null in the first and its id in the second.
void write_stop_reason(JsonWriter& json, const ChoiceDelta& delta);
void write_token_ids(JsonWriter& json, std::string_view name, const std::vector<int32_t>& token_ids);
void write_token_ids_or_null(JsonWriter& json, std::string_view name, const std::vector<int32_t>* token_ids);
// {"prompt_tokens":..}; reasoning tokens below zero are left out.
void write_usage(JsonWriter& json, const GenerationUsage& usage, int64_t num_reasoning_tokens);
// "metrics":{"time_to_first_token_ms":..}, by vLLM's names; null where there was one token.
void write_metrics(JsonWriter& json, const GenerationUsage& usage);
// vLLM's form: [null, {"17": {"logprob":..,"rank":..,"decoded_token":..}, ...}, ...]
void write_prompt_logprobs(JsonWriter& json, const Tokenizer& tokenizer, const std::vector<TokenLogprobs>& logprobs);
// One entry of chat's logprobs.content.
void write_chat_logprob(JsonWriter& json, const Tokenizer& tokenizer, const TokenLogprobs& logprobs, bool as_id);

// Completions' form, four parallel arrays, kept as text while they grow.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const Tokenizer& tokenizer, bool as_id) : tokenizer_(tokenizer), as_id_(as_id) {}
  void add(const TokenLogprobs& logprobs);
  void add_first_prompt_token(int32_t token_id);  // nothing is known of it: null
  bool empty() const { return num_tokens_ == 0; }
  // The object, and the arrays begin anew; text offsets go on.
  std::string take();

 private:
  void add_label(const std::string& label);

  const Tokenizer& tokenizer_;
  bool as_id_;
  int num_tokens_ = 0;
  int64_t text_offset_ = 0;  // characters
  std::string tokens_, token_logprobs_, top_logprobs_, text_offsets_;
};

// The text of an object as it is, "" as {}, and a text that is none (the model was cut off) as {"INVALID_JSON": text}.
std::string valid_json_object(const std::string& text);

// How the error of a sequence is told: the engine's Status, or that it was aborted.
ApiError error_of_delta(const ChoiceDelta& delta);
bool is_failure(FinishReason reason);

}  // namespace spate
