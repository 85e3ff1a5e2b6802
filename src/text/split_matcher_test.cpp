// split_matcher_test.cpp
//
// Goal     The hand-written scanners find exactly the matches of their regular expression.
// Method   PCRE2 runs the pattern as it is written in tokenizer.json files over random strings made of characters
//          that the patterns tell apart, and of random ones from all of Unicode. Characters that the two Unicode
//          versions (PCRE2's 14, utf8proc's 15) class differently are left out; a test bounds how many they are.

#include "text/split_matcher.h"

#include <simdjson.h>

#include "base/rng.h"
#include "base/test_support.h"
#include "text/oniguruma_pattern.h"
#include "text/unicode.h"

#include "base/test.h"

namespace spate {
namespace {

using Spans = std::vector<std::tuple<size_t, size_t, bool>>;

Spans spans_of(const SplitMatcher& matcher, std::string_view text) {
  Spans spans;
  for_each_match(matcher, text,
                 [&](size_t start, size_t end, bool is_match) { spans.emplace_back(start, end, is_match); });
  return spans;
}

SplitMatcher by_pcre2(std::string_view pattern) {
  Result<SplitMatcher> matcher = SplitMatcher::from_regex_by_pcre2(pattern);
  REQUIRE_MESSAGE(matcher.ok(), matcher.status().to_string());
  return *std::move(matcher);
}

bool is_scalar_value(char32_t c) { return c < 0xD800 || (c >= 0xE000 && c <= 0x10FFFF); }

// The class of a character as PCRE2 sees it, for the bits that patterns ask for.
class Pcre2Classes {
 public:
  bool agrees(char32_t c) const {
    std::string text;
    append_utf8(c, text);
    SplitMatch match;
    const uint8_t expected = char_class(char_class_table(), c);
    for (const auto& [bit, matcher] : matchers_) {
      if (matcher.find(text, 0, &match) != ((expected & bit) != 0)) return false;
    }
    return true;
  }

