// Filters that give a text or a number.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

// markupsafe.soft_str: a text as it is, anything else as str() gives it.
Value soft_text(const Value& value) { return value.is_string() ? value : Value::string(to_text(value)); }

// Calls the str method of this name on soft_str(input).
Value call_method(Runtime& runtime, const char* name, const Value& input, const Args& args) {
  return find_string_method(name)(runtime, soft_text(input), args);
}

Value filter_upper(Runtime& runtime, const Value& input, const Args& args) { return call_method(runtime, "upper", input, args); }
Value filter_lower(Runtime& runtime, const Value& input, const Args& args) { return call_method(runtime, "lower", input, args); }
Value filter_capitalize(Runtime& runtime, const Value& input, const Args& args) {
  return call_method(runtime, "capitalize", input, args);
}
Value filter_string(Runtime&, const Value& input, const Args& args) {
  const Bound bound("string", args, {}, 0);
  return soft_text(input);
}

Value filter_trim(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("trim", args, {"chars"}, 0);
  Args chars;
  if (bound.has(0)) chars.positional.push_back(bound[0]);
  return call_method(runtime, "strip", input, chars);
}

Value filter_center(Runtime& runtime, const Value& input, const Args& args) {
  const Bound bound("center", args, {"width"}, 0);
  return call_method(runtime, "center", input, Args{{Value::integer(bound.integer(0, 80))}, {}});
}

Value filter_title(Runtime&, const Value& input, const Args& args) {
  const Bound bound("title", args, {}, 0);
  // Words begin after white space and after opening brackets, not after every character that is no letter.
  const Value text = soft_text(input);
  const std::u32string wide = utf8_to_u32(text.text());
  charge_steps(static_cast<int64_t>(wide.size() / 8));
  constexpr std::u32string_view kBeginners = U"-({[<";
  const auto begins = [&](char32_t c) { return is_space(c) || kBeginners.find(c) != std::u32string_view::npos; };
  std::string out;
  for (size_t i = 0; i < wide.size();) {
    size_t end = i;
    while (end < wide.size() && begins(wide[end]) == begins(wide[i])) ++end;
    const std::string word = utf8_from_u32(std::u32string_view(wide).substr(i, end - i));
    const size_t first = utf8_offset(word, 1);
    out += to_upper(std::string_view(word).substr(0, first)) + to_lower(std::string_view(word).substr(first));
    i = end;
  }
  return Value::string(std::move(out));
}

Value filter_replace(Runtime&, const Value& input, const Args& args) {
  const Bound bound("replace", args, {"old", "new", "count"}, 2);
  const int64_t count = bound.has(2) && bound[2].is_none() ? -1 : bound.integer(2, -1);
  return Value::string(replace_text(to_text(input), to_text(bound[0]), to_text(bound[1]), count));
}

Value filter_format(Runtime&, const Value& input, const Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    fail("can't handle positional and keyword arguments at the same time");
  }
  if (args.named.empty()) return format_percent(soft_text(input), Value::tuple(args.positional));
  DictBuilder dict;
  for (const auto& [name, value] : args.named) dict.set(name, value);
  return format_percent(soft_text(input), dict.finish());
}

Value filter_indent(Runtime&, const Value& input, const Args& args) {
  const Bound bound("indent", args, {"width", "first", "blank"}, 0);
  if (input.is_undefined()) fail("{}", input.undefined_message());
  if (!input.is_string()) fail("indent: a text is needed, not {}", type_name(input));
  std::string indention = "    ";
  if (bound.has(0) && bound[0].is_string()) {
    indention = bound[0].text();
  } else {
    const int64_t width = bound.integer(0, 4);
    check_string_bytes(static_cast<size_t>(std::max<int64_t>(0, width)));
    indention.assign(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
  }
  const bool blank = bound.flag(2, false);
  const std::string text = input.text() + "\n";
  TextBuilder out;
  if (bound.flag(1, false)) out.append(indention);
  bool first = true;
  for (const std::string_view line : split_lines(text, false)) {
    if (!first) {
      out.append("\n");
      if (blank || !line.empty()) out.append(indention);
    }
    first = false;
    out.append(line);
  }
  return Value::string(out.take(), input.is_markup());
}

Value filter_truncate(Runtime&, const Value& input, const Args& args) {
  const Bound bound("truncate", args, {"length", "killwords", "end", "leeway"}, 0);
  const int64_t max_length = bound.integer(0, 255);
  const std::string end = bound.has(2) ? bound.text(2) : "...";
  const int64_t leeway = bound.has(3) && !bound[3].is_none() ? bound.integer(3, 5) : 5;
  const auto end_length = static_cast<int64_t>(utf8_length(end));
  if (max_length < end_length) fail("expected length >= {}, got {}", end_length, max_length);
  if (leeway < 0) fail("expected leeway >= 0, got {}", leeway);
  if (length(input) - leeway <= max_length) return input;
  if (!input.is_string()) fail("truncate: a text is needed, not {}", type_name(input));
  const std::string_view head = std::string_view(input.text()).substr(0, utf8_offset(input.text(), static_cast<size_t>(max_length - end_length)));
  if (bound.flag(1, false)) return Value::string(std::string(head) + end);
  return Value::string(std::string(head.substr(0, head.rfind(' '))) + end);
}

Value filter_wordcount(Runtime&, const Value& input, const Args& args) {
  const Bound bound("wordcount", args, {}, 0);
  const std::string text = to_text(input);
  int64_t count = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const bool word = is_word(utf8_next(text, pos));
    if (word && !in_word) ++count;
    in_word = word;
  }
  return Value::integer(count);
}

