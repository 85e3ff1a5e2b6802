#include <algorithm>
#include <utility>

#include "server/api_response.h"
#include "server/random_hex.h"

namespace spate {
namespace {

// What both forms of the answer need of the request.
struct ChatOptions {
  bool logprobs = false;
  bool as_token_ids = false;
  bool return_token_ids = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool collect_metrics = false;
  bool include_reasoning = true;
  bool is_named_choice = false;  // a demanded function ends with "stop", as at OpenAI
};

ChatOptions options_of(const ChatRequest& request, const ResponseInfo& info) {
  return {.logprobs = request.sampling.logprobs.has_value(),
          .as_token_ids = request.return_tokens_as_token_ids,
          .return_token_ids = request.return_token_ids,
          .include_usage = request.include_usage || info.force_include_usage,
          .continuous_usage = request.continuous_usage || info.force_include_usage,
          .collect_metrics = request.collect_metrics || info.force_metrics,
          .include_reasoning = request.include_reasoning,
          .is_named_choice = request.tool_choice == ToolChoice::kNamed};
}

std::string new_tool_call_id() { return "call_" + random_hex(24); }

void write_logprobs(JsonWriter& json, const Tokenizer& tokenizer, const std::vector<TokenLogprobs>& logprobs,
                    bool as_id) {
  json.key("logprobs").begin_object().key("content").begin_array();
  for (const TokenLogprobs& token : logprobs) write_chat_logprob(json, tokenizer, token, as_id);
  json.end_array().null_field("refusal").end_object();
}

class ChatStream final : public ChatListener {
 public:
  ChatStream(const ChatRequest& request, ResponseInfo info, std::shared_ptr<HttpResponder> responder)
      : options_(options_of(request, info)), info_(std::move(info)), responder_(std::move(responder)) {
    choices_.resize(static_cast<size_t>(request.sampling.n));
    JsonWriter json;
    json.begin_object();
    write_head(json, info_, "chat.completion.chunk");
    head_ = "data: " + json.take();
  }

  void on_admitted(const GenerationRequest& request) override {
    if (options_.return_token_ids) prompt_token_ids_ = request.prompts[0];
    responder_->begin_stream({});
  }

  void on_delta(ChatDelta chat, const GenerationUsage& usage) override {
    if (responder_->is_gone() || has_failed_) return;
    Choice& choice = choices_[static_cast<size_t>(chat.delta.choice)];
    num_reasoning_tokens_ = chat.num_reasoning_tokens;
    const FinishReason reason = chat.delta.finish_reason;
    if (is_failure(reason) && chat.parts.empty()) return fail(chat.delta);
    if (!choice.has_begun) send_role(choice, chat.delta.choice, usage);
    hold_tokens(choice, chat.delta);
    if (!options_.include_reasoning) {
      std::erase_if(chat.parts, [](const ChatPart& part) { return part.kind == ChatPart::Kind::kReasoning; });
    }
    // The last part waits for the end: the choice's last chunk has both, as vLLM's.
    std::string last;
    for (size_t i = 0; i < chat.parts.size(); ++i) {
      last = delta_members(chat.parts[i]);
      if (i + 1 < chat.parts.size()) send_delta(choice, chat.delta.choice, last, usage);
    }
    if (is_failure(reason)) {
      send_delta(choice, chat.delta.choice, last, usage);
      return fail(chat.delta);
    }
    if (reason != FinishReason::kNone) return send_finish(choice, chat, last, usage);
    // Text may be held back or not shown; then there is a chunk only for what else the client asked to hear of each
    // token.
    if (!last.empty() || !choice.logprobs.empty() || options_.return_token_ids || options_.continuous_usage) {
      send_delta(choice, chat.delta.choice, last, usage);
    }
  }

  void on_done(const GenerationUsage& usage) override {
    if (has_failed_) return;
    if (options_.include_usage || options_.collect_metrics) {
      JsonWriter json;
      json.begin_object();
      write_head(json, info_, "chat.completion.chunk");
      json.field("system_fingerprint", info_.system_fingerprint).key("choices").begin_array().end_array();
      if (options_.include_usage) write_usage(json.key("usage"), usage, num_reasoning_tokens_);
      if (options_.collect_metrics) write_metrics(json, usage);
      responder_->write("data: " + json.end_object().take() + "\n\n");
    }
    responder_->write("data: [DONE]\n\n");
    responder_->end_stream();
  }

 private:
  struct Choice {
    std::vector<TokenLogprobs> logprobs;  // of tokens that no chunk has told yet
    std::vector<int32_t> token_ids;
    bool has_begun = false;
  };

  // Clients index choices by this first chunk; role comes here and never again. It waits for the first token: clients
  // measure the time to it by the first chunk.
  void send_role(Choice& choice, int choice_idx, GenerationUsage usage) {
    choice.has_begun = true;
    usage.num_completion_tokens = 0;  // its chunk has no token
    std::string members;
    if (options_.return_token_ids && choice_idx == 0) {
      JsonWriter json;
      json.begin_object();
      write_token_ids(json, "prompt_token_ids", prompt_token_ids_);
      members = "," + json.text().substr(1);
    }
    send_chunk(fmt::format(
                   R"({{"index":{},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}})",
                   choice_idx),
               usage, 0, members);
  }

