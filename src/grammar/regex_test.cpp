// Goal    Regular expressions mean what they mean elsewhere, or are refused with the place.
// Method  Cases by hand.
#include "grammar/grammar_test_support.h"

#include "base/test.h"

namespace spate {

TEST_CASE("regex: what is supported") {
  CHECK(matches("a.c", "aßc"));
  CHECK_FALSE(matches("a.c", "a\nc"));
  CHECK(matches("[a-cx]+", "abcx"));
  CHECK(matches("[^a-c]", "é"));
  CHECK_FALSE(matches("[^a-c]", "b"));
  CHECK(matches("[\\d\\-]{3,4}", "1-2"));
  CHECK_FALSE(matches("[\\d\\-]{3,4}", "12345"));
  CHECK(matches("\\w+\\s\\S", "ab_1 !"));
  CHECK(matches("[\\w.]+@\\w+\\.com", "a.b@c.com"));
  CHECK(matches("(?:ab|cd)*?", "abcdab"));
  CHECK(matches("(?<year>\\d{4})-(?P<month>\\d{2})", "2026-11"));
  CHECK(matches("\\x41\\u00e9\\u{1F600}\\uD83D\\uDE00", "Aé😀😀"));
  CHECK(matches("\\n\\t\\/\\.\\cJ", "\n\t/.\n"));
  CHECK(matches("a{2}b{2,}c{0,1}", "aabbb"));
  CHECK(matches("", ""));
  CHECK(matches("a||b", ""));
  CHECK(matches("^abc$", "abc"));
  CHECK(matches("^a$|^b$", "b"));
  CHECK(matches("[]a]|[^]", "x"));
  CHECK(matches("b", "abc", RegexMatch::kAnywhere));
  CHECK(matches("^b", "bc", RegexMatch::kAnywhere));
  CHECK_FALSE(matches("^b", "abc", RegexMatch::kAnywhere));
  CHECK(matches("b$|^c", "ab", RegexMatch::kAnywhere));
  CHECK_FALSE(matches("b$|^c", "abx", RegexMatch::kAnywhere));
  CHECK(matches("^\\d+$", "123", RegexMatch::kAnywhere));
}

TEST_CASE("regex: look-ahead before what ends the pattern") {
  CHECK(matches("(?=.*\\d)(?!.*x)[a-z\\d]+", "ab1"));
  CHECK_FALSE(matches("(?=.*\\d)(?!.*x)[a-z\\d]+", "ab"));
  CHECK_FALSE(matches("(?=.*\\d)(?!.*x)[a-z\\d]+", "ax1"));
  CHECK(matches("^(?!a|bc$)\\w+$", "bcd", RegexMatch::kAnywhere));
  for (const char* text : {"ab", "bc"}) CHECK_FALSE(matches("^(?!a|bc$)\\w+$", text, RegexMatch::kAnywhere));
  // In the middle, in one of several alternatives, and in a group at the end.
  CHECK(matches("a(?=b..)[b-d]+", "abcd"));
  CHECK_FALSE(matches("a(?=b..)[b-d]+", "acbd"));
  CHECK(matches("(?!x).|xy", "xy"));
  CHECK_FALSE(matches("(?!x).|xy", "x"));
  CHECK(matches("a(b|(?!c).$|cd$)", "acd"));
  CHECK_FALSE(matches("a(b|(?!c).$|cd$)", "ac"));
  CHECK(matches("^a(?:b$|c(?!d))", "acx", RegexMatch::kAnywhere));
  CHECK(matches("^a(?:b$|c(?!d))", "ab", RegexMatch::kAnywhere));
  for (const char* text : {"acd", "abx"}) CHECK_FALSE(matches("^a(?:b$|c(?!d))", text, RegexMatch::kAnywhere));
  CHECK(matches("a(b(?!c)\\w)?", "a"));
  CHECK(matches("a(b(?!c)\\w)?", "abd"));
  CHECK_FALSE(matches("a(b(?!c)\\w)?", "abc"));
  CHECK(matches("^a(b$)??", "ac", RegexMatch::kAnywhere));
  // Anywhere: what follows the place is looked at.
  CHECK(matches("a(?!b)", "abac", RegexMatch::kAnywhere));
  CHECK_FALSE(matches("a(?!b)", "abab", RegexMatch::kAnywhere));
  CHECK(matches("(?!(?=a)a.b)...", "axc"));
  CHECK_FALSE(matches("(?!(?=a)a.b)...", "axb"));
  const auto refusal = [](const char* regex) { return dfa_of(regex).status().message(); };
  CHECK(refusal("((?!x).)*") == "regex: at 3: look-ahead is supported where the pattern's end follows only");
  CHECK(refusal("(a(?=b))b").find("look-ahead is supported where") != std::string::npos);
  CHECK(refusal("(a$)b").find("$ inside a group") != std::string::npos);
  CHECK(refusal("(?=a").find("( without )") != std::string::npos);
  std::string many;
  for (int i = 0; i < 100; ++i) many += "(?=a)";
  CHECK(refusal(many.c_str()).find("too many look-aheads") != std::string::npos);
}

// Goal    A group that begins the pattern may say of each alternative whether the text begins there.
// Method  Patterns of public schemas, with texts that match and texts that do not.
TEST_CASE("regex: a group that begins the pattern has anchors") {
  const struct {
    const char* regex;
    std::vector<const char*> matching, others;
  } cases[] = {{"(^$)|(^[a-f]{2}$)", {"", "ab"}, {"a", "abc", "xab"}},
               {"(^gs://(.+))|(^http://(.+))", {"gs://a", "http://b"}, {"xgs://a", "http://"}},
               {"(^Hpt_|^Int_|_Armour_)", {"Hpt_x", "x_Armour_y", "_Armour_"}, {"xHpt_", "Armour_"}},
               {"(?:^|\n)begin(?:$|\n)", {"begin", "x\nbegin\ny", "\nbegin"}, {"x begin", "begin y"}},
               {"(^a|b)c", {"ac", "acx", "xbc"}, {"xac", "bac"}},
               {"(?<n>(^a|b)c|^d)?e$", {"e", "xe", "ace", "xxbce", "de"}, {"ex", "ea"}},
               {"^(^a)b", {"ab", "abc"}, {"xab"}},
               {"((^a$)|x)", {"a", "bxb"}, {"ab", "ba"}},
               {"(^a)?\\$", {"a$", "$", "b$"}, {"a", ""}},
               {"[(^]a", {"(a", "x^a"}, {"a"}},
               {"^(?:(?=^ab)\\w)", {"ab", "abc"}, {"ba"}}};
  for (const auto& each : cases) {
    INFO(std::string(each.regex));
    for (const char* text : each.matching) CHECK_MESSAGE(matches(each.regex, text, RegexMatch::kAnywhere), text);
    for (const char* text : each.others) CHECK_FALSE_MESSAGE(matches(each.regex, text, RegexMatch::kAnywhere), text);
  }
  CHECK(matches("(^a|b$)", "b"));
  CHECK_FALSE(matches("(^a|b)c", "xbc"));
  for (const char* regex : {"(^a)*", "(^a){2}", "(^a)+b", "a(b|(^c))", "(a^b)", "(a|(b^))"}) {
    INFO(std::string(regex));
    CHECK(dfa_of(regex, RegexMatch::kAnywhere).status().message().find(": ^ ") != std::string::npos);
  }
}

TEST_CASE("regex: what is refused, and where") {
  CHECK(regex_error("ab(?=c)") == "regex: at 4: look-ahead is not supported");
  CHECK(regex_error("(?<!a)b") == "regex: at 4: look-behind is not supported");
  CHECK(regex_error("(a)\\1") == "regex: at 4: back references are not supported");
  CHECK(regex_error("\\bword") == "regex: at 0: word boundary \\b is not supported");
  CHECK(regex_error("\\p{L}").find("Unicode properties") != std::string::npos);
  CHECK(regex_error("a[[:alpha:]_]+") ==
        "regex: at 2: POSIX class [:alpha:] is not supported; write a class of ranges");
  CHECK(regex_error("[^[:space:]]").find("POSIX class [:space:]") != std::string::npos);
  CHECK(matches("[[:]+", "[:["));
  CHECK(matches("[[:a]+[:]]", "[:a:]"));
  CHECK(regex_error("a(^b)") == "regex: at 2: ^ inside a group is supported where the group begins the pattern only");
  CHECK(regex_error("(?i)a").find("flags are not supported") != std::string::npos);
  CHECK(regex_error("a$b").find("end of an alternative") != std::string::npos);
  for (const char* bad : {"(",   ")",      "a)",        "[",      "[a",      "a{2",         "a{3,2}",
                          "*",   "a**",    "a{1}{2}",   "\\",     "\\q",     "[z-a]",       "[\\d-z]",
                          "(?",  "(?<a",   "a{100001}", "\\u12",  "\\x1",    "\\u{110000}", "\\uD800\\u0041",
                          "a++", "(?P=a)", "[\\q",      "[a-\\q", "\\u{zz}", "[\\u{zz}"}) {
    INFO(bad);
    CHECK(regex_error(bad).starts_with("regex: at "));
  }
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += '(';
  CHECK(regex_error(nested).find("nested too deeply") != std::string::npos);
  CHECK(regex_error(std::string(2 << 20, 'x')) == "regex: 2097152 bytes, at most 1048576 are taken");
}

}  // namespace spate
