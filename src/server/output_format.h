// How model families write reasoning and tool calls: one declaration each. ChatOutputParser reads by them,
// tool_grammar.h writes grammars from them. Which one a model has is seen from its chat template; --reasoning-parser
// and
// --tool-call-parser name another, by vLLM's names.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace spate {

struct ReasoningFormat {
  std::string_view names;  // of vLLM, separated by spaces; the first is ours
  std::string_view begin, end;
  std::string_view answer_begin, answer_end;  // around the content behind it; empty: nothing
  bool is_harmony = false;                    // channels: HarmonyParser reads reasoning, content and calls
  std::string_view template_mark;             // a template with this text has the format
};

enum class CallBody : uint8_t {
  kJsonObject,  // {"name": "f", "arguments": {...}}; "parameters" is read too
  kNamedJson,   // f<name_end>{...}
  kKeyValues,   // f<key_begin>k<key_end>...v<value_end>...<body_end>
  kPython,      // [f(a=1), g(b="x")]: all calls in one
};

struct ToolFormat {
  std::string_view names;  // of vLLM, separated by spaces; the first is ours
  CallBody body = CallBody::kJsonObject;
  std::string_view section_begin, section_end;  // around all calls; empty: none
  std::string_view call_begin, call_end;        // around one; empty call_end: the body knows its end
  std::string_view separator;                   // written between calls; its characters are skipped when read
  bool is_whole_answer = false;  // calls stand at the answer's beginning or nowhere, and call known functions only
  std::string_view arguments_key = "arguments";                 // kJsonObject, written
  std::string_view name_begin, name_suffix, name_end;           // kNamedJson: name_suffix (":0") is written and cut
  std::string_view arguments_end;                               // kNamedJson, written
  std::string_view key_begin, key_end, value_begin, value_end;  // kKeyValues
  // kKeyValues: closes what name_begin opened. A call may then stand without call_begin, if its function is known.
  std::string_view body_end;
  bool is_harmony = false;
  std::string_view template_marks[2] = {};  // a template with all of them has the format
};

std::span<const ReasoningFormat> reasoning_formats();
std::span<const ToolFormat> tool_formats();

// By the template; null: none. The name "" or "auto" asks for that, "none" for nothing, an unknown name is an error.
Result<const ReasoningFormat*> find_reasoning_format(std::string_view name, std::string_view template_source);
Result<const ToolFormat*> find_tool_format(std::string_view name, std::string_view template_source);
std::string first_name(std::string_view names);
// The format in which calls can be demanded by a grammar: `format`, or JSON where its syntax has no grammar.
const ToolFormat& writable_format(const ToolFormat& format);

}  // namespace spate
