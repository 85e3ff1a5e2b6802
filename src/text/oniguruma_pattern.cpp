#include "text/oniguruma_pattern.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <cctype>
#include <optional>
#include <vector>

#include "text/unicode.h"

namespace spate {
namespace {

constexpr std::string_view kSpaceSet = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWordSet =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
constexpr std::string_view kHexSet = "0-9a-fA-F";
// Outside of classes Oniguruma looks characters below U+0100 up in a table of Latin-1, where these count as word
// characters.
constexpr std::string_view kLatin1Words = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";
constexpr int kMaxNesting = 100;

bool is_general_category(std::string_view name) {
  if (name.empty() || name.size() > 2) return name == "Any" || name == "L&";
  return std::string_view("LMNPSZC").find(name[0]) != std::string_view::npos;
}

// The members of a POSIX name; empty for an unknown one. Negated ones begin with '^'.
std::string_view posix_members(std::string_view name) {
  struct Entry {
    std::string_view name, members;
  };
  static constexpr Entry kNames[] = {{"alnum", R"(\p{Alphabetic}\p{Nd})"},
                                     {"alpha", R"(\p{Alphabetic})"},
                                     {"ascii", R"(\x00-\x7F)"},
                                     {"blank", R"(\t\p{Zs})"},
                                     {"cntrl", R"(\p{Cc})"},
                                     {"digit", R"(\p{Nd})"},
                                     {"graph", R"(^\t-\r\x{85}\p{Z}\p{Cc}\p{Cn}\p{Cs})"},
                                     {"lower", R"(\p{Lowercase})"},
                                     {"print", R"(^\x{2028}\x{2029}\p{Cc}\p{Cn}\p{Cs})"},
                                     {"punct", R"(\p{P}\p{S})"},
                                     {"space", kSpaceSet},
                                     {"upper", R"(\p{Uppercase})"},
                                     {"xdigit", kHexSet},
                                     {"word", kWordSet}};
  for (const Entry& entry : kNames) {
    if (entry.name == name) return entry.members;
  }
  return {};
}

// A set of characters: what stands inside [...] of PCRE2, and alternatives that need brackets of their own. Each
// alternative matches exactly one character.
struct CharSet {
  std::string members;
  std::vector<std::string> alternatives;

  void add_negated(std::string_view negated_members) {
    alternatives.push_back("[^" + std::string(negated_members) + "]");
  }
  // A pattern that matches one character of the set.
  std::string pattern() const {
    if (alternatives.empty()) return members.empty() ? "(?!)" : "[" + members + "]";
    if (members.empty() && alternatives.size() == 1) return alternatives[0];
    std::string text = "(?:";
    if (!members.empty()) text += "[" + members + "]|";
    for (size_t i = 0; i < alternatives.size(); ++i) text += (i > 0 ? "|" : "") + alternatives[i];
    return text + ")";
  }
  std::string negated_pattern() const {
    if (alternatives.empty() && !members.empty()) return "[^" + members + "]";
    return "(?:(?!" + pattern() + ")(?s:.))";
  }
};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (pos_ < pattern_.size()) RETURN_IF_ERROR(translate_next());
    out_.append(static_cast<size_t>(groups_.back().num_flag_groups), ')');
    return std::move(out_);
  }

 private:
  char at(size_t pos) const { return pos < pattern_.size() ? pattern_[pos] : '\0'; }
  bool follows(std::string_view text) const { return pattern_.substr(pos_).starts_with(text); }
  Status refuse(std::string_view construct) const {
    return unimplemented("regex: {} at {} means something else in PCRE2", construct, pos_);
  }

