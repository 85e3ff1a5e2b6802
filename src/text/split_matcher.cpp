#include "text/split_matcher.h"

#include <algorithm>
#include <optional>

#include "text/split_scanners.h"
#include "text/unicode.h"

namespace spate {

const std::string_view kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kDeepSeekV3Pattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

struct KnownPattern {
  std::string_view pattern;
  SplitKind kind;
};
const KnownPattern kKnownPatterns[] = {
    {kGpt2Pattern, SplitKind::kGpt2},
    {kLlama3Pattern, SplitKind::kLlama3},
    {kQwen2Pattern, SplitKind::kQwen2},
    {kDeepSeekV3Pattern, SplitKind::kDeepSeekV3},
    {R"(\s+$)", SplitKind::kTrailingSpace},
    {R"(\w+|[^\w\s]+)", SplitKind::kRegex},  // Oniguruma's \w lacks the joiners that kWordRun has
};

}  // namespace

SplitMatcher::SplitMatcher(SplitKind kind) : kind_(kind), classes_(char_class_table()) {}

SplitMatcher SplitMatcher::from_kind(SplitKind kind) { return SplitMatcher(kind); }

SplitMatcher SplitMatcher::from_classes(uint8_t char_classes) {
  SplitMatcher matcher(SplitKind::kClassChar);
  matcher.char_classes_ = char_classes;
  return matcher;
}

Result<SplitMatcher> SplitMatcher::from_literal(std::string_view literal) {
  if (literal.empty()) return from_regex_by_pcre2("");
  SplitMatcher matcher(SplitKind::kLiteral);
  matcher.literal_ = literal;
  return matcher;
}

Result<SplitMatcher> SplitMatcher::from_regex_by_pcre2(std::string_view pattern) {
  SplitMatcher matcher(SplitKind::kRegex);
  ASSIGN_OR_RETURN(Pcre2Regex regex, Pcre2Regex::compile(pattern));
  matcher.regex_ = std::make_shared<const Pcre2Regex>(std::move(regex));
  return matcher;
}

Result<SplitMatcher> SplitMatcher::from_regex(std::string_view pattern) {
  for (const KnownPattern& known : kKnownPatterns) {
    if (known.pattern == pattern && known.kind != SplitKind::kRegex) return SplitMatcher(known.kind);
  }
  SplitMatcher matcher(SplitKind::kDigitRun);
  if (pattern == R"(\p{N}{1,3})" || pattern == R"(\p{N}+)" || pattern == R"(\p{N})") {
    matcher.max_run_ = pattern.size() == 10 ? 3 : pattern.back() == '+' ? 0 : 1;
    return matcher;
  }
  if (parse_set_run(pattern, &matcher)) return matcher;
  return from_regex_by_pcre2(pattern);
}

