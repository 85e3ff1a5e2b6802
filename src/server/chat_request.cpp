#include <nlohmann/json.hpp>

#include "server/api_request.h"
#include "server/json_parse.h"
#include "server/request_fields.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxMessageFields = 64;  // bounds what looks keys up one by one
constexpr size_t kMaxTemplateKwargs = 256;

// Text parts in their one form, {"type":"text","text":...}; the template has them as they are or as one text.
std::optional<Json> normalize_parts(FieldReader& message, const Json& parts) {
  Json normalized = Json::array();
  const auto add_text = [&](std::string text) {
    Json part = Json::object();
    part["type"] = "text";
    part["text"] = std::move(text);
    normalized.push_back(std::move(part));
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", message.path_of("content"), i);
    if (parts[i].is_string()) {
      add_text(parts[i].get<std::string>());
      continue;
    }
    FieldReader part(parts[i], path);
    const std::string type = part.string("type").value_or("text");
    const char* field = type == "refusal" ? "refusal" : "text";
    const bool is_text = type == "text" || type == "refusal" || type == "input_text" || type == "output_text";
    const std::optional<std::string> part_text = is_text ? part.string(field) : std::nullopt;
    if (part.has_error()) {
      message.fail(part.error());
      return std::nullopt;
    }
    if (!part_text) {
      message.fail(bad_request(
          path, is_text ? fmt::format("{}.{} is missing", path, field)
                        : fmt::format("{} is of type {}: this model reads text only", path, type.substr(0, 40))));
      return std::nullopt;
    }
    add_text(*part_text);
  }
  return normalized;
}

// Templates want a call's arguments as an object; the API has them as a string of JSON.
Json normalize_tool_calls(FieldReader& message, const Json& calls) {
  Json normalized = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", message.path_of("tool_calls"), i);
    FieldReader call(calls[i], path);
    for (const char* name : {"id", "type"}) call.string(name);
    const Json* function = call.object("function");
    if (call.has_error() || !function) {
      message.fail(call.has_error() ? call.error() : bad_request(path, path + ".function is missing"));
      return normalized;
    }
    FieldReader function_reader(*function, path + ".function");
    if (!function_reader.string("name")) {
      message.fail(function_reader.has_error() ? function_reader.error()
                                               : bad_request(path, path + ".function.name is missing"));
      return normalized;
    }
    Json copy = calls[i];
    Json& arguments = copy["function"]["arguments"];
    if (arguments.is_string()) {
      const std::string text = arguments.get<std::string>();
      ApiResult<std::shared_ptr<const Json>> parsed = parse_json(text.empty() ? "{}" : text, "");
      if (!parsed.ok()) {
        message.fail(bad_request(
            path, fmt::format("{}.function.arguments is not valid JSON: {}", path, parsed.error().message)));
        return normalized;
      }
      arguments = **parsed;
    } else if (arguments.is_null()) {
      arguments = Json::object();
    }
    normalized.push_back(std::move(copy));
  }
  return normalized;
}

Json normalize_message(FieldReader& fields, const Json& message, const std::string& path) {
  FieldReader reader(message, path);
  const std::string role = reader.string("role").value_or("");
  Json normalized = Json::object();
  if (!reader.has_error()) {
    static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
      reader.fail("role",
                  fmt::format("{}.role must be system, developer, user, assistant, tool or function, got \"{}\"", path,
                              role.substr(0, 40)));
    }
  }
  if (!reader.has_error() && message.size() > kMaxMessageFields) {
    reader.fail(bad_request(
        path, fmt::format("{} has {} fields, at most {} are taken", path, message.size(), kMaxMessageFields)));
  }
  if (!reader.has_error()) normalized = message;
  if (const Json* content = reader.any("content")) {
    if (content->is_array()) {
      if (auto parts = normalize_parts(reader, *content)) normalized["content"] = std::move(*parts);
    } else if (!content->is_string()) {
      reader.fail_type("content", "a string or an array of parts", *content);
    }
  } else if (role != "assistant" && !reader.has_error()) {
    reader.fail("content", fmt::format("{}.content is missing", path));
  }
  if (const Json* calls = reader.array("tool_calls")) {
    if (calls->empty()) {
      normalized.erase("tool_calls");
    } else {
      normalized["tool_calls"] = normalize_tool_calls(reader, *calls);
    }
  }
  for (const char* name : {"name", "tool_call_id"}) reader.string(name);
  // Both names of the reasoning are in use; templates look for either.
  std::optional<std::string> reasoning = reader.string("reasoning_content");
  if (!reasoning) reasoning = reader.string("reasoning");
  if (reasoning && !reader.has_error()) normalized["reasoning_content"] = normalized["reasoning"] = *reasoning;
  if (reader.has_error()) fields.fail(reader.error());
  return normalized;
}

