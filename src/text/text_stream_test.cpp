// Goal    Nothing of a stop string is ever shown, nothing else is lost or held longer than needed, wherever the text is
//         cut into pieces.
// Method  Hand cases for the borders, then random texts over two letters (many near-matches) against a search in the
//         whole text, in random pieces.
#include "text/text_stream.h"

#include "base/rng.h"
#include "base/test_support.h"

#include "base/test.h"

namespace spate {
namespace {

std::string run(StopMatcher& matcher, const std::vector<std::string>& pieces,
                std::vector<std::string>* shown = nullptr) {
  std::string all;
  for (const std::string& piece : pieces) {
    std::string out;
    const bool matched = matcher.append(piece, out);
    if (shown) shown->push_back(out);
    all += out;
    if (matched) return all;
  }
  matcher.finish(all);
  return all;
}

}  // namespace

TEST_CASE("stop matcher: a stop string across three pieces is not shown") {
  StopMatcher matcher({"</end>"}, false);
  std::vector<std::string> shown;
  CHECK(run(matcher, {"abc<", "/en", "d>tail"}, &shown) == "abc");
  CHECK(shown == std::vector<std::string>{"abc", "", ""});
  CHECK(matcher.matched() == "</end>");
}

TEST_CASE("stop matcher: a near-match is shown as soon as it is none") {
  StopMatcher matcher({"</end>"}, false);
  std::vector<std::string> shown;
  CHECK(run(matcher, {"a</en", "x", "b<"}, &shown) == "a</enxb<");
  CHECK(shown == std::vector<std::string>{"a", "</enx", "b"});
  CHECK(!matcher.is_matched());
}

TEST_CASE("stop matcher: include keeps the stop string, the longest of two that end together counts") {
  StopMatcher matcher({"b", "ab"}, true);
  CHECK(run(matcher, {"xxab", "c"}) == "xxab");
  CHECK(matcher.matched() == "ab");
}

TEST_CASE("stop matcher: the match that ends first counts") {
  StopMatcher matcher({"abcdef", "cd"}, false);
  CHECK(run(matcher, {"abc", "def"}) == "ab");
  CHECK(matcher.matched() == "cd");
}

TEST_CASE("stop matcher: multi-byte characters and a stop at the very start") {
  StopMatcher chinese({"结束"}, false);
  CHECK(run(chinese, {"好结", "束了"}) == "好");
  StopMatcher at_start({"x"}, false);
  CHECK(run(at_start, {"xyz"}).empty());
}

TEST_CASE("stop matcher: what is completed too early does not count, what is completed later does") {
  StopMatcher matcher({"aba"}, false);
  std::string out;
  CHECK(!matcher.append("xabay", out, false));
  CHECK(out == "xabay");
  CHECK(!matcher.append("ab", out, false));
  CHECK(out == "xabay");  // held back: it may still become a stop string that counts
  CHECK(matcher.append("a", out, true));
  CHECK(out == "xabay");
  StopMatcher overlapping({"aba"}, false);  // the end of a match that did not count begins one that does
  out.clear();
  CHECK(!overlapping.append("aba", out, false));
  CHECK(overlapping.append("ba", out, true));
  CHECK(out == "ab");
}

TEST_CASE("stop matcher: random texts equal a search in the whole text") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  for (int round = 0; round < 3000; ++round) {
    const auto random_text = [&](size_t length) {
      std::string text;
      for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + rng.below(2));
      return text;
    };
    std::vector<std::string> stops;
    for (uint64_t i = 0; i < 1 + rng.below(3); ++i) stops.push_back(random_text(3 + rng.below(5)));
    const std::string text = random_text(rng.below(40));

    size_t first_end = std::string::npos, start = text.size();
    for (const std::string& stop : stops) {
      const size_t pos = text.find(stop);
      if (pos == std::string::npos) continue;
      const size_t end = pos + stop.size();
      if (first_end == std::string::npos || end < first_end || (end == first_end && pos < start))
        first_end = end, start = pos;
    }
    std::vector<std::string> pieces;
    for (size_t pos = 0; pos < text.size();) {
      const size_t length = 1 + rng.below(4);
      pieces.push_back(text.substr(pos, length));
      pos += length;
    }
    StopMatcher matcher(stops, false);
    CHECK(run(matcher, pieces) == text.substr(0, first_end == std::string::npos ? text.size() : start));
    CHECK(matcher.is_matched() == (first_end != std::string::npos));
  }
}

}  // namespace spate
