#include "cli/gateway.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "server/api_error.h"
#include "server/api_key.h"
#include "server/json_parse.h"
#include "server/json_writer.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxRunning = 256;
constexpr size_t kMaxAnswerBytes = size_t{16} << 20;             // of a step
constexpr auto kFlushTimeout = std::chrono::milliseconds(2000);  // for clients to take the end of their answers
constexpr auto kFlushPoll = std::chrono::milliseconds(5);
constexpr std::string_view kChatPath = "/v1/chat/completions";

// What an engine answers may be of any type: null where it is no object or has no such key.
const Json& member(const Json& json, const char* key) {
  static const Json kNull;
  const auto found = json.is_object() ? json.find(key) : json.end();
  return json.is_object() && found != json.end() ? *found : kNull;
}
int64_t count_in(const Json& json, const char* key) {
  const Json& value = member(json, key);
  return value.is_number_integer() ? std::max<int64_t>(0, value.get<int64_t>()) : 0;
}
std::string message_of(const Json& error, const char* otherwise) {
  const Json& message = member(error, "message");
  return message.is_string() ? message.get<std::string>() : otherwise;
}

// The part of a chunk's text that is the answer; an error of the stream.
Status take_chunk(std::string_view event, const std::function<void(std::string_view)>& on_text, StepAnswer& answer) {
  const Json chunk = Json::parse(event, nullptr, false);
  if (!chunk.is_object())
    return event == "[DONE]" ? ok_status() : internal_error("the engine sent a chunk that is not JSON");
  if (chunk.contains("error")) return internal_error("{}", message_of(chunk["error"], "the engine failed"));
  if (const Json& usage = member(chunk, "usage"); usage.is_object()) {
    answer.num_prompt_tokens = count_in(usage, "prompt_tokens");
    answer.num_completion_tokens = count_in(usage, "completion_tokens");
  }
  const Json& choices = member(chunk, "choices");
  if (!choices.is_array()) return ok_status();
  for (const Json& choice : choices) {
    if (const Json& reason = member(choice, "finish_reason"); reason.is_string()) answer.finish_reason = reason;
    const Json& content = member(member(choice, "delta"), "content");
    if (!content.is_string()) continue;
    const std::string text = content;
    if (answer.text.size() + text.size() > kMaxAnswerBytes) {
      return data_loss("an answer of more than {} bytes", kMaxAnswerBytes);
    }
    answer.text += text;
    if (on_text && !text.empty()) on_text(text);
  }
  return ok_status();
}

Status error_of(const HttpReply& reply) {
  const Json body = Json::parse(reply.body, nullptr, false);
  std::string message = fmt::format("the engine answered {}", reply.status);
  if (const std::string text = message_of(member(body, "error"), ""); !text.empty()) message += ": " + text;
  if (reply.status == 429) return resource_exhausted("{}", message);
  return reply.status >= 500 ? unavailable("{}", message) : invalid_argument("{}", message);
}

// What a graph needs of a chat's body, so that nothing below meets another type.
std::optional<ApiError> check_chat(const Json& body) {
  if (!body.is_object()) return bad_request("", "The body must be a JSON object.");
  if (!body.contains("messages") || !body["messages"].is_array() || body["messages"].empty()) {
    return bad_request("messages", "messages must be a list of at least one message");
  }
  for (const Json& message : body["messages"]) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return bad_request("messages", "each of messages must be an object with a role");
    }
    if (!message.contains("content")) continue;
    const Json& content = message["content"];
    const auto is_part = [](const Json& part) {
      return part.is_object() && part.contains("type") && part["type"].is_string() &&
             (part["type"] != "text" || (part.contains("text") && part["text"].is_string()));
    };
    if (content.is_string() || content.is_null() ||
        (content.is_array() && std::all_of(content.begin(), content.end(), is_part)))
      continue;
    return bad_request("messages", "content must be a text or a list of parts");
  }
  if (body.contains("n") && body["n"] != 1) return bad_request("n", "a graph gives one answer: n must be 1");
  if (body.contains("stream") && !body["stream"].is_boolean())
    return bad_request("stream", "stream must be true or false");
  return std::nullopt;
}

// chat.completion.chunk or chat.completion, up to the choices.
JsonWriter begin_answer(const std::string& id, const char* object, int64_t created, const std::string& model) {
  JsonWriter json;
  json.begin_object().field("id", id).field("object", object).field("created", created).field("model", model);
  return json;
}

