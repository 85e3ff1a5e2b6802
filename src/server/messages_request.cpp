// Anthropic's Messages to a chat of the OpenAI protocol: blocks become parts, tool calls and tool messages.
#include <strings.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/api_request.h"
#include "server/json_parse.h"
#include "server/request_fields.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

Json message_of(const char* role, Json content) { return {{"role", role}, {"content", std::move(content)}}; }

// Claude Code's own note to Anthropic. Part of it changes with each request, and it stands first: with it no two
// prompts have an equal beginning.
bool is_billing_note(std::string_view text) { return text.starts_with("x-anthropic-billing-header"); }

// A string, or text blocks as one string.
std::optional<std::string> text_of(FieldReader& fields, std::string_view name, std::string_view separator) {
  const Json* value = fields.any(name);
  if (!value || value->is_string()) return value ? std::optional(value->get<std::string>()) : std::nullopt;
  if (!value->is_array()) return fields.fail_type(name, "a string or an array of text blocks", *value), std::nullopt;
  std::string text;
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string path = fmt::format("{}[{}]", fields.path_of(name), i);
    FieldReader block((*value)[i], path);
    const std::string type = block.string("type").value_or("text");
    const std::optional<std::string> part = block.string("text");
    if (!block.has_error() && (type != "text" || !part)) {
      block.fail(
          bad_request(path, fmt::format("{} is of type {}: this model reads text only", path, type.substr(0, 40))));
    }
    if (block.has_error()) return fields.fail(block.error()), std::nullopt;
    if (name == "system" && is_billing_note(*part)) continue;
    if (!text.empty()) text += separator;
    text += *part;
  }
  return text;
}

// Of a tool that failed: chat templates have no other place to say so.
std::string error_text(std::string text) {
  if (text.empty()) return "Error";
  const bool says_so = text.size() >= 5 && ::strncasecmp(text.c_str(), "error", 5) == 0;
  return says_so ? text : "Error: " + text;
}

// One message of theirs is up to several of ours: tool results stand alone, before the text.
class MessageTranslator {
 public:
  MessageTranslator(FieldReader& fields, Json& messages) : fields_(fields), messages_(messages) {}

  void translate(const Json& message, const std::string& path) {
    FieldReader reader(message, path);
    const std::string role = reader.string("role").value_or("");
    const Json* content = reader.any("content");
    if (!reader.has_error() && role != "user" && role != "assistant" && role != "system") {
      reader.fail("role", fmt::format("{}.role must be user or assistant, got \"{}\"", path, role.substr(0, 40)));
    }
    if (!reader.has_error() && !content) reader.fail("content", fmt::format("{}.content is missing", path));
    if (!reader.has_error() && !content->is_string() && !content->is_array()) {
      reader.fail_type("content", "a string or an array of blocks", *content);
    }
    if (reader.has_error()) return fields_.fail(reader.error());
    if (content->is_string()) {
      const bool is_note = role == "system" && is_billing_note(content->get_ref<const std::string&>());
      if (!is_note) messages_.push_back(message_of(role.c_str(), *content));
      return;
    }
    Json ours = message_of(role.c_str(), Json::array());
    for (size_t i = 0; i < content->size() && !fields_.has_error(); ++i) {
      add_block((*content)[i], fmt::format("{}.content[{}]", path, i), ours);
    }
    const bool has_calls = ours.contains("tool_calls");
    if (ours["content"].empty() && has_calls) ours["content"] = nullptr;
    const bool is_empty = ours["content"].is_array() && ours["content"].empty() && !ours.contains("reasoning_content");
    if (!is_empty || content->empty()) messages_.push_back(std::move(ours));
  }

 private:
  void add_block(const Json& block, const std::string& path, Json& ours) {
    FieldReader reader(block, path);
    const std::string type = reader.string("type").value_or("");
    if (type == "text") {
      std::string text = required_string(reader, "text");
      if (ours["role"] == "system" && is_billing_note(text)) return;
      ours["content"].push_back({{"type", "text"}, {"text", std::move(text)}});
    } else if (type == "thinking") {
      Json& reasoning = ours["reasoning_content"];
      if (reasoning.is_null()) reasoning = "";
      reasoning.get_ref<std::string&>() += required_string(reader, "thinking");
    } else if (type == "tool_use") {
      check_role(reader, path, type, "assistant", ours);
      const Json* input = reader.object("input");
      if (!input) reader.fail("input", fmt::format("{}.input is missing", path));
      Json call{{"id", required_name(reader, "id")}, {"type", "function"}};
      call["function"] = {{"name", required_name(reader, "name")}, {"arguments", input ? input->dump() : "{}"}};
      ours["tool_calls"].push_back(std::move(call));
    } else if (type == "tool_result") {
      check_role(reader, path, type, "user", ours);
      std::string text = text_of(reader, "content", "\n").value_or("");
      if (reader.boolean("is_error").value_or(false)) text = error_text(std::move(text));
      Json result = message_of("tool", std::move(text));
      result["tool_call_id"] = required_name(reader, "tool_use_id");
      messages_.push_back(std::move(result));
    } else if (type != "redacted_thinking" && !reader.has_error()) {  // nobody but its maker reads that
      reader.fail(bad_request(path, fmt::format("{} is of type \"{}\": this model reads text, thinking, tool_use and "
                                                "tool_result",
                                                path, type.substr(0, 40))));
    }
    if (reader.has_error()) fields_.fail(reader.error());
  }

