// The texts of JSON values: strings as they are written, numbers within bounds, well-known formats.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/byte_dfa.h"
#include "grammar/compile_budget.h"
#include "grammar/expression.h"

namespace spate {

// One character of the set inside a JSON string, in one spelling: itself, or the escape that JSON demands for " \ and
// control characters (\n where there is a short one, else \u001f). What a pattern describes is written so.
Expr json_string_chars(const CodePointSet& set);
// One character in any spelling that JSON has: also \/ and é.
Expr json_any_char();
// The value on one line, without white space; strings in the spelling of json_string_chars.
std::string json_value_text(const nlohmann::ordered_json& value);

// A number as its decimal digits: (-1)^is_negative * digits / 10^num_fraction_digits. No leading zeros before the
// point.
struct Decimal {
  bool is_negative = false;
  std::string integer = "0";
  std::string fraction;  // without trailing zeros

  // Nothing for a number beyond 10^400.
  static std::optional<Decimal> parse(std::string_view text);
  bool is_zero() const { return integer == "0" && fraction.empty(); }
};
int compare(const Decimal& a, const Decimal& b);  // < 0, 0, > 0

struct NumberBound {
  Decimal value;
  bool is_exclusive = false;
};

struct NumberRange {
  bool integers_only = false;  // written without a point
  std::optional<NumberBound> lower, upper;
  std::vector<Decimal> multiples;  // the number is a multiple of each; above 0

  bool is_plain() const { return !lower && !upper && multiples.empty(); }
  bool contains(const Decimal& value) const;
};

// Every number of the range, written with digits and a point: no exponent, no leading zero.
Result<ByteDfa> number_texts(const NumberRange& range, CompileBudget& budget);
// Every number, also with an exponent.
Expr json_number();
Expr json_integer();

// The regular expression of a `format`; nothing for a name that is not known. Empty: the name says nothing about texts
// ("float", "password"). Narrower than the standards on purpose, as many programs that read such texts are: no second
// 60, no quoted part before the @ of an email.
std::optional<std::string_view> format_regex(std::string_view format);
// OpenAPI's int32, int64, uint32 and uint64: whole numbers with both bounds. Null: the format says nothing about
// numbers.
const NumberRange* format_range(std::string_view format);

}  // namespace spate