void write_usage(JsonWriter& json, const StepAnswer& answer) {
  json.key("usage")
      .begin_object()
      .field("prompt_tokens", answer.num_prompt_tokens)
      .field("completion_tokens", answer.num_completion_tokens);
  json.field("total_tokens", answer.num_prompt_tokens + answer.num_completion_tokens).end_object();
}

std::string chunk_of(JsonWriter json) { return "data: " + json.end_object().take() + "\n\n"; }

// The stream of a graph's answer. Nothing is sent before its first text, so that an error before it has a status.
class AnswerStream {
 public:
  AnswerStream(HttpResponder& responder, std::string id, std::string model)
      : responder_(responder), id_(std::move(id)), model_(std::move(model)), created_(std::time(nullptr)) {}
  bool has_begun() const { return has_begun_; }
  void write(std::string_view text) {
    begin();
    responder_.write(choice([&](JsonWriter& json) {
      json.key("delta").begin_object().field("content", text).end_object().null_field("finish_reason");
    }));
  }
  void end(const StepAnswer& answer, bool with_usage) {
    begin();
    responder_.write(choice([&](JsonWriter& json) {
      json.key("delta").begin_object().end_object().field("finish_reason",
                                                          answer.finish_reason.empty() ? "stop" : answer.finish_reason);
    }));
    if (with_usage) {
      JsonWriter json = begin_answer(id_, "chat.completion.chunk", created_, model_);
      json.key("choices").begin_array().end_array();
      write_usage(json, answer);
      responder_.write(chunk_of(std::move(json)));
    }
    responder_.write("data: [DONE]\n\n");
    responder_.end_stream();
  }
  void fail(const ApiError& error) {
    responder_.write("data: " + http_response_of(error).body + "\n\ndata: [DONE]\n\n");
    responder_.end_stream();
  }

 private:
  void begin() {
    if (std::exchange(has_begun_, true)) return;
    responder_.begin_stream({});
    responder_.write(choice([](JsonWriter& json) {
      json.key("delta")
          .begin_object()
          .field("role", "assistant")
          .field("content", "")
          .end_object()
          .null_field("finish_reason");
    }));
  }
  template <typename Write>
  std::string choice(Write write) {
    JsonWriter json = begin_answer(id_, "chat.completion.chunk", created_, model_);
    json.key("choices").begin_array().begin_object().field("index", 0);
    write(json);
    json.end_object().end_array();
    return chunk_of(std::move(json));
  }

  HttpResponder& responder_;
  const std::string id_, model_;
  const int64_t created_;
  bool has_begun_ = false;
};

}  // namespace

Gateway::Gateway(const Deployment& deployment, std::vector<const EngineProcess*> engines)
    : deployment_(deployment), engines_(std::move(engines)), created_(std::time(nullptr)) {
  http_ = std::make_unique<HttpServer>(HttpOptions{},
                                       [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
                                         handle(std::move(request), std::move(responder));
                                       });
}

Gateway::~Gateway() { stop(0); }

Status Gateway::listen() {
  RETURN_IF_ERROR(http_->listen(deployment_.gateway_host, deployment_.gateway_port));
  if (deployment_.gateway_api_keys.empty() && !http_->is_loopback()) {
    log_warning("run", "the gateway on {} has no api_key: whoever reaches port {} may use the models",
                deployment_.gateway_host, port());
  }
  return ok_status();
}

void Gateway::start() { http_->start(); }

void Gateway::stop(double seconds) {
  if (is_stopping_) return;
  is_draining_ = true;
  http_->begin_drain();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return num_running_ == 0; });
  is_stopping_ = true;  // calls to engines end
  changed_.wait(lock, [this] { return num_running_ == 0; });
  lock.unlock();
  // What has ended goes out before the sockets are cut.
  const auto end = std::chrono::steady_clock::now() + kFlushTimeout;
  while (http_->num_connections() > 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kFlushPoll);
  http_->stop();
}

