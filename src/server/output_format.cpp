#include "server/output_format.h"

namespace spate {
namespace {

// Special formats first: the first whose mark the template has is taken.
constexpr ReasoningFormat kReasoningFormats[] = {
    {.names = "openai_gptoss gpt_oss harmony", .is_harmony = true, .template_mark = "<|channel|>"},
    {.names = "mistral", .begin = "[THINK]", .end = "[/THINK]", .template_mark = "[/THINK]"},
    {.names = "ernie45 ernie_x1",
     .begin = "<think>",
     .end = "</think>",
     .answer_begin = "<response>",
     .answer_end = "</response>",
     .template_mark = "<response>"},
    {.names = "qwen3 deepseek_r1 deepseek_v3 deepseek_v31 glm45 kimi_k2 think",
     .begin = "<think>",
     .end = "</think>",
     .template_mark = "</think>"},
};

constexpr ToolFormat kToolFormats[] = {
    {.names = "openai gpt_oss harmony",
     .body = CallBody::kNamedJson,
     .call_begin = "<|channel|>commentary to=functions.",
     .name_end = " <|constrain|>json<|message|>",
     .is_harmony = true,
     .template_marks = {"<|channel|>"}},
    {.names = "kimi_k2",
     .body = CallBody::kNamedJson,
     .section_begin = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>",
     .call_begin = "<|tool_call_begin|>",
     .call_end = "<|tool_call_end|>",
     .name_begin = "functions.",
     .name_suffix = ":0",
     .name_end = "<|tool_call_argument_begin|>",
     .template_marks = {"<|tool_calls_section_begin|>"}},
    {.names = "deepseek_v3 deepseek_r1",
     .body = CallBody::kNamedJson,
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .call_begin = "<｜tool▁call▁begin｜>",
     .call_end = "<｜tool▁call▁end｜>",
     .separator = "\n",
     .name_begin = "function<｜tool▁sep｜>",
     .name_end = "\n```json\n",
     .arguments_end = "\n```",
     .template_marks = {"<｜tool▁calls▁begin｜>", "```json"}},
    {.names = "deepseek_v31",
     .body = CallBody::kNamedJson,
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .call_begin = "<｜tool▁call▁begin｜>",
     .call_end = "<｜tool▁call▁end｜>",
     .name_end = "<｜tool▁sep｜>",
     .template_marks = {"<｜tool▁calls▁begin｜>"}},
    {.names = "mistral",
     .body = CallBody::kNamedJson,
     .call_begin = "[TOOL_CALLS]",
     .name_end = "[ARGS]",
     .template_marks = {"[TOOL_CALLS]", "[ARGS]"}},
    {.names = "mistral",
     .section_begin = "[TOOL_CALLS]",
     .section_end = "]",
     .separator = ", ",
     .template_marks = {"[TOOL_CALLS]"}},
    {.names = "glm45",
     .body = CallBody::kKeyValues,
     .call_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .key_begin = "<arg_key>",
     .key_end = "</arg_key>",
     .value_begin = "<arg_value>",
     .value_end = "</arg_value>",
     .template_marks = {"<arg_key>"}},
    {.names = "qwen3_coder qwen3_xml",
     .body = CallBody::kKeyValues,
     .call_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .name_begin = "<function=",
     .name_end = ">",
     .key_begin = "<parameter=",
     .key_end = ">",
     .value_end = "</parameter>",
     .body_end = "</function>",
     .template_marks = {"<function=", "<parameter="}},
    {.names = "hermes qwen ernie45",
     .call_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .separator = "\n",
     .template_marks = {"<tool_call>"}},
    {.names = "pythonic llama4_pythonic",
     .body = CallBody::kPython,
     .section_begin = "<|python_start|>",
     .section_end = "<|python_end|>",
     .is_whole_answer = true,
     .template_marks = {"[func_name1(params_name1=params_value1"}},
    {.names = "llama3_json llama4_json json",
     .section_begin = "<|python_tag|>",
     .separator = "; ",
     .is_whole_answer = true,
     .arguments_key = "parameters",
     .template_marks = {"\"parameters\": dictionary"}},
};

bool is_in(std::string_view names, std::string_view name) {
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(' ', begin), names.size());
    if (names.substr(begin, end - begin) == name) return true;
    begin = end + 1;
  }
  return false;
}

bool fits(const ToolFormat& format, std::string_view source) {
  for (const std::string_view mark : format.template_marks) {
    if (source.find(mark) == std::string_view::npos) return false;
  }
  return true;
}

bool fits(const ReasoningFormat& format, std::string_view source) {
  return source.find(format.template_mark) != std::string_view::npos;
}

// "a b, c" to "a, b, c"
std::string with_commas(const std::string& names) {
  std::string text;
  for (const char c : names) text += c == ' ' && !text.ends_with(',') ? ", " : std::string(1, c);
  return text;
}

template <typename Format>
Result<const Format*> find_format(std::span<const Format> formats, const char* flag, std::string_view name,
                                  std::string_view source) {
  const bool is_auto = name.empty() || name == "auto";
  const Format* named = nullptr;
  if (name == "none") return named;
  std::string names;
  for (const Format& format : formats) {
    if (is_auto && fits(format, source)) return &format;
    if (!is_auto && is_in(format.names, name) && (named == nullptr || fits(format, source))) {
      named = &format;
      if (fits(format, source)) break;
    }
    if (!is_auto && !names.ends_with(format.names)) names += (names.empty() ? "" : ", ") + std::string(format.names);
  }
  if (!is_auto && named == nullptr) {
    return invalid_argument("{} {}: there is no such parser; use auto, none or one of: {}", flag, name,
                            with_commas(names));
  }
  return named;
}

}  // namespace

std::span<const ReasoningFormat> reasoning_formats() { return kReasoningFormats; }
std::span<const ToolFormat> tool_formats() { return kToolFormats; }

Result<const ReasoningFormat*> find_reasoning_format(std::string_view name, std::string_view template_source) {
  return find_format(reasoning_formats(), "--reasoning-parser", name, template_source);
}

Result<const ToolFormat*> find_tool_format(std::string_view name, std::string_view template_source) {
  return find_format(tool_formats(), "--tool-call-parser", name, template_source);
}

std::string first_name(std::string_view names) { return std::string(names.substr(0, names.find(' '))); }

const ToolFormat& writable_format(const ToolFormat& format) {
  const bool is_written = format.body == CallBody::kJsonObject || format.body == CallBody::kNamedJson;
  return is_written ? format : kToolFormats[std::size(kToolFormats) - 1];
}

}  // namespace spate
