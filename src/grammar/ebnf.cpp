#include "grammar/ebnf.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

namespace spate {
namespace {

constexpr int kMaxDepth = 200;
constexpr int kMaxRepetitionsOfOne = 10;  // x+?* has three
constexpr int kMaxRepeat = 100'000;
constexpr int kNoNumber = -2;
constexpr size_t kMaxRules = 20'000;
constexpr uint32_t kRootRule = 0;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// rule ::= rule x | y becomes y (x)*.
Expr without_direct_left_recursion(uint32_t rule, const Expr& expr) {
  const auto starts_with_itself = [rule](const Expr& each) {
    return each->kind == ExprKind::kSequence && !each->children.empty() &&
           each->children.front()->kind == ExprKind::kRule && each->children.front()->rule == rule;
  };
  const std::vector<Expr> alternatives = expr->kind == ExprKind::kChoice ? expr->children : std::vector<Expr>{expr};
  std::vector<Expr> tails, bases;
  for (const Expr& each : alternatives) {
    if (starts_with_itself(each)) {
      tails.push_back(expr_sequence({each->children.begin() + 1, each->children.end()}));
    } else {
      bases.push_back(each);
    }
  }
  if (tails.empty()) return expr;
  return expr_sequence({expr_choice(std::move(bases)), expr_repeat(expr_choice(std::move(tails)), 0)});
}

class EbnfParser {
 public:
  EbnfParser(std::string_view text, const Expr& prefix) : text_(text) {
    builder_.declare_rule("root");
    builder_.set_prefix(prefix);
  }

  Result<Grammar> parse(CompileBudget& budget) {
    numbers_.emplace("root", kRootRule);
    skip_space();
    while (error_.ok() && pos_ < text_.size()) parse_rule();
    RETURN_IF_ERROR(error_);
    for (const auto& [name, rule] : numbers_) {
      if (builder_.is_defined(rule)) continue;
      if (rule == kRootRule) return invalid_argument("grammar: there is no rule 'root', where everything begins");
      return invalid_argument("grammar: rule '{}' is used at {} and not defined", name, place(first_uses_.at(rule)));
    }
    return builder_.finish(kRootRule, budget);
  }

