// The tool calls that a request demands, or those it allows beside free text, as a grammar in the model's own syntax.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

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

// The same as a structural tag, for a request that goes on elsewhere. reasoning_end: as in StructuredOutput. An error
// where no tag says it: free text beside calls that are whole answers.
Result<nlohmann::ordered_json> tool_structural_tag(const nlohmann::ordered_json& tools, const ToolFormat& format,
                                                   const ToolGrammarOptions& options, std::string_view reasoning_end);

}  // namespace spate
