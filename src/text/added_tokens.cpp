#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace spate {
namespace {

bool has_class_before(std::string_view text, size_t pos, uint8_t char_classes) {
  if (pos == 0) return false;
  return char_class(char_class_table(), decode_utf8(text, previous_utf8(text, pos)).value) & char_classes;
}

bool has_class_at(std::string_view text, size_t pos, uint8_t char_classes) {
  if (pos >= text.size()) return false;
  return char_class(char_class_table(), decode_utf8(text, pos).value) & char_classes;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens,
                                     const std::vector<std::pair<std::string, int32_t>>& patterns)
    : tokens_(&tokens) {
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (const auto& [pattern, index] : patterns) {
    if (pattern.empty()) continue;
    entries.emplace_back(pattern, index);
    first_bytes_.set(static_cast<unsigned char>(pattern[0]));
  }
  trie_ = ByteTrie(std::move(entries));
}

void AddedTokenMatcher::find_segments(std::string_view text, bool parse_special, std::vector<Segment>& segments) const {
  size_t covered = 0;  // what segments hold so far
  for (size_t pos = 0; pos < text.size();) {
    if (!first_bytes_[static_cast<unsigned char>(text[pos])]) {
      ++pos;
      continue;
    }
    size_t match_end = pos;
    const int32_t index = trie_.find_longest(text, pos, ByteTrie::kRoot, &match_end);
    if (index < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = (*tokens_)[static_cast<size_t>(index)];
    size_t start = pos, end = match_end;
    pos = match_end;  // also a match that is refused below is used up, as in Hugging Face's matcher
    if (token.special && !parse_special) continue;
    if (token.single_word && (has_class_before(text, start, kCharWord) || has_class_at(text, end, kCharWord))) continue;
    if (token.lstrip) {
      while (has_class_before(text, start, kCharSpace)) start = previous_utf8(text, start);
      start = std::max(start, covered);
    }
    if (token.rstrip) {
      while (has_class_at(text, end, kCharSpace)) end += decode_utf8(text, end).size_bytes;
    }
    if (covered < start) segments.push_back({text.substr(covered, start - covered), nullptr, covered});
    segments.push_back({text.substr(start, end - start), &token, start});
    covered = end;
  }
  if (covered < text.size()) segments.push_back({text.substr(covered), nullptr, covered});
}

}  // namespace spate