// Each tool is {"type":"function","function":{"name":...}}.
bool check_tools(FieldReader& fields, const Json& tools) {
  check_count(fields, "tools", tools, kMaxTools);
  for (size_t i = 0; i < tools.size() && !fields.has_error(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    FieldReader tool(tools[i], path);
    const std::string type = tool.string("type").value_or("function");
    const Json* function = tool.object("function");
    if (!tool.has_error() && (type != "function" || !function)) {
      tool.fail(bad_request(path, path + " must be {\"type\":\"function\",\"function\":{...}}"));
    }
    if (tool.has_error()) return fields.fail(tool.error()), false;
    FieldReader reader(*function, path + ".function");
    const std::optional<std::string> name = reader.string("name");
    reader.string("description");
    reader.object("parameters");
    reader.boolean("strict");
    if (!reader.has_error() && (!name || name->empty())) reader.fail("name", path + ".function.name is missing");
    if (reader.has_error()) return fields.fail(reader.error()), false;
  }
  return !fields.has_error();
}

// Adds the names to `allowed`: of the tools these alone may be called.
void read_allowed_tools(FieldReader& fields, const Json& choice, ChatRequest& request,
                        std::vector<std::string>& allowed) {
  FieldReader outer(choice, "tool_choice");
  const Json* object = outer.object("allowed_tools");
  if (!object && !outer.has_error()) outer.fail("allowed_tools", "tool_choice.allowed_tools is missing");
  if (outer.has_error()) return fields.fail(outer.error());
  FieldReader reader(*object, "tool_choice.allowed_tools");
  const std::string mode = reader.string("mode").value_or("auto");
  const Json* tools = reader.array("tools");
  if (!reader.has_error() && mode != "auto" && mode != "required") {
    reader.fail("mode",
                fmt::format("tool_choice.allowed_tools.mode must be auto or required, got {}", mode.substr(0, 40)));
  }
  if (!reader.has_error() && (!tools || tools->empty())) {
    reader.fail("tools", "tool_choice.allowed_tools.tools is missing or empty");
  }
  if (reader.has_error()) return fields.fail(reader.error());
  check_count(fields, "tool_choice.allowed_tools.tools", *tools, kMaxTools);
  for (size_t i = 0; i < tools->size() && !fields.has_error(); ++i) {
    FieldReader tool((*tools)[i], fmt::format("tool_choice.allowed_tools.tools[{}]", i));
    const Json* function = tool.object("function");
    const auto name = function ? function->find("name") : Json::const_iterator();
    if (!tool.has_error() && (!function || name == function->end() || !name->is_string())) {
      tool.fail("function", fmt::format("tool_choice.allowed_tools.tools[{}].function.name is missing", i));
    }
    if (tool.has_error()) return fields.fail(tool.error());
    allowed.push_back(*name);
  }
  request.tool_choice = mode == "required" ? ToolChoice::kRequired : ToolChoice::kAuto;
}

void read_named_choice(FieldReader& fields, const Json& choice, ChatRequest& request,
                       std::vector<std::string>& allowed) {
  FieldReader reader(choice, "tool_choice");
  const std::string type = reader.string("type").value_or("function");
  if (!reader.has_error() && type == "allowed_tools") return read_allowed_tools(fields, choice, request, allowed);
  if (!reader.has_error() && type != "function") {
    reader.fail(not_supported("tool_choice", fmt::format("tool_choice of type {} is not supported by this server; use "
                                                         "none, auto, required, a function or allowed_tools",
                                                         type.substr(0, 40))));
  }
  const Json* function = reader.object("function");
  request.tool_choice = ToolChoice::kNamed;
  if (function) {
    FieldReader name_reader(*function, "tool_choice.function");
    request.named_function = name_reader.string("name").value_or("");
    if (name_reader.has_error()) reader.fail(name_reader.error());
  }
  if (!reader.has_error() && request.named_function.empty()) {
    reader.fail("function", "tool_choice.function.name is missing");
  }
  if (reader.has_error()) fields.fail(reader.error());
}

void read_tool_choice(FieldReader& fields, const Json& choice, ChatRequest& request,
                      std::vector<std::string>& allowed) {
  if (choice.is_object()) return read_named_choice(fields, choice, request, allowed);
  if (!choice.is_string()) return fields.fail_type("tool_choice", "none, auto, required or an object", choice);
  if (choice == "none") {
    request.tool_choice = ToolChoice::kNone;
  } else if (choice == "required") {
    request.tool_choice = ToolChoice::kRequired;
  } else if (choice != "auto") {
    fields.fail("tool_choice",
                fmt::format("tool_choice must be none, auto, required or an object, got {}", json_excerpt(choice)));
  }
}

void read_tools(FieldReader& fields, ChatRequest& request) {
  const Json* tools = fields.array("tools");
  const Json* choice = fields.any("tool_choice");
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  request.tool_choice = ToolChoice::kAuto;
  std::vector<std::string> allowed;  // empty: all tools
  if (choice) read_tool_choice(fields, *choice, request, allowed);
  if (fields.has_error()) return;
  const bool is_forced = request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed;
  if (!tools || tools->empty()) {
    request.tool_choice = ToolChoice::kNone;
    if (is_forced) fields.fail("tool_choice", "tool_choice demands a call, but tools is missing or empty");
    return;
  }
  if (!check_tools(fields, *tools)) return;
  std::vector<std::string> named = allowed;
  if (request.tool_choice == ToolChoice::kNamed) named.push_back(request.named_function);
  for (const std::string& name : named) {
    if (std::ranges::any_of(*tools, [&](const Json& tool) { return tool["function"]["name"] == name; })) continue;
    return fields.fail("tool_choice", fmt::format("tool_choice names the function \"{}\", which tools does not have",
                                                  name.substr(0, 100)));
  }
  if (allowed.empty()) {
    request.tools = std::make_shared<Json>(*tools);
    return;
  }
  // The model is not told of the others.
  auto kept = std::make_shared<Json>(Json::array());
  for (const Json& tool : *tools) {
    if (std::ranges::find(allowed, tool["function"]["name"].get_ref<const std::string&>()) != allowed.end())
      kept->push_back(tool);
  }
  request.tools = std::move(kept);
}

// The variables that templates have for whether the model thinks.
void set_thinking(Json& kwargs, bool is_on) { kwargs["enable_thinking"] = kwargs["thinking"] = is_on; }

// `reasoning` of OpenRouter and SGLang, `thinking` of DeepSeek, GLM and Anthropic: what the chat template hears of
// them.
void read_thinking_objects(FieldReader& fields, Json& kwargs) {
  if (const Json* reasoning = fields.object("reasoning")) {
    FieldReader reader(*reasoning, "reasoning");
    if (const auto is_on = reader.boolean("enabled")) set_thinking(kwargs, *is_on);
    if (const auto effort = reader.string("effort")) {
      kwargs["reasoning_effort"] = *effort;
      set_thinking(kwargs, *effort != "none");
    }
    reader.ignore({"max_tokens", "exclude", "summary"});
    if (reader.has_error()) fields.fail(reader.error());
    fields.adopt_unknown(reader);
  }
  if (const Json* thinking = fields.object("thinking")) {
    FieldReader reader(*thinking, "thinking");
    const std::string type = reader.string("type").value_or("");
    if (type == "enabled" || type == "disabled") {
      set_thinking(kwargs, type == "enabled");
    } else if (type != "adaptive" && !reader.has_error()) {
      reader.fail("type",
                  fmt::format("thinking.type must be enabled, disabled or adaptive, got \"{}\"", type.substr(0, 40)));
    }
    if (const auto clears = reader.boolean("clear_thinking")) kwargs["clear_thinking"] = *clears;
    reader.ignore({"budget_tokens"});
    if (reader.has_error()) fields.fail(reader.error());
    fields.adopt_unknown(reader);
  }
}

// What the same objects say of the answer; fields of their own win.
void read_thinking_limits(FieldReader& fields, ChatRequest& request) {
  for (const auto& [name, limit] : {std::pair{"reasoning", "max_tokens"}, {"thinking", "budget_tokens"}}) {
    const Json* given = fields.object(name);
    if (given == nullptr) continue;
    FieldReader reader(*given, name);
    const auto most = reader.integer(limit, 0, INT32_MAX);
    if (most && !request.max_reasoning_tokens) request.max_reasoning_tokens = static_cast<int>(*most);
    if (const auto is_hidden = reader.boolean("exclude"); is_hidden && !fields.any("include_reasoning")) {
      request.include_reasoning = !*is_hidden;
    }
    if (reader.has_error()) return fields.fail(reader.error());
  }
}

// A demanded call is the answer's form. response_format speaks of the content alone, of which there is none then.
void check_one_form(FieldReader& fields, const ChatRequest& request) {
  const bool is_forced = request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed;
  if (!is_forced || !request.structured_output) return;
  const std::string& param = request.structured_output->param;
  if (param.starts_with("response_format")) return;
  fields.fail(
      "tool_choice",
      fmt::format("{} and a tool_choice that demands a call both say what the answer must look like; give one of them",
                  param));
}

}  // namespace

