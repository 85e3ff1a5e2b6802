#include "server/tool_grammar.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "grammar/free_text.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

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
    Expr calls = expr_sequence({first, options_.allows_many ? expr_repeat(next, 0) : expr_empty(), section_end()});
    const std::string opener = section_opener() + std::string(format_.call_begin);
    Expr root = expr_sequence({expr_bytes(opener), calls});
    if (!options_.is_required) {
      ASSIGN_OR_RETURN(root, beside_text(root, calls, opener));
    }
    const uint32_t root_rule = builder_.declare_rule("root");
    builder_.define_rule(root_rule, std::move(root));
    return builder_.finish(root_rule, budget_);
  }

 private:
  // What opens the calls; where a whole answer is calls nothing does.
  std::string section_opener() const {
    if (format_.is_whole_answer) return "";
    return std::string(format_.section_begin) + (format_.section_end == "]" ? "[" : "");
  }
  Expr section_end() const { return expr_bytes(format_.is_whole_answer ? "" : format_.section_end); }

  // Behind call_begin, one of the tools.
  Result<Expr> one_call() {
    const bool is_object = format_.body == CallBody::kJsonObject;
    const std::string line_end = is_object && !format_.call_end.empty() ? "\n" : "";
    std::vector<Expr> choices;
    for (size_t i = 0; i < tools_.size(); ++i) {
      const Json& function = tools_[i]["function"];
      const std::string name = function["name"].get<std::string>();
      const auto parameters = function.find("parameters");
      const bool has_schema = parameters != function.end() && parameters->is_object() && !parameters->empty();
      const Json schema = has_schema ? *parameters : Json{{"type", "object"}};
      Result<Expr> arguments = define_json_schema(builder_, schema, {}, budget_);
      if (!arguments.ok()) {
        return arguments.status().with_context(fmt::format("tools[{}].function.parameters", i));
      }
      std::string head;
      if (is_object) {
        head = fmt::format("{}{{\"name\": {}, \"{}\": ", line_end, Json(name).dump(), format_.arguments_key);
      } else {
        head =
            std::string(format_.name_begin) + name + std::string(format_.name_suffix) + std::string(format_.name_end);
      }
      const std::string tail =
          (is_object ? "}" + line_end : std::string(format_.arguments_end)) + std::string(format_.call_end);
      choices.push_back(expr_sequence({expr_bytes(head), *arguments, expr_bytes(tail)}));
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

}  // namespace spate
