// Goal    Whatever bytes come, in whatever pieces, what leaves the filter has no control character but newline and tab, is
//         UTF-8, and is the same for every way of cutting.
#include "terminal/visible_text.h"

#include "base/rng.h"
#include "base/test_support.h"
#include "base/test.h"

namespace spate {
namespace {

bool is_harmless(const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) return false;
    if (c == 0xc2 && (i + 1 == text.size() || static_cast<unsigned char>(text[i + 1]) < 0xa0)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("visible text: ordinary text stays as it is") {
  for (const char* text : {"", "Hello,\n\tworld!", "潮 vol 1 – à ß", "👩‍🚀 ok", "x\n\n"}) CHECK(visible_text(text) == text);
}

TEST_CASE("visible text: escape sequences are shown") {
  CHECK(visible_text("\x1b[2J\x1b]0;title\a") == "^[[2J^[]0;title^G");
  CHECK(visible_text("\x1bP+q\x1b\\") == "^[P+q^[\\");
  CHECK(visible_text("a\x7f\b") == "a^?^H");
  CHECK(visible_text("\xc2\x9b" "31m") == "<9b>31m");
  CHECK(visible_text("\xc2\xa0") == "\xc2\xa0");
  CHECK(visible_text(std::string("\0", 1)) == "^@");
}

TEST_CASE("visible text: carriage returns cannot overwrite a line") {
  CHECK(visible_text("one\r\ntwo\rthree\r") == "one\ntwo^Mthree^M");
}

TEST_CASE("visible text: what is not UTF-8 is replaced") {
  const std::string r = "\xef\xbf\xbd";
  CHECK(visible_text("a\x9b" "b") == "a" + r + "b");  // a C1 byte of Latin-1
  CHECK(visible_text("\xe2\x82") == r);
  CHECK(visible_text("\xe2\x82z") == r + "z");
  CHECK(visible_text("\xc0\x9b") == r + r);      // an overlong ESC
  CHECK(visible_text("\xe0\x80\x9b") == r + r + r);
  CHECK(visible_text("\xed\xa0\x80") == r + r + r);
  CHECK(visible_text("\xf4\x90\x80\x80") == r + r + r + r);
}

TEST_CASE("visible text: random bytes are harmless, and equal for every cut") {
  Rng rng(test_seed());
  constexpr char kBytes[] = "\x1b\r\n\tab[]0;\xc2\x9b\xe2\x82\xac\xf0\x9f\x98\x80\x07\x7f\0\xff";
  const std::string_view alphabet(kBytes, sizeof kBytes - 1);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    const size_t length = rng.below(40);
    for (size_t i = 0; i < length; ++i) text += alphabet[rng.below(alphabet.size())];
    const std::string whole = visible_text(text);
    REQUIRE(is_harmless(whole));
    CHECK(visible_text(whole) == whole);
    VisibleText filter;
    std::string pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + rng.below(4);
      pieces += filter.append(std::string_view(text).substr(at, size));
      at += size;
    }
    pieces += filter.finish();
    REQUIRE(pieces == whole);
  }
}

}  // namespace spate
