// Answers in the form of OpenAI's Responses: whole, as events, or in the background.
#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/random_hex.h"
#include "server/response_events.h"
#include "server/responses.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ChatPart::Kind;

std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

class ResponsesListener final : public ResponsesAnswer, public std::enable_shared_from_this<ResponsesListener> {
 public:
  ResponsesListener(ResponsesRequest request, ResponseInfo info, std::shared_ptr<HttpResponder> responder,
                    std::shared_ptr<ResponseStore> store)
      : request_(std::move(request)),
        info_(std::move(info)),
        responder_(std::move(responder)),
        store_(std::move(store)),
        is_stream_(request_.chat.stream),
        has_logprobs_(request_.chat.sampling.logprobs.has_value()),
        events_(std::make_shared<ResponseEvents>(request_.is_stored)) {}

  void on_admitted(const GenerationRequest&) override {
    if (is_stream_) responder_->begin_stream({});
    send("response.created", {{"response", response("in_progress", {})}});
    send("response.in_progress", {{"response", response("in_progress", {})}});
    if (request_.is_background) {
      store_running("in_progress", {});
      if (!is_stream_) responder_->respond({.body = text_of(response("in_progress", {}))});
    }
  }

  // Behind on_admitted; the answer may have ended already.
  void set_cancel(std::function<void()> cancel) override {
    const std::lock_guard lock(mutex_);
    if (has_ended_ || !request_.is_background) return;
    store_running("in_progress", [cancel = std::move(cancel), self = shared_from_this()] {
      self->note_cancel();
      cancel();
    });
  }

  void on_delta(ChatDelta chat, const GenerationUsage&) override {
    num_reasoning_tokens_ = chat.num_reasoning_tokens;
    size_t num_older = held_logprobs_.size();
    hold_content_logprobs(chat);
    for (const ChatPart& part : chat.parts) {
      const bool is_content = part.kind == Kind::kContent;
      const size_t num_before = held_logprobs_.size();
      add_part(part, is_content ? take_logprobs(part.text) : Json::array());
      num_older -= std::min(num_older, num_before - held_logprobs_.size());
      if (is_content) continue;
      drop_logprobs(num_older);  // the text of these has turned out to be a marker
      num_older = 0;
    }
    if (chat.delta.finish_reason != FinishReason::kNone) end_ = std::move(chat.delta);
  }

  void on_done(const GenerationUsage& usage) override {
    const bool has_failed = is_failure(end_.finish_reason);
    const bool has_repeated = end_.finish_reason == FinishReason::kRepetition;
    const bool is_cut = end_.finish_reason == FinishReason::kLength || has_repeated;
    close_item(is_cut || has_failed || is_cancelled_ ? "incomplete" : "completed");
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    const char* status = is_cancelled_ ? "cancelled" : has_failed ? "failed" : is_cut ? "incomplete" : "completed";
    Json final = response(status, output_);
    if (has_failed && !is_cancelled_) {
      final["error"] = {{"code", "server_error"}, {"message", error_of_delta(end_).message}};
    }
    if (is_cut) final["incomplete_details"] = {{"reason", has_repeated ? "repetition_detected" : "max_output_tokens"}};
    final["usage"] = {{"input_tokens", usage.num_prompt_tokens},
                      {"input_tokens_details", {{"cached_tokens", usage.num_cached_tokens}, {"cache_write_tokens", 0}}},
                      {"output_tokens", usage.num_completion_tokens},
                      {"output_tokens_details", {{"reasoning_tokens", num_reasoning_tokens_}}},
                      {"total_tokens", usage.num_prompt_tokens + usage.num_completion_tokens}};
    const std::string json = text_of(final);
    send(std::string("response.") + status, {{"response", std::move(final)}});
    if (request_.is_stored && (!has_failed || request_.is_background)) {
      StoredResponse stored{.response_json = json,
                            .messages = conversation(),
                            .input_items = request_.input_items,
                            .cancel = {},
                            .events = events_};
      if (is_cancelled_) {
        store_->replace(info_.id, std::move(stored));  // it may have been deleted since
      } else {
        store_->put(info_.id, std::move(stored));
      }
    }
    events_->end();
    if (is_stream_) {
      responder_->end_stream();
    } else if (!request_.is_background) {
      responder_->respond(has_failed ? http_response_of(error_of_delta(end_)) : HttpResponse{.body = json});
    }
  }