void Gateway::handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
  {
    const std::lock_guard lock(mutex_);
    if (num_running_ >= kMaxRunning || is_stopping_) {
      return responder->respond(http_response_of(
          unavailable_error(fmt::format("{} requests run here, no more are taken.", num_running_), 1)));
    }
    ++num_running_;
  }
  const auto run = [this, request = std::move(request), responder]() mutable {
    try {
      answer(request, *responder);
    } catch (const std::exception& e) {
      log_error("run", "{} {}: {}", request.method, request.path, e.what());
      responder->respond(http_response_of(http_error(500, "Internal error.")));
    }
    responder.reset();
    const std::lock_guard lock(mutex_);
    --num_running_;
    changed_.notify_all();
  };
  try {
    std::thread(run).detach();
  } catch (const std::system_error&) {
    responder->respond(http_response_of(unavailable_error("This machine lends no more threads.", 1)));
    const std::lock_guard lock(mutex_);
    --num_running_;
    changed_.notify_all();
  }
}

void Gateway::answer(const HttpRequest& request, HttpResponder& responder) {
  if (request.path == "/health" || request.path == "/livez") {
    if (request.path == "/livez" || (is_ready() && !is_draining_))
      return responder.respond({.body = R"({"status":"ok"})"});
    HttpResponse response = http_response_of(
        unavailable_error(is_draining_ ? "The deployment is shutting down." : "Not all engines are ready.", 5));
    return responder.respond(std::move(response));
  }
  if (!deployment_.gateway_api_keys.empty() && !has_valid_api_key(request, deployment_.gateway_api_keys)) {
    return responder.respond(http_response_of(
        http_error(401, "The API key is missing or wrong: send it as \"Authorization: Bearer KEY\".")));
  }
  if (request.path == "/engines" && request.method == "GET") return responder.respond({.body = engines_json()});
  if (request.path == "/v1/models" && request.method == "GET") return responder.respond({.body = models_json()});
  if (!request.path.starts_with("/v1/") || request.method != "POST") {
    return responder.respond(http_response_of(
        http_error(404, "There is no such path here: the gateway has /v1/models, /engines, and POST under /v1.")));
  }
  if (is_draining_)
    return responder.respond(http_response_of(unavailable_error("The deployment is shutting down.", 5)));
  ApiResult<std::shared_ptr<const Json>> body = parse_json(request.body);
  if (!body.ok()) return responder.respond(http_response_of(body.error()));
  std::string model;
  if ((*body)->is_object() && (*body)->contains("model") && (**body)["model"].is_string()) model = (**body)["model"];
  std::vector<std::string> names;
  for (const GraphSpec& graph : deployment_.graphs) {
    names.push_back(graph.name);
    if (graph.name != model) continue;
    if (request.path == kChatPath) return answer_graph(graph, request, **body, responder);
    return responder.respond(
        http_response_of(bad_request("model", fmt::format("{} is a graph: it answers {} only", model, kChatPath))));
  }
  for (const EngineProcess* engine : engines_) names.push_back(engine->spec().serve_id);
  const EngineProcess* engine = find_engine(model);
  if (engine == nullptr) return responder.respond(http_response_of(model_not_found(model, names)));
  pass_on(*engine, request, responder);
}

void Gateway::answer_graph(const GraphSpec& graph, const HttpRequest& request, const Json& body,
                           HttpResponder& responder) {
  if (std::optional<ApiError> error = check_chat(body)) return responder.respond(http_response_of(*error));
  const bool is_streamed = body.value("stream", false);
  const Json stream_options = body.value("stream_options", Json::object());
  const bool with_usage =
      stream_options.is_object() && stream_options.contains("include_usage") && stream_options["include_usage"] == true;
  AnswerStream stream(responder, "chatcmpl-" + request.request_id, graph.name);
  std::function<void(std::string_view)> on_text;
  if (is_streamed) on_text = [&](std::string_view text) { stream.write(text); };
  const Result<StepAnswer> answer = run_graph(
      graph, body, [this](const StepCall& call) { return call_engine(call); }, on_text,
      [&] { return is_stopping_ || responder.is_gone(); });
  if (!answer.ok()) {
    log_warning("run", "{}", answer.status().message());
    if (stream.has_begun()) return stream.fail(api_error_of(answer.status()));
    return responder.respond(http_response_of(api_error_of(answer.status())));
  }
  if (is_streamed) return stream.end(*answer, with_usage);
  JsonWriter json = begin_answer("chatcmpl-" + request.request_id, "chat.completion", std::time(nullptr), graph.name);
  json.key("choices").begin_array().begin_object().field("index", 0);
  json.key("message").begin_object().field("role", "assistant").field("content", answer->text).end_object();
  json.field("finish_reason", answer->finish_reason.empty() ? "stop" : answer->finish_reason).end_object().end_array();
  write_usage(json, *answer);
  responder.respond({.body = json.end_object().take()});
}