// --- wordwrap: textwrap.wrap of every line

bool is_wrap_space(char32_t c) { return c == ' ' || (c >= 9 && c <= 13); }
bool is_letter(char32_t c) { return is_word(c) && !is_decimal(c); }
bool is_word_punctuation(char32_t c) { return is_word(c) || U"!\"'&.,?"[0] == c || c == '"' || c == '\'' || c == '&' || c == '.' || c == ',' || c == '?'; }

// The pieces between which a line may be broken: spaces, words, the parts of hyphenated words, dashes.
std::vector<std::u32string_view> wrap_chunks(std::u32string_view text, bool break_on_hyphens) {
  std::vector<std::u32string_view> chunks;
  const auto at = [&](size_t i) { return i < text.size() ? text[i] : U'\0'; };
  const auto dashes_end = [&](size_t i) {
    while (at(i) == '-') ++i;
    return i;
  };
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    if (is_wrap_space(text[i])) {
      while (end < text.size() && is_wrap_space(text[end])) ++end;
    } else if (!break_on_hyphens) {
      while (end < text.size() && !is_wrap_space(text[end])) ++end;
    } else if (i > 0 && is_word_punctuation(text[i - 1]) && dashes_end(i) >= i + 2 && is_word(at(dashes_end(i)))) {
      end = dashes_end(i);
    } else {
      for (end = i + 1;; ++end) {
        if (end >= text.size() || is_wrap_space(text[end])) break;
        const bool after_letters = (end >= 2 && is_letter(text[end - 1]) && is_letter(text[end - 2])) ||
                                   (end >= 3 && is_letter(text[end - 1]) && text[end - 2] == '-' && is_letter(text[end - 3]));
        const bool before_letters = is_letter(at(end + 1)) && (is_letter(at(end + 2)) || (at(end + 2) == '-' && is_letter(at(end + 3))));
        if (text[end] == '-' && after_letters && before_letters) {
          ++end;
          break;
        }
        if (is_word_punctuation(text[end - 1]) && dashes_end(end) >= end + 2 && is_word(at(dashes_end(end)))) break;
      }
    }
    chunks.push_back(text.substr(i, end - i));
    i = end;
  }
  return chunks;
}

std::vector<std::string> wrap_line(std::string_view line, size_t width, bool break_long_words, bool break_on_hyphens) {
  const std::u32string wide = utf8_to_u32(line);
  std::vector<std::u32string_view> chunks = wrap_chunks(wide, break_on_hyphens);
  std::reverse(chunks.begin(), chunks.end());
  const auto is_blank = [](std::u32string_view chunk) { return std::all_of(chunk.begin(), chunk.end(), is_space); };
  std::vector<std::string> lines;
  while (!chunks.empty()) {
    charge_steps(1);
    std::vector<std::u32string_view> current;
    size_t size = 0;
    if (is_blank(chunks.back()) && !lines.empty()) chunks.pop_back();
    while (!chunks.empty() && size + chunks.back().size() <= width) {
      size += chunks.back().size();
      current.push_back(chunks.back());
      chunks.pop_back();
    }
    if (!chunks.empty() && chunks.back().size() > width) {
      if (break_long_words) {
        const size_t room = width - size;
        size_t cut = room;
        if (break_on_hyphens && chunks.back().size() > room) {
          const size_t hyphen = chunks.back().substr(0, room).rfind(U'-');
          if (hyphen != std::u32string_view::npos && hyphen > 0 &&
              std::any_of(chunks.back().begin(), chunks.back().begin() + static_cast<long>(hyphen), [](char32_t c) { return c != '-'; })) {
            cut = hyphen + 1;
          }
        }
        current.push_back(chunks.back().substr(0, cut));
        chunks.back() = chunks.back().substr(cut);
      } else if (current.empty()) {
        current.push_back(chunks.back());
        chunks.pop_back();
      }
    }
    if (!current.empty() && is_blank(current.back())) current.pop_back();
    if (current.empty()) continue;
    std::string text;
    for (const std::u32string_view chunk : current) text += utf8_from_u32(chunk);
    lines.push_back(std::move(text));
  }
  return lines;
}

