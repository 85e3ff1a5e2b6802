#include "grammar/json_text.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "grammar/regex.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxExponent = 400;
constexpr int64_t kMaxMultiple = 1'000'000;
constexpr int64_t kMaxScaled = 1'000'000'000'000'000'000;

const CodePointSet kEscaped{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};

std::string escape_of(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  }
}

Expr regex_expr(std::string_view regex) { return parse_regex(regex, RegexMatch::kWhole).value(); }

Expr digits(int min, int max = kUnbounded) { return expr_repeat(expr_byte_range('0', '9'), min, max); }
Expr digit_range(char first, char last) {
  return first <= last ? expr_byte_range(static_cast<uint8_t>(first), static_cast<uint8_t>(last)) : expr_nothing();
}
Expr any_fraction() { return expr_optional(expr_sequence({expr_bytes("."), digits(1)})); }
Expr any_unsigned() {
  return expr_sequence(
      {expr_choice({expr_bytes("0"), expr_sequence({digit_range('1', '9'), digits(0)})}), any_fraction()});
}

// A fraction, point included, that is at least 0.f.
Expr fraction_at_least(const std::string& f, bool is_exclusive) {
  const Expr above_zero = expr_sequence({digits(0), digit_range('1', '9'), digits(0)});
  if (f.empty()) return is_exclusive ? expr_sequence({expr_bytes("."), above_zero}) : any_fraction();
  std::vector<Expr> choices;
  for (size_t i = 0; i < f.size(); ++i) {
    choices.push_back(
        expr_sequence({expr_bytes(f.substr(0, i)), digit_range(static_cast<char>(f[i] + 1), '9'), digits(0)}));
  }
  choices.push_back(expr_sequence({expr_bytes(f), is_exclusive ? above_zero : digits(0)}));
  return expr_sequence({expr_bytes("."), expr_choice(std::move(choices))});
}

Expr fraction_at_most(const std::string& f, bool is_exclusive) {
  const Expr zeros = expr_repeat(expr_bytes("0"), 0);
  if (f.empty()) {
    if (is_exclusive) return expr_nothing();
    return expr_optional(expr_sequence({expr_bytes(".0"), zeros}));
  }
  std::vector<Expr> choices;
  for (size_t i = 0; i < f.size(); ++i) {
    if (i > 0) choices.push_back(expr_bytes(f.substr(0, i)));
    choices.push_back(
        expr_sequence({expr_bytes(f.substr(0, i)), digit_range('0', static_cast<char>(f[i] - 1)), digits(0)}));
  }
  if (!is_exclusive) choices.push_back(expr_sequence({expr_bytes(f), zeros}));
  return expr_optional(expr_sequence({expr_bytes("."), expr_choice(std::move(choices))}));
}

// Numbers without a sign.
Expr unsigned_at_least(const Decimal& bound, bool is_exclusive) {
  const std::string& n = bound.integer;
  const int num_digits = static_cast<int>(n.size());
  std::vector<Expr> choices{expr_sequence({digit_range('1', '9'), digits(num_digits), any_fraction()})};
  for (int i = 0; i < num_digits; ++i) {
    const auto at = static_cast<size_t>(i);
    choices.push_back(expr_sequence({expr_bytes(n.substr(0, at)), digit_range(static_cast<char>(n[at] + 1), '9'),
                                     digits(num_digits - 1 - i, num_digits - 1 - i), any_fraction()}));
  }
  choices.push_back(expr_sequence({expr_bytes(n), fraction_at_least(bound.fraction, is_exclusive)}));
  return expr_choice(std::move(choices));
}

