// text_parts_test.cpp
//
// Goal     The small parts hold their contracts: UTF-8 repair in pieces as in whole, normal forms, vocabulary and
//          merge tables, the trie, both ways to merge.
// Method   Random inputs against the obvious implementation (utf8proc's own mapping, std::map, a rescan per merge).

#include <utf8proc.h>

#include <cstdlib>
#include <map>

#include "base/rng.h"
#include "base/test_support.h"
#include "text/bpe_model.h"
#include "text/byte_alphabet.h"
#include "text/byte_trie.h"
#include "text/normalizer.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

#include "base/test.h"

namespace spate {
namespace {

std::string random_bytes(Rng& rng, uint64_t max_size) {
  // Lead and continuation bytes of all kinds, so that nearly valid sequences are common.
  static constexpr unsigned char kBytes[] = {'a',  0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xC2, 0xC3, 0xA9,
                                             0xE0, 0xA0, 0xE4, 0xBD, 0xED, 0x9F, 0xEF, 0xF0, 0x90,
                                             0x9F, 0x98, 0x80, 0xF4, 0x8F, 0xF5, 0xFF};
  std::string bytes;
  for (uint64_t i = 0, size = rng.below(max_size); i < size; ++i)
    bytes += static_cast<char>(kBytes[rng.below(std::size(kBytes))]);
  return bytes;
}

TEST_CASE("utf-8: maximal invalid parts become one replacement each") {
  // The example of the Unicode standard, table 3-8, and its neighbours.
  CHECK(to_valid_utf8("a\xF1\x80\x80\xE1\x80\xC2"
                      "b\x80"
                      "c\x80\xBF"
                      "d") ==
        "a\uFFFD\uFFFD\uFFFD"
        "b\uFFFD"
        "c\uFFFD\uFFFD"
        "d");
  CHECK(to_valid_utf8("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");                      // a surrogate
  CHECK(to_valid_utf8("\xC0\xAF\xE0\x80\xBF") == "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");  // overlong
  CHECK(to_valid_utf8("\xF4\x90\x80\x80") == "\uFFFD\uFFFD\uFFFD\uFFFD");            // past U+10FFFF
  CHECK(is_valid_utf8("plain ascii, and more than eight of it: é中😀"));
  CHECK(!is_valid_utf8("12345678\xC3"));
}

TEST_CASE("utf-8: repaired in pieces as in whole, each piece valid") {
  const uint64_t seed = test_seed();
  CAPTURE(seed);
  Rng rng(seed);
  for (int round = 0; round < 20000; ++round) {
    const std::string bytes = random_bytes(rng, 24);
    std::string pending, streamed;
    for (size_t pos = 0; pos < bytes.size();) {
      const size_t size = std::min<size_t>(1 + rng.below(4), bytes.size() - pos);
      pending += bytes.substr(pos, size);
      pos += size;
      std::string piece;
      pending.erase(0, append_valid_utf8(pending, false, piece));
      REQUIRE(is_valid_utf8(piece));
      REQUIRE(pending.size() <= 3);
      streamed += piece;
    }
    append_valid_utf8(pending, true, streamed);
    REQUIRE(streamed == to_valid_utf8(bytes));
    REQUIRE(is_valid_utf8(bytes) == (streamed == bytes));
  }
}

std::string utf8proc_form(const std::string& text, UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  options |= form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped, static_cast<utf8proc_option_t>(options));
  REQUIRE(size >= 0);
  std::string result(reinterpret_cast<char*>(mapped), static_cast<size_t>(size));
  std::free(mapped);
  return result;
}

TEST_CASE("normal forms: as utf8proc maps them, also where a short cut is taken") {
  const uint64_t seed = test_seed();
  CAPTURE(seed);
  Rng rng(seed);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    const bool marks = rng.below(2) != 0;
    for (uint64_t i = 0, size = rng.below(10); i < size; ++i) {
      static constexpr char32_t kBlocks[] = {0x41,   0xC0,   0x300,  0x1100, 0x1161, 0x11A8, 0xAC00, 0x1E00,
                                             0x1F00, 0x3041, 0x3099, 0x2100, 0x4E00, 0xF900, 0x915};
      const char32_t block = kBlocks[rng.below(std::size(kBlocks))];
      if (!marks && (block == 0x300 || block == 0x3099)) continue;
      append_utf8(block + static_cast<char32_t>(rng.below(0x30)), text);
    }
    CAPTURE(text);
    for (const UnicodeForm form : {UnicodeForm::kNfc, UnicodeForm::kNfd, UnicodeForm::kNfkc, UnicodeForm::kNfkd}) {
      REQUIRE(to_unicode_form(text, form) == utf8proc_form(text, form));
    }
  }
}

TEST_CASE("normal forms: every inert character alone is its own NFC") {
  for (char32_t c = 0; c < kCharClassTableSize; ++c) {
    if (!(char_class(char_class_table(), c) & kCharNfcInert) || (c >= 0xD800 && c < 0xE000)) continue;
    std::string text;
    append_utf8(c, text);
    REQUIRE(utf8proc_form(text, UnicodeForm::kNfc) == text);
    REQUIRE(utf8proc_form("a" + text, UnicodeForm::kNfc) == "a" + text);
  }
}

TEST_CASE("normal forms: a megabyte of alternating marks ends") {
  std::string text = "a";
  for (int i = 0; i < 250'000; ++i) text += "\u0301\u0316";  // classes 230 and 220: each pair is out of order
  const std::string result = to_unicode_form(text, UnicodeForm::kNfd);
  CHECK(result.size() == text.size());
  CHECK(result.substr(1, 4) == "\u0316\u0316");
}

TEST_CASE("vocabulary: what is added is found, under its last id; hostile ids are refused") {
  const uint64_t seed = test_seed();
  CAPTURE(seed);
  Rng rng(seed);
  Vocabulary vocabulary;
  std::map<std::string, int32_t> expected;
  for (int32_t id = 0; id < 5000; ++id) {
    const std::string text = random_bytes(rng, 6) + (rng.below(3) ? std::to_string(rng.below(9000)) : "");
    REQUIRE(vocabulary.add(text, id).ok());
    expected[text] = id;
    REQUIRE(vocabulary.text(id) == text);
  }
  for (const auto& [text, id] : expected) REQUIRE(vocabulary.find(text) == id);
  CHECK(vocabulary.num_tokens() == expected.size());
  CHECK(vocabulary.find("not there") == kNoToken);
  CHECK(!vocabulary.contains(5000));
  CHECK(!vocabulary.contains(-1));
  CHECK(vocabulary.add("x", -1).code() == StatusCode::kDataLoss);
  CHECK(vocabulary.add("x", int64_t{1} << 40).code() == StatusCode::kDataLoss);
}

TEST_CASE("byte trie: finds the longest key, as a map does") {
  const uint64_t seed = test_seed();
  CAPTURE(seed);
  Rng rng(seed);
  for (int round = 0; round < 200; ++round) {
    std::map<std::string, int32_t> keys;
    for (int i = 0; i < 30; ++i) {
      std::string key;
      for (uint64_t j = 0, size = rng.below(5); j < size; ++j) key += static_cast<char>("ab\xFF"[rng.below(3)]);
      keys[key] = i;
    }
    std::vector<std::pair<std::string_view, int32_t>> entries(keys.begin(), keys.end());
    const ByteTrie trie(entries);
    std::string text;
    for (int i = 0; i < 8; ++i) text += static_cast<char>("ab\xFF"[rng.below(3)]);
    int32_t expected = -1;
    for (size_t size = 1; size <= text.size(); ++size) {
      if (const auto it = keys.find(text.substr(0, size)); it != keys.end()) expected = it->second;
    }
    size_t end = 0;
    REQUIRE(trie.find_longest(text, 0, ByteTrie::kRoot, &end) == expected);
    if (expected >= 0) REQUIRE(keys[text.substr(0, end)] == expected);
  }
}

// The definition: again and again the leftmost pair of lowest rank.
std::vector<int32_t> merge_by_definition(const MergeTable& merges, std::vector<int32_t> symbols) {
  while (true) {
    size_t best = symbols.size();
    MergeTable::Merge best_merge{MergeTable::kNoRank, kNoToken};
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const MergeTable::Merge merge = merges.find(symbols[i], symbols[i + 1]);
      if (merge.rank < best_merge.rank) best = i, best_merge = merge;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = best_merge.merged_id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST_CASE("bpe: short, long and remembered words merge as the definition says") {
  const uint64_t seed = test_seed();
  CAPTURE(seed);
  Rng rng(seed);
  for (int round = 0; round < 40; ++round) {
    Vocabulary vocabulary;
    std::vector<std::string> tokens = {"a", "b", "c", "\u2581"};
    if (round % 2 == 1) tokens.pop_back();  // without it words are not cut
    for (size_t id = 0; id < tokens.size(); ++id) REQUIRE(vocabulary.add(tokens[id], static_cast<int64_t>(id)).ok());
    MergeTable merges, copy;
    merges.reserve(60);
    copy.reserve(60);
    for (uint32_t rank = 0; rank < 60; ++rank) {
      const auto left = static_cast<int32_t>(rng.below(tokens.size())),
                 right = static_cast<int32_t>(rng.below(tokens.size()));
      const std::string merged = tokens[static_cast<size_t>(left)] + tokens[static_cast<size_t>(right)];
      if (merged.size() > 12 || merges.find(left, right).rank != MergeTable::kNoRank) continue;
      int32_t id = vocabulary.find(merged);
      if (id == kNoToken) {
        id = static_cast<int32_t>(tokens.size());
        tokens.push_back(merged);
        REQUIRE(vocabulary.add(merged, id).ok());
      }
      merges.assign(left, right, {rank, id});
      copy.assign(left, right, {rank, id});
    }
    const BpeModel model(vocabulary, std::move(merges), {});
    for (int i = 0; i < 60; ++i) {
      std::string word;
      std::vector<int32_t> symbols;
      const uint64_t num_letters = round % 2 == 1 ? 3 : 4;
      for (uint64_t j = 0, size = 1 + rng.below(rng.below(2) ? 8 : 90); j < size; ++j) {
        symbols.push_back(static_cast<int32_t>(rng.below(num_letters)));
        word += tokens[static_cast<size_t>(symbols.back())];
      }
      CAPTURE(word);
      const std::vector<int32_t> expected = merge_by_definition(copy, symbols);
      for (int repeat = 0; repeat < 2; ++repeat) {  // the second time from the word cache
        std::vector<int32_t> ids;
        model.tokenize(word, ids);
        REQUIRE(ids == expected);
      }
    }
  }
}

TEST_CASE("byte alphabet: there and back for every byte; other characters are none of it") {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  CHECK(bytes_of_byte_level_token(to_byte_level(all)) == all);
  CHECK(to_byte_level(" \n") == "ĠĊ");
  CHECK(!bytes_of_byte_level_token("a中"));
  CHECK(byte_of_fallback_token("<0x0A>") == 10);
  CHECK(!byte_of_fallback_token("<0xZZ>"));
  CHECK(!byte_of_fallback_token("<0x0A"));
}

TEST_CASE("precompiled charsmap: damaged blobs are refused or harmless") {
  CHECK(!PrecompiledCharsmap::parse_base64("A").ok());
  CHECK(!PrecompiledCharsmap::parse_base64("////").ok());
  CHECK(!PrecompiledCharsmap::parse_base64("not base64!").ok());
  const uint64_t seed = test_seed();
  CAPTURE(seed);
  Rng rng(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string blob(4 + 64 * 4, '\0');
    blob[0] = static_cast<char>(64 * 4 & 0xFF);
    blob[1] = static_cast<char>(64 * 4 >> 8);
    for (size_t i = 4; i < blob.size(); ++i) blob[i] = static_cast<char>(rng.next_u32());
    blob += "pool";
    const auto charsmap = PrecompiledCharsmap::parse(blob);
    REQUIRE(charsmap.ok());
    CHECK(is_valid_utf8(charsmap->normalize("some text é 中 😀 and more")));
  }
}

}  // namespace
}  // namespace spate
