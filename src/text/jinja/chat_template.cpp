#include "text/jinja/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "text/jinja/chat_template_caps.h"
#include "text/jinja/jinja_json.h"
#include "text/jinja/unicode.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

// Put behind the text to be continued and found again in the rendering. The space at its end shows whether the
// template trims texts.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

// Content in parts to one text, as vLLM does: text parts joined by newlines.
Result<Json> flatten_content(const Json& content, size_t message_idx) {
  std::string text;
  bool first = true;
  for (const Json& part : content) {
    if (part.is_string()) {
      text += (first ? "" : "\n") + part.get<std::string>();
    } else if (part.is_object() && part.contains("text") && part["text"].is_string()) {
      text += (first ? "" : "\n") + part["text"].get<std::string>();
    } else {
      return invalid_argument(
          "messages[{}].content has a part of type '{}', but this model's chat template takes text only", message_idx,
          part.is_object() && part.contains("type") && part["type"].is_string() ? part["type"].get<std::string>()
                                                                                : "?");
    }
    first = false;
  }
  return Json(std::move(text));
}

// Tool-call arguments as objects; `*parsed_any` tells whether one was a text.
Status parse_tool_arguments(Json& message, size_t message_idx, bool* parsed_any) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return ok_status();
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    const auto arguments = call["function"].find("arguments");
    if (arguments == call["function"].end() || !arguments->is_string()) continue;
    const std::string& text = arguments->get_ref<const std::string&>();
    Json parsed = text.empty() ? Json::object() : Json::parse(text, nullptr, false);
    if (parsed.is_discarded()) {
      return invalid_argument("messages[{}].tool_calls[{}].function.arguments is not valid JSON", message_idx, i);
    }
    *arguments = std::move(parsed);
    *parsed_any = true;
  }
  return ok_status();
}

constexpr const char* kReasoningFields[] = {"reasoning_content", "thinking", "reasoning"};

// Reasoning comes under several names: each template finds its own.
void alias_reasoning(Json& message) {
  for (const char* field : kReasoningFields) {
    const auto it = message.find(field);
    if (it == message.end() || it->is_null()) continue;
    const Json reasoning = *it;
    if (!message.contains("thinking")) {
      Json with_alias = Json::object();
      with_alias["thinking"] = reasoning;
      for (const auto& [key, value] : message.items()) with_alias[key] = value;
      message = std::move(with_alias);
    }
    message["reasoning_content"] = reasoning;
    return;
  }
}

// The last text of the final message with the tag behind it; gives the text as it was.
Result<std::string> tag_final_message(Json& messages) {
  if (messages.empty()) return invalid_argument("continue_final_message is set but there are no messages");
  Json& message = messages.back();
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    return invalid_argument("continue_final_message is set but the final message has no content to continue");
  }
  Json* text = nullptr;
  if (content->is_string()) {
    text = &*content;
  } else if (content->is_array()) {
    for (auto part = content->rbegin(); part != content->rend() && text == nullptr; ++part) {
      if (part->is_object() && part->contains("text") && (*part)["text"].is_string()) text = &(*part)["text"];
    }
  }
  if (text == nullptr)
    return invalid_argument("continue_final_message is set but the final message has no text to continue");
  std::string original = text->get<std::string>();
  *text = original + std::string(kContinueTag);
  return original;
}

// The rendering up to where the text to be continued ends.
Result<std::string> cut_at_tag(const std::string& rendered, const std::string& final_text) {
  const std::string_view tag = jinja::strip(kContinueTag);
  const size_t at = rendered.rfind(tag);
  if (at == std::string::npos || rendered.find(jinja::strip(final_text)) == std::string::npos) {
    return invalid_argument(
        "continue_final_message is set but the final message does not appear in the prompt: this model's chat "
        "template changes or drops it");
  }
  if (std::string_view(rendered).substr(at).starts_with(kContinueTag)) return rendered.substr(0, at);
  return std::string(jinja::strip_right(std::string_view(rendered).substr(0, at)));  // the template trims texts
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, SpecialTokens special_tokens, jinja::Template parsed)
    : source_(std::move(source)), special_tokens_(std::move(special_tokens)), template_(std::move(parsed)) {
  caps_ = find_caps(template_);
}

