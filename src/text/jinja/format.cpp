// Python's two ways of formatting: "%5.2f" % values and "{:>8}".format(values), with one number formatter below.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

struct Spec {
  std::string fill = " ";
  char align = 0;   // '<' '>' '^' '=' or 0: the default of the type
  char sign = '-';  // '-' '+' ' '
  bool alternate = false;
  bool zero = false;
  int64_t width = 0;
  char grouping = 0;  // ',' '_'
  int64_t precision = -1;
  char type = 0;
};

constexpr int64_t kMaxPrecision = 400;

// printf with a precision; "%.400f" of the largest double has 710 characters.
std::string print_float(const char* format, int64_t precision, double value) {
  char buffer[1024];
  const int size = std::snprintf(buffer, sizeof(buffer), format, static_cast<int>(precision), value);
  return std::string(buffer, static_cast<size_t>(std::clamp<int>(size, 0, sizeof(buffer) - 1)));
}

// The digits of a float without its sign, as format() writes them for types e f g n % and none.
std::string float_digits(double value, const Spec& spec) {
  const bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  value = std::abs(value);
  if (std::isnan(value)) return upper ? "NAN" : "nan";
  if (std::isinf(value)) return upper ? "INF" : "inf";
  if (spec.precision > kMaxPrecision) fail("precision too big");
  const int64_t precision = spec.precision < 0 ? 6 : spec.precision;
  switch (spec.type) {
    case 'e':
      return print_float(spec.alternate ? "%#.*e" : "%.*e", precision, value);
    case 'E':
      return print_float(spec.alternate ? "%#.*E" : "%.*E", precision, value);
    case 'f':
    case 'F':
      return print_float(spec.alternate ? "%#.*f" : "%.*f", precision, value);
    case 'g':
    case 'n':
      return print_float(spec.alternate ? "%#.*g" : "%.*g", precision == 0 ? 1 : precision, value);
    case 'G':
      return print_float(spec.alternate ? "%#.*G" : "%.*G", precision == 0 ? 1 : precision, value);
    case '%':
      return print_float(spec.alternate ? "%#.*f" : "%.*f", precision, value * 100) + "%";
    default:
      break;
  }
  if (spec.precision < 0) return repr_float(value);
  // No type but a precision: like g, but a point is kept, and exponents begin one digit earlier.
  std::string text = print_float("%.*g", precision == 0 ? 1 : precision, value);
  const size_t e = text.find('e');
  if (e == std::string::npos && text.find('.') == std::string::npos) {
    if (static_cast<int64_t>(text.size()) >= std::max<int64_t>(1, precision)) {
      text = print_float("%.*e", std::max<int64_t>(1, precision) - 1, value);
      const size_t exponent = text.find('e');
      std::string mantissa = text.substr(0, exponent);
      if (mantissa.find('.') != std::string::npos) {
        while (mantissa.back() == '0') mantissa.pop_back();
        if (mantissa.back() == '.') mantissa.pop_back();
      }
      return mantissa + text.substr(exponent);
    }
    text += ".0";
  }
  return text;
}

