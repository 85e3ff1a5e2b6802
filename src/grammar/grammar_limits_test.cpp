// Goal    A hostile grammar is refused by count, or takes no longer than others.
// Method  Cases by hand, each the worst for one part.
#include "grammar/code_points.h"
#include "grammar/grammar_test_support.h"

#include "base/test.h"

namespace spate {

TEST_CASE("grammar: what costs too much is refused, by count and not by time") {
  CHECK(ebnf_error("root ::= (([a-z]{0,1000}){0,1000}){0,1000}").find("too large") != std::string::npos);
  CHECK(dfa_of("(a|b)*a(a|b){30}").status().message().find("too large") != std::string::npos);
  std::string deep = "root ::= ";
  for (int i = 0; i < 100'000; ++i) deep += "(";
  CHECK(ebnf_error(deep).find("nested too deeply") != std::string::npos);
  // Without an automaton of its own, that expression is fine: its situations are found as they occur.
  const auto grammar = regex_grammar("(a|b)*a(a|b){30}");
  ParseStates states(grammar);
  CHECK(accepts(states, "bba" + std::string(30, 'b')));
  // 2^n ways to read n bytes, one item each.
  CHECK(accepts("root ::= x | y\nx ::= \"a\" root \"b\" | \"c\"\ny ::= \"a\" root \"b\" | \"a\" root \"d\" | \"c\"",
                std::string(2000, 'a') + "c" + std::string(2000, 'b')));
  // Each of the 100,000 states reaches all behind it without reading.
  CHECK(ebnf_error("root ::= (\"a\"?){100000}").find("too large") != std::string::npos);
  CHECK(accepts("root ::= \"a\"??++**", "aaa"));
  CHECK(ebnf_error("root ::= \"a\"" + std::string(300'000, '?')).find("more than 10 repetitions") != std::string::npos);
}

TEST_CASE("grammar: a class of very many characters is read in one go") {
  std::string members;
  for (char32_t c = 0x4000; c < 0x4000 + 400'000; c += 2) {
    if (c < 0xD800 || c > 0xDFFF) append_utf8_char(c, members);
  }
  const Result<Expr> expr = parse_regex("[" + members + "]", RegexMatch::kWhole);
  REQUIRE(expr.ok());
  CHECK((*expr)->chars.ranges().size() == 200'000 - 1024);
  CHECK(ebnf_error("root ::= [" + members + "] [").find("[ without ]") != std::string::npos);
}

TEST_CASE("grammar: very many open rules end in one step") {
  const std::string text = "root ::= \"a\" root \"b\"? | \"c\"";
  CompileBudget budget;
  Result<Grammar> grammar = compile_ebnf(text, budget);
  REQUIRE(grammar.ok());
  ParseStates states(std::make_shared<const Grammar>(std::move(*grammar)));
  int32_t state = states.initial();
  for (int i = 0; i < 100'000; ++i) {
    state = states.next(state, 'a');
    int32_t* const kept[] = {&state};
    if (i % 10'000 == 0) states.keep_only(kept);
  }
  CHECK(!states.accepts(state));
  const int64_t work_before = states.work();
  state = states.next(state, 'c');
  CHECK(states.accepts(state));
  CHECK(states.work() - work_before < 1'000'000);
  CHECK(states.accepts(states.next(state, 'b')));
}

}  // namespace spate
