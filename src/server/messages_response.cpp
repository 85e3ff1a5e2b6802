// Answers in the form of Anthropic's Messages, whole or as events.
#include <utility>

#include "server/api_response.h"
#include "server/random_hex.h"

namespace spate {
namespace {

using Kind = ChatPart::Kind;

// One block of the answer: thinking, text or tool_use.
struct Block {
  Kind kind = Kind::kContent;
  int tool_idx = -1;
  std::string id, name, text;
};

std::string_view stop_reason_of(const ChoiceDelta& end, bool has_tool_calls) {
  if (end.finish_reason == FinishReason::kLength) return "max_tokens";
  if (has_tool_calls) return "tool_use";
  return end.stop_string.empty() ? "end_turn" : "stop_sequence";
}

void write_usage_fields(JsonWriter& json, const GenerationUsage& usage) {
  json.field("input_tokens", usage.num_prompt_tokens - usage.num_cached_tokens)
      .field("cache_creation_input_tokens", 0)
      .field("cache_read_input_tokens", usage.num_cached_tokens)
      .field("output_tokens", usage.num_completion_tokens);
}

void write_stop(JsonWriter& json, const ChoiceDelta& end, bool has_tool_calls) {
  json.field("stop_reason", stop_reason_of(end, has_tool_calls));
  if (end.stop_string.empty()) {
    json.null_field("stop_sequence");
  } else {
    json.field("stop_sequence", end.stop_string);
  }
}

class MessagesWhole final : public ChatListener {
 public:
  MessagesWhole(ResponseInfo info, std::shared_ptr<HttpResponder> responder)
      : info_(std::move(info)), responder_(std::move(responder)) {}

  void on_delta(ChatDelta chat, const GenerationUsage&) override {
    for (ChatPart& part : chat.parts) {
      const bool goes_on = !blocks_.empty() && part.kind != Kind::kToolName &&
                           (blocks_.back().kind == part.kind || part.kind == Kind::kToolArguments);
      if (!goes_on) blocks_.push_back({.kind = part.kind});
      if (part.kind == Kind::kToolName) {
        blocks_.back().name = std::move(part.text);
      } else {
        blocks_.back().text += part.text;
      }
    }
    if (chat.delta.finish_reason == FinishReason::kNone) return;
    if (is_failure(chat.delta.finish_reason)) {
      has_failed_ = true;
      return responder_->respond(messages_error_response(error_of_delta(chat.delta)));
    }
    has_tool_calls_ = chat.has_tool_calls;
    end_ = std::move(chat.delta);
  }

  void on_done(const GenerationUsage& usage) override {
    if (has_failed_) return;
    if (blocks_.empty()) blocks_.emplace_back();  // clients read content[0]
    JsonWriter json;
    json.begin_object().field("id", info_.id).field("type", "message").field("role", "assistant");
    json.field("model", info_.model).key("content").begin_array();
    for (const Block& block : blocks_) {
      json.begin_object();
      if (block.kind == Kind::kContent) {
        json.field("type", "text").field("text", block.text);
      } else if (block.kind == Kind::kReasoning) {
        json.field("type", "thinking").field("thinking", block.text).field("signature", random_hex(32));
      } else {
        json.field("type", "tool_use").field("id", "toolu_" + random_hex(24)).field("name", block.name);
        json.raw_field("input", valid_json_object(block.text));
      }
      json.end_object();
    }
    json.end_array();
    write_stop(json, end_, has_tool_calls_);
    json.key("usage").begin_object();
    write_usage_fields(json, usage);
    responder_->respond({.body = json.end_object().end_object().take()});
  }

 private:
  const ResponseInfo info_;
  const std::shared_ptr<HttpResponder> responder_;
  std::vector<Block> blocks_;
  ChoiceDelta end_;
  bool has_tool_calls_ = false, has_failed_ = false;
};

class MessagesStream final : public ChatListener {
 public:
  MessagesStream(ResponseInfo info, std::shared_ptr<HttpResponder> responder)
      : info_(std::move(info)), responder_(std::move(responder)) {}

  void on_admitted(const GenerationRequest&) override { responder_->begin_stream({}); }

  void on_delta(ChatDelta chat, const GenerationUsage& usage) override {
    if (responder_->is_gone() || has_ended_) return;
    if (!has_begun_) begin(usage);
    for (const ChatPart& part : chat.parts) send_part(part);
    if (chat.delta.finish_reason == FinishReason::kNone) return;
    if (is_failure(chat.delta.finish_reason)) return fail(chat.delta);
    if (num_blocks_ == 0) open_block({.kind = Kind::kContent, .text = {}});  // as the whole answer
    close_block();
    JsonWriter json;
    json.begin_object().field("type", "message_delta").key("delta").begin_object();
    write_stop(json, chat.delta, chat.has_tool_calls);
    json.end_object().key("usage").begin_object();
    write_usage_fields(json, usage);
    send("message_delta", json.end_object().end_object().text());
  }

  void on_done(const GenerationUsage&) override {
    if (has_ended_) return;
    send("message_stop", R"({"type":"message_stop"})");
    responder_->end_stream();
  }