Value filter_wordwrap(Runtime&, const Value& input, const Args& args) {
  const Bound bound("wordwrap", args, {"width", "break_long_words", "wrapstring", "break_on_hyphens"}, 0);
  const int64_t width = bound.integer(0, 79);
  const std::string wrap = bound.has(2) && !bound[2].is_none() ? bound.text(2) : "\n";
  if (!input.is_string()) fail("wordwrap: a text is needed, not {}", type_name(input));
  if (width <= 0) fail("invalid width {} (must be > 0)", width);
  TextBuilder out;
  bool first_line = true;
  for (const std::string_view line : split_lines(input.text(), false)) {
    if (!first_line) out.append(wrap);
    first_line = false;
    bool first = true;
    for (const std::string& part : wrap_line(line, static_cast<size_t>(width), bound.flag(1, true), bound.flag(3, true))) {
      if (!first) out.append(wrap);
      first = false;
      out.append(part);
    }
  }
  return Value::string(out.take());
}

// --- numbers

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

// --- HTML and URLs

Value filter_escape(Runtime&, const Value& input, const Args& args) {
  const Bound bound("escape", args, {}, 0);
  return escape_html(input);
}
Value filter_forceescape(Runtime&, const Value& input, const Args& args) {
  const Bound bound("forceescape", args, {}, 0);
  return escape_html(Value::string(to_text(input)));
}
Value filter_safe(Runtime&, const Value& input, const Args& args) {
  const Bound bound("safe", args, {}, 0);
  return Value::string(to_text(input), true);
}

Value filter_striptags(Runtime&, const Value& input, const Args& args) {
  const Bound bound("striptags", args, {}, 0);
  const std::string text = to_text(input);
  std::string kept;
  size_t pos = 0;
  for (size_t start = find_text(text, "<"); start != std::string::npos; start = find_text(text, "<", pos)) {
    const bool comment = std::string_view(text).substr(start).starts_with("<!--");
    const size_t end = comment ? find_text(text, "-->", start + 4) : find_text(text, ">", start);
    if (end == std::string::npos) break;
    kept.append(text, pos, start - pos);
    pos = end + (comment ? 3 : 1);
  }
  kept.append(text, pos);
  std::string out;
  for (const std::string_view word : split_spaces(kept, -1)) {
    if (!out.empty()) out.push_back(' ');
    out.append(word);
  }
  return Value::string(unescape_html(out));
}