  void hold_tokens(Choice& choice, ChoiceDelta& delta) {
    if (options_.logprobs) {
      for (TokenLogprobs& token : delta.logprobs) choice.logprobs.push_back(std::move(token));
    }
    if (options_.return_token_ids) {
      choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    }
  }

  static std::string delta_members(const ChatPart& part) {
    std::string json;
    switch (part.kind) {
      case ChatPart::Kind::kContent:
        json = R"("content":)";
        append_json_string(part.text, json);
        break;
      case ChatPart::Kind::kReasoning:
        json = R"("reasoning":)";
        append_json_string(part.text, json);
        json += R"(,"reasoning_content":)";
        append_json_string(part.text, json);
        break;
      case ChatPart::Kind::kToolName:
        json = fmt::format(R"("tool_calls":[{{"index":{},"id":"{}","type":"function","function":{{"name":)",
                           part.tool_idx, new_tool_call_id());
        append_json_string(part.text, json);
        json += R"(,"arguments":""}}])";
        break;
      case ChatPart::Kind::kToolArguments:
        json = fmt::format(R"("tool_calls":[{{"index":{},"function":{{"arguments":)", part.tool_idx);
        append_json_string(part.text, json);
        json += "}}]";
        break;
    }
    return json;
  }

  void send_delta(Choice& choice, int choice_idx, std::string_view members, const GenerationUsage& usage) {
    send_chunk(fmt::format(R"({{"index":{},"delta":{{{}}},{},"finish_reason":null}})", choice_idx, members,
                           take_tokens(choice)),
               usage, num_reasoning_tokens_);
  }

  void send_finish(Choice& choice, const ChatDelta& chat, std::string_view members, const GenerationUsage& usage) {
    JsonWriter stop_reason;
    stop_reason.begin_object();
    write_stop_reason(stop_reason, chat.delta);
    const std::string_view reason =
        api_finish_reason(chat.delta.finish_reason, chat.has_tool_calls && !options_.is_named_choice);
    send_chunk(fmt::format(R"({{"index":{},"delta":{{{}}},{},"finish_reason":"{}",{}}})", chat.delta.choice, members,
                           take_tokens(choice), reason, stop_reason.text().substr(1)),
               usage, num_reasoning_tokens_);
  }

  // "logprobs":..[,"token_ids":..] of what was held.
  std::string take_tokens(Choice& choice) {
    std::string out = R"("logprobs":null)";
    if (options_.logprobs && !choice.logprobs.empty()) {
      JsonWriter json;
      json.begin_object();
      write_logprobs(json, *info_.tokenizer, choice.logprobs, options_.as_token_ids);
      out = json.text().substr(1);
      choice.logprobs.clear();
    }
    if (options_.return_token_ids) {
      JsonWriter json;
      json.begin_object();
      write_token_ids(json, "token_ids", choice.token_ids);
      out += "," + json.text().substr(1);
      choice.token_ids.clear();
    }
    return out;
  }

  void send_chunk(const std::string& choice_json, const GenerationUsage& usage, int64_t num_reasoning_tokens,
                  const std::string& members = {}) {
    std::string event = head_;
    event += R"(,"choices":[)";
    event += choice_json;
    event += ']';
    event += members;
    if (options_.include_usage) {
      event += R"(,"usage":)";
      if (options_.continuous_usage) {
        JsonWriter json;
        write_usage(json, usage, num_reasoning_tokens);
        event += json.text();
      } else {
        event += "null";
      }
    }
    event += "}\n\n";
    responder_->write(event);
  }

  void fail(const ChoiceDelta& delta) {
    has_failed_ = true;
    responder_->write("data: " + error_json(error_of_delta(delta)) + "\n\ndata: [DONE]\n\n");
    responder_->end_stream();
  }

  const ChatOptions options_;
  const ResponseInfo info_;
  const std::shared_ptr<HttpResponder> responder_;
  std::string head_;  // every chunk's beginning, "data: {...": no closing brace
  std::vector<Choice> choices_;
  std::vector<int32_t> prompt_token_ids_;  // when told
  int64_t num_reasoning_tokens_ = 0;
  bool has_failed_ = false;
};

class ChatWhole final : public ChatListener {
 public:
  ChatWhole(const ChatRequest& request, ResponseInfo info, std::shared_ptr<HttpResponder> responder)
      : options_(options_of(request, info)),
        wants_prompt_logprobs_(request.sampling.prompt_logprobs.has_value()),
        info_(std::move(info)),
        responder_(std::move(responder)) {
    choices_.resize(static_cast<size_t>(request.sampling.n));
  }

