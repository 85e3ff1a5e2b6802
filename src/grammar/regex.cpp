#include "grammar/regex.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "grammar/byte_dfa.h"

namespace spate {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 20;  // each byte takes hundreds before the budget of the compiler counts
constexpr int kMaxDepth = 200;
constexpr int kMaxRepeat = 100'000;
constexpr int kNoNumber = -2;
constexpr size_t kMaxLookAheads = 64;

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
  RegexParser(std::string_view pattern, RegexMatch match, const CharWriter& writer, CompileBudget* budget)
      : pattern_(pattern), match_(match), writer_(writer), budget_(budget) {}

  Result<Expr> parse() {
    const bool is_open = match_ == RegexMatch::kAnywhere;
    Expr expr = parse_choice(0, is_open ? Head::kOpen : Head::kBegin, is_open ? Tail::kOpen : Tail::kEnd);
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

  // What follows a sequence: more of the pattern; nothing of it, but any text unless a $ ends it; nothing at all.
  enum class Tail : uint8_t { kNone, kOpen, kEnd };
  // What is before it: more of the pattern; nothing of it, but any text unless a ^ begins it; nothing at all.
  enum class Head : uint8_t { kNone, kOpen, kBegin };

  Expr parse_choice(int depth, Head head, Tail tail) {
    if (depth > kMaxDepth) return fail("groups are nested too deeply");
    std::vector<Expr> alternatives;
    do {
      alternatives.push_back(parse_sequence(depth, head, tail));
    } while (take("|"));
    return expr_choice(std::move(alternatives));
  }

  // One alternative. Outside of groups, the text may go on before and behind a match, up to the anchors. A group that
  // begins the pattern and has a ^ has what is before it in its alternatives.
  Expr parse_sequence(int depth, Head head, Tail tail) {
    if (next_is('^') && head == Head::kNone) {
      return fail("^ inside a group is supported where the group begins the pattern only");
    }
    if (take("^")) head = Head::kBegin;
    is_at_begin_ = head == Head::kBegin;
    return parse_parts(depth, head, tail);
  }

  // The rest of an alternative; kNone: what is before it is written.
  Expr parse_parts(int depth, Head head, Tail tail) {
    std::vector<Expr> parts;
    if (head != Head::kNone && !begins_with_anchored_group()) {
      if (head == Head::kOpen) parts.push_back(any_text());
      head = Head::kNone;
    }
    bool is_tail_written = tail != Tail::kOpen;
    while (!at_end() && !next_is('|') && !next_is(')')) {
      if (take("$")) {
        if (tail == Tail::kNone) return fail("$ inside a group is supported where the group ends the pattern only");
        if (!at_end() && !next_is('|') && !next_is(')'))
          return fail("$ is supported at the end of an alternative only");
        is_tail_written = true;
      } else if (next_is_look_ahead()) {
        parts.push_back(parse_look_ahead(depth, tail));
        is_tail_written = true;
      } else if (const Tail inner = tail_of_group(tail); inner != Tail::kNone || head != Head::kNone) {
        Expr group = parse_group(depth, head, inner);
        if (take("?")) {
          take("?");  // lazy: the same texts
          const bool is_open = head == Head::kOpen || inner == Tail::kOpen;
          group = expr_choice({std::move(group), is_open ? any_text() : expr_empty()});
        }
        parts.push_back(std::move(group));
        is_tail_written = is_tail_written || inner != Tail::kNone;
        if (inner != Tail::kNone && inner != tail) take("$");
      } else {
        parts.push_back(parse_repeat(depth));
      }
      head = Head::kNone;
      is_at_begin_ = false;
    }
    if (!is_tail_written) parts.push_back(any_text());
    return parts.empty() ? expr_empty() : expr_sequence(std::move(parts));
  }

  // A group that has a ^ and comes at most once.
  bool begins_with_anchored_group() const {
    if (budget_ == nullptr || !next_is('(') || next_is_look_ahead()) return false;
    const Group group = look_at_group();
    if (!budget_->spend(static_cast<int64_t>(group.end - pos_) / 16) || !group.asks_for_begin) return false;
    return pattern_.substr(group.end, 1).find_first_of("*+{") != 0;
  }

  bool next_is_look_ahead() const {
    const std::string_view rest = pattern_.substr(pos_);
    return rest.starts_with("(?=") || rest.starts_with("(?!");
  }

  // Of the group that begins here, where it matters to what is in it. kNone where more of the pattern follows, or the
  // group may come more than once.
  Tail tail_of_group(Tail tail) const {
    if (tail == Tail::kNone || budget_ == nullptr || !next_is('(')) return Tail::kNone;
    const Group group = look_at_group();
    if (!budget_->spend(static_cast<int64_t>(group.end - pos_) / 16) || !group.asks_for_end) return Tail::kNone;
    std::string_view rest = pattern_.substr(group.end);
    rest.remove_prefix(rest.starts_with("??") ? 2 : rest.starts_with('?') ? 1 : 0);
    const auto is_end = [](std::string_view text) { return text.empty() || text[0] == '|' || text[0] == ')'; };
    if (is_end(rest)) return tail;
    return rest[0] == '$' && is_end(rest.substr(1)) ? Tail::kEnd : Tail::kNone;
  }
  struct Group {
    size_t end = 0;               // behind its ); the pattern's end without one
    bool asks_for_begin = false;  // it has a ^
    bool asks_for_end = false;    // it has a $ or a look-ahead
  };
  Group look_at_group() const {
    Group group{.end = pattern_.size()};
    int depth = 0;
    bool is_in_class = false;
    for (size_t i = pos_; i < pattern_.size(); ++i) {
      const char c = pattern_[i];
      if (c == '\\') {
        ++i;
      } else if (is_in_class) {
        is_in_class = c != ']';
      } else if (c == '[') {
        is_in_class = true;
      } else if (c == '^') {
        group.asks_for_begin = true;
      } else if (c == '$') {
        group.asks_for_end = true;
      } else if (c == '(') {
        ++depth;
        const std::string_view begin = pattern_.substr(i, 3);
        group.asks_for_end = group.asks_for_end || begin == "(?=" || begin == "(?!";
      } else if (c == ')' && --depth == 0) {
        group.end = i + 1;
        break;
      }
    }
    return group;
  }

  // (?=x) or (?!x) and the rest of the alternative: the texts of the rest that begin so, or do not.
  Expr parse_look_ahead(int depth, Tail tail) {
    if (budget_ == nullptr) return pos_ += 2, fail("look-ahead is not supported");
    if (tail == Tail::kNone) return pos_ += 2, fail("look-ahead is supported where the pattern's end follows only");
    if (++num_look_aheads_ > kMaxLookAheads) return fail("there are too many look-aheads");
    const bool is_negative = pattern_[pos_ + 2] == '!';
    const bool is_at_begin = is_at_begin_;
    pos_ += 3;
    std::vector<Expr> alternatives;
    do {
      is_at_begin_ = is_at_begin;
      if (is_at_begin) take("^");
      alternatives.push_back(parse_parts(depth + 1, Head::kNone, Tail::kOpen));
    } while (take("|"));
    if (error_.ok() && !take(")")) return fail("( without )");
    is_at_begin_ = is_at_begin;
    const Expr rest = parse_parts(depth + 1, Head::kNone, tail);
    if (!error_.ok()) return expr_nothing();
    Result<ByteDfa> texts = ByteDfa::of_expr(rest, *budget_);
    const Result<ByteDfa> seen = texts.ok() ? ByteDfa::of_expr(expr_choice(std::move(alternatives)), *budget_) : texts;
    if (seen.ok()) {
      texts =
          is_negative ? ByteDfa::difference(*texts, *seen, *budget_) : ByteDfa::intersection(*texts, *seen, *budget_);
    }
    if (!seen.ok() || !texts.ok()) {
      error_ = seen.ok() ? texts.status() : seen.status();
      return expr_nothing();
    }
    return expr_dfa(std::make_shared<const ByteDfa>(std::move(*texts)));
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
        return parse_group(depth, Head::kNone, Tail::kNone);
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

  Expr parse_group(int depth, Head head, Tail tail) {
    ++pos_;
    if (take("?")) {
      if (take(":")) {
      } else if (next_is('=') || next_is('!')) {
        return fail("look-ahead is supported where the pattern's end follows only");
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
    Expr expr = parse_choice(depth + 1, head, tail);
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
  CompileBudget* const budget_;                          // may be null
  std::map<std::vector<CodePointRange>, Expr> written_;  // by writer_
  size_t pos_ = 0;
  bool is_at_begin_ = false;  // of the text: nothing was read
  size_t num_look_aheads_ = 0;
  Status error_;
};

}  // namespace

Result<Expr> parse_regex(std::string_view pattern, RegexMatch match, const CharWriter& writer, CompileBudget* budget) {
  if (pattern.size() > kMaxPatternBytes) {
    return invalid_argument("regex: {} bytes, at most {} are taken", pattern.size(), kMaxPatternBytes);
  }
  return RegexParser(pattern, match, writer, budget).parse();
}

}  // namespace spate