  Status translate_next() {
    const char c = at(pos_);
    if (c != '(' && c != ')' && c != '\\' && c != '[' && c != '{' && c != '|' && c != '.' && c != '^' && c != '$' &&
        c != '?' && c != '*' && c != '+') {
      return translate_literal();
    }
    if (c != '(' && c != ')') last_literal_ = U'\0';
    switch (c) {
      case '\\':
        return translate_escape();
      case '[': {
        ASSIGN_OR_RETURN(const std::string set, parse_class());
        out_ += set;
        return ok_status();
      }
      case '(':
        return translate_open();
      case ')':
        if (groups_.size() == 1) return invalid_argument("regex: ) without ( at {}", pos_);
        out_.append(static_cast<size_t>(groups_.back().num_flag_groups), ')');
        groups_.pop_back();
        break;
      case '{':
        return translate_interval();
      default:
        break;
    }
    out_ += c;
    ++pos_;
    return ok_status();
  }

  // Without regard to case, Oniguruma lets one character match several ("ss" and U+00DF); PCRE2 does not.
  Status check_case_folding(char32_t c) {
    if (!groups_.back().ignore_case) return ok_status();
    static constexpr std::string_view kPairs[] = {"ss", "ff", "fi", "fl", "st"};
    const auto lower = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
    for (const std::string_view pair : kPairs) {
      if (last_literal_ == static_cast<char32_t>(pair[0]) && lower == static_cast<char32_t>(pair[1])) {
        return refuse(fmt::format("'{}' under (?i)", pair));
      }
    }
    if (c >= 0x80) {
      utf8proc_int32_t folded[8];
      const auto count =
          utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 8, UTF8PROC_CASEFOLD, nullptr);
      const bool is_mark = utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0;
      if (count != 1 || is_mark || (last_literal_ >= 0x80)) return refuse("a character beyond ASCII under (?i)");
    }
    last_literal_ = lower;
    return ok_status();
  }

  Status translate_literal() {
    const Utf8Char c = decode_utf8(pattern_, pos_);
    RETURN_IF_ERROR(check_case_folding(c.value));
    out_ += pattern_.substr(pos_, c.size_bytes);
    pos_ += c.size_bytes;
    return ok_status();
  }

  // What \uHHHH, \xHH, \x{H...} and the escapes of control characters stand for; nullopt: none of these.
  Result<std::optional<char32_t>> parse_code_point() {
    const char kind = at(pos_ + 1);
    const auto hex = [&](size_t begin, size_t max_digits) {
      size_t end = begin;
      while (end < begin + max_digits && std::isxdigit(static_cast<unsigned char>(at(end)))) ++end;
      return end;
    };
    static constexpr std::string_view kControls = "tnrfaev", kControlValues = "\t\n\r\f\a\x1B\v";
    if (const size_t index = kControls.find(kind); kind != '\0' && index != std::string_view::npos) {
      pos_ += 2;
      return std::optional<char32_t>(static_cast<char32_t>(kControlValues[index]));
    }
    if (kind != 'u' && kind != 'x') return std::optional<char32_t>();
    const bool braces = kind == 'x' && at(pos_ + 2) == '{';
    const size_t begin = pos_ + (braces ? 3 : 2);
    const size_t end = hex(begin, kind == 'u' ? 4 : braces ? 8 : 2);
    if (end == begin || (kind == 'u' && end != begin + 4) || (braces && at(end) != '}')) {
      return invalid_argument("regex: \\{} without its hexadecimal digits at {}", kind, pos_);
    }
    const auto value = static_cast<char32_t>(std::stoul(std::string(pattern_.substr(begin, end - begin)), nullptr, 16));
    if (kind == 'x' && !braces && value >= 0x80) return refuse("\\xHH of a byte that is no character");
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
      return invalid_argument("regex: no character at {}", pos_);
    pos_ = end + (braces ? 1 : 0);
    return std::optional<char32_t>(value);
  }

  static std::string code_point_text(char32_t c) { return fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(c)); }

  // \p{...} and \P{...}: the property for the inside of a class.
  Result<std::string> parse_property() {
    const size_t open = pos_ + 2;
    if (at(open) != '{') return invalid_argument("regex: \\p without braces at {}", pos_);
    const size_t close = pattern_.find('}', open);
    if (close == std::string_view::npos) return invalid_argument("regex: \\p{{ without end at {}", pos_);
    std::string_view name = pattern_.substr(open + 1, close - open - 1);
    bool negated = at(pos_ + 1) == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    pos_ = close + 1;
    return fmt::format("{}{{{}{}}}", negated ? "\\P" : "\\p", is_general_category(name) ? "" : "sc:", name);
  }

  // \w, \s, \d, \h and their complements, inside a class.
  std::optional<CharSet> parse_set_escape() {
    const char kind = at(pos_ + 1);
    CharSet set;
    switch (std::tolower(static_cast<unsigned char>(kind))) {
      case 'w':
        set.members = kWordSet;
        break;
      case 's':
        set.members = kSpaceSet;
        break;
      case 'h':
        set.members = kHexSet;
        break;
      case 'd':
        set.members = "\\p{Nd}";
        break;
      default:
        return std::nullopt;
    }
    if (std::isupper(static_cast<unsigned char>(kind))) {
      set.add_negated(set.members);
      set.members.clear();
    }
    pos_ += 2;
    return set;
  }

  Status translate_escape() {
    const char kind = at(pos_ + 1);
    if (kind == '\0') return invalid_argument("regex: a backslash at the end");
    if (kind == 'p' || kind == 'P') {
      ASSIGN_OR_RETURN(const std::string property, parse_property());
      out_ += property;
      return ok_status();
    }
    const std::string word = "[" + std::string(kWordSet) + std::string(kLatin1Words) + "]";
    if (kind == 'w' || kind == 'W') {
      out_ += kind == 'w' ? word : "[^" + word.substr(1);
    } else if (kind == 'b' || kind == 'B') {
      out_ += kind == 'b' ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word)
                          : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
    } else if (std::optional<CharSet> set = parse_set_escape()) {
      out_ += set->pattern();
      return ok_status();
    } else if (kind == 'A' || kind == 'z' || kind == 'Z') {
      out_ += pattern_.substr(pos_, 2);
    } else {
      ASSIGN_OR_RETURN(const std::optional<char32_t> c, parse_code_point());
      if (c) {
        RETURN_IF_ERROR(check_case_folding(*c));
        out_ += code_point_text(*c);
        return ok_status();
      }
      if (std::isalnum(static_cast<unsigned char>(kind))) return refuse(fmt::format("\\{}", kind));
      if (static_cast<unsigned char>(kind) >= 0x80) {  // an escaped character stands for itself
        ++pos_;
        return translate_literal();
      }
      out_ += pattern_.substr(pos_, 2);
    }
    pos_ += 2;
    return ok_status();
  }

  // {n}, {n,}, {n,m}, {,m}, each with a '?' behind it; anything else that begins with a brace is literal.
  Status translate_interval() {
    size_t end = pos_ + 1;
    const auto number = [&] {
      const size_t begin = end;
      while (std::isdigit(static_cast<unsigned char>(at(end)))) ++end;
      return std::string(pattern_.substr(begin, end - begin));
    };
    const std::string low = number();
    const bool has_comma = at(end) == ',';
    if (has_comma) ++end;
    const std::string high = has_comma ? number() : low;
    if (at(end) != '}' || (low.empty() && high.empty())) {
      out_ += "\\{";
      ++pos_;
      return ok_status();
    }
    if (low.size() > 5 || high.size() > 5) return invalid_argument("regex: a repetition of too many at {}", pos_);
    if (!low.empty() && !high.empty() && std::stoi(low) > std::stoi(high)) return refuse("{n,m} with n above m");
    if (at(end + 1) == '+') return refuse("{n,m}+, where Oniguruma repeats the group,");
    if (!has_comma && at(end + 1) == '?') return refuse("{n}?, where Oniguruma makes the group optional,");
    out_ += "{" + (low.empty() ? "0" : low) + (has_comma ? "," + high : "") + "}";
    pos_ = end + 1;
    return ok_status();
  }

  // ( and what follows it up to the group's body.
  Status translate_open() {
    if (groups_.size() > kMaxNesting) return invalid_argument("regex: more than {} groups in each other", kMaxNesting);
    static constexpr std::string_view kPlain[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (at(pos_ + 1) == '*') return refuse("(*");
    if (at(pos_ + 1) != '?') return open_group("(", "(");
    for (const std::string_view opening : kPlain) {
      if (follows(opening)) return open_group(opening, opening);
    }
    if (follows("(?#")) {
      const size_t close = pattern_.find(')', pos_);
      if (close == std::string_view::npos) return invalid_argument("regex: (?# without end at {}", pos_);
      pos_ = close + 1;
      return ok_status();
    }
    size_t end = pos_ + 2;
    bool on = true, ignore_case = groups_.back().ignore_case;
    std::string flags;
    for (; at(end) == 'i' || at(end) == 'm' || at(end) == '-'; ++end) {
      if (at(end) == '-') on = false;
      if (at(end) == 'i') ignore_case = on;
      flags += at(end) == 'm' ? 's' : at(end);
    }
    if (end > pos_ + 2 && at(end) == ':') {
      const std::string opening(pattern_.substr(pos_, end + 1 - pos_));
      RETURN_IF_ERROR(open_group(opening, "(?" + flags + ":"));
      groups_.back().ignore_case = ignore_case;
      return ok_status();
    }
    if (end > pos_ + 2 && at(end) == ')') {  // up to the end of the group, the alternatives behind it included
      out_ += "(?" + flags + ":";
      pos_ = end + 1;
      groups_.back().ignore_case = ignore_case;
      if (++groups_.back().num_flag_groups > kMaxNesting)
        return invalid_argument("regex: more than {} flags", kMaxNesting);
      return ok_status();
    }
    const Utf8Char kind = decode_utf8(pattern_, pos_ + 2);
    return refuse("(?" + std::string(pattern_.substr(pos_ + 2, kind.size_bytes)));
  }

  Status open_group(std::string_view opening, std::string_view translated) {
    groups_.push_back({.ignore_case = groups_.back().ignore_case});
    pos_ += opening.size();
    out_ += translated;
    return ok_status();
  }

  // [...] at pos_: a pattern that matches one character.
  Result<std::string> parse_class(int depth = 0) {
    if (depth > kMaxNesting) return invalid_argument("regex: more than {} classes in each other", kMaxNesting);
    const size_t start = pos_++;
    const bool negated = at(pos_) == '^';
    if (negated) ++pos_;
    std::string intersection;  // of what stands before the last &&
    CharSet set;
    if (at(pos_) == ']') {  // the first is literal
      set.members += "\\]";
      ++pos_;
    }
    while (at(pos_) != ']') {
      if (pos_ >= pattern_.size()) return invalid_argument("regex: [ without end at {}", start);
      if (follows("&&")) {
        pos_ += 2;
        intersection += "(?=" + set.pattern() + ")";
        set = {};
        continue;
      }
      RETURN_IF_ERROR(parse_class_member(set, depth));
    }
    ++pos_;
    if (intersection.empty()) return negated ? set.negated_pattern() : set.pattern();
    CharSet all;
    all.alternatives.push_back("(?:" + intersection + set.pattern() + ")");
    return negated ? all.negated_pattern() : all.pattern();
  }

  Status parse_class_member(CharSet& set, int depth) {
    if (follows("[:")) return parse_posix(set);
    if (at(pos_) == '[') {
      ASSIGN_OR_RETURN(std::string nested, parse_class(depth + 1));
      set.alternatives.push_back(std::move(nested));
      return ok_status();
    }
    if (at(pos_) == '\\') {
      if (at(pos_ + 1) == 'p' || at(pos_ + 1) == 'P') {
        ASSIGN_OR_RETURN(const std::string property, parse_property());
        set.members += property;
        return no_range_behind();
      }
      if (std::optional<CharSet> named = parse_set_escape()) {
        set.members += named->members;
        set.alternatives.insert(set.alternatives.end(), named->alternatives.begin(), named->alternatives.end());
        return no_range_behind();
      }
    }
    ASSIGN_OR_RETURN(const char32_t first, parse_class_char());
    // "a-" before ']', '[' or '&&' is no range.
    const bool range = at(pos_) == '-' && pos_ + 1 < pattern_.size() && at(pos_ + 1) != ']';
    if (!range) {
      set.members += code_point_text(first);
      return ok_status();
    }
    ++pos_;
    if (at(pos_) == '[' || follows("&&")) return refuse("a range that ends in a class");
    const size_t last_pos = pos_;
    if (at(pos_) == '\\' && std::string_view("wWsSdDhHpP").find(at(pos_ + 1)) != std::string_view::npos) {
      return refuse("a range that ends in a class");
    }
    ASSIGN_OR_RETURN(const char32_t last, parse_class_char());
    if (last < first) return invalid_argument("regex: an empty range at {}", last_pos);
    set.members += code_point_text(first) + "-" + code_point_text(last);
    if (at(pos_) == '-' && at(pos_ + 1) != ']') return refuse("a range behind a range");
    return ok_status();
  }

  // "[\w-.]" has a literal '-'; so has PCRE2, but only if nothing can be a range.
  Status no_range_behind() const {
    if (at(pos_) == '-' && at(pos_ + 1) != ']') return refuse("a range that begins with a class");
    return ok_status();
  }

  Result<char32_t> parse_class_char() {
    if (at(pos_) == '\\') {
      const char kind = at(pos_ + 1);
      if (kind == 'b') {  // a backspace
        pos_ += 2;
        return U'\b';
      }
      ASSIGN_OR_RETURN(const std::optional<char32_t> c, parse_code_point());
      if (c) return *c;
      if (kind == '\0') return invalid_argument("regex: a backslash at the end");
      if (std::isalnum(static_cast<unsigned char>(kind))) return refuse(fmt::format("\\{} in a class", kind));
      ++pos_;
    }
    const Utf8Char c = decode_utf8(pattern_, pos_);
    if (groups_.back().ignore_case && c.value >= 0x80) return refuse("a class with characters beyond ASCII under (?i)");
    pos_ += c.size_bytes;
    return c.value;
  }

  Status parse_posix(CharSet& set) {
    const size_t close = pattern_.find(":]", pos_ + 2);
    if (close == std::string_view::npos) return refuse("[: without :]");
    std::string_view name = pattern_.substr(pos_ + 2, close - pos_ - 2);
    bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    std::string_view members = posix_members(name);
    if (members.empty()) return refuse(fmt::format("[:{}:]", name));
    if (members.starts_with('^')) {
      negated = !negated;
      members.remove_prefix(1);
    }
    if (negated)
      set.add_negated(members);
    else
      set.members += members;
    pos_ = close + 2;
    return no_range_behind();
  }

  const std::string_view pattern_;
  size_t pos_ = 0;
  std::string out_;
  char32_t last_literal_ = U'\0';  // under (?i), in lower case; 0: the last thing was no literal
  struct Group {
    bool ignore_case = false;
    int num_flag_groups = 0;  // (?i) and (?m) that became groups, to be closed with this one
  };
  std::vector<Group> groups_{Group{}};  // those that are open; the first is the pattern
};

}  // namespace

Result<std::string> translate_oniguruma(std::string_view pattern) {
  if (!is_valid_utf8(pattern)) return invalid_argument("regex: no valid UTF-8");
  return Translator(pattern).run();
}

}  // namespace spate