  void on_admitted(const GenerationRequest& request) override {
    if (options_.return_token_ids) prompt_token_ids_ = request.prompts[0];
  }
  void on_prompt_logprobs(std::vector<TokenLogprobs> logprobs) override { prompt_logprobs_ = std::move(logprobs); }

  void on_delta(ChatDelta chat, const GenerationUsage&) override {
    Choice& choice = choices_[static_cast<size_t>(chat.delta.choice)];
    num_reasoning_tokens_ = chat.num_reasoning_tokens;
    for (ChatPart& part : chat.parts) {
      switch (part.kind) {
        case ChatPart::Kind::kContent:
          choice.content += part.text;
          break;
        case ChatPart::Kind::kReasoning:
          choice.reasoning += part.text;
          break;
        case ChatPart::Kind::kToolName:
          choice.tool_calls.push_back({std::move(part.text), {}});
          break;
        case ChatPart::Kind::kToolArguments:
          choice.tool_calls.back().second += part.text;
          break;
      }
    }
    if (options_.logprobs) {
      for (TokenLogprobs& token : chat.delta.logprobs) choice.logprobs.push_back(std::move(token));
    }
    if (options_.return_token_ids) {
      choice.token_ids.insert(choice.token_ids.end(), chat.delta.token_ids.begin(), chat.delta.token_ids.end());
    }
    if (chat.delta.finish_reason == FinishReason::kNone) return;
    if (is_failure(chat.delta.finish_reason)) return responder_->respond(http_response_of(error_of_delta(chat.delta)));
    choice.has_tool_calls = chat.has_tool_calls;
    choice.end = std::move(chat.delta);
  }

  void on_done(const GenerationUsage& usage) override {
    JsonWriter json;
    json.begin_object();
    write_head(json, info_, "chat.completion");
    json.key("choices").begin_array();
    for (size_t i = 0; i < choices_.size(); ++i) write_choice(json, static_cast<int>(i), choices_[i]);
    json.end_array().key("usage");
    write_usage(json, usage, num_reasoning_tokens_);
    if (options_.collect_metrics) write_metrics(json, usage);
    json.field("system_fingerprint", info_.system_fingerprint).key("prompt_logprobs");
    if (wants_prompt_logprobs_) {
      write_prompt_logprobs(json, *info_.tokenizer, prompt_logprobs_);
    } else {
      json.null();
    }
    write_token_ids_or_null(json, "prompt_token_ids", options_.return_token_ids ? &prompt_token_ids_ : nullptr);
    responder_->respond({.body = json.end_object().take()});
  }

 private:
  struct Choice {
    std::string content, reasoning;
    std::vector<std::pair<std::string, std::string>> tool_calls;  // name, arguments
    std::vector<TokenLogprobs> logprobs;
    std::vector<int32_t> token_ids;
    bool has_tool_calls = false;
    ChoiceDelta end;
  };

  void write_choice(JsonWriter& json, int index, const Choice& choice) {
    json.begin_object().field("index", index).key("message").begin_object().field("role", "assistant");
    if (choice.content.empty() && !choice.tool_calls.empty()) {
      json.null_field("content");
    } else {
      json.field("content", choice.content);
    }
    json.null_field("refusal");
    if (options_.include_reasoning && !choice.reasoning.empty()) {
      json.field("reasoning", choice.reasoning).field("reasoning_content", choice.reasoning);
    } else {
      json.null_field("reasoning").null_field("reasoning_content");
    }
    if (!choice.tool_calls.empty()) {
      json.key("tool_calls").begin_array();
      for (const auto& [name, arguments] : choice.tool_calls) {
        json.begin_object().field("id", new_tool_call_id()).field("type", "function").key("function").begin_object();
        json.field("name", name).field("arguments", arguments).end_object().end_object();
      }
      json.end_array();
    }
    json.end_object();
    if (options_.logprobs) {
      write_logprobs(json, *info_.tokenizer, choice.logprobs, options_.as_token_ids);
    } else {
      json.null_field("logprobs");
    }
    json.field("finish_reason",
               api_finish_reason(choice.end.finish_reason, choice.has_tool_calls && !options_.is_named_choice));
    write_stop_reason(json, choice.end);
    write_token_ids_or_null(json, "token_ids", options_.return_token_ids ? &choice.token_ids : nullptr);
    json.end_object();
  }

  const ChatOptions options_;
  const bool wants_prompt_logprobs_;
  const ResponseInfo info_;
  const std::shared_ptr<HttpResponder> responder_;
  std::vector<Choice> choices_;
  std::vector<TokenLogprobs> prompt_logprobs_;
  std::vector<int32_t> prompt_token_ids_;
  int64_t num_reasoning_tokens_ = 0;
};

}  // namespace

std::shared_ptr<ChatListener> make_chat_response(const ChatRequest& request, ResponseInfo info,
                                                 std::shared_ptr<HttpResponder> responder) {
  if (request.stream) return std::make_shared<ChatStream>(request, std::move(info), std::move(responder));
  return std::make_shared<ChatWhole>(request, std::move(info), std::move(responder));
}

}  // namespace spate
