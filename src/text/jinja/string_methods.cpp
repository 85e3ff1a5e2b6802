// The methods of Python's str that templates may call. Positions and widths are in code points. Methods that give
// texts keep the mark of a safe text (markupsafe.Markup).
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

Value made(const Value& self, std::string text) { return Value::string(std::move(text), self.is_markup()); }
Value made(const Value& self, std::string_view text) { return Value::string(std::string(text), self.is_markup()); }

// The last occurrence. Compares at every position: charged for the worst case.
size_t rfind_text(std::string_view text, std::string_view part) {
  charge_steps(static_cast<int64_t>(text.size() / 64 * (1 + part.size())));
  return text.rfind(part);
}

template <std::string (*mapping)(std::string_view)>
Value map_text(Runtime&, const Value& self, const Args& args) {
  const Bound bound("str method", args, {}, 0);
  charge_bytes_copied(self.text().size() * 8);
  return made(self, mapping(self.text()));
}

enum Side { kLeft = 1, kRight = 2, kBoth = 3 };
template <int side>
Value strip_text(Runtime&, const Value& self, const Args& args) {
  const Bound bound("strip", args, {self.is_markup() ? "chars" : "/chars"}, 0);
  std::string_view text = self.text();
  if (bound.has(0) && !bound[0].is_none()) {
    charge_steps(static_cast<int64_t>(bound.text(0).size()));
    text = strip_chars(text, bound.text(0), (side & kLeft) != 0, (side & kRight) != 0);
  } else {
    if ((side & kRight) != 0) text = strip_right(text);
    if ((side & kLeft) != 0) text = strip_left(text);
  }
  return made(self, text);
}

// The byte range of self[start:end] for find, count, startswith ...; false when start lies behind the end.
bool search_range(const Value& self, const Bound& bound, size_t first, std::string_view* text, int64_t* char_begin,
                  bool* empty_allowed) {
  const auto size = static_cast<int64_t>(self.as_string().num_chars);
  const auto index = [&](size_t i, int64_t absent) {
    if (!bound.has(i) || bound[i].is_none()) return absent;
    const int64_t value = bound.integer(i, absent);
    return value < 0 ? std::max<int64_t>(0, value + size) : value;
  };
  const int64_t begin = index(first, 0);
  const int64_t end = std::min(size, index(first + 1, size));
  *empty_allowed = begin <= size && begin <= end;
  *char_begin = begin;
  if (!*empty_allowed) return false;
  const std::string& all = self.text();
  charge_bytes_copied(all.size());
  if (self.as_string().is_ascii()) {
    *text = std::string_view(all).substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  } else {
    const size_t byte_begin = utf8_offset(all, static_cast<size_t>(begin));
    const std::string_view rest = std::string_view(all).substr(byte_begin);
    *text = rest.substr(0, utf8_offset(rest, static_cast<size_t>(end - begin)));
  }
  return true;
}

template <bool from_right>
int64_t find_in(const char* name, const Value& self, const Args& args) {
  const Bound bound(name, args, {"/sub", "/start", "/end"}, 1);
  std::string_view text;
  int64_t char_begin = 0;
  bool valid = false;
  const std::string& needle = bound.text(0);
  if (!search_range(self, bound, 1, &text, &char_begin, &valid)) return -1;
  const size_t at = from_right ? rfind_text(text, needle) : find_text(text, needle);
  if (at == std::string_view::npos) return -1;
  return char_begin + static_cast<int64_t>(utf8_length(text.substr(0, at)));
}
Value method_find(Runtime&, const Value& self, const Args& args) {
  return Value::integer(find_in<false>("find", self, args));
}
Value method_rfind(Runtime&, const Value& self, const Args& args) {
  return Value::integer(find_in<true>("rfind", self, args));
}
Value method_index(Runtime&, const Value& self, const Args& args) {
  const int64_t at = find_in<false>("index", self, args);
  if (at < 0) fail("substring not found");
  return Value::integer(at);
}
Value method_rindex(Runtime&, const Value& self, const Args& args) {
  const int64_t at = find_in<true>("rindex", self, args);
  if (at < 0) fail("substring not found");
  return Value::integer(at);
}

Value method_count(Runtime&, const Value& self, const Args& args) {
  const Bound bound("count", args, {"/sub", "/start", "/end"}, 1);
  std::string_view text;
  int64_t char_begin = 0;
  bool valid = false;
  const std::string& needle = bound.text(0);
  if (!search_range(self, bound, 1, &text, &char_begin, &valid)) return Value::integer(0);
  if (needle.empty()) return Value::integer(static_cast<int64_t>(utf8_length(text)) + 1);
  int64_t count = 0;
  for (size_t at = find_text(text, needle); at != std::string_view::npos;
       at = find_text(text, needle, at + needle.size()))
    ++count;
  return Value::integer(count);
}