std::string int_digits(uint64_t value, int base, bool upper) {
  const std::string_view alphabet = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  const auto divisor = static_cast<uint64_t>(base);
  std::string digits;
  while (value >= divisor) {
    digits.push_back(alphabet[value % divisor]);
    value /= divisor;
  }
  digits.push_back(alphabet[value]);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

uint64_t magnitude(int64_t value) {
  return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

// Thousands separators in the digits before a point or exponent. Zeros are added up to min_width with them.
std::string group_digits(const std::string& number, char separator, size_t every, size_t min_width) {
  size_t whole = 0;
  while (whole < number.size() && std::isxdigit(static_cast<unsigned char>(number[whole])) != 0 &&
         !(every == 3 && (number[whole] == 'e' || number[whole] == 'E')))
    ++whole;
  std::string digits = number.substr(0, whole);
  const std::string rest = number.substr(whole);
  const auto grouped_size = [&](size_t n) { return n + (n == 0 ? 0 : (n - 1) / every); };
  while (grouped_size(digits.size()) + rest.size() < min_width) digits.insert(digits.begin(), '0');
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out + rest;
}

// sign, prefix (0x) and digits brought to the width.
std::string pad_number(bool negative, const std::string& prefix, std::string digits, const Spec& spec,
                       size_t group_every) {
  check_string_bytes(static_cast<size_t>(spec.width));
  std::string head = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  head += prefix;
  const char align = spec.align != 0 ? spec.align : spec.zero ? '=' : '>';
  const bool zero_fill = align == '=' && (spec.fill == "0" || spec.zero);
  if (spec.grouping != 0) {
    const size_t room =
        zero_fill && static_cast<size_t>(spec.width) > head.size() ? static_cast<size_t>(spec.width) - head.size() : 0;
    digits = group_digits(digits, spec.grouping, group_every, room);
  }
  const size_t size = head.size() + utf8_length(digits);
  if (static_cast<size_t>(spec.width) <= size) return head + digits;
  const size_t missing = static_cast<size_t>(spec.width) - size;
  const size_t left = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
  TextBuilder out;
  if (align == '=') out.append(head);
  for (size_t i = 0; i < left; ++i) out.append(spec.zero && spec.fill == " " ? "0" : spec.fill);
  if (align != '=') out.append(head);
  out.append(digits);
  for (size_t i = left; i < missing; ++i) out.append(spec.fill);
  return out.take();
}

std::string pad_text(std::string_view text, const Spec& spec) {
  if (spec.precision >= 0 && static_cast<size_t>(spec.precision) < utf8_length(text)) {
    text = text.substr(0, utf8_offset(text, static_cast<size_t>(spec.precision)));
  }
  check_string_bytes(static_cast<size_t>(spec.width));
  const size_t size = utf8_length(text);
  if (static_cast<size_t>(spec.width) <= size) return std::string(text);
  const size_t missing = static_cast<size_t>(spec.width) - size;
  const size_t left = spec.align == '>' ? missing : spec.align == '^' ? missing / 2 : 0;
  const std::string fill = spec.zero && spec.align == 0 ? "0" : spec.fill;
  TextBuilder out;
  for (size_t i = 0; i < left; ++i) out.append(fill);
  out.append(text);
  for (size_t i = left; i < missing; ++i) out.append(fill);
  return out.take();
}

int64_t parse_number(std::string_view text, size_t& pos) {
  int64_t value = 0;
  while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
    value = value * 10 + (text[pos++] - '0');
    if (value > INT32_MAX) fail("Too many decimal digits in format string");
  }
  return value;
}

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

// [[fill]align][sign][z][#][0][width][grouping][.precision][type]
Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t pos = 0;
  size_t after_fill = 0;
  if (!text.empty()) utf8_next(text, after_fill);
  if (!text.empty() && after_fill < text.size() && is_align(text[after_fill])) {
    spec.fill = std::string(text.substr(0, after_fill));
    spec.align = text[after_fill];
    pos = after_fill + 1;
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[0];
    pos = 1;
  }
  const auto at = [&](char c) { return pos < text.size() && text[pos] == c; };
  if (at('-') || at('+') || at(' ')) spec.sign = text[pos++];
  if (at('#')) {
    spec.alternate = true;
    ++pos;
  }
  if (at('0')) {
    spec.zero = true;
    ++pos;
  }
  spec.width = parse_number(text, pos);
  if (at(',') || at('_')) spec.grouping = text[pos++];
  if (at('.')) {
    ++pos;
    if (pos >= text.size() || text[pos] < '0' || text[pos] > '9') fail("Format specifier missing precision");
    spec.precision = parse_number(text, pos);
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos < text.size()) fail("Invalid format specifier");
  return spec;
}

std::string format_float(double value, const Spec& spec) {
  static constexpr std::string_view kTypes("eEfFgGn%\0", 9);
  if (kTypes.find(spec.type) == std::string_view::npos)
    fail("Unknown format code '{}' for object of type 'float'", spec.type);
  return pad_number(std::signbit(value) && !std::isnan(value), "", float_digits(value, spec), spec, 3);
}

