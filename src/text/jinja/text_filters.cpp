// Filters that give a text.
#include <algorithm>

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

Value filter_upper(Runtime& runtime, const Value& input, const Args& args) {
  return call_method(runtime, "upper", input, args);
}
Value filter_lower(Runtime& runtime, const Value& input, const Args& args) {
  return call_method(runtime, "lower", input, args);
}
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
  const std::string_view head =
      std::string_view(input.text()).substr(0, utf8_offset(input.text(), static_cast<size_t>(max_length - end_length)));
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
bool is_word_punctuation(char32_t c) {
  constexpr std::u32string_view kOthers = U"!\"'&.,?";
  return is_word(c) || kOthers.find(c) != std::u32string_view::npos;
}

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
        const bool after_letters =
            (end >= 2 && is_letter(text[end - 1]) && is_letter(text[end - 2])) ||
            (end >= 3 && is_letter(text[end - 1]) && text[end - 2] == '-' && is_letter(text[end - 3]));
        const bool before_letters =
            is_letter(at(end + 1)) && (is_letter(at(end + 2)) || (at(end + 2) == '-' && is_letter(at(end + 3))));
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
              std::any_of(chunks.back().begin(), chunks.back().begin() + static_cast<long>(hyphen),
                          [](char32_t c) { return c != '-'; })) {
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
    for (const std::string& part :
         wrap_line(line, static_cast<size_t>(width), bound.flag(1, true), bound.flag(3, true))) {
      if (!first) out.append(wrap);
      first = false;
      out.append(part);
    }
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

constexpr Builtin<FilterBody> kTextFilters[] = {
    {"upper", filter_upper},       {"lower", filter_lower},       {"capitalize", filter_capitalize},
    {"string", filter_string},     {"trim", filter_trim},         {"center", filter_center},
    {"title", filter_title},       {"replace", filter_replace},   {"format", filter_format},
    {"indent", filter_indent},     {"truncate", filter_truncate}, {"wordcount", filter_wordcount},
    {"wordwrap", filter_wordwrap}, {"tojson", filter_tojson},     {"pprint", filter_pprint},
};

}  // namespace

FilterBody find_text_filter(std::string_view name) { return find_builtin(kTextFilters, name); }

FilterBody find_filter(std::string_view name) {
  for (const auto find : {find_text_filter, find_sequence_filter, find_number_filter, find_html_filter}) {
    if (const FilterBody filter = find(name)) return filter;
  }
  return nullptr;
}

}  // namespace spate::jinja
