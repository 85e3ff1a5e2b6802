// Goal    The dialects of EBNF that llama.cpp and xgrammar read; errors name line and column.
// Method  Cases by hand.
#include "grammar/grammar_test_support.h"

#include "base/test.h"

namespace spate {

TEST_CASE("ebnf: dialects, recursion, escapes") {
  const std::string sums =
      "root ::= sum\nsum ::= sum \"+\" term | sum '-' term | term  # left-recursive\n"
      "term ::= [0-9]+ | \"(\" sum \")\"\n";
  CHECK(accepts(sums, "1+(2-33)-4"));
  CHECK_FALSE(accepts(sums, "1+(2-33"));
  CHECK_FALSE(accepts(sums, "1+"));
  const std::string json =
      "root   ::= object\nvalue  ::= object | array | string | [0-9]+\nobject ::=\n"
      "  \"{\" ws (\n    string \":\" ws value\n    (\",\" ws string \":\" ws value)*\n  )? \"}\" ws\n"
      "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
      "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" [\"\\\\bfnrt] )* \"\\\"\" ws\n"
      "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}";
  CHECK(accepts(json, "{\"a\": [1,{\"é\\n\":\"\"}], \"b\":{}}"));
  CHECK_FALSE(accepts(json, "{\"a\": [1,{\"é\\n\":\"\"}], }"));
  CHECK(accepts("root ::= [a-c\\]\\u00e9]{,2} \"\\x41\\U0001F600\"", "]éA😀"));
  CHECK(accepts("root ::= . . [^\\n]", "éa😀"));
  // An anbn language, and lists by right recursion with an empty alternative.
  CHECK(accepts("root ::= \"a\" root \"b\" | \"\"", "aaabbb"));
  CHECK_FALSE(accepts("root ::= \"a\" root \"b\" | \"\"", "aaabb"));
  CHECK(accepts("root ::= list list\nlist ::= \"x\" list | \"\"", "xxxxx"));
  CHECK(accepts("root ::= a b c\na ::= \"\"\nb ::= a | a a\nc ::= b \"z\"", "z"));
}

TEST_CASE("ebnf: errors name line and column") {
  CHECK(ebnf_error("root ::= \"a\n\"") == "grammar: line 1, column 10: the text has no closing quote");
  CHECK(ebnf_error("root ::= a\n").find("rule 'a' is used at line 1, column 10 and not defined") != std::string::npos);
  CHECK(ebnf_error("start ::= \"a\"").find("no rule 'root'") != std::string::npos);
  CHECK(ebnf_error("root ::= \"a\"\nroot ::= \"b\"") == "grammar: line 2, column 1: rule 'root' is defined twice");
  CHECK(ebnf_error("root ::= a\na ::= b \"x\" | \"y\"\nb ::= \"\" a").find("left-recursive") != std::string::npos);
  CHECK(ebnf_error("root ::= root | \"a\"").find("rule 'root' is left-recursive") != std::string::npos);
  CHECK(ebnf_error("root ::= \"a\" root") == "the grammar allows no text at all");
  for (const char* bad :
       {"", "root", "root = \"a\"", "root ::= (", "root ::= )", "root ::= [", "root ::= [z-a]", "root ::= \"\\q\"",
        "root ::= \"\\ud800\"", "root ::= \"a\"{3,2}", "root ::= *", "root ::= \"\\"}) {
    INFO(bad);
    CHECK(ebnf_error(bad).starts_with("grammar: "));
  }
}

}  // namespace spate