Expr unsigned_at_most(const Decimal& bound, bool is_exclusive) {
  const std::string& n = bound.integer;
  const int num_digits = static_cast<int>(n.size());
  std::vector<Expr> choices;
  if (num_digits > 1) {
    choices.push_back(expr_sequence({expr_bytes("0"), any_fraction()}));
    choices.push_back(expr_sequence({digit_range('1', '9'), digits(0, num_digits - 2), any_fraction()}));
  }
  for (int i = 0; i < num_digits; ++i) {
    const auto at = static_cast<size_t>(i);
    const char first = i == 0 && num_digits > 1 ? '1' : '0';
    choices.push_back(expr_sequence({expr_bytes(n.substr(0, at)), digit_range(first, static_cast<char>(n[at] - 1)),
                                     digits(num_digits - 1 - i, num_digits - 1 - i), any_fraction()}));
  }
  choices.push_back(expr_sequence({expr_bytes(n), fraction_at_most(bound.fraction, is_exclusive)}));
  return expr_choice(std::move(choices));
}

Expr negative(Expr magnitude) { return expr_sequence({expr_bytes("-"), std::move(magnitude)}); }

Expr at_least(const NumberBound& bound) {
  if (!bound.value.is_negative) return unsigned_at_least(bound.value, bound.is_exclusive);
  return expr_choice({any_unsigned(), negative(unsigned_at_most(bound.value, bound.is_exclusive))});
}

Expr at_most(const NumberBound& bound) {
  if (bound.value.is_negative) return negative(unsigned_at_least(bound.value, bound.is_exclusive));
  if (bound.value.is_zero() && bound.is_exclusive) return negative(unsigned_at_least(bound.value, true));
  return expr_choice({negative(any_unsigned()), unsigned_at_most(bound.value, bound.is_exclusive)});
}

// The multiple as a whole number of 10^-num_places.
struct ScaledMultiple {
  int64_t value = 0;
  int num_places = 0;
};
std::optional<ScaledMultiple> scaled(const Decimal& multiple) {
  const std::string text = multiple.integer + multiple.fraction;
  if (text.size() > 12) return std::nullopt;
  const ScaledMultiple result{std::stoll(text), static_cast<int>(multiple.fraction.size())};
  if (result.value <= 0 || result.value > kMaxMultiple) return std::nullopt;
  return result;
}

// Whether the number is a multiple: its digits are read from left to right, with the remainder at hand.
bool is_multiple(const Decimal& number, const ScaledMultiple& multiple) {
  if (number.fraction.size() > static_cast<size_t>(multiple.num_places)) return false;
  int64_t remainder = 0;
  const std::string text = number.integer + number.fraction;
  for (const char c : text) remainder = (remainder * 10 + (c - '0')) % multiple.value;
  for (size_t i = number.fraction.size(); i < static_cast<size_t>(multiple.num_places); ++i) {
    remainder = remainder * 10 % multiple.value;
  }
  return remainder == 0;
}