std::string format_int(int64_t value, const Spec& spec) {
  const bool negative = value < 0;
  switch (spec.type) {
    case 'b':
    case 'o':
    case 'x':
    case 'X': {
      if (spec.precision >= 0) fail("Precision not allowed in integer format specifier");
      if (spec.grouping == ',') fail("Cannot specify ',' with '{}'.", spec.type);
      const int base = spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : 16;
      const std::string prefix = spec.alternate ? std::string("0") + spec.type : std::string();
      return pad_number(negative, prefix, int_digits(magnitude(value), base, spec.type == 'X'), spec, 4);
    }
    case 'c': {
      if (value < 0 || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) fail("%c arg not in range(0x110000)");
      std::string text;
      utf8_append(text, static_cast<char32_t>(value));
      return pad_text(text, spec);
    }
    case 'd':
    case 'n':
    case 0:
      if (spec.precision >= 0) fail("Precision not allowed in integer format specifier");
      return pad_number(negative, "", int_digits(magnitude(value), 10, false), spec, 3);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case '%':
      return format_float(static_cast<double>(value), spec);
    default:
      fail("Unknown format code '{}' for object of type 'int'", spec.type);
  }
}

// --- %

class PercentFormatter {
 public:
  PercentFormatter(const Value& format, const Value& args)
      : format_(format.text()), args_(args), markup_(format.is_markup()) {
    if (args.is(Kind::kTuple)) items_ = args.items();
  }

  Value run() {
    TextBuilder out;
    size_t pos = 0;
    while (pos < format_.size()) {
      const size_t percent = std::min(format_.find('%', pos), format_.size());
      out.append(format_.substr(pos, percent - pos));
      pos = percent;
      if (pos < format_.size()) {
        ++pos;
        out.append(directive(pos));
      }
    }
    // A list or dict given as the whole counts as used: Python sees a mapping in it.
    const bool is_mapping =
        args_.is(Kind::kDict) || args_.is(Kind::kList) || args_.is_undefined() || args_.is(Kind::kRange);
    if (num_used_ < (args_.is(Kind::kTuple) ? items_.size() : size_t{1}) && !is_mapping) {
      fail("not all arguments converted during string formatting");
    }
    return Value::string(out.take(), markup_);
  }

 private:
  char take(size_t& pos) const {
    if (pos >= format_.size()) fail("incomplete format");
    return format_[pos++];
  }

  Value next_item() {
    if (args_.is(Kind::kTuple)) {
      if (num_used_ >= items_.size()) fail("not enough arguments for format string");
      return items_[num_used_++];
    }
    if (num_used_ > 0) fail("not enough arguments for format string");
    ++num_used_;
    return args_;
  }

  int64_t number_or_star(size_t& pos) {
    if (pos < format_.size() && format_[pos] == '*') {
      ++pos;
      const Value value = next_item();
      if (!value.is_integral()) fail("* wants int");
      if (value.as_int() > INT32_MAX || value.as_int() < -INT32_MAX) fail("width too big");
      return value.as_int();
    }
    return parse_number(format_, pos);
  }

  std::string directive(size_t& pos) {
    Value keyed;
    if (pos < format_.size() && format_[pos] == '(') keyed = keyed_item(pos);
    Spec spec;
    bool left = false;
    for (; pos < format_.size() && std::string_view("-+ #0").find(format_[pos]) != std::string_view::npos; ++pos) {
      const char flag = format_[pos];
      if (flag == '-') left = true;
      if (flag == '+') spec.sign = '+';
      if (flag == ' ' && spec.sign != '+') spec.sign = ' ';
      if (flag == '#') spec.alternate = true;
      if (flag == '0') spec.zero = true;
    }
    spec.width = number_or_star(pos);
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    spec.align = left ? '<' : '>';
    if (pos < format_.size() && format_[pos] == '.') {
      ++pos;
      spec.precision = std::max<int64_t>(0, number_or_star(pos));
    }
    while (pos < format_.size() && (format_[pos] == 'l' || format_[pos] == 'h' || format_[pos] == 'L')) ++pos;
    spec.type = take(pos);
    if (spec.type == '%') return "%";
    const Value item = keyed.is_missing() ? next_item() : keyed;
    return convert(item, spec, left);
  }