 private:
  Json response(const char* status, Json output) const {
    Json json{{"id", info_.id},
              {"object", "response"},
              {"created_at", info_.created},
              {"status", status},
              {"error", nullptr},
              {"incomplete_details", nullptr},
              {"model", info_.model},
              {"output", output.is_null() ? Json::array() : std::move(output)},
              {"usage", nullptr}};
    json.update(*request_.told);
    if (json["temperature"].is_null()) json["temperature"] = request_.chat.sampling.temperature;
    if (json["top_p"].is_null()) json["top_p"] = request_.chat.sampling.top_p;
    return json;
  }

  // Whoever asks from here on is told so, though the last step still runs.
  void note_cancel() {
    const std::lock_guard lock(mutex_);
    if (has_ended_) return;
    is_cancelled_ = true;
    store_running("cancelled", {});
  }

  // Of a background response: it can be found from here on.
  void store_running(const char* status, std::function<void()> cancel) {
    store_->put(info_.id, {.response_json = text_of(response(status, {})),
                           .messages = nullptr,
                           .input_items = request_.input_items,
                           .cancel = std::move(cancel),
                           .events = events_});
  }

  bool has_events() const { return request_.is_stored || is_stream_; }
  void write(const std::string& event) {
    if (is_stream_) responder_->write(event);
  }
  void send(const std::string& type, const Json& fields) {
    if (has_events()) write(events_->add(type, fields));
  }

