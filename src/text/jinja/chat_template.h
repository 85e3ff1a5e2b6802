// The chat template of a model: messages of a request to the prompt's text.
//
// It renders what transformers' apply_chat_template would, after the same changes to the messages that vLLM makes:
// tool-call arguments given as JSON texts become objects, content in parts becomes one text unless the template reads
// parts. Parsed once at start-up, immutable, used by all front-end threads at once.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/jinja/template.h"

namespace spate {

// By name as in tokenizer_config.json: "bos_token" -> "<s>"; only those that the model has.
using SpecialTokens = std::map<std::string, std::string>;

// What a template knows about, found in its syntax tree.
struct ChatTemplateCaps {
  bool reads_content_parts = false;  // iterates over a message's content; else content is flattened to a text
  bool reads_null_content = false;   // asks whether content is none; else null becomes ""
  bool reads_tools = false;
  bool reads_documents = false;
  bool reads_enable_thinking = false;    // the switch: enable_thinking or thinking
  bool reads_reasoning_content = false;  // of earlier assistant messages
};

// Pointers may be null where a value may be absent; they are read during the call only.
struct ChatTemplateInput {
  const nlohmann::ordered_json* messages = nullptr;   // array of objects with "role"
  const nlohmann::ordered_json* tools = nullptr;      // array; empty counts as absent
  const nlohmann::ordered_json* documents = nullptr;  // array of objects
  const nlohmann::ordered_json* kwargs = nullptr;     // object: chat_template_kwargs (enable_thinking ...)
  bool add_generation_prompt = false;
  bool continue_final_message = false;  // the prompt ends inside the last message
  jinja::Clock clock;                   // of strftime_now; empty: the system's
};

class ChatTemplate {
 public:
  // invalid_argument "chat template line 12: unexpected '}'".
  static Result<ChatTemplate> parse(std::string source, SpecialTokens special_tokens);

  // All errors are invalid_argument: of the messages ("messages[2].role ..."), of the template
  // ("chat template line 12: 'x' is undefined"), or the text that the template gave to raise_exception().
  Result<std::string> render(const ChatTemplateInput& input, const jinja::Limits& limits = {}) const;

  const ChatTemplateCaps& caps() const { return caps_; }
  const std::string& source() const { return source_; }

 private:
  ChatTemplate(std::string source, SpecialTokens special_tokens, jinja::Template parsed);
  Result<std::string> render_messages(const ChatTemplateInput& input, const nlohmann::ordered_json& messages,
                                      const jinja::Limits& limits) const;

  std::string source_;
  SpecialTokens special_tokens_;
  jinja::Template template_;
  ChatTemplateCaps caps_;
};

}  // namespace spate