  Value keyed_item(size_t& pos) {
    if (!args_.is(Kind::kDict)) fail("format requires a mapping");
    const size_t begin = ++pos;
    int depth = 1;
    while (pos < format_.size() && depth > 0) {
      if (format_[pos] == '(') ++depth;
      if (format_[pos] == ')') --depth;
      ++pos;
    }
    if (depth > 0) fail("incomplete format key");
    const std::string key(format_.substr(begin, pos - 1 - begin));
    const Value* value = args_.as_dict().find(key);
    if (value == nullptr) fail("{}", repr_string(key));
    num_used_ = 1;
    return *value;
  }

  std::string convert(const Value& item, Spec spec, bool left) const {
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        std::string text = spec.type == 's' ? to_text(item) : repr(item);
        if (markup_) text = escape_html(spec.type == 's' ? item : Value::string(text)).text();
        spec.zero = false;
        return pad_text(text, spec);
      }
      case 'c': {
        spec.zero = false;
        spec.precision = -1;
        if (item.is_string() && length(item) == 1) return pad_text(item.text(), spec);
        if (!item.is_integral()) fail("%c requires int or char");
        spec.type = 'c';
        return format_int(item.as_int(), spec);
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return convert_int(item, spec, left);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (item.is_undefined()) fail("{}", item.undefined_message());
        if (!item.is_number()) fail("must be real number, not {}", type_name(item));
        if (spec.zero && !left && std::isfinite(item.as_float())) spec.align = '=';
        if (spec.align != '=') spec.zero = false;
        return format_float(item.as_float(), spec);
      }
      default:
        fail("unsupported format character '{}'", spec.type);
    }
  }

  static std::string convert_int(const Value& item, Spec spec, bool left) {
    if (item.is_undefined()) fail("{}", item.undefined_message());
    const bool hex = spec.type == 'x' || spec.type == 'X' || spec.type == 'o';
    if (!item.is_number() || (hex && !item.is_integral()))
      fail("%{} format: a real number is required, not {}", spec.type, type_name(item));
    int64_t value = item.as_int();
    if (item.is(Kind::kFloat)) {
      if (!(std::abs(item.as_float()) < 9.2e18)) fail("cannot convert float to integer");
      value = static_cast<int64_t>(item.as_float());
    }
    const int base = spec.type == 'o' ? 8 : hex ? 16 : 10;
    std::string digits = int_digits(magnitude(value), base, spec.type == 'X');
    if (spec.precision > kMaxPrecision) fail("precision too big");
    if (spec.precision > static_cast<int64_t>(digits.size()))
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    const std::string prefix = spec.alternate && hex ? std::string("0") + spec.type : std::string();
    if (spec.zero && !left) spec.align = '=';
    if (spec.align != '=') spec.zero = false;
    return pad_number(value < 0, prefix, digits, spec, 3);
  }

  std::string_view format_;
  Value args_;
  bool markup_;
  std::vector<Value> items_;
  size_t num_used_ = 0;
};

// --- str.format

class BraceFormatter {
 public:
  BraceFormatter(const Args& args, bool markup) : args_(args), markup_(markup) {}

  std::string run(std::string_view format, int depth) {
    if (depth < 0) fail("Max string recursion exceeded");
    TextBuilder out;
    for (size_t pos = 0; pos < format.size();) {
      const size_t brace = std::min(format.find_first_of("{}", pos), format.size());
      out.append(format.substr(pos, brace - pos));
      pos = brace;
      if (pos >= format.size()) break;
      if (pos + 1 < format.size() && format[pos + 1] == format[pos]) {
        out.append(format.substr(pos, 1));
        pos += 2;
        continue;
      }
      if (format[pos] == '}') fail("Single '}}' encountered in format string");
      ++pos;
      out.append(field(format, pos, depth));
    }
    return out.take();
  }