 private:
  void send(std::string_view event, std::string_view data) {
    responder_->write(fmt::format("event: {}\ndata: {}\n\n", event, data));
  }
  void begin(const GenerationUsage& usage) {
    has_begun_ = true;
    JsonWriter json;
    json.begin_object().field("type", "message_start").key("message").begin_object();
    json.field("id", info_.id).field("type", "message").field("role", "assistant").field("model", info_.model);
    json.key("content").begin_array().end_array().null_field("stop_reason").null_field("stop_sequence");
    json.key("usage").begin_object();
    GenerationUsage start = usage;
    start.num_completion_tokens = 0;
    write_usage_fields(json, start);
    send("message_start", json.end_object().end_object().end_object().text());
  }
  void send_part(const ChatPart& part) {
    const bool goes_on = is_block_open_ && part.kind != Kind::kToolName &&
                         (part.kind == kind_ || (part.kind == Kind::kToolArguments && kind_ == Kind::kToolName));
    if (!goes_on) open_block(part);
    if (part.kind == Kind::kToolName) return;
    const bool is_text = part.kind == Kind::kContent, is_thinking = part.kind == Kind::kReasoning;
    JsonWriter json;
    json.begin_object()
        .field("type", "content_block_delta")
        .field("index", num_blocks_ - 1)
        .key("delta")
        .begin_object();
    json.field("type", is_text ? "text_delta" : is_thinking ? "thinking_delta" : "input_json_delta");
    json.field(is_text ? "text" : is_thinking ? "thinking" : "partial_json", part.text);
    send("content_block_delta", json.end_object().end_object().text());
  }
  void open_block(const ChatPart& part) {
    close_block();
    is_block_open_ = true;
    kind_ = part.kind;
    JsonWriter json;
    json.begin_object().field("type", "content_block_start").field("index", num_blocks_++).key("content_block");
    json.begin_object();
    if (part.kind == Kind::kContent) {
      json.field("type", "text").field("text", "");
    } else if (part.kind == Kind::kReasoning) {
      json.field("type", "thinking").field("thinking", "").field("signature", "");
    } else {
      json.field("type", "tool_use").field("id", "toolu_" + random_hex(24)).field("name", part.text);
      json.key("input").begin_object().end_object();
    }
    send("content_block_start", json.end_object().end_object().text());
  }
  void close_block() {
    if (!is_block_open_) return;
    is_block_open_ = false;
    if (kind_ == Kind::kReasoning) {  // clients keep a block of thinking only with its signature
      send("content_block_delta",
           fmt::format(
               R"({{"type":"content_block_delta","index":{},"delta":{{"type":"signature_delta","signature":"{}"}}}})",
               num_blocks_ - 1, random_hex(32)));
    }
    send("content_block_stop", fmt::format(R"({{"type":"content_block_stop","index":{}}})", num_blocks_ - 1));
  }
  void fail(const ChoiceDelta& delta) {
    has_ended_ = true;
    send("error", messages_error_json(error_of_delta(delta)));
    responder_->end_stream();
  }

  const ResponseInfo info_;
  const std::shared_ptr<HttpResponder> responder_;
  Kind kind_ = Kind::kContent;
  int num_blocks_ = 0;
  bool is_block_open_ = false, has_begun_ = false, has_ended_ = false;
};

std::string_view error_type_of(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

// The fields that are read under OpenAI's names, in the names of this API.
ApiError by_messages_names(ApiError error) {
  if (error.param == "stop" && error.message.starts_with("stop ")) error.message.insert(4, "_sequences");
  error = with_field_name(std::move(error), "response_format.json_schema.schema", "output_config.format.schema");
  if (!error.param.starts_with("tool")) return error;
  for (const auto& [ours, theirs] :
       {std::pair<std::string_view, std::string_view>{"].function.parameters", "].input_schema"},
        {"].function.", "]."},
        {"tool_choice.function.name is", "tool_choice.name is"}}) {
    const size_t place = error.message.find(ours);
    if (place != std::string::npos) return error.message.replace(place, ours.size(), theirs), error;
  }
  return error;
}

}  // namespace

std::string messages_error_json(const ApiError& error) {
  JsonWriter json;
  json.begin_object().field("type", "error").key("error").begin_object();
  json.field("type", error_type_of(error.http_status)).field("message", by_messages_names(error).message);
  return json.end_object().end_object().take();
}

HttpResponse messages_error_response(const ApiError& error) {
  HttpResponse response = http_response_of(error);
  response.body = messages_error_json(error);
  return response;
}

HttpResponse error_response(Endpoint endpoint, const ApiError& error) {
  return is_messages(endpoint) ? messages_error_response(error) : http_response_of(error);
}

std::shared_ptr<ChatListener> make_messages_response(const ChatRequest& request, ResponseInfo info,
                                                     std::shared_ptr<HttpResponder> responder) {
  if (request.stream) return std::make_shared<MessagesStream>(std::move(info), std::move(responder));
  return std::make_shared<MessagesWhole>(std::move(info), std::move(responder));
}

}  // namespace spate
