// Structural tags to a grammar: free text, and where a tag begins, its content in a form and its end. Both shapes that
// vLLM takes:
//
//   {"structures": [{"begin": "<f=", "schema": {...}, "end": "</f>"}], "triggers": ["<f"]}
//   {"format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [{"begin", "content", "end"}]}}
//
// The first is the second with a json_schema as each content. Formats: const_string, json_schema, regex, any_text,
// sequence, or, optional, star, plus, tag, triggered_tags, tags_with_separator; another is refused by name.
//
// A trigger is a beginning of the `begin` of one tag at least. Free text has no trigger in it: where one stands, one of
// its tags follows. With at_least_one, triggered tags begin with a tag. Inside a tag, free text stops at the tag's end.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "grammar/json_schema.h"

namespace spate {

// Errors name the place: "at structures[0].begin: ...".
Result<Grammar> compile_structural_tag(const nlohmann::ordered_json& tag, const JsonGrammarOptions& options,
                                       CompileBudget& budget, const Expr& prefix = nullptr);

}  // namespace spate
