#include "server/responses_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/json_parse.h"
#include "server/random_hex.h"
#include "server/request_fields.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

// Items to chat messages. Reasoning and calls join the assistant's message that they belong to.
class ItemTranslator {
 public:
  ItemTranslator(FieldReader& fields, Json& messages) : fields_(fields), messages_(messages) {}

  void translate(const Json& item, const std::string& path) {
    FieldReader reader(item, path);
    const std::string type = reader.string("type").value_or("message");
    if (reader.has_error()) return fields_.fail(reader.error());
    if (type == "message") {
      add_message(reader);
    } else if (type == "function_call") {
      add_call(reader);
    } else if (type == "function_call_output") {
      add_output(reader);
    } else if (type == "reasoning") {
      add_reasoning(reader);
    } else {
      reader.fail(bad_request(path, fmt::format("{} is of type \"{}\": this server reads message, function_call, "
                                                "function_call_output and reasoning",
                                                path, type.substr(0, 40))));
    }
    if (reader.has_error()) fields_.fail(reader.error());
  }

 private:
  // The message that the assistant's parts are collected in.
  Json& assistant() {
    if (messages_.empty() || messages_.back()["role"] != "assistant") {
      messages_.push_back({{"role", "assistant"}, {"content", nullptr}});
    }
    return messages_.back();
  }
  static std::string required_name(FieldReader& reader, const char* name) {
    std::string text = reader.string(name).value_or("");
    if (text.empty()) reader.fail(name, fmt::format("{} is missing or empty", reader.path_of(name)));
    return text;
  }
  void add_call(FieldReader& reader) {
    const std::string call_id = required_name(reader, "call_id"), name = required_name(reader, "name");
    std::string arguments = reader.string("arguments").value_or("");
    if (arguments.empty()) arguments = "{}";
    if (const auto parsed = parse_json(arguments, ""); !parsed.ok()) {
      reader.fail("arguments",
                  fmt::format("{} is not valid JSON: {}", reader.path_of("arguments"), parsed.error().message));
    }
    if (reader.has_error()) return;
    assistant()["tool_calls"].push_back(
        {{"id", call_id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}});
  }
  void add_output(FieldReader& reader) {
    const Json* output = reader.any("output");
    if (output && !output->is_string() && !output->is_array()) {
      reader.fail_type("output", "a string or an array of parts", *output);
    }
    for (size_t i = 0; output && output->is_array() && i < output->size() && !reader.has_error(); ++i) {
      const std::string path = fmt::format("{}[{}]", reader.path_of("output"), i);
      FieldReader part((*output)[i], path);
      const std::string type = part.string("type").value_or("text");
      const std::optional<std::string> text = part.string("text");
      if (!part.has_error() && !text) {
        part.fail(bad_request(path, fmt::format("{} is of type {}, without a text: this model reads text only", path,
                                                type.substr(0, 40))));
      }
      if (part.has_error()) reader.fail(part.error());
    }
    messages_.push_back({{"role", "tool"},
                         {"tool_call_id", required_name(reader, "call_id")},
                         {"content", output ? *output : Json("")}});
  }
  void add_message(FieldReader& reader) {
    const Json* role = reader.any("role");
    const Json* content = reader.any("content");
    if (role && *role == "assistant" && content) {
      Json& message = assistant();
      if (message["content"].is_null()) {
        message["content"] = *content;
        return;
      }
    }
    Json message{{"role", role ? *role : Json("")}};
    if (content) message["content"] = *content;
    messages_.push_back(std::move(message));
  }
  void add_reasoning(FieldReader& reader) {
    const Json* content = reader.array("content");
    std::string text;
    for (size_t i = 0; content && i < content->size(); ++i) {
      FieldReader part((*content)[i], fmt::format("{}[{}]", reader.path_of("content"), i));
      text += part.string("text").value_or("");
      if (part.has_error()) return reader.fail(part.error());
    }
    if (!text.empty()) messages_.push_back({{"role", "assistant"}, {"content", nullptr}, {"reasoning_content", text}});
  }

  FieldReader& fields_;
  Json& messages_;
};