// States: the start, behind "-", "0" before the point, then (digits behind the point, remainder); the last block is
// behind the point with all places read, where zeros only may follow.
Result<ByteDfa> multiple_texts(const ScaledMultiple& multiple, CompileBudget& budget) {
  const int64_t modulus = multiple.value;
  const int num_places = multiple.num_places;
  if (!budget.spend(modulus * (num_places + 2) * 12)) return budget.error();
  constexpr uint32_t kStart = 0, kSign = 1, kZero = 2, kInteger = 3;
  const auto integer = [&](int64_t remainder) { return kInteger + static_cast<uint32_t>(remainder); };
  const auto fraction = [&](int place, int64_t remainder) {  // place digits read behind the point
    return kInteger + static_cast<uint32_t>(modulus * (1 + place) + remainder);
  };
  std::vector<ByteDfa::State> states(kInteger + static_cast<size_t>(modulus * (num_places + 2)) + 1);
  const auto tail_zeros = static_cast<uint32_t>(states.size() - 1);  // a multiple, then zeros
  const auto add = [&](uint32_t from, char byte, uint32_t to) {
    states[from].edges.push_back({static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), to});
  };
  const auto is_done = [&](int place, int64_t remainder) {
    for (int i = place; i < num_places; ++i) remainder = remainder * 10 % modulus;
    return remainder == 0;
  };
  add(kStart, '-', kSign);
  for (const uint32_t from : {kStart, kSign}) {
    add(from, '0', kZero);
    for (char c = '1'; c <= '9'; ++c) add(from, c, integer((c - '0') % modulus));
  }
  states[kZero].accepts = true;
  add(kZero, '.', fraction(0, 0));
  for (int64_t remainder = 0; remainder < modulus; ++remainder) {
    ByteDfa::State& state = states[integer(remainder)];
    state.accepts = is_done(0, remainder);
    add(integer(remainder), '.', fraction(0, remainder));
    for (char c = '0'; c <= '9'; ++c) add(integer(remainder), c, integer((remainder * 10 + (c - '0')) % modulus));
    for (int place = 0; place <= num_places; ++place) {
      const uint32_t from = fraction(place, remainder);
      states[from].accepts = place > 0 && is_done(place, remainder);
      if (place == num_places) {
        if (remainder == 0) add(from, '0', tail_zeros);
        continue;
      }
      for (char c = '0'; c <= '9'; ++c) add(from, c, fraction(place + 1, (remainder * 10 + (c - '0')) % modulus));
    }
  }
  states[tail_zeros].accepts = true;
  add(tail_zeros, '0', tail_zeros);
  return ByteDfa(std::move(states));
}

// What is a multiple of all of them is one of this. Nothing where that is too large.
std::optional<ScaledMultiple> common_multiple(std::span<const Decimal> multiples) {
  ScaledMultiple all{.value = 1};
  bool is_first = true;
  for (const Decimal& multiple : multiples) {
    std::optional<ScaledMultiple> next = scaled(multiple);
    if (!next) return std::nullopt;
    if (std::exchange(is_first, false)) {
      all = *next;
      continue;
    }
    for (; all.num_places < next->num_places; ++all.num_places) all.value *= 10;
    for (; next->num_places < all.num_places; ++next->num_places) next->value *= 10;
    // At most 10^6 * 10^12 each: the quotient below is looked at before the product.
    const int64_t factor = next->value / std::gcd(all.value, next->value);
    if (factor > kMaxScaled / all.value) return std::nullopt;
    all.value *= factor;
    for (; all.num_places > 0 && all.value % 10 == 0; --all.num_places) all.value /= 10;
  }
  if (all.value > kMaxMultiple) return std::nullopt;
  return all;
}

int compare_unsigned(const Decimal& a, const Decimal& b) {
  if (a.integer.size() != b.integer.size()) return a.integer.size() < b.integer.size() ? -1 : 1;
  if (const int order = a.integer.compare(b.integer); order != 0) return order;
  return a.fraction.compare(b.fraction);  // 0.25 before 0.3: as texts
}

}  // namespace

Expr json_string_chars(const CodePointSet& set) {
  std::vector<Expr> choices;
  const CodePointSet plain = set.without(kEscaped);
  if (!plain.empty()) choices.push_back(expr_chars(plain));
  const CodePointSet escaped = set.intersect(kEscaped);
  for (const CodePointRange& range : escaped.ranges()) {
    for (char32_t c = range.first; c <= range.last; ++c) choices.push_back(expr_bytes(escape_of(c)));
  }
  return expr_choice(std::move(choices));
}

Expr json_any_char() {
  static const Expr any =
      expr_choice({expr_chars(kEscaped.complement()),
                   regex_expr("\\\\([\"\\\\/bfnrt]|u([0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"
                              "[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2}))")});
  return any;
}