  static std::string required_string(FieldReader& reader, const char* name) {
    const std::optional<std::string> text = reader.string(name);
    if (!text) reader.fail(name, fmt::format("{} is missing", reader.path_of(name)));
    return text.value_or("");
  }
  static std::string required_name(FieldReader& reader, const char* name) {
    std::string text = required_string(reader, name);
    if (text.empty()) reader.fail(name, fmt::format("{} must not be empty", reader.path_of(name)));
    return text;
  }
  static void check_role(FieldReader& reader, const std::string& path, const std::string& type, const char* role,
                         const Json& ours) {
    if (ours["role"] == role) return;
    reader.fail("type", fmt::format("{} is a {}, which only the {}'s messages have", path, type, role));
  }

  FieldReader& fields_;
  Json& messages_;
};

void translate_tools(FieldReader& fields, Json& chat) {
  const Json* tools = fields.array("tools");
  if (tools) check_count(fields, "tools", *tools, kMaxTools);
  for (size_t i = 0; !fields.has_error() && tools && i < tools->size(); ++i) {
    const std::string path = fmt::format("tools[{}]", i);
    FieldReader tool((*tools)[i], path);
    const std::string type = tool.string("type").value_or("custom");
    Json function{{"name", tool.string("name").value_or("")}};
    if (const auto description = tool.string("description")) function["description"] = *description;
    if (const Json* schema = tool.object("input_schema")) function["parameters"] = *schema;
    if (tool.boolean("strict").value_or(false)) function["strict"] = true;
    if (!tool.has_error() && type != "custom") {
      tool.fail(
          not_supported(path, fmt::format("{} is of type {}: this server runs no tools", path, type.substr(0, 40))));
    }
    if (tool.has_error()) return fields.fail(tool.error());
    chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  const Json* choice = fields.object("tool_choice");
  if (!choice) return;
  FieldReader reader(*choice, "tool_choice");
  const std::string type = reader.string("type").value_or("");
  if (reader.boolean("disable_parallel_tool_use").value_or(false)) chat["parallel_tool_calls"] = false;
  if (type == "tool") {
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", reader.string("name").value_or("")}}}};
  } else if (type == "auto" || type == "none" || type == "any") {
    chat["tool_choice"] = type == "any" ? "required" : type;
  } else if (!reader.has_error()) {
    reader.fail("type",
                fmt::format("tool_choice.type must be auto, any, tool or none, got \"{}\"", type.substr(0, 40)));
  }
  if (reader.has_error()) fields.fail(reader.error());
}

void translate_thinking(FieldReader& fields, Json& chat) {
  const Json* thinking = fields.object("thinking");
  if (!thinking) return;
  FieldReader reader(*thinking, "thinking");
  const std::string type = reader.string("type").value_or("");
  if (!reader.has_error() && type != "enabled" && type != "disabled" && type != "adaptive") {
    reader.fail("type",
                fmt::format("thinking.type must be enabled, disabled or adaptive, got \"{}\"", type.substr(0, 40)));
  }
  const auto budget = reader.integer("budget_tokens", 0, INT32_MAX);
  reader.ignore({"display"});
  if (reader.has_error()) return fields.fail(reader.error());
  fields.adopt_unknown(reader);
  if (budget && type == "enabled") chat["thinking_token_budget"] = *budget;
  if (type != "adaptive") {
    chat["chat_template_kwargs"] = {{"enable_thinking", type == "enabled"}, {"thinking", type == "enabled"}};
  }
}

// What the request says itself wins over what `thinking` stands for.
void translate_template_kwargs(FieldReader& fields, Json& chat) {
  const Json* given = fields.object("chat_template_kwargs");
  if (!given) return;
  Json& kwargs = chat["chat_template_kwargs"];
  const Json thinking = std::exchange(kwargs, *given);
  for (const auto& [name, value] : thinking.items()) {
    if (!kwargs.contains(name)) kwargs[name] = value;
  }
}

void translate_format(FieldReader& fields, const Json& format, Json& chat) {
  FieldReader reader(format, "output_config.format");
  const std::string type = reader.string("type").value_or("");
  const Json* schema = reader.any("schema");
  if (!reader.has_error() && (type != "json_schema" || !schema)) {
    reader.fail("type", fmt::format("output_config.format must be of type json_schema with a schema, got \"{}\"",
                                    type.substr(0, 40)));
  }
  if (reader.has_error()) return fields.fail(reader.error());
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "output"}, {"schema", *schema}}}};
}