 private:
  std::vector<std::pair<uint8_t, SplitMatcher>> matchers_ = {
      {kCharLetter, by_pcre2(R"(\p{L})")},      {kCharNumber, by_pcre2(R"(\p{N})")}, {kCharSpace, by_pcre2(R"(\s)")},
      {kCharPunctuation, by_pcre2(R"(\p{P})")}, {kCharSymbol, by_pcre2(R"(\p{S})")}, {kCharMark, by_pcre2(R"(\p{M})")}};
};

std::string random_text(Rng& rng, const Pcre2Classes& classes) {
  static constexpr std::string_view kParts[] = {
      " ",      " ",      "  ",     "\n",      "\r",     "\r\n",         "\t",         "\u00a0",
      "\u3000", "\u0085", "\v",     "'",       "'s",     "'S",           "'T",         "'re",
      "'rE",    "'LL",    "'ve",    "'M",      "'d",     "'\u017f",      "a",          "Bc",
      "xyz",    "1",      "23",     "456",     "\u0663", "\u2167",       ".",          ",",
      "!?",     "$",      "+",      "-",       "_",      "\u4e2d\u6587", "\u3042",     "\u30ab",
      "\ud55c", "\u00b5", "\u00e9", "e\u0301", "\u0301", "\u0915\u093e", "\U0001F600", "\u200d",
      "\u200b", "\u0000", "\uff01", "\u2018",  "\u3002", "\u180e",       "\u0800"};
  std::string text;
  for (uint64_t i = 0, count = rng.below(24); i < count; ++i) {
    if (rng.below(8) != 0) {
      text += kParts[rng.below(std::size(kParts))];
      continue;
    }
    const auto c = static_cast<char32_t>(rng.below(rng.below(2) ? 0x3000 : 0x20000));
    if (is_scalar_value(c) && classes.agrees(c)) append_utf8(c, text);
  }
  return text;
}

TEST_CASE("split scanners: the same matches as PCRE2") {
  const uint64_t seed = test_seed();
  CAPTURE(seed);
  Rng rng(seed);
  const Pcre2Classes classes;
  struct Case {
    std::string_view pattern;
    SplitKind kind;
  };
  const Case cases[] = {{kGpt2Pattern, SplitKind::kGpt2},
                        {kLlama3Pattern, SplitKind::kLlama3},
                        {kQwen2Pattern, SplitKind::kQwen2},
                        {kDeepSeekV3Pattern, SplitKind::kDeepSeekV3},
                        {R"(\p{N}{1,3})", SplitKind::kDigitRun},
                        {R"(\p{N}+)", SplitKind::kDigitRun},
                        {R"(\p{N})", SplitKind::kDigitRun},
                        {R"(\s+$)", SplitKind::kTrailingSpace},
                        {R"([\r\n])", SplitKind::kSetRun},
                        {"[一-龥぀-ゟ゠-ヿ]+", SplitKind::kSetRun},
                        {"[一-龥ࠀ-一가-퟿]+", SplitKind::kSetRun},
                        {R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", SplitKind::kSetRun},
                        {R"(\s?[A-Za-zµÀ-ÖØ-ö]+)", SplitKind::kSetRun}};
  for (const Case& c : cases) {
    CAPTURE(c.pattern);
    const auto scanner = SplitMatcher::from_regex(c.pattern);
    REQUIRE(scanner.ok());
    CHECK(scanner->kind() == c.kind);  // that it is a scanner at all
    const SplitMatcher reference = by_pcre2(c.pattern);
    for (int round = 0; round < 6000; ++round) {
      const std::string text = random_text(rng, classes);
      CAPTURE(text);
      REQUIRE(spans_of(*scanner, text) == spans_of(reference, text));
    }
  }
}

TEST_CASE("character classes: PCRE2 and utf8proc differ only in characters of the newest Unicode") {
  const Pcre2Classes classes;
  int num_different = 0, num_different_bmp = 0;
  for (char32_t c = 0; c < kCharClassTableSize; ++c) {
    if (!is_scalar_value(c) || classes.agrees(c)) continue;
    ++num_different;
    num_different_bmp += c < 0x10000;
  }
  CHECK(num_different < 4600);  // Unicode 15 added 4,489, of which 4,192 are one block of Han
  CHECK(num_different_bmp < 20);
}

TEST_CASE("split matcher: empty matches as Oniguruma reports them") {
  const SplitMatcher matcher = by_pcre2("o*");
  CHECK(spans_of(matcher, "foo") == Spans{{0, 0, true}, {0, 1, false}, {1, 3, true}});
  CHECK(spans_of(matcher, "") == Spans{});
  CHECK(spans_of(matcher, "é") == Spans{{0, 0, true}, {0, 2, false}, {2, 2, true}});
}

TEST_CASE("regex dialect: what Oniguruma means") {
  const auto translated = [](std::string_view pattern) {
    Result<std::string> result = translate_oniguruma(pattern);
    return result.ok() ? *result : result.status().to_string();
  };
  CHECK(translated(R"(\p{Han}+\p{L}\p{^Lu}\P{Greek})") == R"(\p{sc:Han}+\p{L}\P{Lu}\P{sc:Greek})");
  CHECK(translated(R"(\h[\h])") == "[0-9a-fA-F][0-9a-fA-F]");
  CHECK(translated(R"([^\s])") == R"([^\t-\r\x{85}\p{Z}])");
  CHECK(translated(R"(\u4e00\\s)") == R"(\x{4E00}\\s)");
  CHECK(translated(R"([\]\s]\S)") == R"([\x{5D}\t-\r\x{85}\p{Z}][^\t-\r\x{85}\p{Z}])");
  CHECK(translated("a{1,3}+").find("{n,m}+") != std::string::npos);
  CHECK(!SplitMatcher::from_regex("(").ok());
  CHECK(!SplitMatcher::from_regex(R"(\p{Klingon})").ok());
  CHECK(!SplitMatcher::from_regex(std::string(100'000, 'a')).ok());
  CHECK(!SplitMatcher::from_regex(std::string(5000, '(') + std::string(5000, ')')).ok());
  // $ holds at each line end.
  CHECK(spans_of(by_pcre2("a$"), "a\na") == Spans{{0, 1, true}, {1, 2, false}, {2, 3, true}});
}

// Ends of the pieces that `matcher` cuts `text` into.
std::vector<int64_t> cuts_of(const SplitMatcher& matcher, std::string_view text) {
  std::vector<int64_t> ends;
  for_each_match(matcher, text, [&](size_t start, size_t end, bool) {
    if (start < end) ends.push_back(static_cast<int64_t>(end));
  });
  return ends;
}

// test/goldens/tokenizer/regex.json: 323 patterns, construct by construct, by Oniguruma itself.
TEST_CASE("regex dialect: texts are cut where Oniguruma cuts them, or the pattern is refused by its construct") {
  simdjson::dom::parser parser;
  const simdjson::dom::element json = parser.load((repo_root() / "test/goldens/tokenizer/regex.json").string());
  std::vector<std::string> texts;
  for (const simdjson::dom::element text : json["texts"].get_array()) texts.emplace_back(text.get_string().value());
  int num_equal = 0, num_refused = 0;
  for (const simdjson::dom::element entry : json["patterns"].get_array()) {
    const std::string pattern(entry["pattern"].get_string().value());
    CAPTURE(pattern);
    for (Result<SplitMatcher> matcher : {SplitMatcher::from_regex(pattern), SplitMatcher::from_regex_by_pcre2(pattern)}) {
      simdjson::dom::array golden;
      if (entry["cuts"].get(golden) != simdjson::SUCCESS) {
        CHECK_FALSE(matcher.ok());  // an error of Oniguruma's
        continue;
      }
      if (!matcher.ok()) {
        ++num_refused;
        CHECK(matcher.status().message().starts_with("regex"));
          continue;
      }
      ++num_equal;
      size_t i = 0;
      for (const simdjson::dom::element ends : golden) {
        std::vector<int64_t> expected;
        for (const simdjson::dom::element end : ends.get_array()) expected.push_back(end.get_int64().value());
        CAPTURE(texts[i]);
        CHECK(cuts_of(*matcher, texts[i]) == expected);
        ++i;
      }
    }
  }
  CHECK(num_equal > 470);
  CHECK(num_refused < 120);
}

TEST_CASE("regex: a pattern that explodes ends, as no match") {
  const SplitMatcher matcher = by_pcre2("(a+)+b");
  const std::string text(40, 'a');
  CHECK(spans_of(matcher, text) == Spans{{0, 40, false}});
}

}  // namespace
}  // namespace spate