std::string json_value_text(const Json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    std::string out = "\"";
    for (size_t pos = 0; pos < text.size();) {
      const char32_t c = next_utf8_char(text, pos);
      if (kEscaped.contains(c)) {
        out += escape_of(c);
      } else {
        append_utf8_char(c, out);
      }
    }
    return out + '"';
  }
  if (value.is_array() || value.is_object()) {
    std::string out(1, value.is_array() ? '[' : '{');
    for (const auto& [key, item] : value.items()) {
      if (out.size() > 1) out += ',';
      if (value.is_object()) out += json_value_text(key) + ':';
      out += json_value_text(item);
    }
    return out + (value.is_array() ? ']' : '}');
  }
  return value.dump();
}

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.is_negative = true;
    text.remove_prefix(1);
  }
  std::string all_digits;
  int64_t point = -1, exponent = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '.') {
      point = static_cast<int64_t>(all_digits.size());
    } else if (text[i] == 'e' || text[i] == 'E') {
      const bool is_negative = text.substr(i + 1).starts_with('-');
      for (const char c : text.substr(i + 1)) {
        if (c >= '0' && c <= '9') exponent = std::min<int64_t>(exponent * 10 + (c - '0'), 100'000);
      }
      if (is_negative) exponent = -exponent;
      break;
    } else {
      all_digits += text[i];
    }
  }
  if (point < 0) point = static_cast<int64_t>(all_digits.size());
  point += exponent;
  if (point > kMaxExponent || point < -kMaxExponent || all_digits.size() > kMaxExponent) return std::nullopt;
  if (point <= 0) {
    all_digits.insert(0, static_cast<size_t>(1 - point), '0');
    point = 1;
  }
  if (static_cast<size_t>(point) > all_digits.size())
    all_digits.append(static_cast<size_t>(point) - all_digits.size(), '0');
  decimal.integer = all_digits.substr(0, static_cast<size_t>(point));
  decimal.fraction = all_digits.substr(static_cast<size_t>(point));
  decimal.integer.erase(0, std::min(decimal.integer.find_first_not_of('0'), decimal.integer.size() - 1));
  decimal.fraction.erase(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.is_zero()) decimal.is_negative = false;
  return decimal;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  return a.is_negative ? compare_unsigned(b, a) : compare_unsigned(a, b);
}

bool NumberRange::contains(const Decimal& value) const {
  if (integers_only && !value.fraction.empty()) return false;
  if (lower && compare(value, lower->value) < (lower->is_exclusive ? 1 : 0)) return false;
  if (upper && compare(value, upper->value) > (upper->is_exclusive ? -1 : 0)) return false;
  return std::ranges::all_of(multiples, [&](const Decimal& multiple) {
    const std::optional<ScaledMultiple> scale = scaled(multiple);
    return !scale || is_multiple(value, *scale);
  });
}

Result<ByteDfa> number_texts(const NumberRange& range, CompileBudget& budget) {
  const Expr syntax =
      range.integers_only ? json_integer() : expr_sequence({expr_optional(expr_bytes("-")), any_unsigned()});
  ASSIGN_OR_RETURN(ByteDfa texts, ByteDfa::of_expr(syntax, budget));
  const auto restrict_to = [&](const Expr& expr) -> Status {
    ASSIGN_OR_RETURN(const ByteDfa allowed, ByteDfa::of_expr(expr, budget));
    ASSIGN_OR_RETURN(texts, ByteDfa::intersection(texts, allowed, budget));
    return ok_status();
  };
  if (range.lower) RETURN_IF_ERROR(restrict_to(at_least(*range.lower)));
  if (range.upper) RETURN_IF_ERROR(restrict_to(at_most(*range.upper)));
  if (!range.multiples.empty()) {
    const std::optional<ScaledMultiple> multiple = common_multiple(range.multiples);
    if (!multiple) {
      return invalid_argument("multipleOf must be above 0 with at most 12 digits and, without its point, at most {}{}",
                              kMaxMultiple,
                              range.multiples.size() > 1 ? "; so must the least common one of several" : "");
    }
    ASSIGN_OR_RETURN(const ByteDfa allowed, multiple_texts(*multiple, budget));
    ASSIGN_OR_RETURN(texts, ByteDfa::intersection(texts, allowed, budget));
  }
  return texts;
}