void translate_output(FieldReader& fields, Json& chat) {
  if (const Json* format = fields.object("output_format")) translate_format(fields, *format, chat);
  const Json* config = fields.object("output_config");
  if (!config) return;
  FieldReader reader(*config, "output_config");
  if (const auto effort = reader.string("effort")) chat["reasoning_effort"] = *effort;
  const Json* format = reader.object("format");
  if (reader.has_error()) return fields.fail(reader.error());
  fields.adopt_unknown(reader);
  if (format) translate_format(fields, *format, chat);
}

// What stays of earlier thinking is the chat template's to say, with these edits and without.
void check_context_edits(FieldReader& fields) {
  const Json* management = fields.object("context_management");
  if (!management) return;
  FieldReader reader(*management, "context_management");
  const Json* edits = reader.array("edits");
  for (size_t i = 0; edits && i < edits->size() && !reader.has_error(); ++i) {
    const std::string path = fmt::format("context_management.edits[{}]", i);
    FieldReader edit((*edits)[i], path);
    const std::string type = edit.string("type").value_or("");
    if (edit.has_error()) {
      reader.fail(edit.error());
    } else if (!type.starts_with("clear_thinking_")) {
      reader.fail(
          not_supported(path, fmt::format("{} is of type \"{}\": of context edits this server takes clear_thinking",
                                          path, type.substr(0, 40))));
    }
  }
  if (reader.has_error()) fields.fail(reader.error());
}

}  // namespace

ApiResult<ChatRequest> parse_messages_request(std::string_view body, const ParseLimits& limits, bool counts_only,
                                              Json* translated) {
  auto json = parse_json(body);
  if (!json.ok()) return json.error();
  FieldReader fields(**json, counts_only ? kCountTokensRequest : kMessagesRequest, limits);
  if (fields.has_error()) return fields.error();
  Json chat = Json::object(), messages = Json::array();
  if (const auto system = text_of(fields, "system", ""); system && !system->empty()) {
    messages.push_back(message_of("system", *system));
  }
  if (fields.has_error()) return fields.error();
  MessageTranslator translator(fields, messages);
  const Json& theirs = *fields.array("messages");
  check_count(fields, "messages", theirs, kMaxMessages);
  for (size_t i = 0; i < theirs.size() && !fields.has_error(); ++i) {
    translator.translate(theirs[i], fmt::format("messages[{}]", i));
  }
  // An answer that is begun is continued.
  if (!messages.empty() && messages.back()["role"] == "assistant") chat["continue_final_message"] = true;
  translate_tools(fields, chat);
  translate_thinking(fields, chat);
  translate_output(fields, chat);
  translate_template_kwargs(fields, chat);
  check_context_edits(fields);
  if (fields.has_error()) return fields.error();
  if (theirs.empty()) return bad_request("messages", "messages must have at least one message, got 0");
  chat["messages"] = std::move(messages);
  if (const Json* model = fields.any("model")) chat["model"] = *model;
  if (!counts_only) {
    for (const auto& [name, ours] : {std::pair{"temperature", "temperature"},
                                     {"top_p", "top_p"},
                                     {"top_k", "top_k"},
                                     {"stream", "stream"},
                                     {"stop_sequences", "stop"},
                                     {"max_tokens", "max_tokens"},
                                     {"cache_salt", "cache_salt"},
                                     {"speculate", "speculate"},
                                     {"relaxed_acceptance", "relaxed_acceptance"},
                                     {"speculative_reference", "speculative_reference"}}) {
      if (const Json* value = fields.any(name)) chat[ours] = *value;
    }
  }
  ApiResult<ChatRequest> request = read_chat_request(chat, limits);
  if (!request.ok()) return request;
  take_ignored_fields(fields, *request);
  // Clients of this API must send max_tokens and send what Anthropic's models can: 32,000 and more.
  request->caps_max_tokens = true;
  request->gathers_instructions = true;  // they put some between the turns
  if (translated) *translated = std::move(chat);
  return request;
}

}  // namespace spate
