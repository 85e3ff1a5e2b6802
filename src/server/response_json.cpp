#include "server/response_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "server/api_error.h"
#include "text/unicode.h"

namespace spate {

float json_logprob(float logprob) { return std::isfinite(logprob) ? std::max(logprob, -9999.0f) : -9999.0f; }

std::string token_label(const Tokenizer& tokenizer, int32_t token_id, bool as_id) {
  return as_id ? fmt::format("token_id:{}", token_id) : to_valid_utf8(tokenizer.token_bytes(token_id));
}

std::string_view api_finish_reason(FinishReason reason, bool has_tool_calls) {
  if (reason == FinishReason::kLength) return "length";
  return has_tool_calls ? "tool_calls" : "stop";
}

void write_head(JsonWriter& json, const ResponseInfo& info, std::string_view object) {
  json.field("id", info.id).field("object", object).field("created", info.created).field("model", info.model);
}

void write_stop_reason(JsonWriter& json, const ChoiceDelta& delta) {
  if (!delta.stop_string.empty()) {
    json.field("stop_reason", delta.stop_string);
  } else if (delta.stop_token_id >= 0) {
    json.field("stop_reason", delta.stop_token_id);
  } else if (delta.finish_reason == FinishReason::kRepetition) {
    json.field("stop_reason", "repetition_detected");
  } else {
    json.null_field("stop_reason");
  }
  if (delta.stop_string.empty() && std::max(delta.stop_token_id, delta.eos_token_id) < 0) {
    json.null_field("matched_stop");
  } else if (delta.stop_string.empty()) {
    json.field("matched_stop", std::max(delta.stop_token_id, delta.eos_token_id));
  } else {
    json.field("matched_stop", delta.stop_string);
  }
}

void write_token_ids(JsonWriter& json, std::string_view name, const std::vector<int32_t>& token_ids) {
  json.key(name).begin_array();
  for (const int32_t id : token_ids) json.value(id);
  json.end_array();
}

void write_token_ids_or_null(JsonWriter& json, std::string_view name, const std::vector<int32_t>* token_ids) {
  if (token_ids != nullptr) {
    write_token_ids(json, name, *token_ids);
  } else {
    json.null_field(name);
  }
}

void write_usage(JsonWriter& json, const GenerationUsage& usage, int64_t num_reasoning_tokens) {
  json.begin_object()
      .field("prompt_tokens", usage.num_prompt_tokens)
      .field("completion_tokens", usage.num_completion_tokens)
      .field("total_tokens", usage.num_prompt_tokens + usage.num_completion_tokens);
  json.key("prompt_tokens_details").begin_object().field("cached_tokens", usage.num_cached_tokens).end_object();
  if (num_reasoning_tokens >= 0) {
    json.key("completion_tokens_details").begin_object().field("reasoning_tokens", num_reasoning_tokens).end_object();
  }
  json.end_object();
}

void write_metrics(JsonWriter& json, const GenerationUsage& usage) {
  json.key("metrics")
      .begin_object()
      .field("time_to_first_token_ms", 1e3 * usage.first_token_seconds)
      .field("generation_time_ms", 1e3 * usage.generation_seconds)
      .field("queue_time_ms", 1e3 * usage.queue_seconds);
  const auto count = static_cast<double>(usage.num_intervals);
  if (usage.num_intervals > 0 && usage.generation_seconds > 0) {
    json.field("mean_itl_ms", 1e3 * usage.interval_seconds / count)
        .field("tokens_per_second", count / usage.generation_seconds);
  } else {
    json.null_field("mean_itl_ms").null_field("tokens_per_second");
  }
  json.end_object();
}

void write_prompt_logprobs(JsonWriter& json, const Tokenizer& tokenizer, const std::vector<TokenLogprobs>& logprobs) {
  json.begin_array().null();
  for (const TokenLogprobs& token : logprobs) {
    json.begin_object();
    const auto write = [&](int32_t token_id, float logprob, int rank) {
      json.key(std::to_string(token_id))
          .begin_object()
          .field("logprob", json_logprob(logprob))
          .field("rank", rank)
          .field("decoded_token", token_label(tokenizer, token_id, false))
          .end_object();
    };
    write(token.token_id, token.logprob, token.rank);
    int rank = 0;
    for (const TokenLogprobs::Top& top : token.top) {
      ++rank;
      if (top.token_id != token.token_id) write(top.token_id, top.logprob, rank);
    }
    json.end_object();
  }
  json.end_array();
}

void write_chat_logprob(JsonWriter& json, const Tokenizer& tokenizer, const TokenLogprobs& logprobs, bool as_id) {
  const auto write_token = [&](int32_t token_id, float logprob) {
    json.begin_object()
        .field("token", token_label(tokenizer, token_id, as_id))
        .field("logprob", json_logprob(logprob))
        .key("bytes")
        .begin_array();
    for (const char byte : tokenizer.token_bytes(token_id))
      json.value(static_cast<int>(static_cast<unsigned char>(byte)));
    json.end_array();
  };
  write_token(logprobs.token_id, logprobs.logprob);
  json.key("top_logprobs").begin_array();
  for (const TokenLogprobs::Top& top : logprobs.top) {
    write_token(top.token_id, top.logprob);
    json.end_object();
  }
  json.end_array().end_object();
}

void CompletionLogprobs::add_label(const std::string& label) {
  const char* comma = num_tokens_ > 0 ? "," : "";
  tokens_ += comma;
  append_json_string(label, tokens_);
  text_offsets_ += comma + std::to_string(text_offset_);
  // Characters, not bytes: every byte that does not continue a character begins one.
  text_offset_ +=
      std::count_if(label.begin(), label.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  token_logprobs_ += comma;
  top_logprobs_ += comma;
  ++num_tokens_;
}

void CompletionLogprobs::add_first_prompt_token(int32_t token_id) {
  add_label(token_label(tokenizer_, token_id, as_id_));
  token_logprobs_ += "null";
  top_logprobs_ += "null";
}

void CompletionLogprobs::add(const TokenLogprobs& logprobs) {
  const std::string label = token_label(tokenizer_, logprobs.token_id, as_id_);
  add_label(label);
  append_json_number(json_logprob(logprobs.logprob), token_logprobs_);
  // The top ones and the sampled one; tokens of equal text share a key, the more probable one has it.
  JsonWriter top;
  std::set<std::string> labels{label};
  top.begin_object().field(label, json_logprob(logprobs.logprob));
  for (const TokenLogprobs::Top& entry : logprobs.top) {
    std::string entry_label = token_label(tokenizer_, entry.token_id, as_id_);
    if (labels.insert(entry_label).second) top.field(entry_label, json_logprob(entry.logprob));
  }
  top_logprobs_ += top.end_object().text();
}

std::string CompletionLogprobs::take() {
  num_tokens_ = 0;
  return fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                     std::exchange(tokens_, {}), std::exchange(token_logprobs_, {}), std::exchange(top_logprobs_, {}),
                     std::exchange(text_offsets_, {}));
}

std::string valid_json_object(const std::string& text) {
  if (text.empty()) return "{}";
  if (nlohmann::json::parse(text, nullptr, false).is_object()) return text;
  JsonWriter json;
  return json.begin_object().field("INVALID_JSON", text).end_object().take();
}

bool is_failure(FinishReason reason) { return reason == FinishReason::kError || reason == FinishReason::kAbort; }

ApiError error_of_delta(const ChoiceDelta& delta) {
  if (delta.finish_reason == FinishReason::kError && !delta.error.ok()) return api_error_of(delta.error);
  return unavailable_error("The request was aborted.", 1);
}

}  // namespace spate