Expr json_number() {
  static const Expr number = regex_expr("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+\\-]?[0-9]+)?");
  return number;
}

Expr json_integer() {
  static const Expr integer = regex_expr("-?(0|[1-9][0-9]*)");
  return integer;
}

// Not 0000, which the dates of many languages do not have.
#define SPATE_YEAR "(\\d{3}[1-9]|\\d{2}[1-9]\\d|\\d[1-9]\\d{2}|[1-9]\\d{3})"
#define SPATE_DATE                                                                                      \
  "(" SPATE_YEAR                                                                                        \
  "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))|" \
  "(\\d\\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
#define SPATE_TIME "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+\\-]([01]\\d|2[0-3]):[0-5]\\d)"
#define SPATE_HOST "[a-zA-Z0-9]([a-zA-Z0-9\\-]{0,61}[a-zA-Z0-9])?"
#define SPATE_OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define SPATE_IPV4 SPATE_OCTET "(\\." SPATE_OCTET "){3}"
#define SPATE_HEX "[0-9a-fA-F]{1,4}"
// The last of groups are two of hex digits or an IPv4 address.
#define SPATE_IPV6_END "(" SPATE_HEX ":" SPATE_HEX "|" SPATE_IPV4 ")"
#define SPATE_IPV6                                                                                                    \
  "((" SPATE_HEX ":){6}" SPATE_IPV6_END "|::(" SPATE_HEX ":){5}" SPATE_IPV6_END "|(" SPATE_HEX ")?::(" SPATE_HEX      \
  ":){4}" SPATE_IPV6_END "|((" SPATE_HEX ":){0,1}" SPATE_HEX ")?::(" SPATE_HEX ":){3}" SPATE_IPV6_END "|((" SPATE_HEX \
  ":){0,2}" SPATE_HEX ")?::(" SPATE_HEX ":){2}" SPATE_IPV6_END "|((" SPATE_HEX ":){0,3}" SPATE_HEX ")?::" SPATE_HEX   \
  ":" SPATE_IPV6_END "|((" SPATE_HEX ":){0,4}" SPATE_HEX ")?::" SPATE_IPV6_END "|((" SPATE_HEX ":){0,5}" SPATE_HEX    \
  ")?::" SPATE_HEX "|((" SPATE_HEX ":){0,6}" SPATE_HEX ")?::)"
// RFC 3986, by its names, without addresses in brackets: their states would be multiplied by those of a maxLength.
#define SPATE_URI_NAME "([a-zA-Z0-9\\-._~!$&'()*+,;=]|%[0-9a-fA-F]{2})"
#define SPATE_PCHAR "([a-zA-Z0-9\\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})"
#define SPATE_AUTHORITY "(([a-zA-Z0-9\\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{2})*@)?" SPATE_URI_NAME "*(:[0-9]*)?"
#define SPATE_PATH_REST "(/" SPATE_PCHAR "*)*"
#define SPATE_ROOTED "//" SPATE_AUTHORITY SPATE_PATH_REST "|/(" SPATE_PCHAR "+" SPATE_PATH_REST ")?"
#define SPATE_QUERY_FRAGMENT \
  "(\\?([a-zA-Z0-9\\-._~!$&'()*+,;=:@/?]|%[0-9a-fA-F]{2})*)?(#([a-zA-Z0-9\\-._~!$&'()*+,;=:@/?]|%[0-9a-fA-F]{2})*)?"
#define SPATE_URI \
  "[a-zA-Z][a-zA-Z0-9+.\\-]*:(" SPATE_ROOTED "|" SPATE_PCHAR "+" SPATE_PATH_REST ")?" SPATE_QUERY_FRAGMENT
