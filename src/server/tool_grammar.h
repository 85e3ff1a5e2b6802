// The tool calls that a request demands, or those it allows beside free text, as a grammar in the model's own syntax.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "grammar/json_schema.h"
#include "server/output_format.h"

namespace spate {

struct ToolGrammarOptions {
  bool is_required = true;   // false: any text, and when it begins a call, that is one of the tools'
  bool allows_many = false;  // more than one call
};

// `tools` as in the request, those that may be called; `format` is a writable_format(). Errors name the tool.
Result<Grammar> compile_tool_grammar(const nlohmann::ordered_json& tools, const ToolFormat& format,
                                     const ToolGrammarOptions& options, CompileBudget& budget, const Expr& prefix);

}  // namespace spate
