#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <string.h>

#include <algorithm>

namespace spate::jinja {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

// Letters whose upper case has several letters (Unicode SpecialCasing, without the Greek iota-subscript forms).
struct SpecialUpper {
  char32_t from;
  const char* upper;
  const char* title;
};
constexpr SpecialUpper kSpecialUpper[] = {
    {0xdf, "SS", "Ss"},
    {0x149, "\u02bcN", "\u02bcN"},
    {0x1f0, "J\u030c", "J\u030c"},
    {0x587, "\u0535\u0552", "\u0535\u0582"},
    {0x1e96, "H\u0331", "H\u0331"},
    {0x1e97, "T\u0308", "T\u0308"},
    {0x1e98, "W\u030a", "W\u030a"},
    {0x1e99, "Y\u030a", "Y\u030a"},
    {0x1e9a, "A\u02be", "A\u02be"},
    {0xfb00, "FF", "Ff"},
    {0xfb01, "FI", "Fi"},
    {0xfb02, "FL", "Fl"},
    {0xfb03, "FFI", "Ffi"},
    {0xfb04, "FFL", "Ffl"},
    {0xfb05, "ST", "St"},
    {0xfb06, "ST", "St"},
    {0x390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x3b0, "\u03a5\u0308\u0301", "\u03a5\u0308\u0301"},
};

void append_upper(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c));
    return;
  }
  for (const SpecialUpper& special : kSpecialUpper) {
    if (special.from == c) {
      out += special.upper;
      return;
    }
  }
  utf8_append(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, char32_t c) {
  if (c < 0x80) return append_upper(out, c);
  for (const SpecialUpper& special : kSpecialUpper) {
    if (special.from == c) {
      out += special.title;
      return;
    }
  }
  utf8_append(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

bool is_cased(char32_t c) { return is_lower(c) || is_upper(c) || is_title(c); }
bool is_case_ignorable(char32_t c) {
  if (c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xb7 || c == 0x2019 || c == 0x2027) return true;
  const utf8proc_category_t cat = category(c);
  return cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_ME || cat == UTF8PROC_CATEGORY_CF ||
         cat == UTF8PROC_CATEGORY_LM || cat == UTF8PROC_CATEGORY_SK;
}

// A capital sigma at the end of a word has its own small letter.
char32_t lower_sigma(std::u32string_view text, size_t pos) {
  size_t before = pos;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return 0x3c3;
  size_t after = pos + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after < text.size() && is_cased(text[after]) ? 0x3c3 : 0x3c2;
}

void append_lower(std::string& out, std::u32string_view text, size_t pos) {
  const char32_t c = text[pos];
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (c == 0x130) {
    out += "i\u0307";
  } else if (c == 0x3a3) {
    utf8_append(out, lower_sigma(text, pos));
  } else {
    utf8_append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

}  // namespace

bool utf8_valid(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const auto lead = static_cast<unsigned char>(text[pos]);
    if (lead < 0x80) {
      ++pos;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || pos + length > text.size()) return false;
    for (size_t i = 1; i < length; ++i) {
      if (!is_continuation(text[pos + i])) return false;
    }
    size_t after = pos;
    const char32_t c = utf8_next(text, after);
    constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < kSmallest[length] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return false;
    pos += length;
  }
  return true;
}

size_t utf8_length(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

size_t utf8_offset(std::string_view text, size_t index) {
  size_t pos = 0;
  while (index > 0 && pos < text.size()) {
    ++pos;
    while (pos < text.size() && is_continuation(text[pos])) ++pos;
    --index;
  }
  return pos;
}

char32_t utf8_next(std::string_view text, size_t& pos) {
  const auto lead = static_cast<unsigned char>(text[pos++]);
  if (lead < 0xc0) return lead;
  char32_t c = lead >= 0xf0 ? lead & 0x07u : lead >= 0xe0 ? lead & 0x0fu : lead & 0x1fu;
  while (pos < text.size() && is_continuation(text[pos]))
    c = c << 6 | (static_cast<unsigned char>(text[pos++]) & 0x3fu);
  return c;
}

char32_t utf8_last(std::string_view text) {
  size_t pos = text.size() - 1;
  while (pos > 0 && is_continuation(text[pos])) --pos;
  return utf8_next(text, pos);
}

void utf8_append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out.push_back(static_cast<char>(0xc0 | c >> 6));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else if (c < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | c >> 12));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  } else {
    out.push_back(static_cast<char>(0xf0 | c >> 18));
    out.push_back(static_cast<char>(0x80 | (c >> 12 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
    out.push_back(static_cast<char>(0x80 | (c & 0x3f)));
  }
}

std::u32string utf8_to_u32(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) out.push_back(utf8_next(text, pos));
  return out;
}

std::string utf8_from_u32(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) utf8_append(out, c);
  return out;
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
         c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_line_end(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_alpha(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const utf8proc_category_t cat = category(c);
  return cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079) ||
         (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247c) ||
         (c >= 0x2488 && c <= 0x2490) || (c >= 0x2776 && c <= 0x277e) || (c >= 0x2780 && c <= 0x2788) ||
         (c >= 0x278a && c <= 0x2792);
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return is_decimal(c);
  const utf8proc_category_t cat = category(c);
  if (cat == UTF8PROC_CATEGORY_ND || cat == UTF8PROC_CATEGORY_NL || cat == UTF8PROC_CATEGORY_NO) return true;
  constexpr std::u32string_view kHanNumbers = U"一二三四五六七八九十百千万億兆〇零壹贰叁肆伍陆柒捌玖拾";
  return kHanNumbers.find(c) != std::u32string_view::npos;
}

bool is_alnum(char32_t c) { return is_alpha(c) || is_digit(c) || is_numeric(c); }

bool is_lower(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z';
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba;
}

bool is_upper(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z';
  return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216f) || (c >= 0x24b6 && c <= 0x24cf);
}

bool is_title(char32_t c) { return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_LT; }

bool is_printable(char32_t c) {
  if (c < 0x7f) return c >= 0x20;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

bool is_word(char32_t c) { return c == '_' || is_alnum(c); }

bool is_name_start(char32_t c) { return c == '_' || is_alpha(c) || (c >= 0x80 && category(c) == UTF8PROC_CATEGORY_NL); }

bool is_name_part(char32_t c) {
  if (c < 0x80) return is_word(c);
  if (is_name_start(c) || is_decimal(c)) return true;
  const utf8proc_category_t cat = category(c);
  return cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_MC || cat == UTF8PROC_CATEGORY_PC;
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) append_upper(out, utf8_next(text, pos));
  return out;
}

std::string to_lower(std::string_view text) {
  const std::u32string wide = utf8_to_u32(text);
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < wide.size(); ++i) append_lower(out, wide, i);
  return out;
}

