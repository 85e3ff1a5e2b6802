#include "cli/chat_connection.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/llm_arguments.h"
#include "cli/serving.h"
#include "server/local_api.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kStopPollSeconds = 0.05;
constexpr size_t kMaxShownError = 300;  // bytes of a reply that is no error of the protocol

// A member that is a string; empty for all else.
std::string text_of(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int64_t count_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

class LocalChat final : public ChatConnection {
 public:
  LocalChat(std::unique_ptr<LoadedModel> model, ServingModel serving, std::string place)
      : loaded_(std::move(model)), api_(std::make_shared<Frontend>(std::move(serving), nullptr)) {
    model_ = {.name = loaded_->name, .place = std::move(place), .max_model_len = api_.frontend().max_model_len()};
  }
  ~LocalChat() override { loaded_->engine->stop(); }

  const ChatModel& model() const override { return model_; }

  Status stream(const std::string& path, const std::string& body, const OnChunk& on_chunk,
                const std::function<bool()>& should_stop) override {
    const std::shared_ptr<LocalResponder> responder = api_.start(path, body);
    while (true) {
      if (should_stop()) {
        responder->disconnect();
        return ok_status();
      }
      const std::optional<LocalResponder::Piece> piece = responder->next(kStopPollSeconds);
      if (!piece) continue;
      if (piece->kind == LocalResponder::Kind::kFailed) return status_of_error(piece->json);
      if (piece->kind == LocalResponder::Kind::kDone) return ok_status();
      ASSIGN_OR_RETURN(const AnswerChunk chunk, parse_answer_chunk(piece->json));
      on_chunk(chunk);
    }
  }

 private:
  std::unique_ptr<LoadedModel> loaded_;
  LocalApi api_;
  ChatModel model_;
};

class RemoteChat final : public ChatConnection {
 public:
  RemoteChat(HttpTarget target, ChatModel model) : target_(std::move(target)), model_(std::move(model)) {}

  const ChatModel& model() const override { return model_; }

  Status stream(const std::string& path, const std::string& body, const OnChunk& on_chunk,
                const std::function<bool()>& should_stop) override {
    Status failure;
    bool has_ended = false;
    const auto on_event = [&](std::string_view json) {
      if (json == "[DONE]") {
        has_ended = true;
        return false;
      }
      const Result<AnswerChunk> chunk = parse_answer_chunk(json);
      if (chunk.ok()) {
        on_chunk(*chunk);
      } else {
        failure = chunk.status();
      }
      return chunk.ok() && !should_stop();
    };
    const Result<HttpReply> reply = http_call(target_, path, body, on_event, should_stop);
    RETURN_IF_ERROR(failure);
    if (should_stop() || has_ended) return ok_status();
    if (!reply.ok()) return reply.status();
    if (reply->status >= 400) return status_of_error(reply->body);
    return data_loss("{} ended its answer without [DONE]", model_.place);
  }

 private:
  const HttpTarget target_;
  const ChatModel model_;
};

std::string address_of(const HttpTarget& target) {
  const bool is_ipv6 = target.host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}{}", is_ipv6 ? "[" : "", target.host, is_ipv6 ? "]" : "", target.port, target.path_prefix);
}

}  // namespace

Status status_of_error(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  const bool has_envelope = json.is_object() && json.contains("error") && json["error"].is_object();
  const Json& error = has_envelope ? json["error"] : json;
  std::string message = text_of(error, "message");
  if (message.empty()) message = text_of(json, "error");
  if (message.empty()) message = text_of(json, "detail");
  if (message.empty()) message = fmt::format("the server refused: {}", body.substr(0, kMaxShownError));
  const bool is_too_long = text_of(error, "code") == "context_length_exceeded" ||
                           message.find("maximum context length") != std::string::npos;
  return Status(is_too_long ? StatusCode::kOutOfRange : StatusCode::kInvalidArgument, std::move(message));
}

Result<AnswerChunk> parse_answer_chunk(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return data_loss("a chunk of the answer is no JSON object: {}", text.substr(0, kMaxShownError));
  if (const auto error = json.find("error"); error != json.end() && !error->is_null()) return status_of_error(text);
  AnswerChunk chunk;
  if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
    chunk.num_prompt_tokens = count_of(*usage, "prompt_tokens");
    chunk.num_completion_tokens = count_of(*usage, "completion_tokens");
  }
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array() || choices->empty()) return chunk;
  const Json& choice = choices->front();
  chunk.finish_reason = text_of(choice, "finish_reason");
  chunk.content = text_of(choice, "text");
  if (!choice.is_object() || !choice.contains("delta")) return chunk;
  const Json& delta = choice["delta"];
  chunk.content += text_of(delta, "content");
  chunk.reasoning = text_of(delta, "reasoning");
  if (chunk.reasoning.empty()) chunk.reasoning = text_of(delta, "reasoning_content");
  return chunk;
}

Result<std::unique_ptr<ChatConnection>> open_local_chat(const Arguments& arguments) {
  RETURN_IF_ERROR(check_serving(arguments));
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> model, load_model(arguments.model, progress_bar("weights")));
  if (!model->tokenizer) return not_found("{}: no tokenizer.json; use --tokenizer", arguments.model.model);
  for (const std::string& line : model->summary) log_info("model", "{}", line);
  ASSIGN_OR_RETURN(ServingModel serving, serving_model(arguments, *model));
  model->engine->start();
  return std::unique_ptr<ChatConnection>(
      std::make_unique<LocalChat>(std::move(model), std::move(serving), arguments.model.model));
}

Result<std::unique_ptr<ChatConnection>> open_remote_chat(const HttpTarget& target, const std::string& model_name) {
  ASSIGN_OR_RETURN(const HttpReply reply, http_call(target, "/v1/models", ""));
  if (reply.status >= 400) return status_of_error(reply.body).with_context(address_of(target));
  const Json json = Json::parse(reply.body, nullptr, false);
  if (!json.is_object() || !json.contains("data") || !json["data"].is_array() || json["data"].empty()) {
    return data_loss("{}/v1/models lists no model: is that an OpenAI-compatible server?", address_of(target));
  }
  ChatModel model{.name = model_name, .place = address_of(target)};
  std::string names;
  bool is_listed = model_name.empty();
  for (const Json& each : json["data"]) {
    const std::string id = text_of(each, "id");
    if (model.name.empty()) model.name = id;
    names += (names.empty() ? "" : ", ") + id;
    if (id != model.name) continue;
    is_listed = true;
    model.max_model_len = count_of(each, "max_model_len");
  }
  if (!is_listed) return not_found("{} has no model '{}'; it has {}", address_of(target), model_name, names);
  return std::unique_ptr<ChatConnection>(std::make_unique<RemoteChat>(target, std::move(model)));
}

}  // namespace spate