void read_conversation(FieldReader& fields, ChatRequest& request) {
  const Json* messages = fields.array("messages");
  if (fields.has_error()) return;
  if (messages->empty()) return fields.fail("messages", "messages must have at least one message, got 0");
  check_count(fields, "messages", *messages, kMaxMessages);
  if (fields.has_error()) return;
  auto normalized = std::make_shared<Json>(Json::array());
  for (size_t i = 0; i < messages->size() && !fields.has_error(); ++i) {
    normalized->push_back(normalize_message(fields, (*messages)[i], fmt::format("messages[{}]", i)));
  }
  request.messages = std::move(normalized);
  read_tools(fields, request);

  request.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  request.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  const bool asks_for_both =
      request.continue_final_message && fields.any("add_generation_prompt") != nullptr && request.add_generation_prompt;
  if (asks_for_both) {
    fields.fail("continue_final_message", "continue_final_message and add_generation_prompt cannot both be true");
  }
  if (request.continue_final_message) request.add_generation_prompt = false;

  auto kwargs = std::make_shared<Json>(Json::object());
  read_thinking_objects(fields, *kwargs);
  if (const Json* effort = fields.any("reasoning_effort")) {
    if (!effort->is_string()) return fields.fail_type("reasoning_effort", "a string", *effort);
    (*kwargs)["reasoning_effort"] = *effort;
    (*kwargs)["enable_thinking"] = *effort != "none";  // as vLLM: effort asks for thinking
  }
  if (const auto enable_thinking = fields.boolean("enable_thinking")) (*kwargs)["enable_thinking"] = *enable_thinking;
  request.chat_template = fields.string("chat_template");
  if (const Json* documents = fields.array("documents")) request.documents = std::make_shared<Json>(*documents);
  if (const Json* given = fields.object("chat_template_kwargs")) {
    if (given->size() > kMaxTemplateKwargs) {
      return fields.fail(
          "chat_template_kwargs",
          fmt::format("chat_template_kwargs has {} entries, at most {} are taken", given->size(), kMaxTemplateKwargs));
    }
    kwargs->update(*given);
  }
  request.template_kwargs = std::move(kwargs);
}