Result<ChatTemplate> ChatTemplate::parse(std::string source, SpecialTokens special_tokens) {
  Result<jinja::Template> parsed = jinja::Template::parse(source);
  if (!parsed.ok()) return invalid_argument("chat template {}", parsed.status().message());
  return ChatTemplate(std::move(source), std::move(special_tokens), std::move(parsed).value());
}

Result<std::string> ChatTemplate::render(const ChatTemplateInput& input, const jinja::Limits& limits) const {
  if (input.messages == nullptr || !input.messages->is_array()) return invalid_argument("messages must be an array");
  if (input.continue_final_message && input.add_generation_prompt) {
    return invalid_argument(
        "continue_final_message and add_generation_prompt exclude each other: the prompt ends either inside the final "
        "message or after it");
  }
  Json messages = *input.messages;
  Json with_argument_texts;
  bool parsed_any = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    if (!message.is_object() || !message.contains("role")) {
      return invalid_argument("messages[{}] must be an object with a role", i);
    }
    const auto content = message.find("content");
    if (content != message.end() && content->is_array() && !caps_.reads_content_parts) {
      ASSIGN_OR_RETURN(*content, flatten_content(*content, i));
    }
    const bool is_assistant = message["role"] == "assistant";
    if (is_assistant && (content == message.end() || content->is_null())) {
      message["content"] = caps_.reads_null_content ? Json(nullptr) : Json("");
    }
    alias_reasoning(message);
  }
  std::string final_text;
  if (input.continue_final_message) {
    ASSIGN_OR_RETURN(final_text, tag_final_message(messages));
  }
  const Json unparsed = messages;
  for (size_t i = 0; i < messages.size(); ++i) RETURN_IF_ERROR(parse_tool_arguments(messages[i], i, &parsed_any));

  Result<std::string> rendered = render_messages(input, messages, limits);
  if (!rendered.ok() && parsed_any) {
    // Some templates (DeepSeek-V3's own) join the arguments to other texts: they need them as they came.
    Result<std::string> retried = render_messages(input, unparsed, limits);
    if (retried.ok()) rendered = std::move(retried);
  }
  if (!rendered.ok() || !input.continue_final_message) return rendered;
  return cut_at_tag(*rendered, final_text);
}

Result<std::string> ChatTemplate::render_messages(const ChatTemplateInput& input, const Json& messages,
                                                  const jinja::Limits& limits) const {
  jinja::Value context;
  try {
    jinja::DictBuilder variables;
    for (const auto& [name, token] : special_tokens_) variables.set(name, jinja::Value::string(token));
    variables.set("messages", jinja::from_json(messages));
    const bool has_tools = input.tools != nullptr && !input.tools->empty();
    variables.set("tools", has_tools ? jinja::from_json(*input.tools) : jinja::Value::none());
    variables.set("documents", input.documents != nullptr ? jinja::from_json(*input.documents) : jinja::Value::none());
    variables.set("add_generation_prompt", jinja::Value::boolean(input.add_generation_prompt));
    if (input.kwargs != nullptr && !input.kwargs->is_null()) {
      if (!input.kwargs->is_object()) return invalid_argument("chat_template_kwargs must be an object");
      for (const auto& [name, value] : input.kwargs->items()) {
        if (name == "messages" || name == "tools" || name == "documents" || name == "add_generation_prompt") {
          return invalid_argument("chat_template_kwargs: '{}' has a field of its own in the request", name);
        }
        variables.set(name, jinja::from_json(value));
      }
    }
    context = variables.finish();
  } catch (const jinja::Error& error) {
    return invalid_argument("messages: {}", error.what());
  }
  Result<std::string> rendered =
      template_.render(context, input.clock ? input.clock : jinja::Clock(jinja::system_strftime), limits);
  if (!rendered.ok() && rendered.status().message().starts_with("line ")) {
    return invalid_argument("chat template {}", rendered.status().message());
  }
  return rendered;
}

}  // namespace spate