template <bool at_start>
Value starts_or_ends(const char* name, const Value& self, const Args& args) {
  const Bound bound(name, args, {"/prefix", "/start", "/end"}, 1);
  std::string_view text;
  int64_t char_begin = 0;
  bool valid = false;
  search_range(self, bound, 1, &text, &char_begin, &valid);
  const auto matches = [&](const Value& part) {
    if (!part.is_string()) fail("{} first arg must be str or a tuple of str, not {}", name, type_name(part));
    return valid && (at_start ? text.starts_with(part.text()) : text.ends_with(part.text()));
  };
  if (!bound[0].is(Kind::kTuple)) return Value::boolean(matches(bound[0]));
  bool any = false;
  for (const Value& part : bound[0].items()) {
    charge_steps(1);
    any = any || matches(part);
  }
  return Value::boolean(any);
}
Value method_startswith(Runtime&, const Value& self, const Args& args) {
  return starts_or_ends<true>("startswith", self, args);
}
Value method_endswith(Runtime&, const Value& self, const Args& args) {
  return starts_or_ends<false>("endswith", self, args);
}

Value method_removeprefix(Runtime&, const Value& self, const Args& args) {
  const Bound bound("removeprefix", args, {"/prefix"}, 1);
  std::string_view text = self.text();
  if (text.starts_with(bound.text(0))) text.remove_prefix(bound.text(0).size());
  return made(self, text);
}
Value method_removesuffix(Runtime&, const Value& self, const Args& args) {
  const Bound bound("removesuffix", args, {"/suffix"}, 1);
  std::string_view text = self.text();
  if (text.ends_with(bound.text(0))) text.remove_suffix(bound.text(0).size());
  return made(self, text);
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator, int64_t max_splits) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t at = find_text(text, separator);
       at != std::string_view::npos && (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits);
       at = find_text(text, separator, begin)) {
    parts.push_back(text.substr(begin, at - begin));
    begin = at + separator.size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> split_at_right(std::string_view text, std::string_view separator, int64_t max_splits) {
  std::vector<std::string_view> parts;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t at = rfind_text(text, separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value made_list(const Value& self, const std::vector<std::string_view>& parts) {
  charge_steps(static_cast<int64_t>(parts.size()));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(made(self, part));
  return Value::list(std::move(items));
}

template <bool from_right>
Value split_text(Runtime&, const Value& self, const Args& args) {
  const Bound bound("split", args, {"sep", "maxsplit"}, 0);
  const int64_t max_splits = bound.integer(1, -1);
  const std::string_view text = self.text();
  charge_bytes_copied(text.size() * 4);
  if (!bound.has(0) || bound[0].is_none()) {
    return made_list(self, from_right ? split_spaces_right(text, max_splits) : split_spaces(text, max_splits));
  }
  const std::string& separator = bound.text(0);
  if (separator.empty()) fail("empty separator");
  return made_list(self,
                   from_right ? split_at_right(text, separator, max_splits) : split_at(text, separator, max_splits));
}

Value method_splitlines(Runtime&, const Value& self, const Args& args) {
  const Bound bound("splitlines", args, {"keepends"}, 0);
  charge_bytes_copied(self.text().size() * 4);
  return made_list(self, split_lines(self.text(), bound.flag(0, false)));
}

template <bool from_right>
Value partition_text(Runtime&, const Value& self, const Args& args) {
  const Bound bound("partition", args, {"/sep"}, 1);
  const std::string& separator = bound.text(0);
  if (separator.empty()) fail("empty separator");
  const std::string_view text = self.text();
  const size_t at = from_right ? rfind_text(text, separator) : find_text(text, separator);
  if (at == std::string_view::npos) {
    const Value empty = made(self, std::string());
    return from_right ? Value::tuple({empty, empty, made(self, text)}) : Value::tuple({made(self, text), empty, empty});
  }
  return Value::tuple(
      {made(self, text.substr(0, at)), made(self, separator), made(self, text.substr(at + separator.size()))});
}

Value method_replace(Runtime&, const Value& self, const Args& args) {
  const Bound bound("replace", args, {"/old", "/new", "/count"}, 2);
  const Value replacement = self.is_markup() ? escape_html(bound[1]) : bound[1];
  bound.text(0);
  bound.text(1);
  return made(self, replace_text(self.text(), bound.text(0), replacement.text(), bound.integer(2, -1)));
}

Value method_join(Runtime&, const Value& self, const Args& args) {
  const Bound bound("join", args, {"/iterable"}, 1);
  if (!iterable(bound[0])) fail("can only join an iterable");
  TextBuilder out;
  bool first = true;
  int64_t position = 0;
  for (const Value& item : collect(bound[0])) {
    if (!first) out.append(self.text());
    first = false;
    if (self.is_markup()) {
      out.append(escape_html(item).text());
    } else if (item.is_string()) {
      out.append(item.text());
    } else {
      fail("sequence item {}: expected str instance, {} found", position, type_name(item));
    }
    ++position;
  }
  return made(self, out.take());
}

// center, ljust, rjust: how many fill characters go to the left.
template <typename LeftPadding>
Value pad(const char* name, const Value& self, const Args& args, LeftPadding left_padding) {
  const Bound bound(name, args, {"/width", "/fillchar"}, 1);
  const int64_t width = bound.integer(0, 0);
  std::string fill = bound.has(1) ? bound.text(1) : " ";
  if (utf8_length(fill) != 1) fail("The fill character must be exactly one character long");
  const auto size = static_cast<int64_t>(self.as_string().num_chars);
  if (width <= size) return self;
  const int64_t missing = width - size;
  const int64_t left = left_padding(missing, width);
  if (static_cast<uint64_t>(missing) > max_string_bytes() / 4) check_string_bytes(static_cast<size_t>(missing));
  TextBuilder out;
  for (int64_t i = 0; i < left; ++i) out.append(fill);
  out.append(self.text());
  for (int64_t i = left; i < missing; ++i) out.append(fill);
  return made(self, out.take());
}
Value method_center(Runtime&, const Value& self, const Args& args) {
  return pad("center", self, args, [](int64_t missing, int64_t width) { return missing / 2 + (missing & width & 1); });
}
Value method_ljust(Runtime&, const Value& self, const Args& args) {
  return pad("ljust", self, args, [](int64_t, int64_t) { return int64_t{0}; });
}
Value method_rjust(Runtime&, const Value& self, const Args& args) {
  return pad("rjust", self, args, [](int64_t missing, int64_t) { return missing; });
}

Value method_zfill(Runtime&, const Value& self, const Args& args) {
  const Bound bound("zfill", args, {"/width"}, 1);
  const int64_t missing = bound.integer(0, 0) - static_cast<int64_t>(self.as_string().num_chars);
  if (missing <= 0) return self;
  const std::string& text = self.text();
  const bool has_sign = !text.empty() && (text[0] == '+' || text[0] == '-');
  TextBuilder out;
  out.append(has_sign ? text.substr(0, 1) : std::string());
  out.append(static_cast<size_t>(missing), '0');
  out.append(std::string_view(text).substr(has_sign ? 1 : 0));
  return made(self, out.take());
}

Value method_expandtabs(Runtime&, const Value& self, const Args& args) {
  const Bound bound("expandtabs", args, {"tabsize"}, 0);
  const int64_t tab_size = bound.integer(0, 8);
  TextBuilder out;
  int64_t column = 0;
  const std::string& text = self.text();
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = utf8_next(text, pos);
    if (c == '\t') {
      const int64_t spaces = tab_size > 0 ? tab_size - column % tab_size : 0;
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
      continue;
    }
    column = c == '\n' || c == '\r' ? 0 : column + 1;
    out.append(std::string_view(text).substr(begin, pos - begin));
  }
  return made(self, out.take());
}

template <bool (*predicate)(char32_t)>
Value all_chars(Runtime&, const Value& self, const Args& args) {
  const Bound bound("str method", args, {}, 0);
  const std::string& text = self.text();
  charge_bytes_copied(text.size() * 4);
  for (size_t pos = 0; pos < text.size();) {
    if (!predicate(utf8_next(text, pos))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}
bool is_ascii_char(char32_t c) { return c < 0x80; }

Value method_isprintable(Runtime& runtime, const Value& self, const Args& args) {
  return self.text().empty() ? Value::boolean(true) : all_chars<is_printable>(runtime, self, args);
}
Value method_isascii(Runtime& runtime, const Value& self, const Args& args) {
  return self.text().empty() ? Value::boolean(true) : all_chars<is_ascii_char>(runtime, self, args);
}
Value method_islower(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("islower", args, {}, 0);
  return Value::boolean(find_test("lower")(runtime, self, args));
}
Value method_isupper(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("isupper", args, {}, 0);
  return Value::boolean(find_test("upper")(runtime, self, args));
}
Value method_istitle(Runtime&, const Value& self, const Args& args) {
  const Bound bound("istitle", args, {}, 0);
  bool in_word = false, found = false;
  const std::string& text = self.text();
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = utf8_next(text, pos);
    if (is_upper(c) || is_title(c)) {
      if (in_word) return Value::boolean(false);
      in_word = found = true;
    } else if (is_lower(c)) {
      if (!in_word) return Value::boolean(false);
      found = true;
    } else {
      in_word = false;
    }
  }
  return Value::boolean(found);
}
Value method_isidentifier(Runtime&, const Value& self, const Args& args) {
  const Bound bound("isidentifier", args, {}, 0);
  const std::string& text = self.text();
  for (size_t pos = 0; pos < text.size();) {
    const bool first = pos == 0;
    const char32_t c = utf8_next(text, pos);
    if (!(first ? is_name_start(c) : is_name_part(c))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

Value method_format(Runtime& runtime, const Value& self, const Args& args) {
  return format_braces(runtime, self, args);
}
Value method_format_map(Runtime& runtime, const Value& self, const Args& args) {
  const Bound bound("format_map", args, {"/mapping"}, 1);
  if (!bound[0].is(Kind::kDict)) fail("format_map() argument must be a mapping");
  Args named;
  for (const auto& [key, value] : bound[0].as_dict().entries) {
    if (key.is_string()) named.named.emplace_back(key.text(), value);
  }
  return format_braces(runtime, self, named);
}

constexpr Builtin<MethodBody> kStringMethods[] = {
    {"split", split_text<false>},
    {"rsplit", split_text<true>},
    {"strip", strip_text<kBoth>},
    {"lstrip", strip_text<kLeft>},
    {"rstrip", strip_text<kRight>},
    {"startswith", method_startswith},
    {"endswith", method_endswith},
    {"replace", method_replace},
    {"join", method_join},
    {"upper", map_text<to_upper>},
    {"lower", map_text<to_lower>},
    {"title", map_text<to_title>},
    {"capitalize", map_text<to_capitalized>},
    {"swapcase", map_text<swap_case>},
    {"casefold", map_text<case_fold>},
    {"find", method_find},
    {"rfind", method_rfind},
    {"index", method_index},
    {"rindex", method_rindex},
    {"count", method_count},
    {"removeprefix", method_removeprefix},
    {"removesuffix", method_removesuffix},
    {"splitlines", method_splitlines},
    {"partition", partition_text<false>},
    {"rpartition", partition_text<true>},
    {"center", method_center},
    {"ljust", method_ljust},
    {"rjust", method_rjust},
    {"zfill", method_zfill},
    {"expandtabs", method_expandtabs},
    {"isalpha", all_chars<is_alpha>},
    {"isdigit", all_chars<is_digit>},
    {"isdecimal", all_chars<is_decimal>},
    {"isnumeric", all_chars<is_numeric>},
    {"isalnum", all_chars<is_alnum>},
    {"isspace", all_chars<is_space>},
    {"isprintable", method_isprintable},
    {"isascii", method_isascii},
    {"islower", method_islower},
    {"isupper", method_isupper},
    {"istitle", method_istitle},
    {"isidentifier", method_isidentifier},
    {"format", method_format},
    {"format_map", method_format_map},
};

}  // namespace

std::string replace_text(std::string_view text, std::string_view old, std::string_view replacement, int64_t max_count) {
  TextBuilder out;
  int64_t count = 0;
  if (old.empty()) {
    // Between all characters, as in Python.
    for (size_t pos = 0; max_count < 0 || count < max_count; ++count) {
      out.append(replacement);
      if (pos >= text.size()) return out.take();
      const size_t begin = pos;
      utf8_next(text, pos);
      out.append(text.substr(begin, pos - begin));
      if (max_count >= 0 && count + 1 == max_count) {
        out.append(text.substr(pos));
        return out.take();
      }
    }
    out.append(text);
    return out.take();
  }
  size_t begin = 0;
  for (size_t at = find_text(text, old); at != std::string_view::npos && (max_count < 0 || count < max_count);
       at = find_text(text, old, begin)) {
    charge_steps(1);
    out.append(text.substr(begin, at - begin));
    out.append(replacement);
    begin = at + old.size();
    ++count;
  }
  out.append(text.substr(begin));
  return out.take();
}

MethodBody find_string_method(std::string_view name) { return find_builtin(kStringMethods, name); }

}  // namespace spate::jinja