std::string quote_url(const Value& value, bool for_query) {
  const std::string text = to_text(value);
  std::string out;
  check_string_bytes(text.size() * 3);
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                       c == '.' || c == '-' || c == '~' || (c == '/' && !for_query);
    if (plain) {
      out.push_back(c);
    } else if (c == ' ' && for_query) {
      out.push_back('+');
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value filter_urlencode(Runtime&, const Value& input, const Args& args) {
  const Bound bound("urlencode", args, {}, 0);
  if (input.is_string() || !iterable(input)) return Value::string(quote_url(input, false));
  TextBuilder out;
  bool first = true;
  const auto pair = [&](const Value& key, const Value& value) {
    if (!first) out.append("&");
    first = false;
    out.append(quote_url(key, true) + "=" + quote_url(value, true));
  };
  if (input.is(Kind::kDict)) {
    for (const auto& [key, value] : input.as_dict().entries) pair(key, value);
  } else {
    for (const Value& item : collect(input)) {
      const std::vector<Value> parts = collect(item);
      if (parts.size() != 2) fail("urlencode: pairs are needed, not {} values", parts.size());
      pair(parts[0], parts[1]);
    }
  }
  return Value::string(out.take());
}

Value filter_xmlattr(Runtime&, const Value& input, const Args& args) {
  const Bound bound("xmlattr", args, {"autospace"}, 0);
  if (!input.is(Kind::kDict)) fail("xmlattr: a mapping is needed, not {}", type_name(input));
  TextBuilder out;
  bool first = true;
  for (const auto& [key, value] : input.as_dict().entries) {
    if (value.is_none() || value.is_undefined()) continue;
    if (!key.is_string()) fail("expected string or bytes-like object, got '{}'", type_name(key));
    if (key.text().find_first_of(" \t\n\r\f\v/>=") != std::string::npos) fail("Invalid character in attribute name: {}", repr(key));
    if (!first || bound.flag(0, true)) out.append(" ");
    first = false;
    out.append(escape_html(key).text() + "=\"" + escape_html(value).text() + "\"");
  }
  return Value::string(out.take());
}

Value filter_tojson(Runtime&, const Value& input, const Args& args) {
  const Bound bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  return Value::string(dump_json(input, bound.flag(0, false), bound[1], bound[2], bound.flag(3, false)));
}

Value filter_pprint(Runtime&, const Value& input, const Args& args) {
  const Bound bound("pprint", args, {}, 0);
  const std::string text = repr(input);
  if (utf8_length(text) > 80 || input.is(Kind::kDict)) fail("pprint is supported for short values only");
  return Value::string(text);
}

struct Entry {
  std::string_view name;
  FilterBody body;
};
constexpr Entry kFilters[] = {
    {"upper", filter_upper},         {"lower", filter_lower},         {"capitalize", filter_capitalize},
    {"string", filter_string},       {"trim", filter_trim},           {"center", filter_center},
    {"title", filter_title},         {"replace", filter_replace},     {"format", filter_format},
    {"indent", filter_indent},       {"truncate", filter_truncate},   {"wordcount", filter_wordcount},
    {"wordwrap", filter_wordwrap},   {"int", filter_int},             {"float", filter_float},
    {"abs", filter_abs},             {"round", filter_round},         {"filesizeformat", filter_filesizeformat},
    {"escape", filter_escape},       {"e", filter_escape},            {"forceescape", filter_forceescape},
    {"safe", filter_safe},           {"striptags", filter_striptags}, {"urlencode", filter_urlencode},
    {"xmlattr", filter_xmlattr},     {"tojson", filter_tojson},       {"pprint", filter_pprint},
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
      case 'x': return 16;
      case 'o': return 8;
      case 'b': return 2;
      default: return 0;
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

Value escape_html(const Value& value) {
  if (value.is_markup()) return value;
  TextBuilder out;
  const std::string text = to_text(value);
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = std::min(text.find_first_of("&<>'\"", pos), text.size());
    out.append(std::string_view(text).substr(pos, end - pos));
    pos = end;
    if (pos == text.size()) break;
    switch (text[pos++]) {
      case '&': out.append("&amp;"); break;
      case '<': out.append("&lt;"); break;
      case '>': out.append("&gt;"); break;
      case '\'': out.append("&#39;"); break;
      default: out.append("&#34;"); break;
    }
  }
  return Value::string(out.take(), true);
}

std::string unescape_html(std::string_view text) {
  static constexpr std::pair<std::string_view, std::string_view> kEntities[] = {
      {"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"apos", "'"}, {"nbsp", "\u00a0"}, {"raquo", "\u00bb"},
      {"laquo", "\u00ab"}, {"copy", "\u00a9"}, {"hellip", "\u2026"}, {"mdash", "\u2014"}, {"ndash", "\u2013"},
  };
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t amp = std::min(text.find('&', pos), text.size());
    out.append(text.substr(pos, amp - pos));
    pos = amp;
    if (pos == text.size()) break;
    const size_t end = text.substr(0, std::min(text.size(), pos + 12)).find(';', pos);
    std::string replacement;
    if (end != std::string_view::npos) {
      const std::string_view name = text.substr(pos + 1, end - pos - 1);
      if (name.starts_with("#")) {
        const bool hex = name.size() > 1 && (name[1] == 'x' || name[1] == 'X');
        uint32_t code = 0;
        const std::string_view digits = name.substr(hex ? 2 : 1);
        const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10);
        if (!digits.empty() && error == std::errc() && stop == digits.data() + digits.size() && code > 0 && code <= 0x10ffff &&
            (code < 0xd800 || code >= 0xe000)) {
          utf8_append(replacement, code);
        }
      } else {
        for (const auto& [entity, character] : kEntities) {
          if (entity == name) replacement = character;
        }
      }
    }
    if (replacement.empty()) {
      out.push_back(text[pos++]);
    } else {
      out += replacement;
      pos = end + 1;
    }
  }
  return out;
}

FilterBody find_text_filter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.body;
  }
  return nullptr;
}

FilterBody find_filter(std::string_view name) {
  const FilterBody filter = find_text_filter(name);
  return filter != nullptr ? filter : find_sequence_filter(name);
}

}  // namespace spate::jinja