// Takes \s?[ranges]+, [ranges]+ and [ranges], where ranges are plain characters, \r and \n: the shape of the
// DeepSeek-LLM and DeepSeek-V3 patterns that list scripts by code point.
bool SplitMatcher::parse_set_run(std::string_view pattern, SplitMatcher* matcher) {
  matcher->kind_ = SplitKind::kSetRun;
  if (pattern.starts_with("\\s?")) {
    matcher->optional_space_ = true;
    pattern.remove_prefix(3);
  }
  if (!pattern.starts_with('[')) return false;
  matcher->max_run_ = 1;
  if (pattern.ends_with("]+")) {
    matcher->max_run_ = 0;
    pattern.remove_suffix(1);
  }
  if (!pattern.ends_with(']') || pattern.size() < 3) return false;
  pattern = pattern.substr(1, pattern.size() - 2);
  if (pattern[0] == '^' || !is_valid_utf8(pattern)) return false;

  size_t pos = 0;
  const auto next_char = [&]() -> std::optional<char32_t> {
    const Utf8Char c = decode_utf8(pattern, pos);
    pos += c.size_bytes;
    if (c.value == '[' || c.value == ']' || c.value == '&' || c.value == '-') return std::nullopt;
    if (c.value != '\\') return c.value;
    if (pos == pattern.size()) return std::nullopt;
    const char escaped = pattern[pos++];
    if (escaped == 'r') return U'\r';
    if (escaped == 'n') return U'\n';
    return std::nullopt;
  };
  std::vector<Range> ranges;
  while (pos < pattern.size()) {
    const std::optional<char32_t> first = next_char();
    if (!first) return false;
    char32_t last = *first;
    if (pos < pattern.size() && pattern[pos] == '-') {
      if (++pos == pattern.size()) return false;
      const std::optional<char32_t> upper = next_char();
      if (!upper || *upper < *first) return false;
      last = *upper;
    }
    ranges.push_back({*first, last});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  for (const Range& range : ranges) {  // merged, so that one binary search decides
    if (!matcher->ranges_.empty() && range.first <= matcher->ranges_.back().last + 1) {
      matcher->ranges_.back().last = std::max(matcher->ranges_.back().last, range.last);
    } else {
      matcher->ranges_.push_back(range);
    }
  }
  for (const Range& range : matcher->ranges_) {
    for (char32_t c = range.first; c <= range.last && c < 128; ++c)
      matcher->ascii_set_[c / 64] |= uint64_t{1} << (c % 64);
  }
  return true;
}

bool SplitMatcher::in_set(char32_t c) const {
  if (c < 128) return (ascii_set_[c / 64] >> (c % 64)) & 1;
  auto it = std::upper_bound(ranges_.begin(), ranges_.end(), c, [](char32_t v, const Range& r) { return v < r.first; });
  return it != ranges_.begin() && c <= std::prev(it)->last;
}

bool SplitMatcher::find_set_run(std::string_view text, size_t from, SplitMatch* match) const {
  for (size_t pos = from; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    size_t body = pos;
    Utf8Char head = c;
    if (optional_space_ && (char_class(classes_, c.value) & kCharSpace) && pos + c.size_bytes < text.size()) {
      const Utf8Char next = decode_utf8(text, pos + c.size_bytes);
      if (in_set(next.value)) {
        body = pos + c.size_bytes;
        head = next;
      }
    }
    if (!in_set(head.value)) {
      pos += c.size_bytes;
      continue;
    }
    size_t end = body + head.size_bytes;
    while (max_run_ == 0 && end < text.size()) {
      const Utf8Char next = decode_utf8(text, end);
      if (!in_set(next.value)) break;
      end += next.size_bytes;
    }
    *match = {pos, end};
    return true;
  }
  return false;
}

bool SplitMatcher::find_digit_run(std::string_view text, size_t from, SplitMatch* match) const {
  for (size_t pos = from; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    if (!(char_class(classes_, c.value) & kCharNumber)) {
      pos += c.size_bytes;
      continue;
    }
    size_t end = pos + c.size_bytes;
    for (size_t run = 1; run != max_run_ && end < text.size(); ++run) {
      const Utf8Char next = decode_utf8(text, end);
      if (!(char_class(classes_, next.value) & kCharNumber)) break;
      end += next.size_bytes;
    }
    *match = {pos, end};
    return true;
  }
  return false;
}

// \s+ is greedy and gives back until `$` holds: at the end of the text or before a line feed.
bool SplitMatcher::find_trailing_space(std::string_view text, size_t from, SplitMatch* match) const {
  for (size_t pos = from; pos < text.size();) {
    size_t end = pos, last_line_feed = pos;
    while (end < text.size()) {
      const Utf8Char c = decode_utf8(text, end);
      if (!(char_class(classes_, c.value) & kCharSpace)) break;
      if (c.value == '\n') last_line_feed = end;
      end += c.size_bytes;
    }
    if (end == pos) {
      pos += decode_utf8(text, pos).size_bytes;
      continue;
    }
    if (end == text.size()) last_line_feed = end;
    if (last_line_feed > pos) {
      *match = {pos, last_line_feed};
      return true;
    }
    pos = end;
  }
  return false;
}

bool SplitMatcher::find_class_char(std::string_view text, size_t from, SplitMatch* match) const {
  for (size_t pos = from; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    // Bert's and Punctuation's rule counts every ASCII punctuation mark, also those of class S, such as $ and +.
    uint8_t wanted = char_classes_;
    if ((wanted & kCharPunctuation) && c.value < 128) wanted |= kCharSymbol;
    if (char_class(classes_, c.value) & wanted) {
      *match = {pos, pos + c.size_bytes};
      return true;
    }
    pos += c.size_bytes;
  }
  return false;
}

bool SplitMatcher::find_word_run(std::string_view text, size_t from, SplitMatch* match) const {
  constexpr uint8_t kMask = kCharWord | kCharSpace;
  for (size_t pos = from; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    const uint8_t kind = char_class(classes_, c.value) & kMask;
    size_t end = pos + c.size_bytes;
    if (kind == kCharSpace) {
      pos = end;
      continue;
    }
    while (end < text.size()) {
      const Utf8Char next = decode_utf8(text, end);
      if ((char_class(classes_, next.value) & kMask) != kind) break;
      end += next.size_bytes;
    }
    *match = {pos, end};
    return true;
  }
  return false;
}

bool SplitMatcher::find(std::string_view text, size_t from, SplitMatch* match) const {
  switch (kind_) {
    case SplitKind::kRegex:
      return regex_->find(text, from, &match->start, &match->end);
    case SplitKind::kSetRun:
      return find_set_run(text, from, match);
    case SplitKind::kDigitRun:
      return find_digit_run(text, from, match);
    case SplitKind::kTrailingSpace:
      return find_trailing_space(text, from, match);
    case SplitKind::kClassChar:
      return find_class_char(text, from, match);
    case SplitKind::kWordRun:
      return find_word_run(text, from, match);
    case SplitKind::kLiteral: {
      const size_t start = text.find(literal_, from);
      if (start == std::string_view::npos) return false;
      *match = {start, start + literal_.size()};
      return true;
    }
    case SplitKind::kGpt2:
    case SplitKind::kLlama3:
    case SplitKind::kQwen2:
    case SplitKind::kDeepSeekV3:
      break;
  }
  for (size_t pos = from; pos < text.size();) {
    size_t end = pos;
    if (kind_ == SplitKind::kGpt2)
      end = scan_gpt2(classes_, text, pos);
    else if (kind_ == SplitKind::kLlama3)
      end = scan_llama3(classes_, text, pos, 3);
    else if (kind_ == SplitKind::kQwen2)
      end = scan_llama3(classes_, text, pos, 1);
    else
      end = scan_deepseek_v3(classes_, text, pos);
    if (end > pos) {
      *match = {pos, end};
      return true;
    }
    pos += decode_utf8(text, pos).size_bytes;
  }
  return false;
}

}  // namespace spate
