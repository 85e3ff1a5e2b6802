// Regular expressions to expressions. The subset of ECMA-262 (with the u flag) that describes a regular set of texts:
//
//   abc  .  [a-z]  [^a-z]  \d \D \w \W \s \S  \n \r \t \f \v \0  \xHH \uHHHH \u{H...} \cX  escaped punctuation
//   (x)  (?:x)  (?<name>x)  (?P<name>x)  x|y  x*  x+  x?  x{m}  x{m,}  x{m,n}, each also lazy (the same texts)
//   ^ at the beginning and $ at the end of an alternative; ^ also in a group that begins the pattern, $ also in one
//   that ends it
//   (?=x)  (?!x) where the rest of the pattern follows: outside groups, or in a group that ends the pattern
//
// Refused by name: look-ahead elsewhere, look-behind, back references, \b and \B, \p{...}, flags, possessive
// repetition, ^ and $ elsewhere.
#pragma once

#include <functional>
#include <string_view>

#include "base/status.h"
#include "grammar/compile_budget.h"
#include "grammar/expression.h"

namespace spate {

enum class RegexMatch : uint8_t {
  kWhole,     // the text is a match
  kAnywhere,  // the text contains a match: JSON Schema's `pattern`
};

// How a character of the set is written: expr_chars for plain text, json_string_chars inside a JSON string.
using CharWriter = std::function<Expr(const CodePointSet&)>;

// Errors name the byte: "regex: at 5: a back reference is not supported". Look-ahead takes work of `budget`; without
// one it is refused.
Result<Expr> parse_regex(std::string_view pattern, RegexMatch match, const CharWriter& writer = expr_chars,
                         CompileBudget* budget = nullptr);

}  // namespace spate