 private:
  // {name!conversion:spec}, pos behind the brace; moves behind its end.
  std::string field(std::string_view format, size_t& pos, int depth) {
    const size_t begin = pos;
    int open = 1;
    for (; pos < format.size(); ++pos) {
      if (format[pos] == '{') ++open;
      if (format[pos] == '}' && --open == 0) break;
    }
    if (open != 0) fail("expected '}}' before end of string");
    const std::string_view body = format.substr(begin, pos - begin);
    ++pos;
    size_t name_end = 0;
    int brackets = 0;
    for (; name_end < body.size(); ++name_end) {
      if (body[name_end] == '[') ++brackets;
      if (body[name_end] == ']') --brackets;
      if (brackets <= 0 && (body[name_end] == '!' || body[name_end] == ':')) break;
    }
    Value value = lookup(body.substr(0, name_end));
    std::string_view rest = body.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) fail("expected ':' after conversion specifier");
      if (rest[1] == 's') {
        value = Value::string(to_text(value));
      } else if (rest[1] == 'r' || rest[1] == 'a') {
        value = Value::string(repr(value));
      } else {
        fail("Unknown conversion specifier {}", rest[1]);
      }
      rest = rest.substr(2);
    }
    const std::string spec = rest.empty() ? std::string() : run(rest.substr(1), depth - 1);
    std::string text = format_field(value, spec);
    return markup_ ? escape_html(value.is_markup() ? value : Value::string(std::move(text))).text() : text;
  }

  Value lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = first(std::string(name.substr(0, end)));
    for (size_t pos = end; pos < name.size();) {
      if (name[pos] == '.') {
        const size_t stop = std::min(name.find_first_of(".[", pos + 1), name.size());
        if (stop == pos + 1) fail("Empty attribute in format string");
        value = get_attribute(value, std::string(name.substr(pos + 1, stop - pos - 1)));
        pos = stop;
      } else if (name[pos] == '[') {
        const size_t stop = name.find(']', pos);
        if (stop == std::string_view::npos) fail("Missing ']' in format string");
        const std::string_view key = name.substr(pos + 1, stop - pos - 1);
        if (key.empty()) fail("Empty attribute in format string");
        value = get_item(value, is_number(key) ? Value::integer(to_index(key)) : Value::string(std::string(key)));
        pos = stop + 1;
      } else {
        fail("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  static bool is_number(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  }
  static int64_t to_index(std::string_view text) {
    size_t pos = 0;
    return parse_number(text, pos);
  }

  Value first(const std::string& name) {
    if (name.empty() || is_number(name)) {
      const bool automatic = name.empty();
      if (numbering_ != 0 && (numbering_ == 1) != automatic) {
        fail("cannot switch between manual field specification and automatic field numbering");
      }
      numbering_ = automatic ? 1 : 2;
      const size_t index = automatic ? next_++ : static_cast<size_t>(to_index(name));
      if (index >= args_.positional.size()) fail("Replacement index {} out of range for positional args tuple", index);
      return args_.positional[index];
    }
    for (const auto& [key, value] : args_.named) {
      if (key == name) return value;
    }
    fail("{}", repr_string(name));
  }

  const Args& args_;
  bool markup_;
  size_t next_ = 0;
  int numbering_ = 0;  // 0 not known yet, 1 automatic, 2 by number
};

}  // namespace

std::string format_field(const Value& value, std::string_view text) {
  if (text.empty()) return to_text(value);
  if (value.is_undefined() || !(value.is_string() || value.is_number())) {
    fail("unsupported format string passed to {}.__format__", type_name(value));
  }
  if (value.is_markup()) fail("Unsupported format specification for Markup.");
  Spec spec = parse_spec(text);
  if (value.is_string()) {
    if (spec.type != 0 && spec.type != 's') fail("Unknown format code '{}' for object of type 'str'", spec.type);
    if (spec.align == '=') fail("'=' alignment not allowed in string format specifier");
    if (spec.sign != '-' || spec.alternate || spec.grouping != 0) fail("Invalid format specifier for a text");
    return pad_text(value.text(), spec);
  }
  if (spec.type == 's') fail("Unknown format code 's' for object of type '{}'", type_name(value));
  if (value.is(Kind::kFloat)) return format_float(value.as_float(), spec);
  return format_int(value.as_int(), spec);
}

Value format_percent(const Value& format, const Value& args) { return PercentFormatter(format, args).run(); }

Value format_braces(Runtime&, const Value& format, const Args& args) {
  return Value::string(BraceFormatter(args, format.is_markup()).run(format.text(), 2), format.is_markup());
}

}  // namespace spate::jinja