ApiResult<ChatRequest> parse_chat_request(std::string_view body, const ParseLimits& limits) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  return read_chat_request(**json, limits);
}

ApiResult<ChatRequest> read_chat_request(const Json& body, const ParseLimits& limits) {
  FieldReader fields(body, kChatRequest, limits);
  ChatRequest request;
  read_common_fields(fields, limits, request);
  read_conversation(fields, request);
  request.add_special_tokens = fields.boolean("add_special_tokens").value_or(false);
  request.echo = fields.boolean("echo").value_or(false);
  if (const Json* modalities = fields.array("modalities")) {
    for (const Json& item : *modalities) {
      if (item != "text") fields.fail("modalities", "modalities must be [\"text\"]: this model makes text only");
    }
  }
  request.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  for (const char* name : {"thinking_token_budget", "reasoning_max_tokens", "reasoning_budget_tokens"}) {
    const auto budget = fields.integer(name);
    if (!budget || request.max_reasoning_tokens) continue;
    if (*budget >= 0) request.max_reasoning_tokens = static_cast<int>(*budget);
  }
  read_thinking_limits(fields, request);
  const std::string reasoning_format = fields.string("reasoning_format").value_or("auto");
  if (reasoning_format != "none" && reasoning_format != "auto" && reasoning_format != "deepseek") {
    fields.fail("reasoning_format", fmt::format("reasoning_format must be none, auto or deepseek, got \"{}\"",
                                                reasoning_format.substr(0, 40)));
  }
  request.separate_reasoning = fields.boolean("separate_reasoning").value_or(reasoning_format != "none");
  if (!request.separate_reasoning && !request.include_reasoning) {
    fields.fail("include_reasoning", "include_reasoning must be true where separate_reasoning is false");
  }

  // max_completion_tokens is the name of today and wins.
  auto max_tokens = fields.integer("max_completion_tokens");
  const auto old_max_tokens = fields.integer("max_tokens");
  if (!max_tokens) max_tokens = old_max_tokens;
  for (const char* name : {"max_new_tokens", "n_predict"}) {
    const auto most = fields.integer(name);
    if (!max_tokens) max_tokens = most;
  }
  if (max_tokens && *max_tokens >= 0) request.max_tokens = static_cast<int>(*max_tokens);

  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top_logprobs = read_logprobs_count(fields, "top_logprobs", limits);
  if (top_logprobs.value_or(0) > 0 && !logprobs) {
    fields.fail("top_logprobs", "top_logprobs can only be set when logprobs is true");
  }
  if (logprobs) request.sampling.logprobs = top_logprobs.value_or(0);
  if (!request.sampling.logprob_token_ids.empty()) {
    if (!logprobs) fields.fail("logprob_token_ids", "logprob_token_ids needs logprobs to be true");
    request.sampling.logprobs = 0;
    if (top_logprobs.value_or(0) != 0) request.no_effect_fields.emplace_back("top_logprobs");
  }
  check_one_form(fields, request);
  check_sampling(fields, limits, request);
  if (fields.has_error()) return fields.error();
  take_ignored_fields(fields, request);
  return request;
}

}  // namespace spate
