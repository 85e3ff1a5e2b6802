// JSON Schema (draft 2020-12, and what drafts 3 to 7 spell otherwise) to a grammar of the JSON texts that are valid.
//
// Every valid value has a text in the grammar, and every text of the grammar is valid. Of the texts of a value some are
// left out: members stand in the order in which the schema declares them, then those that it only requires, as it lists
// them, then those that it does not name; keys, enum values and strings under a pattern or format have one spelling
// (json_string_chars); numbers with bounds have no exponent (5e-1), integers no point; times have no second 60, emails
// no quoted name; dates begin with the year 1; a uri with a maxLength has at most 512 characters; white space is what
// ordinary texts have (kMaxBlanks, kMaxIndentation) and never around the whole.
//
// A keyword is in full effect or refused by name, with its place. Refused: contains, uniqueItems (with more than one
// item), unevaluated* beside other schemas, $dynamicRef, remote $ref, minProperties that undeclared keys must fill, a
// `oneOf` whose branches cannot be told apart, `not` and `if` of what has no simple opposite.
// Annotations and unknown keywords say nothing, as in the standard; of an unknown format the log says so once.
//
// Of drafts 3 to 7 and OpenAPI 3.0 are held: definitions, id, "#name" as an id, items as a list with additionalItems,
// dependencies, true and false as exclusive bounds, `required: true` in a member, and nullable: null beside the type,
// or beside all else where there is none. What stands beside a $ref holds too, which drafts 3 to 7 ignore.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "grammar/compile_budget.h"
#include "grammar/grammar.h"

namespace spate {

// A gap between two parts of a JSON text holds up to kMaxBlanks spaces or tabs, or one line end with up to
// kMaxIndentation of them behind it (eight levels by four). Models in doubt like to fill what is left of max_tokens
// with line ends.
constexpr int kMaxBlanks = 8;
constexpr int kMaxIndentation = 32;

struct JsonGrammarOptions {
  bool any_whitespace = true;                     // as above; false: one space behind , and : and no other
  std::optional<std::string> whitespace_pattern;  // a regex, instead
  bool default_additional_properties = true;      // where a schema with `properties` does not say
};

// Errors name the place: "json schema: at #/properties/name: minLength must be ...". With a prefix, every text begins
// with one of its texts.
Result<Grammar> compile_json_schema(const nlohmann::ordered_json& schema, const JsonGrammarOptions& options,
                                    CompileBudget& budget, const Expr& prefix = nullptr);

// The same as a part of a larger grammar: defines rules of `builder`; the expression allows the values.
Result<Expr> define_json_schema(GrammarBuilder& builder, const nlohmann::ordered_json& schema,
                                const JsonGrammarOptions& options, CompileBudget& budget);

}  // namespace spate