 private:
  bool at_end() const { return pos_ >= text_.size(); }
  bool next_is(char c) const { return !at_end() && text_[pos_] == c; }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++pos_;
    return true;
  }
  std::string place(size_t pos) const {
    const std::string_view before = text_.substr(0, pos);
    const auto line = 1 + std::ranges::count(before, '\n');
    const size_t line_start = before.find_last_of('\n') + 1;  // npos + 1 == 0
    return fmt::format("line {}, column {}", line, pos - line_start + 1);
  }
  Expr fail(std::string_view problem) {
    if (error_.ok()) error_ = invalid_argument("grammar: {}: {}", place(std::min(pos_, text_.size())), problem);
    pos_ = text_.size();
    return expr_nothing();
  }
  void skip_space() {
    while (!at_end()) {
      const char c = text_[pos_];
      if (c == '#') {
        pos_ = std::min(text_.find('\n', pos_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++pos_;
      } else {
        return;
      }
    }
  }

  std::string_view name_at(size_t pos) const {
    size_t end = pos;
    while (end < text_.size() && is_name_char(text_[end])) ++end;
    return text_.substr(pos, end - pos);
  }
  bool rule_begins_here() {
    const std::string_view name = name_at(pos_);
    if (name.empty()) return false;
    const size_t start = std::exchange(pos_, pos_ + name.size());
    skip_space();
    const bool is_rule = text_.substr(pos_).starts_with("::=");
    pos_ = start;
    return is_rule;
  }
  uint32_t number_of(std::string_view name) {
    const auto [it, is_new] = numbers_.try_emplace(std::string(name), static_cast<uint32_t>(builder_.num_rules()));
    if (is_new) builder_.declare_rule(std::string(name));
    first_uses_.try_emplace(it->second, pos_);
    return it->second;
  }

  void parse_rule() {
    if (!rule_begins_here()) {
      fail("a rule must begin here: name ::= ...");
      return;
    }
    const std::string_view name = name_at(pos_);
    const uint32_t rule = number_of(name);
    if (builder_.is_defined(rule)) {
      fail(fmt::format("rule '{}' is defined twice", name));
      return;
    }
    if (builder_.num_rules() > kMaxRules) {
      fail(fmt::format("there are more than {} rules", kMaxRules));
      return;
    }
    pos_ += name.size();
    skip_space();
    pos_ += 3;  // ::=
    skip_space();
    builder_.define_rule(rule, without_direct_left_recursion(rule, parse_choice(0)));
  }

  Expr parse_choice(int depth) {
    if (depth > kMaxDepth) return fail("parentheses are nested too deeply");
    std::vector<Expr> alternatives;
    do {
      skip_space();
      alternatives.push_back(parse_sequence(depth));
    } while (take('|'));
    return expr_choice(std::move(alternatives));
  }

  Expr parse_sequence(int depth) {
    std::vector<Expr> parts;
    while (!at_end() && !next_is('|') && !next_is(')') && !rule_begins_here()) {
      parts.push_back(parse_repeat(parse_atom(depth)));
      skip_space();
    }
    if (next_is(')') && depth == 0) return fail("unmatched )");
    return parts.empty() ? expr_empty() : expr_sequence(std::move(parts));
  }

  Expr parse_repeat(Expr atom) {
    for (int count = 0; error_.ok(); ++count) {
      skip_space_in_line();
      if (take('*')) {
        atom = expr_repeat(std::move(atom), 0);
      } else if (take('+')) {
        atom = expr_repeat(std::move(atom), 1);
      } else if (take('?')) {
        atom = expr_optional(std::move(atom));
      } else if (next_is('{')) {
        const auto bounds = take_bounds();
        if (!bounds) return fail("a repetition must be {m}, {m,}, {,n} or {m,n} with m <= n <= 100000");
        atom = expr_repeat(std::move(atom), bounds->first, bounds->second);
      } else {
        break;
      }
      if (count == kMaxRepetitionsOfOne) {
        return fail(fmt::format("more than {} repetitions stand behind one another", kMaxRepetitionsOfOne));
      }
    }
    return atom;
  }
  void skip_space_in_line() {
    while (next_is(' ') || next_is('\t')) ++pos_;
  }

  std::optional<std::pair<int, int>> take_bounds() {
    const size_t start = pos_++;
    skip_space();
    const bool has_min = !next_is(',');
    int min = 0;
    if (has_min) min = take_number();
    int max = min;
    skip_space();
    if (take(',')) {
      skip_space();
      max = next_is('}') && has_min ? kUnbounded : take_number();
      skip_space();
    } else if (!has_min) {
      min = kNoNumber;
    }
    if (min != kNoNumber && max != kNoNumber && take('}') && (max == kUnbounded || max >= min))
      return std::pair(min, max);
    pos_ = start;
    return std::nullopt;
  }
  // kNoNumber: there is none, or it is too large.
  int take_number() {
    if (at_end() || text_[pos_] < '0' || text_[pos_] > '9') return kNoNumber;
    int64_t value = 0;
    while (!at_end() && text_[pos_] >= '0' && text_[pos_] <= '9') {
      value = std::min<int64_t>(value * 10 + (text_[pos_++] - '0'), kMaxRepeat + 1);
    }
    return value > kMaxRepeat ? kNoNumber : static_cast<int>(value);
  }

  Expr parse_atom(int depth) {
    const char c = text_[pos_];
    if (c == '"' || c == '\'') return parse_text(c);
    if (c == '[') return parse_class();
    if (take('.')) return expr_chars(CodePointSet::all());
    if (c == '(') {
      ++pos_;
      Expr expr = parse_choice(depth + 1);
      skip_space();
      if (error_.ok() && !take(')')) return fail("( without )");
      return expr;
    }
    const std::string_view name = name_at(pos_);
    if (name.empty()) return fail("expected a text, a class, a rule's name or (");
    const uint32_t rule = number_of(name);
    pos_ += name.size();
    return expr_rule(rule);
  }

  Expr parse_text(char quote) {
    const size_t start = pos_++;
    std::string bytes;
    while (!next_is(quote)) {
      if (at_end() || next_is('\n')) {
        pos_ = start;
        return fail("the text has no closing quote");
      }
      append_utf8_char(take_char(), bytes);
    }
    ++pos_;
    return expr_bytes(bytes);
  }

  Expr parse_class() {
    const size_t start = pos_++;
    const bool is_negated = take('^');
    std::vector<CodePointRange> ranges;
    while (!next_is(']')) {
      if (at_end() || next_is('\n')) {
        pos_ = start;
        return fail("[ without ]");
      }
      const char32_t first = take_char();
      char32_t last = first;
      if (next_is('-') && pos_ + 1 < text_.size() && text_[pos_ + 1] != ']') {
        ++pos_;
        last = take_char();
      }
      if (first > last) return fail("a range in a class must go from one character to a later one");
      ranges.push_back({first, last});
    }
    ++pos_;
    CodePointSet set(std::move(ranges));
    return expr_chars(is_negated ? set.complement() : set);
  }

  char32_t take_char() {
    if (at_end()) return fail("a character is missing"), U'\0';
    if (!take('\\')) return next_utf8_char(text_, pos_);
    if (at_end()) return fail("a backslash at the end"), U'\0';
    const char c = text_[pos_++];
    static constexpr std::string_view kLetters = "nrtfvab0";
    static constexpr char32_t kMeanings[] = {'\n', '\r', '\t', '\f', '\v', '\a', '\b', 0};
    if (const size_t i = kLetters.find(c); i != std::string_view::npos) return kMeanings[i];
    const int num_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
    if (num_digits == 0 && is_letter) return fail(fmt::format("the escape \\{} is not known", c)), U'\0';
    if (num_digits == 0) return --pos_, next_utf8_char(text_, pos_);
    uint64_t value = 0;
    for (int i = 0; i < num_digits; ++i) {
      const int digit = at_end() ? -1 : hex_value(text_[pos_]);
      if (digit < 0) return fail(fmt::format("\\{} must be followed by {} hex digits", c, num_digits)), U'\0';
      value = value * 16 + static_cast<uint64_t>(digit);
      ++pos_;
    }
    if (value > kMaxCodePoint || (value >= 0xD800 && value <= 0xDFFF)) {
      return fail("the escape is no Unicode character"), U'\0';
    }
    return static_cast<char32_t>(value);
  }

  const std::string_view text_;
  size_t pos_ = 0;
  GrammarBuilder builder_;
  std::unordered_map<std::string, uint32_t> numbers_;
  std::unordered_map<uint32_t, size_t> first_uses_;
  Status error_;
};

}  // namespace

Result<Grammar> compile_ebnf(std::string_view text, CompileBudget& budget, const Expr& prefix) {
  return EbnfParser(text, prefix).parse(budget);
}

}  // namespace spate