void Gateway::pass_on(const EngineProcess& engine, const HttpRequest& request, HttpResponder& responder) {
  // The engine knows itself by its own model's name, which an absent one means.
  Json body = Json::parse(request.body, nullptr, false);
  body.erase("model");
  HttpTarget target = engine.target();
  target.headers.emplace_back("X-Request-Id", request.request_id);
  if (const std::string_view trace = request.header("traceparent"); !trace.empty())
    target.headers.emplace_back("traceparent", trace);
  bool has_begun = false;
  // Events of all kinds, byte for byte; other replies whole.
  const auto takes_pieces = [&](const HttpReply& head) {
    has_begun = head.status == 200 && is_event_stream(head);
    if (has_begun) responder.begin_stream({{"Content-Type", head.content_type}});
    return has_begun;
  };
  const auto on_piece = [&](std::string_view piece) {
    responder.write(piece);
    return !responder.is_gone();
  };
  const Result<HttpReply> reply = http_pass(target, request.path, body.dump(), takes_pieces, on_piece,
                                            [&] { return is_stopping_ || responder.is_gone(); });
  if (has_begun) {  // the last event may be cut: an empty line ends it
    if (!reply.ok()) responder.write("\n\ndata: " + http_response_of(api_error_of(reply.status())).body + "\n\n");
    return responder.end_stream();
  }
  if (!reply.ok())
    return responder.respond(
        http_response_of(unavailable_error(reply.status().with_context(engine.spec().serve_id).message(), 1)));
  responder.respond({.status = reply->status, .content_type = reply->content_type, .body = reply->body});
}

Result<StepAnswer> Gateway::call_engine(const StepCall& call) const {
  const EngineProcess* engine = find_engine(call.engine);
  if (engine->state() != EngineState::kReady) {
    return unavailable("the engine {} is {}", call.engine, engine_state_name(engine->state()));
  }
  Json body = call.body;
  body["stream"] = true;  // also where nobody reads along: so a call can be left at any time
  body["stream_options"] = {{"include_usage", true}};
  StepAnswer answer;
  Status failure;
  const Result<HttpReply> reply = http_call(
      engine->target(), std::string(kChatPath), body.dump(),
      [&](std::string_view event) {
        failure = take_chunk(event, call.on_text, answer);
        return failure.ok() && !call.should_stop();
      },
      call.should_stop);
  RETURN_IF_ERROR(failure);
  if (!reply.ok()) return unavailable("{}: {}", call.engine, reply.status().message());
  if (reply->status != 200) return error_of(*reply);
  if (answer.finish_reason.empty()) return unavailable("{}: the answer broke off", call.engine);
  return answer;
}

const EngineProcess* Gateway::find_engine(const std::string& serve_id) const {
  for (const EngineProcess* engine : engines_) {
    if (engine->spec().serve_id == serve_id) return engine;
  }
  return nullptr;
}

bool Gateway::is_ready() const {
  return std::all_of(engines_.begin(), engines_.end(),
                     [](const EngineProcess* engine) { return engine->state() == EngineState::kReady; });
}

std::string Gateway::models_json() const {
  JsonWriter json;
  json.begin_object().field("object", "list").key("data").begin_array();
  const auto write = [&](const std::string& name) {
    json.begin_object()
        .field("id", name)
        .field("object", "model")
        .field("created", created_)
        .field("owned_by", "spate")
        .end_object();
  };
  for (const GraphSpec& graph : deployment_.graphs) write(graph.name);
  for (const EngineProcess* engine : engines_) write(engine->spec().serve_id);
  return json.end_array().end_object().take();
}

std::string Gateway::engines_json() const {
  JsonWriter json;
  json.begin_object().key("engines").begin_array();
  for (const EngineProcess* engine : engines_) {
    json.begin_object().field("serve_id", engine->spec().serve_id).field("state", engine_state_name(engine->state()));
    json.field("restarts", engine->num_restarts())
        .field("host", engine->spec().host)
        .field("port", engine->spec().port)
        .end_object();
  }
  return json.end_array().end_object().take();
}

}  // namespace spate
