// Tokens that are found in the text before anything else happens to it: <|im_start|> and its kind.
// Built by the loader, then immutable and thread-safe.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_trie.h"

namespace spate {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // no match inside a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = true;    // sought in the normalized text, by its own normalized form
  bool special = false;      // left out of decoded text on request
};

// Finds a set of added tokens in a text: leftmost, of those the longest.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // patterns[i] is what is sought for tokens[i]; `tokens` must outlive the matcher.
  AddedTokenMatcher(const std::vector<AddedToken>& tokens,
                    const std::vector<std::pair<std::string, int32_t>>& patterns);

  bool empty() const { return trie_.empty(); }

  struct Segment {
    std::string_view text;    // what lies between tokens, or the token's text with the white space it took
    const AddedToken* token;  // null for text between
    size_t start;             // byte in the whole text
  };
  // All of `text` in order. With parse_special false, special tokens are text like any other.
  template <typename Fn>
  void for_each_segment(std::string_view text, bool parse_special, Fn&& fn) const {
    if (empty()) {
      if (!text.empty()) fn(Segment{text, nullptr, 0});
      return;
    }
    std::vector<Segment> segments;
    find_segments(text, parse_special, segments);
    for (const Segment& segment : segments) fn(segment);
  }

 private:
  void find_segments(std::string_view text, bool parse_special, std::vector<Segment>& segments) const;

  const std::vector<AddedToken>* tokens_ = nullptr;
  ByteTrie trie_;  // values are indices into *tokens_
  std::bitset<256> first_bytes_;
};

}  // namespace spate
