#include "server/tool_grammar.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "grammar/free_text.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

// What opens the calls; a whole answer is calls and needs nothing around them.
std::string opener_of(const ToolFormat& format) {
  std::string opener;
  if (!format.is_whole_answer) {
    opener = std::string(format.section_begin) + (format.section_end == "]" ? "[" : "");
  }
  return opener + std::string(format.call_begin);
}
std::string section_end_of(const ToolFormat& format) {
  return format.is_whole_answer ? "" : std::string(format.section_end);
}

// A call behind call_begin: head, arguments, tail.
struct CallText {
  std::string head, tail;
  Json schema;  // of the arguments
};
CallText call_text(const Json& tool, const ToolFormat& format) {
  const Json& function = tool["function"];
  const std::string name = function["name"].get<std::string>();
  const auto parameters = function.find("parameters");
  const bool has_schema = parameters != function.end() && parameters->is_object() && !parameters->empty();
  CallText text{.schema = has_schema ? *parameters : Json{{"type", "object"}}};
  if (format.body == CallBody::kJsonObject) {
    const std::string line_end = format.call_end.empty() ? "" : "\n";
    text.head = fmt::format("{}{{\"name\": {}, \"{}\": ", line_end, Json(name).dump(), format.arguments_key);
    text.tail = "}" + line_end;
  } else {
    text.head = std::string(format.name_begin) + name + std::string(format.name_suffix) + std::string(format.name_end);
    text.tail = format.arguments_end;
  }
  text.tail += format.call_end;
  return text;
}

class ToolGrammarCompiler {
 public:
  ToolGrammarCompiler(const Json& tools, const ToolFormat& format, const ToolGrammarOptions& options,
                      CompileBudget& budget)
      : tools_(tools), format_(format), options_(options), budget_(budget) {}

  Result<Grammar> compile(const Expr& prefix) {
    builder_.set_prefix(prefix);
    ASSIGN_OR_RETURN(const Expr call, one_call());
    const uint32_t call_rule = builder_.declare_rule("call");
    builder_.define_rule(call_rule, call);
    const Expr first = expr_rule(call_rule);
    const Expr next = expr_sequence({expr_bytes(format_.separator), expr_bytes(format_.call_begin), first});
    Expr calls = expr_sequence(
        {first, options_.allows_many ? expr_repeat(next, 0) : expr_empty(), expr_bytes(section_end_of(format_))});
    const std::string opener = opener_of(format_);
    Expr root = expr_sequence({expr_bytes(opener), calls});
    if (!options_.is_required) {
      ASSIGN_OR_RETURN(root, beside_text(root, calls, opener));
    }
    const uint32_t root_rule = builder_.declare_rule("root");
    builder_.define_rule(root_rule, std::move(root));
    return builder_.finish(root_rule, budget_);
  }

 private:
  // Behind call_begin, one of the tools.
  Result<Expr> one_call() {
    std::vector<Expr> choices;
    for (size_t i = 0; i < tools_.size(); ++i) {
      const CallText text = call_text(tools_[i], format_);
      Result<Expr> arguments = define_json_schema(builder_, text.schema, {}, budget_);
      if (!arguments.ok()) {
        return arguments.status().with_context(fmt::format("tools[{}].function.parameters", i));
      }
      choices.push_back(expr_sequence({expr_bytes(text.head), *arguments, expr_bytes(text.tail)}));
    }
    return expr_choice(std::move(choices));
  }

  // Free text that does not begin a call, or calls behind free text.
  Result<Expr> beside_text(const Expr& root, const Expr& calls, const std::string& opener) {
    if (format_.is_whole_answer) {
      const Expr spaces = expr_repeat(expr_chars({{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}}), 0);
      ASSIGN_OR_RETURN(const Expr text,
                       difference(any_text(), expr_sequence({spaces, expr_bytes("{"), any_text()}), budget_));
      return expr_choice({root, text});
    }
    const Expr with_opener = expr_sequence({any_text(), expr_bytes(opener), any_text()});
    ASSIGN_OR_RETURN(const Expr text, difference(any_text(), with_opener, budget_));
    ASSIGN_OR_RETURN(const Expr text_before, text_up_to(opener, budget_));
    return expr_choice({text, expr_sequence({text_before, calls})});
  }

  const Json& tools_;
  const ToolFormat& format_;
  const ToolGrammarOptions& options_;
  CompileBudget& budget_;
  GrammarBuilder builder_;
};

}  // namespace

Result<Grammar> compile_tool_grammar(const Json& tools, const ToolFormat& format, const ToolGrammarOptions& options,
                                     CompileBudget& budget, const Expr& prefix) {
  return ToolGrammarCompiler(tools, format, options, budget).compile(prefix);
}

Result<Json> tool_structural_tag(const Json& tools, const ToolFormat& format, const ToolGrammarOptions& options,
                                 std::string_view reasoning_end) {
  const std::string opener = opener_of(format),
                    separator = std::string(format.separator) + std::string(format.call_begin);
  Json tags = Json::array();
  for (const Json& tool : tools) {
    CallText text = call_text(tool, format);
    tags.push_back({{"type", "tag"},
                    {"begin", std::move(text.head)},
                    {"content", {{"type", "json_schema"}, {"json_schema", std::move(text.schema)}}},
                    {"end", std::move(text.tail)}});
  }
  const auto constant = [](const std::string& value) { return Json{{"type", "const_string"}, {"value", value}}; };
  const Json calls{{"type", "tags_with_separator"},
                   {"tags", std::move(tags)},
                   {"separator", separator},
                   {"at_least_one", true},
                   {"stop_after_first", !options.allows_many}};
  Json elements = Json::array();
  if (!reasoning_end.empty()) {
    elements.push_back(
        {{"type", "tag"}, {"begin", ""}, {"content", {{"type", "any_text"}}}, {"end", std::string(reasoning_end)}});
    elements.push_back({{"type", "regex"}, {"pattern", "\\n{0,2}"}});
  }
  if (options.is_required) {
    for (Json each : {constant(opener), calls, constant(section_end_of(format))}) elements.push_back(std::move(each));
  } else if (format.is_whole_answer) {
    return unimplemented("calls that are whole answers beside free text have no structural tag");
  } else {
    const Json content{{"type", "sequence"}, {"elements", Json::array({calls, constant(section_end_of(format))})}};
    elements.push_back({{"type", "triggered_tags"},
                        {"triggers", Json::array({opener})},
                        {"tags", Json::array({{{"begin", opener}, {"content", content}, {"end", ""}}})},
                        {"stop_after_first", true}});
  }
  return Json{{"type", "structural_tag"}, {"format", {{"type", "sequence"}, {"elements", std::move(elements)}}}};
}

}  // namespace spate