// The first segment has no colon: it would be a scheme.
#define SPATE_RELATIVE \
  "(" SPATE_ROOTED "|([a-zA-Z0-9\\-._~!$&'()*+,;=@]|%[0-9a-fA-F]{2})+" SPATE_PATH_REST ")?" SPATE_QUERY_FRAGMENT
#define SPATE_POINTER "(/([^/~]|~[01])*)*"
#define SPATE_UUID(version) \
  "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-" version "[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
// RFC 6570: literals and {expressions}.
#define SPATE_VARIABLE "([a-zA-Z0-9_]|%[0-9a-fA-F]{2})+(:[1-9][0-9]{0,3}|\\*)?"
#define SPATE_TEMPLATE                                           \
  "([^\\x00-\\x20\\x7f-\\x9f\"'%<>\\\\\\^`{|}]|%[0-9a-fA-F]{2}|" \
  "\\{[+#./;?&=,!@|]?" SPATE_VARIABLE "(," SPATE_VARIABLE ")*\\})*"

std::optional<std::string_view> format_regex(std::string_view format) {
  static constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
      {"date", SPATE_DATE},
      {"time", SPATE_TIME},
      {"date-time", SPATE_DATE "T" SPATE_TIME},
      {"duration",
       "P(\\d+W|(\\d+Y(\\d+M(\\d+D)?)?|\\d+M(\\d+D)?|\\d+D)(T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))?|"
       "T(\\d+H(\\d+M(\\d+S)?)?|\\d+M(\\d+S)?|\\d+S))"},
      {"email", "[a-zA-Z0-9!#$%&'*+/=?\\^_`{|}~\\-]+(\\.[a-zA-Z0-9!#$%&'*+/=?\\^_`{|}~\\-]+)*@" SPATE_HOST
                "(\\." SPATE_HOST ")*"},
      {"hostname", SPATE_HOST "(\\." SPATE_HOST ")*"},
      {"ipv4", SPATE_IPV4},
      {"ipv6", SPATE_IPV6},
      {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
      {"uuid1", SPATE_UUID("1")},
      {"uuid3", SPATE_UUID("3")},
      {"uuid4", SPATE_UUID("4")},
      {"uuid5", SPATE_UUID("5")},
      {"uuid6", SPATE_UUID("6")},
      {"uuid7", SPATE_UUID("7")},
      {"uuid8", SPATE_UUID("8")},
      {"byte", "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"},
      {"ipvanyaddress", "(" SPATE_IPV4 ")|" SPATE_IPV6},
      {"uri-template", SPATE_TEMPLATE},
      {"uri", SPATE_URI},
      {"uri-reference", SPATE_URI "|" SPATE_RELATIVE},
      {"json-pointer", SPATE_POINTER},
      {"relative-json-pointer", "(0|[1-9]\\d*)(#|" SPATE_POINTER ")"},
  };
  for (const auto& [name, regex] : kFormats) {
    if (name == format) return regex;
  }
  static constexpr std::string_view kAnnotations[] = {"int32", "int64",  "uint32",   "uint64",
                                                      "float", "double", "password", "binary"};
  if (std::ranges::find(kAnnotations, format) != std::end(kAnnotations)) return "";
  return std::nullopt;
}

const NumberRange* format_range(std::string_view format) {
  static const auto* const kRanges = [] {
    const auto range = [](const char* low, const char* high) {
      return NumberRange{.integers_only = true,
                         .lower = NumberBound{*Decimal::parse(low)},
                         .upper = NumberBound{*Decimal::parse(high)}};
    };
    return new std::map<std::string, NumberRange, std::less<>>{
        {"int32", range("-2147483648", "2147483647")},
        {"uint32", range("0", "4294967295")},
        {"int64", range("-9223372036854775808", "9223372036854775807")},
        {"uint64", range("0", "18446744073709551615")}};
  }();
  const auto it = kRanges->find(format);
  return it == kRanges->end() ? nullptr : &it->second;
}

}  // namespace spate
