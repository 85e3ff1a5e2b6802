// Filters that give a number, and Python's int() and float() of a text.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

Value filter_int(Runtime&, const Value& input, const Args& args) {
  const Bound bound("int", args, {"default", "base"}, 0);
  const Value fallback = bound.has(0) ? bound[0] : Value::integer(0);
  const int64_t base = bound.integer(1, 10);
  if (input.is_undefined()) fail("{}", input.undefined_message());
  if (input.is_integral()) return plus(input);
  double number = 0;
  if (input.is_string()) {
    int64_t value = 0;
    if (base != 0 && (base < 2 || base > 36)) fail("int() base must be >= 2 and <= 36, or 0");
    if (parse_int(input.text(), static_cast<int>(base), &value)) return Value::integer(value);
    if (!parse_float(input.text(), &number)) return fallback;
  } else if (input.is(Kind::kFloat)) {
    number = input.as_float();
  } else {
    return fallback;
  }
  if (!std::isfinite(number)) return fallback;
  if (std::abs(number) >= 9.2e18) fail("an integer does not fit into 64 bits");
  return Value::integer(static_cast<int64_t>(number));
}

Value filter_float(Runtime&, const Value& input, const Args& args) {
  const Bound bound("float", args, {"default"}, 0);
  const Value fallback = bound.has(0) ? bound[0] : Value::real(0);
  if (input.is_undefined()) fail("{}", input.undefined_message());
  if (input.is_number()) return Value::real(input.as_float());
  double number = 0;
  if (input.is_string() && parse_float(input.text(), &number)) return Value::real(number);
  return fallback;
}

Value filter_abs(Runtime&, const Value& input, const Args& args) {
  const Bound bound("abs", args, {}, 0);
  if (input.is(Kind::kFloat)) return Value::real(std::abs(input.as_float()));
  if (!input.is_integral()) fail("bad operand type for abs(): '{}'", type_name(input));
  return input.as_int() < 0 ? negate(input) : plus(input);
}

double round_half_even(double value, int64_t digits) {
  if (!std::isfinite(value)) return value;
  if (digits > 330) return value;
  if (digits < -330) return std::copysign(0.0, value);
  if (digits >= 0) {
    // glibc prints the exact binary value rounded half to even, as Python's round() does.
    char buffer[800];
    std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(digits), value);
    return std::strtod(buffer, nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(-digits));
  return std::nearbyint(value / scale) * scale;
}

int64_t round_int(int64_t value, int64_t digits) {
  if (digits >= 0) return value;
  if (digits < -18) return 0;
  int64_t scale = 1;
  for (int64_t i = digits; i < 0; ++i) scale *= 10;
  int64_t rest = value % scale;
  if (rest < 0) rest += scale;
  int64_t rounded = value - rest;
  if (rest * 2 > scale || (rest * 2 == scale && (rounded / scale) % 2 != 0)) rounded += scale;
  return rounded;
}

Value filter_round(Runtime&, const Value& input, const Args& args) {
  const Bound bound("round", args, {"precision", "method"}, 0);
  const int64_t precision = bound.integer(0, 0);
  const std::string method = bound.has(1) ? to_text(bound[1]) : "common";
  if (method != "common" && method != "ceil" && method != "floor") fail("method must be common, ceil or floor");
  if (!input.is_number()) fail("type {} doesn't define __round__ method", type_name(input));
  if (method == "common") {
    if (input.is_integral()) return Value::integer(round_int(input.as_int(), precision));
    return Value::real(round_half_even(input.as_float(), precision));
  }
  const Value scale = binary('^', Value::integer(10), Value::integer(precision));
  const Value scaled = binary('*', input, scale);
  if (!std::isfinite(scaled.as_float())) fail("cannot convert float infinity or NaN to integer");
  const double whole = method == "ceil" ? std::ceil(scaled.as_float()) : std::floor(scaled.as_float());
  if (std::abs(whole) >= 9.2e18) fail("an integer does not fit into 64 bits");
  return binary('/', scaled.is_integral() ? scaled : Value::integer(static_cast<int64_t>(whole)), scale);
}