// `places`: for each of the messages, what of the request it was made from.
void translate_input(FieldReader& fields, Json& messages, std::vector<std::string>& places) {
  places.assign(messages.size(), "previous_response_id");
  const Json& input = *fields.any("input");
  if (input.is_string()) {
    messages.push_back({{"role", "user"}, {"content", input}});
    places.emplace_back("input");
    return;
  }
  if (!input.is_array()) return fields.fail_type("input", "a string or an array of items", input);
  check_count(fields, "input", input, kMaxMessages);
  ItemTranslator translator(fields, messages);
  for (size_t i = 0; i < input.size() && !fields.has_error(); ++i) {
    const std::string place = fmt::format("input[{}]", i);
    translator.translate(input[i], place);
    places.resize(messages.size(), place);
  }
}

// `input` as OpenAI lists it: a text is a message, each item has a type, an id and a status.
Json items_of(const Json& input) {
  const Json given = input.is_array() ? input : Json::array({{{"role", "user"}, {"content", input}}});
  Json items = Json::array();
  for (const Json& item : given) {
    const auto given_type = item.find("type");
    const std::string type =
        given_type != item.end() && given_type->is_string() ? given_type->get<std::string>() : "message";
    const std::string_view prefix = type == "message"         ? "msg_"
                                    : type == "reasoning"     ? "rs_"
                                    : type == "function_call" ? "fc_"
                                                              : "fco_";
    Json listed{{"id", std::string(prefix) + random_hex(24)}, {"type", type}, {"status", "completed"}};
    for (const auto& [key, value] : item.items()) {
      if (!value.is_null()) listed[key] = value;
    }
    if (type == "message" && listed["content"].is_string()) {
      const bool is_answer = listed["role"] == "assistant";
      Json part{{"type", is_answer ? "output_text" : "input_text"}, {"text", listed["content"]}};
      if (is_answer) part["annotations"] = Json::array();
      listed["content"] = Json::array({std::move(part)});
    }
    items.push_back(std::move(listed));
  }
  return items;
}

// vLLM's additions to Responses, which chats have under the same names.
constexpr const char* kChatFields[] = {"top_k",
                                       "min_p",
                                       "presence_penalty",
                                       "frequency_penalty",
                                       "repetition_penalty",
                                       "seed",
                                       "logit_bias",
                                       "stop",
                                       "ignore_eos",
                                       "skip_special_tokens",
                                       "cache_salt",
                                       "priority",
                                       "thinking_token_budget",
                                       "include_stop_str_in_output",
                                       "chat_template_kwargs",
                                       "request_id",
                                       "structured_outputs"};

