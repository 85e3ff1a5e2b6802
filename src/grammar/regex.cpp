#include "grammar/regex.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace spate {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 20;  // each byte takes hundreds before the budget of the compiler counts
constexpr int kMaxDepth = 200;
constexpr int kMaxRepeat = 100'000;
constexpr int kNoNumber = -2;

const CodePointSet kDigits{{'0', '9'}};
const CodePointSet kWordChars{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kSpaces{{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                           {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CodePointSet kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class RegexParser {
 public:
  RegexParser(std::string_view pattern, RegexMatch match, const CharWriter& writer)
      : pattern_(pattern), match_(match), writer_(writer) {}

  Result<Expr> parse() {
    Expr expr = parse_choice(0);
    if (error_.ok() && pos_ < pattern_.size()) fail("unmatched )");
    if (!error_.ok()) return error_;
    return expr;
  }

 private:
  bool at_end() const { return pos_ == pattern_.size(); }
  bool next_is(char c) const { return !at_end() && pattern_[pos_] == c; }
  bool take(std::string_view text) {
    if (!pattern_.substr(pos_).starts_with(text)) return false;
    pos_ += text.size();
    return true;
  }
  Expr fail(std::string_view problem) {
    if (error_.ok()) error_ = invalid_argument("regex: at {}: {}", pos_, problem);
    pos_ = pattern_.size();
    return expr_nothing();
  }
  // Each set once: a pattern of a million dots has as many references to one expression.
  Expr write(const CodePointSet& set) {
    Expr& expr = written_[set.ranges()];
    if (expr == nullptr) expr = writer_(set);
    return expr;
  }
  Expr any_text() { return expr_repeat(write(CodePointSet::all()), 0); }

  Expr parse_choice(int depth) {
    if (depth > kMaxDepth) return fail("groups are nested too deeply");
    std::vector<Expr> alternatives;
    do {
      alternatives.push_back(parse_sequence(depth));
    } while (take("|"));
    return expr_choice(std::move(alternatives));
  }

  // One alternative. Outside of groups, the text may go on before and behind a match, up to the anchors.
  Expr parse_sequence(int depth) {
    std::vector<Expr> parts;
    const bool may_go_on = depth == 0 && match_ == RegexMatch::kAnywhere;
    if (next_is('^') && depth > 0) return fail("^ inside a group is not supported");
    if (take("^")) {
    } else if (may_go_on) {
      parts.push_back(any_text());
    }
    bool is_anchored = false;
    while (!at_end() && !next_is('|') && !next_is(')')) {
      if (take("$")) {
        if (depth > 0) return fail("$ inside a group is not supported");
        if (!at_end() && !next_is('|')) return fail("$ is supported at the end of an alternative only");
        is_anchored = true;
      } else {
        parts.push_back(parse_repeat(depth));
      }
    }
    if (may_go_on && !is_anchored) parts.push_back(any_text());
    return parts.empty() ? expr_empty() : expr_sequence(std::move(parts));
  }

  Expr parse_repeat(int depth) {
    Expr atom = parse_atom(depth);
    int min = 0, max = kUnbounded;
    if (take("*")) {
    } else if (take("+")) {
      min = 1;
    } else if (take("?")) {
      max = 1;
    } else if (next_is('{')) {
      const std::optional<std::pair<int, int>> bounds = take_bounds();
      if (!bounds)
        return fail("{ must begin a repetition {m}, {m,} or {m,n} with m <= n <= 100000; write \\{ for itself");
      std::tie(min, max) = *bounds;
    } else {
      return atom;
    }
    if (next_is('+')) return fail("possessive repetition is not supported");
    take("?");  // lazy: the same texts
    if (next_is('*') || next_is('+') || next_is('?') || next_is('{')) return fail("nothing to repeat");
    return expr_repeat(std::move(atom), min, max);
  }

  std::optional<std::pair<int, int>> take_bounds() {
    const size_t start = pos_;
    ++pos_;
    const int min = take_number();
    int max = min;
    if (take(",")) max = next_is('}') ? kUnbounded : take_number();
    if (min == kNoNumber || max == kNoNumber || !take("}") || (max != kUnbounded && max < min)) {
      pos_ = start;
      return std::nullopt;
    }
    return std::pair(min, max);
  }

  // kNoNumber: there is none, or it is too large.
  int take_number() {
    if (at_end() || !is_digit(pattern_[pos_])) return kNoNumber;
    int64_t value = 0;
    while (!at_end() && is_digit(pattern_[pos_])) {
      value = std::min<int64_t>(value * 10 + (pattern_[pos_++] - '0'), kMaxRepeat + 1);
    }
    return value > kMaxRepeat ? kNoNumber : static_cast<int>(value);
  }

  Expr parse_atom(int depth) {
    switch (pattern_[pos_]) {
      case '(':
        return parse_group(depth);
      case '[':
        return parse_class();
      case '.':
        ++pos_;
        return write(kLineEnds.complement());
      case '*':
      case '+':
      case '?':
      case '{':
        return fail("nothing to repeat");
      case '^':
        return fail("^ is supported at the beginning of an alternative only");
      case '\\':
        if (pos_ + 1 < pattern_.size() && (pattern_[pos_ + 1] == 'b' || pattern_[pos_ + 1] == 'B')) {
          return fail("word boundary \\b is not supported");
        }
        return write(parse_escape());
      default: {
        const char32_t c = next_utf8_char(pattern_, pos_);
        return write(CodePointSet{{c, c}});
      }
    }
  }

  Expr parse_group(int depth) {
    ++pos_;
    if (take("?")) {
      if (take(":")) {
      } else if (next_is('=') || next_is('!')) {
        return fail("look-ahead is not supported");
      } else if (take("<=") || take("<!")) {
        return fail("look-behind is not supported");
      } else if (take("P<") || take("<")) {
        const size_t end = pattern_.find('>', pos_);
        if (end == std::string_view::npos) return fail("the group's name has no end");
        pos_ = end + 1;
      } else {
        return fail("(? must begin a group (?:x) or (?<name>x); flags are not supported");
      }
    }
    Expr expr = parse_choice(depth + 1);
    if (error_.ok() && !take(")")) return fail("( without )");
    return expr;
  }

  // Behind a backslash: one character or a class of them.
  CodePointSet parse_escape() {
    ++pos_;
    if (at_end()) {
      fail("a backslash at the end");
      return {};
    }
    const char c = pattern_[pos_];
    switch (c) {
      case 'd':
        return ++pos_, kDigits;
      case 'D':
        return ++pos_, kDigits.complement();
      case 'w':
        return ++pos_, kWordChars;
      case 'W':
        return ++pos_, kWordChars.complement();
      case 's':
        return ++pos_, kSpaces;
      case 'S':
        return ++pos_, kSpaces.complement();
      case 'p':
      case 'P':
        fail("Unicode properties \\p{...} are not supported; write a class of ranges");
        return {};
      case 'k':
        fail("back references are not supported");
        return {};
      default:
        break;
    }
    if (c >= '1' && c <= '9') {
      fail("back references are not supported");
      return {};
    }
    const std::optional<char32_t> code_point = take_escaped_char();
    if (!code_point) return {};
    return {{*code_point, *code_point}};
  }

  std::optional<char32_t> take_escaped_char() {
    const char c = pattern_[pos_];
    static constexpr std::string_view kLetters = "nrtfv0";
    static constexpr char32_t kMeanings[] = {'\n', '\r', '\t', '\f', '\v', 0};
    if (const size_t i = kLetters.find(c); i != std::string_view::npos) return ++pos_, kMeanings[i];
    if (c == 'x') return ++pos_, take_hex(2);
    if (c == 'u') {
      ++pos_;
      if (next_is('{')) {
        const size_t end = pattern_.find('}', pos_);
        const size_t num_digits = end == std::string_view::npos ? 0 : end - pos_ - 1;
        if (num_digits == 0 || num_digits > 6)
          return fail("\\u{ must be followed by 1 to 6 hex digits and }"), std::nullopt;
        ++pos_;
        const std::optional<char32_t> value = take_hex(num_digits);
        if (!value) return std::nullopt;
        ++pos_;
        if (*value > kMaxCodePoint) return fail("\\u{...} is beyond U+10FFFF"), std::nullopt;
        return value;
      }
      const std::optional<char32_t> high = take_hex(4);
      if (high && *high >= 0xD800 && *high <= 0xDBFF && take("\\u")) {
        const std::optional<char32_t> low = take_hex(4);
        if (low && *low >= 0xDC00 && *low <= 0xDFFF) return 0x10000 + ((*high - 0xD800) << 10) + (*low - 0xDC00);
        return fail("\\uD800 to \\uDBFF must be followed by \\uDC00 to \\uDFFF"), std::nullopt;
      }
      return high;
    }
    if (c == 'c') {
      ++pos_;
      const char letter = at_end() ? ' ' : static_cast<char>(pattern_[pos_] | 0x20);
      if (letter < 'a' || letter > 'z') return fail("\\c must be followed by a letter"), std::nullopt;
      return ++pos_, static_cast<char32_t>(letter - 'a' + 1);
    }
    const bool is_alphanumeric = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c);
    if (is_alphanumeric) return fail("this escape is not known"), std::nullopt;
    return next_utf8_char(pattern_, pos_);
  }

  std::optional<char32_t> take_hex(size_t num_digits) {
    char32_t value = 0;
    for (size_t i = 0; i < num_digits; ++i) {
      const int digit = at_end() ? -1 : hex_value(pattern_[pos_]);
      if (digit < 0) return fail("a hex digit is missing"), std::nullopt;
      value = value * 16 + static_cast<char32_t>(digit);
      ++pos_;
    }
    return value;
  }

  Expr parse_class() {
    const size_t start = pos_++;
    const bool is_negated = take("^");
    std::vector<CodePointRange> ranges;
    while (error_.ok() && !next_is(']')) {
      if (at_end()) {
        pos_ = start;
        return fail("[ without ]");
      }
      const CodePointSet first = parse_class_item();
      const bool is_range = next_is('-') && pos_ + 1 < pattern_.size() && pattern_[pos_ + 1] != ']';
      if (!is_range) {
        ranges.insert(ranges.end(), first.ranges().begin(), first.ranges().end());
        continue;
      }
      ++pos_;
      const CodePointSet last = parse_class_item();
      if (!error_.ok()) break;
      const auto is_char = [](const CodePointSet& item) {
        return item.ranges().size() == 1 && item.ranges()[0].first == item.ranges()[0].last;
      };
      if (!is_char(first) || !is_char(last) || first.ranges()[0].first > last.ranges()[0].first) {
        return fail("a range in a class must go from one character to a later one");
      }
      ranges.push_back({first.ranges()[0].first, last.ranges()[0].first});
    }
    if (!error_.ok()) return expr_nothing();
    ++pos_;
    CodePointSet set(std::move(ranges));
    return write(is_negated ? set.complement() : set);
  }

  CodePointSet parse_class_item() {
    if (!next_is('\\')) {
      if (at_end()) {
        fail("[ without ]");
        return {};
      }
      // Elsewhere a class of its own; by the letter the class of these characters, which nobody wants.
      const size_t end = pattern_.substr(pos_, 2) == "[:"
                             ? pattern_.find_first_not_of("abcdefghijklmnopqrstuvwxyz^", pos_ + 2)
                             : pattern_.npos;
      if (end != pattern_.npos && pattern_.substr(end, 2) == ":]") {
        fail(fmt::format("POSIX class {} is not supported; write a class of ranges",
                         pattern_.substr(pos_, end + 2 - pos_)));
        return {};
      }
      const char32_t c = next_utf8_char(pattern_, pos_);
      return {{c, c}};
    }
    if (pos_ + 1 < pattern_.size() && pattern_[pos_ + 1] == 'b') return pos_ += 2, CodePointSet{{'\b', '\b'}};
    return parse_escape();
  }

  const std::string_view pattern_;
  const RegexMatch match_;
  const CharWriter& writer_;
  std::map<std::vector<CodePointRange>, Expr> written_;  // by writer_
  size_t pos_ = 0;
  Status error_;
};

}  // namespace

Result<Expr> parse_regex(std::string_view pattern, RegexMatch match, const CharWriter& writer) {
  if (pattern.size() > kMaxPatternBytes) {
    return invalid_argument("regex: {} bytes, at most {} are taken", pattern.size(), kMaxPatternBytes);
  }
  return RegexParser(pattern, match, writer).parse();
}

}  // namespace spate