Value filter_filesizeformat(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("filesizeformat", args, {"binary"}, 0);
  const bool is_binary = bound.flag(0, false);
  const double bytes = filter_float(runtime, input, Args{{Value::real(std::nan(""))}, {}}).as_float();
  if (!std::isfinite(bytes)) fail("could not convert the value to float: {}", repr(input));
  if (bytes == 1) return Value::string("1 Byte");
  const double base = is_binary ? 1024 : 1000;
  if (bytes < base) return Value::string(fmt::format("{} Bytes", static_cast<int64_t>(bytes)));
  double unit = base;
  char prefix = 'k';
  for (const char candidate : std::string_view("kMGTPEZY")) {
    prefix = candidate;
    unit *= base;
    if (bytes < unit) break;
  }
  if (is_binary && prefix == 'k') prefix = 'K';
  return Value::string(fmt::format("{:.1f} {}{}", base * bytes / unit, prefix, is_binary ? "iB" : "B"));
}

constexpr Builtin<FilterBody> kNumberFilters[] = {
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"round", filter_round},
    {"filesizeformat", filter_filesizeformat},
};

}  // namespace

bool parse_int(std::string_view text, int base, int64_t* value) {
  text = strip(text);
  bool negative = false;
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const auto prefix_base = [&] {
    if (text.size() < 2 || text[0] != '0') return 0;
    switch (text[1] | 0x20) {
      case 'x':
        return 16;
      case 'o':
        return 8;
      case 'b':
        return 2;
      default:
        return 0;
    }
  };
  const int prefix = prefix_base();
  if (prefix != 0 && (base == 0 || base == prefix)) {
    base = prefix;
    text.remove_prefix(2);
    if (!text.empty() && text[0] == '_') text.remove_prefix(1);
  } else if (base == 0) {
    base = 10;
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != std::string_view::npos) return false;
  }
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && (i == 0 || i + 1 == text.size() || text[i + 1] == '_')) return false;
    if (text[i] != '_') digits.push_back(text[i]);
  }
  if (digits.empty()) return false;
  uint64_t magnitude = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  if (end != digits.data() + digits.size() && error != std::errc::result_out_of_range) return false;
  if (error == std::errc::result_out_of_range || magnitude > static_cast<uint64_t>(INT64_MAX)) {
    if (end != digits.data() + digits.size()) return false;
    fail("an integer does not fit into 64 bits");
  }
  if (error != std::errc()) return false;
  *value = negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
  return true;
}

bool parse_float(std::string_view text, double* value) {
  text = strip(text);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_digit_at = [&](size_t k) { return k < text.size() && text[k] >= '0' && text[k] <= '9'; };
    if (text[i] == '_') {
      if (i == 0 || !is_digit_at(i - 1) || !is_digit_at(i + 1)) return false;
      continue;
    }
    digits.push_back(text[i]);
  }
  std::string_view number = digits;
  bool negative = false;
  if (!number.empty() && (number[0] == '+' || number[0] == '-')) {
    negative = number[0] == '-';
    number.remove_prefix(1);
  }
  if (number.empty() || number[0] == '+' || number[0] == '-') return false;
  const std::string lower = to_lower(number);
  if (lower == "inf" || lower == "infinity") {
    *value = negative ? -HUGE_VAL : HUGE_VAL;
    return true;
  }
  if (lower == "nan") {
    *value = std::nan("");
    return true;
  }
  if (number[0] != '.' && (number[0] < '0' || number[0] > '9')) return false;
  if (number.find_first_of("xX") != std::string_view::npos) return false;
  const std::string terminated(number);
  char* end = nullptr;
  const double result = std::strtod(terminated.c_str(), &end);  // out of range gives inf, as in Python
  if (end != terminated.c_str() + terminated.size()) return false;
  *value = negative ? -result : result;
  return true;
}

FilterBody find_number_filter(std::string_view name) { return find_builtin(kNumberFilters, name); }

}  // namespace spate::jinja