std::string to_title(std::string_view text) {
  const std::u32string wide = utf8_to_u32(text);
  std::string out;
  bool in_word = false;
  for (size_t i = 0; i < wide.size(); ++i) {
    if (in_word) {
      append_lower(out, wide, i);
    } else {
      append_title(out, wide[i]);
    }
    in_word = is_cased(wide[i]);
  }
  return out;
}

std::string to_capitalized(std::string_view text) {
  const std::u32string wide = utf8_to_u32(text);
  std::string out;
  for (size_t i = 0; i < wide.size(); ++i) {
    if (i == 0) {
      append_title(out, wide[i]);
    } else {
      append_lower(out, wide, i);
    }
  }
  return out;
}

std::string swap_case(std::string_view text) {
  const std::u32string wide = utf8_to_u32(text);
  std::string out;
  for (size_t i = 0; i < wide.size(); ++i) {
    if (is_upper(wide[i])) {
      append_lower(out, wide, i);
    } else if (is_lower(wide[i])) {
      append_upper(out, wide[i]);
    } else {
      utf8_append(out, wide[i]);
    }
  }
  return out;
}

std::string case_fold(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = utf8_next(text, pos);
    if (c == 0xdf) {
      out += "ss";
    } else if (c == 0x3c2) {
      out += "\u03c3";
    } else {
      utf8_append(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return out;
}

std::string_view strip_left(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    size_t after = pos;
    if (!is_space(utf8_next(text, after))) break;
    pos = after;
  }
  return text.substr(pos);
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty() && is_space(utf8_last(text))) {
    size_t end = text.size() - 1;
    while (end > 0 && is_continuation(text[end])) --end;
    text = text.substr(0, end);
  }
  return text;
}

std::string_view strip(std::string_view text) { return strip_left(strip_right(text)); }

std::string_view strip_chars(std::string_view text, std::string_view chars, bool left, bool right) {
  std::u32string set = utf8_to_u32(chars);
  std::sort(set.begin(), set.end());
  const auto in_set = [&set](char32_t c) { return std::binary_search(set.begin(), set.end(), c); };
  while (left && !text.empty()) {
    size_t after = 0;
    if (!in_set(utf8_next(text, after))) break;
    text = text.substr(after);
  }
  while (right && !text.empty()) {
    if (!in_set(utf8_last(text))) break;
    size_t end = text.size() - 1;
    while (end > 0 && is_continuation(text[end])) --end;
    text = text.substr(0, end);
  }
  return text;
}

size_t find_text(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* at = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return at == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(at) - text.data());
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t c = utf8_next(text, pos);
    if (!is_line_end(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.push_back(text.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> split_spaces(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> words;
  text = strip_left(text);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(words.size()) == max_splits) {
      words.push_back(text);  // the rest keeps its trailing space, as in Python
      return words;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t after = end;
      if (is_space(utf8_next(text, after))) break;
      end = after;
    }
    words.push_back(text.substr(0, end));
    text = strip_left(text.substr(end));
  }
  return words;
}

std::vector<std::string_view> split_spaces_right(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> words;
  text = strip_right(text);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(words.size()) == max_splits) {
      words.push_back(text);
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      size_t before = begin - 1;
      while (before > 0 && is_continuation(text[before])) --before;
      size_t pos = before;
      if (is_space(utf8_next(text, pos))) break;
      begin = before;
    }
    words.push_back(text.substr(begin));
    text = strip_right(text.substr(0, begin));
  }
  std::reverse(words.begin(), words.end());
  return words;
}

}  // namespace spate::jinja
