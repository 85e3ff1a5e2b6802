// SentencePiece's precompiled normalization rules (the Precompiled normalizer of T5, XLM-R and their kin): a
// double-array trie from character sequences to offsets in a pool of NUL-terminated replacements.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace spate {

class PrecompiledCharsmap {
 public:
  // `blob`: uint32 trie size in bytes, the trie's uint32 units (little-endian), the pool.
  static Result<PrecompiledCharsmap> parse(std::string_view blob);
  static Result<PrecompiledCharsmap> parse_base64(std::string_view text);

  // As Hugging Face applies it: grapheme by grapheme; a grapheme under six bytes is looked up whole and, when a
  // rule's key is a prefix of it, wholly replaced by the rule of the shortest such key; else character by character.
  std::string normalize(std::string_view text) const;

 private:
  bool find_replacement(std::string_view chunk, std::string_view* replacement) const;

  std::vector<uint32_t> trie_units_;
  std::string pool_;  // valid UTF-8 between its NULs
};

}  // namespace spate