  // Of the tokens that the text of messages is made of: a special token has none.
  void hold_content_logprobs(ChatDelta& chat) {
    for (size_t i = 0; i < chat.delta.logprobs.size(); ++i) {
      TokenLogprobs& logprobs = chat.delta.logprobs[i];
      const bool is_silent =
          request_.chat.sampling.skip_special_tokens && info_.tokenizer->is_special(logprobs.token_id);
      if (chat.is_content[i] && !is_silent) held_logprobs_.push_back(std::move(logprobs));
    }
  }
  void drop_logprobs(size_t count) {
    held_logprobs_.erase(held_logprobs_.begin(), held_logprobs_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  // Those of the held tokens that `text` is made of. Before them may stand white space that was skipped, behind them
  // some that is held back. All where the tokens' bytes do not say: in a replaced character.
  Json take_logprobs(const std::string& text) {
    if (held_logprobs_.empty()) return Json::array();
    std::string bytes;
    std::vector<size_t> ends;
    for (const TokenLogprobs& token : held_logprobs_) {
      bytes += info_.tokenizer->token_bytes(token.token_id);
      ends.push_back(bytes.size());
    }
    const size_t found = bytes.find(text);
    const size_t begin = found == std::string::npos ? 0 : found;
    const size_t end = found == std::string::npos ? bytes.size() : found + text.size();
    JsonWriter json;
    json.begin_array();
    size_t num_taken = 0;
    for (; num_taken < ends.size() && (num_taken == 0 || ends[num_taken - 1] < end); ++num_taken) {
      if (ends[num_taken] <= begin) continue;
      write_chat_logprob(json, *info_.tokenizer, held_logprobs_[num_taken], false);
    }
    drop_logprobs(num_taken);
    return Json::parse(json.end_array().take());
  }

  // ---- the item that is being written; kToolName stands for a call ----

  void add_part(const ChatPart& part, Json logprobs) {
    const Kind kind = part.kind == Kind::kToolArguments ? Kind::kToolName : part.kind;
    if (!is_open_ || part.kind == Kind::kToolName || kind != kind_) open_item(kind, part);
    if (part.kind == Kind::kToolName) return;
    text_ += part.text;
    logprobs_.insert(logprobs_.end(), logprobs.begin(), logprobs.end());
    if (kind == Kind::kContent && has_logprobs_) {
      Json fields = place();
      fields["delta"] = part.text;
      fields["logprobs"] = std::move(logprobs);
      send("response.output_text.delta", fields);
    } else if (has_events()) {
      write(events_->add_delta(part.text));
    }
  }

  void open_item(Kind kind, const ChatPart& part) {
    close_item("completed");
    is_open_ = true;
    kind_ = kind;
    text_.clear();
    logprobs_ = Json::array();
    item_id_ = (kind == Kind::kContent ? "msg_" : kind == Kind::kReasoning ? "rs_" : "fc_") + random_hex(24);
    name_ = kind == Kind::kToolName ? part.text : "";
    call_id_ = "call_" + random_hex(24);
    send("response.output_item.added", {{"output_index", output_.size()}, {"item", item("in_progress", false)}});
    if (kind != Kind::kToolName) {
      Json fields = place();
      fields["part"] = content_part();
      send("response.content_part.added", fields);
    }
    events_->begin_deltas(kind == Kind::kToolName    ? "response.function_call_arguments.delta"
                          : kind == Kind::kReasoning ? "response.reasoning_text.delta"
                                                     : "response.output_text.delta",
                          place(), kind == Kind::kContent ? Json{{"logprobs", Json::array()}} : Json::object());
  }

  void close_item(const std::string& status) {
    if (!is_open_) return;
    is_open_ = false;
    Json fields = place();
    if (kind_ == Kind::kToolName) {
      if (text_.empty() && status == "completed") text_ = "{}";
      fields["arguments"] = text_;
      fields["name"] = name_;
      send("response.function_call_arguments.done", fields);
    } else {
      fields["text"] = text_;
      if (kind_ == Kind::kContent) fields["logprobs"] = logprobs_;
      send(kind_ == Kind::kReasoning ? "response.reasoning_text.done" : "response.output_text.done", fields);
      Json part_fields = place();
      part_fields["part"] = content_part();
      send("response.content_part.done", std::move(part_fields));
    }
    Json done = item(status.c_str(), true);
    send("response.output_item.done", {{"output_index", output_.size()}, {"item", done}});
    output_.push_back(std::move(done));
    texts_.push_back({kind_, text_});
  }

  Json place() const {
    Json fields{{"item_id", item_id_}, {"output_index", output_.size()}};
    if (kind_ != Kind::kToolName) fields["content_index"] = 0;
    return fields;
  }
  Json content_part() const {
    if (kind_ == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}, {"logprobs", logprobs_}};
  }
  Json item(const char* status, bool has_content) const {
    Json content = Json::array();
    if (has_content) content.push_back(content_part());
    if (kind_ == Kind::kReasoning) {
      return {{"id", item_id_},
              {"type", "reasoning"},
              {"summary", Json::array()},
              {"content", content},
              {"status", status}};
    }
    if (kind_ == Kind::kContent) {
      return {{"id", item_id_}, {"type", "message"}, {"role", "assistant"}, {"status", status}, {"content", content}};
    }
    return {{"id", item_id_}, {"type", "function_call"}, {"call_id", call_id_},
            {"name", name_},  {"arguments", text_},      {"status", status}};
  }

  // With the answer as the assistant's message.
  std::shared_ptr<const Json> conversation() const {
    Json message{{"role", "assistant"}, {"content", nullptr}};
    for (size_t i = 0; i < texts_.size(); ++i) {
      const auto& [kind, text] = texts_[i];
      if (kind == Kind::kToolName) {
        if (!Json::accept(text)) continue;  // cut by max_output_tokens: no template can show it
        message["tool_calls"].push_back({{"id", output_[i]["call_id"]},
                                         {"type", "function"},
                                         {"function", {{"name", output_[i]["name"]}, {"arguments", text}}}});
      } else {
        Json& field = message[kind == Kind::kReasoning ? "reasoning_content" : "content"];
        field = (field.is_string() ? field.get<std::string>() : std::string()) + text;
      }
    }
    Json messages = *request_.messages;
    messages.push_back(std::move(message));
    return std::make_shared<const Json>(std::move(messages));
  }

  const ResponsesRequest request_;
  const ResponseInfo info_;
  const std::shared_ptr<HttpResponder> responder_;  // held to the end: the server waits for background answers too
  const std::shared_ptr<ResponseStore> store_;
  const bool is_stream_, has_logprobs_;
  const std::shared_ptr<ResponseEvents> events_;
  std::atomic<bool> is_cancelled_ = false;
  std::mutex mutex_;  // guards has_ended_ and the order of what is stored
  bool has_ended_ = false;
  Json output_ = Json::array();
  std::vector<std::pair<Kind, std::string>> texts_;  // of the items in output_
  Kind kind_ = Kind::kContent;
  bool is_open_ = false;
  std::string item_id_, call_id_, name_, text_;
  Json logprobs_ = Json::array();             // of the tokens of text_
  std::vector<TokenLogprobs> held_logprobs_;  // of tokens whose text is held back, or has turned out to be a marker
  ChoiceDelta end_;
  int64_t num_reasoning_tokens_ = 0;
};

}  // namespace

std::shared_ptr<ResponsesAnswer> make_responses_answer(ResponsesRequest request, ResponseInfo info,
                                                       std::shared_ptr<HttpResponder> responder,
                                                       std::shared_ptr<ResponseStore> store) {
  return std::make_shared<ResponsesListener>(std::move(request), std::move(info), std::move(responder),
                                             std::move(store));
}

}  // namespace spate