// {"type":"function","name":...} to {"type":"function","function":{"name":...}}
void translate_responses_tools(FieldReader& fields, Json& chat) {
  const Json* tools = fields.array("tools");
  if (tools) check_count(fields, "tools", *tools, kMaxTools);
  for (size_t i = 0; !fields.has_error() && tools && i < tools->size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    FieldReader tool((*tools)[i], path);
    const std::string type = tool.string("type").value_or("");
    if (!tool.has_error() && type != "function") {
      tool.fail(
          not_supported(path, fmt::format("{} is of type {}: this server runs no tools; of those that the client "
                                          "runs it takes type function",
                                          path, type.substr(0, 40))));
    }
    Json function = Json::object();
    for (const char* name : {"name", "description", "parameters", "strict"}) {
      if (const Json* value = tool.any(name)) function[name] = *value;
    }
    if (tool.has_error()) return fields.fail(tool.error());
    chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  const Json* choice = fields.any("tool_choice");
  if (!choice) return;
  chat["tool_choice"] = *choice;
  if (!choice->is_object()) return;
  if (choice->value("type", Json()) == "allowed_tools") {
    Json allowed{{"mode", choice->value("mode", Json("auto"))}, {"tools", choice->value("tools", Json::array())}};
    for (size_t i = 0; allowed["tools"].is_array() && i < allowed["tools"].size(); ++i) {
      Json& tool = allowed["tools"][i];
      const bool is_named = tool.is_object() && tool.contains("name");
      tool = {{"function", is_named ? Json{{"name", tool["name"]}} : Json::object()}};
    }
    chat["tool_choice"] = {{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
    return;
  }
  if (!choice->contains("name")) return;
  chat["tool_choice"] = {{"type", choice->value("type", Json("function"))},
                         {"function", {{"name", (*choice)["name"]}}}};
}

void translate_text(FieldReader& fields, Json& chat) {
  const Json* text = fields.object("text");
  if (!text) return;
  FieldReader reader(*text, "text");
  const Json* format = reader.object("format");
  const Json* verbosity = reader.any("verbosity");  // models here know none
  if (verbosity && !verbosity->is_string()) reader.fail_type("verbosity", "a string", *verbosity);
  if (reader.has_error()) return fields.fail(reader.error());
  fields.adopt_unknown(reader);
  if (!format) return;
  chat["response_format"] = *format;
  const auto type = format->find("type");
  if (type != format->end() && *type == "json_schema") {
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", *format}};
  }
}

Json told_fields(FieldReader& fields) {
  Json told = Json::object();
  const auto add = [&](const char* name, Json otherwise) {
    const Json* value = fields.any(name);
    told[name] = value ? *value : std::move(otherwise);
  };
  add("instructions", nullptr);
  add("max_output_tokens", nullptr);
  add("metadata", Json::object());
  add("parallel_tool_calls", true);
  add("previous_response_id", nullptr);
  add("reasoning", Json{{"effort", nullptr}, {"summary", nullptr}});
  add("store", true);
  add("temperature", nullptr);
  add("top_logprobs", 0);
  add("text", Json{{"format", {{"type", "text"}}}});
  add("tool_choice", "auto");
  add("tools", Json::array());
  add("top_p", nullptr);
  add("truncation", "disabled");
  add("background", false);
  add("user", nullptr);
  return told;
}

void check_options(FieldReader& fields, ResponsesRequest& request) {
  request.is_stored = fields.boolean("store").value_or(true);
  request.is_background = fields.boolean("background").value_or(false);
  if (request.is_background && !request.is_stored) fields.fail("background", "background needs store to be true");
}

bool read_truncation_mode(FieldReader& fields) {
  const std::string mode = fields.string("truncation").value_or("disabled");
  if (mode != "auto" && mode != "disabled") {
    fields.fail("truncation", fmt::format("truncation must be auto or disabled, got \"{}\"", mode.substr(0, 40)));
  }
  return mode == "auto";
}

// What only OpenAI's own tools and models have; there is nothing of it here.
constexpr std::string_view kEmptyIncludes[] = {"code_interpreter_call.outputs", "computer_call_output.output.image_url",
                                               "file_search_call.results",      "message.input_image.image_url",
                                               "reasoning.encrypted_content",   "web_search_call.action.sources",
                                               "web_search_call.results"};

// Whether the tokens' log-probabilities are told. Other names are listed in `unknown`.
bool read_include(FieldReader& fields, std::vector<std::string>& unknown) {
  bool has_logprobs = fields.integer("top_logprobs").value_or(0) > 0;
  const Json* include = fields.array("include");
  for (size_t i = 0; include && i < include->size() && !fields.has_error(); ++i) {
    const Json& item = (*include)[i];
    if (!item.is_string()) {
      fields.fail(bad_request("include", fmt::format("include[{}] must be a string, got {}", i, json_excerpt(item)),
                              "invalid_type"));
    } else if (item == "message.output_text.logprobs") {
      has_logprobs = true;
    } else if (std::ranges::find(kEmptyIncludes, item.get_ref<const std::string&>()) == std::end(kEmptyIncludes)) {
      unknown.push_back(fmt::format("include: {}", item.get_ref<const std::string&>().substr(0, 60)));
    }
  }
  return has_logprobs;
}

}  // namespace

ApiError by_their_names(ApiError error, const std::vector<std::string>& places) {
  for (size_t i = 0; i < places.size(); ++i) {
    error = with_field_name(std::move(error), fmt::format("messages[{}]", i), places[i]);
  }
  error = with_field_name(std::move(error), "max_tokens", "max_output_tokens");
  error = with_field_name(std::move(error), "response_format.json_schema", "text.format");
  error = with_field_name(std::move(error), "response_format", "text.format");
  // Where chats have an object more.
  error = with_field_name(std::move(error), "tool_choice.allowed_tools", "tool_choice");
  if (error.param.starts_with("tool")) {
    for (std::string* text : {&error.message, &error.param}) {
      for (const std::string_view before : {"].function", "tool_choice.function"}) {
        const size_t place = text->find(before);
        const size_t end = place + before.size();
        if (place == std::string::npos || (end < text->size() && (*text)[end] != '.')) continue;
        text->erase(end - std::string_view(".function").size(), std::string_view(".function").size());
      }
    }
  }
  return with_field_name(std::move(error), "messages", "input");
}

ApiResult<ResponsesRequest> parse_responses_request(std::string_view body, const ParseLimits& limits,
                                                    ResponseStore& store) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  FieldReader fields(**json, kResponsesRequest, limits);
  if (fields.has_error()) return fields.error();
  ResponsesRequest request;
  check_options(fields, request);
  const bool drops_turns = read_truncation_mode(fields);
  std::vector<std::string> unknown_includes;
  const bool has_logprobs = read_include(fields, unknown_includes);
  if (fields.has_error()) return fields.error();
  Json messages = Json::array(), chat = Json::object();
  if (const auto previous = fields.string("previous_response_id")) {
    if (!previous->starts_with("resp_")) {
      return bad_request("previous_response_id", fmt::format("previous_response_id must begin with resp_, got \"{}\"",
                                                             previous->substr(0, 100)));
    }
    const std::optional<StoredResponse> found = store.find(*previous);
    if (!found || !found->messages) {
      ApiError error =
          http_error(404, fmt::format("There is no finished response \"{}\" here.", previous->substr(0, 100)));
      error.param = "previous_response_id";
      return error;
    }
    messages = *found->messages;
  }
  std::vector<std::string>& places = request.places;
  translate_input(fields, messages, places);
  translate_responses_tools(fields, chat);
  translate_text(fields, chat);
  if (const Json* reasoning = fields.object("reasoning")) {
    FieldReader reader(*reasoning, "reasoning");
    if (const auto effort = reader.string("effort")) chat["reasoning_effort"] = *effort;
    reader.ignore({"summary", "generate_summary"});  // the reasoning itself is told
    if (reader.has_error()) fields.fail(reader.error());
    fields.adopt_unknown(reader);
  }
  if (fields.has_error()) return fields.error();
  request.messages = std::make_shared<const Json>(messages);
  if (const auto instructions = fields.string("instructions"); instructions && !instructions->empty()) {
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", *instructions}});
    places.insert(places.begin(), "instructions");
  }
  chat["messages"] = std::move(messages);
  for (const auto& [name, ours] : {std::pair{"model", "model"},
                                   {"temperature", "temperature"},
                                   {"top_p", "top_p"},
                                   {"stream", "stream"},
                                   {"max_output_tokens", "max_tokens"},
                                   {"parallel_tool_calls", "parallel_tool_calls"},
                                   {"top_logprobs", "top_logprobs"},
                                   {"speculate", "speculate"},
                                   {"relaxed_acceptance", "relaxed_acceptance"},
                                   {"speculative_reference", "speculative_reference"}}) {
    if (const Json* value = fields.any(name)) chat[ours] = *value;
  }
  for (const char* name : kChatFields) {
    if (const Json* value = fields.any(name)) chat[name] = *value;
  }
  if (has_logprobs) chat["logprobs"] = true;
  ApiResult<ChatRequest> translated = read_chat_request(chat, limits);
  if (!translated.ok()) return by_their_names(translated.error(), places);
  request.chat = std::move(*translated);
  request.chat.drops_old_turns = drops_turns;
  request.chat.gathers_instructions = true;  // `instructions` and developer's messages come together
  take_ignored_fields(fields, request.chat);
  request.chat.unknown_fields.insert(request.chat.unknown_fields.end(), unknown_includes.begin(),
                                     unknown_includes.end());
  request.input_items = std::make_shared<const Json>(items_of(*fields.any("input")));
  request.told = std::make_shared<const Json>(told_fields(fields));
  return request;
}

}  // namespace spate
