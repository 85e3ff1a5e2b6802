// Goal    A mask bit is set exactly where the text with that token can be completed.
// Method  Random grammars over {a, b, c}, and a recogniser that tries everything. A text that it accepts must be
// allowed
//         token by token; behind every allowed token a completion is searched and must be accepted. Then the dialects,
//         what they refuse and where, limits, and real vocabularies.
#include <algorithm>
#include <bit>
#include <chrono>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/rng.h"
#include "base/test_support.h"
#include "batch/plan_builder.h"
#include "core/step_plan.h"
#include "grammar/byte_dfa.h"
#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/nfa.h"
#include "grammar/parse_states.h"
#include "grammar/regex.h"
#include "grammar/token_grammar.h"
#include "text/tokenizer.h"

#include "base/test.h"

namespace spate {
namespace {

// --- a grammar as a tree, its text, and the slow recogniser ---

struct Tree {
  enum Kind { kText, kSequence, kChoice, kRepeat, kRule } kind = kText;
  std::string text;
  std::vector<Tree> children;
  int min = 0, max = -1;
  size_t rule = 0;
};

class RandomGrammar {
 public:
  RandomGrammar(Rng& rng, size_t num_rules) : rng_(rng) {
    for (size_t i = 0; i < num_rules; ++i) rules_.push_back(random_tree(3, num_rules));
  }
  std::string ebnf() const {
    std::string out;
    for (size_t i = 0; i < rules_.size(); ++i) out += name(i) + " ::= " + ebnf(rules_[i]) + "\n";
    return out;
  }
  std::string regex() const { return regex(rules_[0]); }
  // Memory of `text`'s positions, for each rule: where a match that begins there may end, as bits.
  bool accepts(const std::string& text) {
    text_ = &text;
    memory_.clear();
    return (ends(rules_[0], 0) >> text.size() & 1) != 0;
  }

 private:
  static std::string name(size_t rule) { return rule == 0 ? "root" : "r" + std::to_string(rule); }

  Tree random_tree(int depth, size_t num_rules) {
    Tree tree;
    const uint64_t choice = rng_.below(depth == 0 ? 3 : 9);
    if (choice < 3) {
      for (uint64_t i = 0; i <= rng_.below(2); ++i) tree.text += static_cast<char>('a' + rng_.below(3));
      if (choice == 0 && num_rules > 1) {  // a call behind a byte
        Tree call{.kind = Tree::kRule, .rule = rng_.below(num_rules)};
        return {.kind = Tree::kSequence, .children = {tree, call}};
      }
    } else if (choice < 6) {
      tree.kind = choice == 5 ? Tree::kChoice : Tree::kSequence;
      for (uint64_t i = 0; i < 2 + rng_.below(2); ++i) tree.children.push_back(random_tree(depth - 1, num_rules));
    } else if (choice < 8) {
      tree.kind = Tree::kChoice;
      for (uint64_t i = 0; i < 2 + rng_.below(2); ++i) tree.children.push_back(random_tree(depth - 1, num_rules));
    } else {
      tree.kind = Tree::kRepeat;
      tree.min = static_cast<int>(rng_.below(3));
      tree.max = rng_.below(2) == 0 ? -1 : tree.min + static_cast<int>(rng_.below(3));
      tree.children.push_back(random_tree(depth - 1, num_rules));
    }
    return tree;
  }
  static std::string bounds(const Tree& tree) {
    if (tree.min == 0 && tree.max == -1) return "*";
    if (tree.max == -1) return "{" + std::to_string(tree.min) + ",}";
    return "{" + std::to_string(tree.min) + "," + std::to_string(tree.max) + "}";
  }
  std::string ebnf(const Tree& tree) const {
    if (tree.kind == Tree::kText) return "\"" + tree.text + "\"";
    if (tree.kind == Tree::kRule) return name(tree.rule);
    if (tree.kind == Tree::kRepeat) return "(" + ebnf(tree.children[0]) + ")" + bounds(tree);
    std::string out = "(";
    for (const Tree& child : tree.children) {
      if (out.size() > 1) out += tree.kind == Tree::kChoice ? " | " : " ";
      out += ebnf(child);
    }
    return out + ")";
  }
  std::string regex(const Tree& tree) const {
    if (tree.kind == Tree::kText) return tree.text;
    if (tree.kind == Tree::kRepeat) return "(?:" + regex(tree.children[0]) + ")" + bounds(tree);
    std::string out = "(";
    for (const Tree& child : tree.children) {
      if (out.size() > 1 && tree.kind == Tree::kChoice) out += "|";
      out += regex(child);
    }
    return out + ")";
  }

  uint64_t ends(const Tree& tree, size_t pos) {
    if (tree.kind == Tree::kText) {
      return text_->compare(pos, tree.text.size(), tree.text) == 0 ? uint64_t{1} << (pos + tree.text.size()) : 0;
    }
    if (tree.kind == Tree::kRule) {
      const auto key = std::pair(tree.rule, pos);
      if (const auto it = memory_.find(key); it != memory_.end()) return it->second;
      return memory_[key] = ends(rules_[tree.rule], pos);
    }
    if (tree.kind == Tree::kChoice) {
      uint64_t found = 0;
      for (const Tree& child : tree.children) found |= ends(child, pos);
      return found;
    }
    uint64_t at = uint64_t{1} << pos;
    if (tree.kind == Tree::kSequence) {
      for (const Tree& child : tree.children) at = ends_of_all(child, at);
      return at;
    }
    uint64_t found = 0;
    for (int i = 0; tree.max == -1 || i <= tree.max; ++i) {
      const uint64_t before = found;
      if (i >= tree.min) found |= at;
      if (at == 0 || (tree.max == -1 && i > tree.min + 12 && found == before)) break;
      at = ends_of_all(tree.children[0], at);
    }
    return found;
  }
  uint64_t ends_of_all(const Tree& tree, uint64_t positions) {
    uint64_t found = 0;
    for (size_t pos = 0; pos <= text_->size(); ++pos) {
      if ((positions >> pos & 1) != 0) found |= ends(tree, pos);
    }
    return found;
  }

  Rng& rng_;
  std::vector<Tree> rules_;
  const std::string* text_ = nullptr;
  std::map<std::pair<size_t, size_t>, uint64_t> memory_;
};

std::vector<std::string> texts_up_to(size_t max_len) {
  std::vector<std::string> texts{""};
  for (size_t begin = 0, len = 1; len <= max_len; ++len) {
    const size_t end = texts.size();
    for (size_t i = begin; i < end; ++i) {
      for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
    }
    begin = end;
  }
  return texts;
}

// A shortest text that leads from `state` to the end. Situations of deeper and deeper nesting are without number, the
// places of rules are few: each situation is completed through its parts, so the search ends. Whoever asks has the text
// accepted by the recogniser, so that a wrong part is found.
std::optional<std::string> find_completion(ParseStates& states, int32_t state) {
  struct Way {
    std::string text;             // then
    int32_t local = 0, rest = 0;  // the ends of both; kDead: of none
  };
  std::map<int32_t, std::vector<Way>> ways;
  std::vector<int32_t> open{state};
  while (!open.empty()) {
    const int32_t at = open.back();
    open.pop_back();
    if (at == ParseStates::kDead || ways.count(at) > 0) continue;
    std::vector<Way>& found = ways[at];
    for (const ParseStates::Part& part : states.parts_of(at)) {
      if (part.local != at) {
        found.push_back({.text = "", .local = part.local, .rest = part.rest});
        continue;
      }
      for (const char c : {'a', 'b', 'c'}) {
        const int32_t next = states.next(at, static_cast<uint8_t>(c));
        if (next != ParseStates::kDead) found.push_back({.text = std::string(1, c), .local = next});
      }
    }
    for (const Way& way : found) open.insert(open.end(), {way.local, way.rest});
  }
  std::map<int32_t, std::string> shortest{{ParseStates::kDead, ""}};
  for (const auto& [at, unused] : ways) {
    if (states.accepts(at)) shortest[at] = "";
  }
  for (bool has_changed = true; std::exchange(has_changed, false);) {
    for (const auto& [at, all] : ways) {
      for (const Way& way : all) {
        if (shortest.count(way.local) == 0 || shortest.count(way.rest) == 0) continue;
        std::string text = way.text + shortest[way.local] + shortest[way.rest];
        const auto known = shortest.find(at);
        if (text.size() > 56 || (known != shortest.end() && known->second.size() <= text.size())) continue;
        shortest[at] = std::move(text);
        has_changed = true;
      }
    }
  }
  if (state == ParseStates::kDead || shortest.count(state) == 0) return std::nullopt;
  return shortest[state];
}

Result<Grammar> grammar_of(const std::string& ebnf) {
  CompileBudget budget;
  return compile_ebnf(ebnf, budget);
}

std::string ebnf_error(const std::string& ebnf) { return grammar_of(ebnf).status().message(); }

Result<ByteDfa> dfa_of(std::string_view regex, RegexMatch match = RegexMatch::kWhole) {
  ASSIGN_OR_RETURN(const Expr expr, parse_regex(regex, match));
  CompileBudget budget;
  return ByteDfa::of_expr(expr, budget);
}

bool matches(std::string_view regex, std::string_view text, RegexMatch match = RegexMatch::kWhole) {
  const Result<ByteDfa> dfa = dfa_of(regex, match);
  INFO(regex);
  REQUIRE(dfa.ok());
  return dfa->accepts(text);
}

std::string regex_error(std::string_view regex) { return parse_regex(regex, RegexMatch::kWhole).status().message(); }

std::shared_ptr<const Grammar> regex_grammar(std::string_view regex) {
  GrammarBuilder builder;
  builder.define_rule(builder.declare_rule("root"), *parse_regex(regex, RegexMatch::kWhole));
  CompileBudget budget;
  return std::make_shared<const Grammar>(*builder.finish(0, budget));
}

bool accepts(ParseStates& states, std::string_view text) {
  int32_t state = states.initial();
  for (const char c : text) state = states.next(state, static_cast<uint8_t>(c));
  return states.accepts(state);
}

bool accepts(const std::string& ebnf, std::string_view text) {
  Result<Grammar> grammar = grammar_of(ebnf);
  INFO(grammar.status().message());
  REQUIRE(grammar.ok());
  ParseStates states(std::make_shared<const Grammar>(std::move(*grammar)));
  return accepts(states, text);
}

// The text of special tokens is nothing that a grammar may choose.
std::shared_ptr<const TokenTrie> trie_of(const Tokenizer& tokenizer, int vocab_size) {
  std::vector<std::string> texts(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) texts[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return std::make_shared<const TokenTrie>(texts, vocab_size);
}

}  // namespace

TEST_CASE("grammar: masks of random grammars equal a search for completions") {
  const std::vector<std::string> texts = texts_up_to(7), tokens = texts_up_to(3);
  const auto trie = std::make_shared<const TokenTrie>(tokens, static_cast<int>(tokens.size()));
  Rng rng(test_seed());
  int num_checked = 0, num_recursive = 0;
  for (int round = 0; round < 150; ++round) {
    RandomGrammar random(rng, round % 3 == 0 ? 1 : 4);
    const std::string ebnf = random.ebnf();
    INFO("seed " << test_seed() << " round " << round << "\n" << ebnf);
    Result<Grammar> compiled = grammar_of(ebnf);
    if (!compiled.ok()) {
      REQUIRE(compiled.status().message() == "the grammar allows no text at all");
      for (const std::string& text : texts) REQUIRE_FALSE(random.accepts(text));
      continue;
    }
    const auto grammar = std::make_shared<const Grammar>(std::move(*compiled));
    num_recursive += grammar->num_rules() > 1;
    ParseStates states(grammar);
    std::set<std::string> prefixes;
    for (const std::string& text : texts) {
      const bool expected = random.accepts(text);
      REQUIRE(accepts(states, text) == expected);
      for (size_t len = 0; expected && len <= text.size(); ++len) prefixes.insert(text.substr(0, len));
    }
    Result<std::shared_ptr<TokenGrammar>> constraint = TokenGrammar::create(grammar, trie);
    if (!constraint.ok()) continue;  // the empty text only
    for (size_t i = 0; i < texts_up_to(3).size(); ++i) {
      const auto cursor = (*constraint)->start();
      const std::string& text = texts[i];
      bool is_dead = false;
      for (const char c : text) is_dead = is_dead || !cursor->append(c - 'a' + 1).ok();
      REQUIRE(is_dead == (prefixes.count(text) == 0 && !find_completion(states, [&] {
                            int32_t state = states.initial();
                            for (const char c : text) state = states.next(state, static_cast<uint8_t>(c));
                            return state;
                          }())));
      if (is_dead) continue;
      const Status status = cursor->prepare_mask();
      REQUIRE(cursor->may_end() == random.accepts(text));
      if (!status.ok()) continue;
      for (size_t id = 1; id < tokens.size(); ++id) {
        const bool allowed = mask_allows(cursor->mask().data(), static_cast<int32_t>(id));
        if (prefixes.count(text + tokens[id]) > 0) REQUIRE(allowed);
        ++num_checked;
        if (!allowed) continue;
        int32_t state = states.initial();
        for (const char c : text + tokens[id]) state = states.next(state, static_cast<uint8_t>(c));
        const std::optional<std::string> rest = find_completion(states, state);
        REQUIRE(rest.has_value());
        REQUIRE(random.accepts(text + tokens[id] + *rest));
      }
    }
    if (round % 3 != 0) continue;
    const Result<ByteDfa> dfa = dfa_of(random.regex());
    REQUIRE(dfa.ok());
    for (const std::string& text : texts) REQUIRE(dfa->accepts(text) == random.accepts(text));
  }
  CHECK(num_checked > 30'000);
  CHECK(num_recursive > 50);
}

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
  CHECK(regex_error("a(^b)") == "regex: at 2: ^ inside a group is not supported");
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

TEST_CASE("grammar: the token that must come is the longest one, where there is one way only") {
  const std::vector<std::string> texts{"", "a", "b", "ab", "abc", "c", "d", "cd", "xy", "x"};
  const auto trie = std::make_shared<const TokenTrie>(texts, static_cast<int>(texts.size()));
  CompileBudget budget;
  auto grammar = compile_ebnf(R"(root ::= "abcd" ("x" | "ab") [a-d] "xy"?)", budget);
  const auto constraint =
      TokenGrammar::create(std::make_shared<const Grammar>(std::move(grammar).value()), trie).value();
  const auto cursor = constraint->start();
  std::vector<int32_t> forced;
  for (const int32_t id : {4, 6, 9, 1}) {  // "abc" "d" "x" "a"
    forced.push_back(cursor->forced_token());
    if (forced.back() >= 0) CHECK(mask_allows(cursor->mask().data(), forced.back()));
    CHECK(cursor->append(id).ok());
    CHECK(cursor->prepare_mask().ok());
  }
  CHECK(forced == std::vector<int32_t>{4, 6, -1, -1});
  CHECK(cursor->forced_token() == -1);  // the text may end
  CHECK(cursor->append(9).ok());        // "x"
  CHECK(cursor->forced_token() == -1);  // no token is "y"
}

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

TEST_CASE("grammar: the places of a long repetition share masks, and each is right") {
  std::vector<std::string> texts{""};
  for (const int len : {1, 2, 3, 23, 24, 25, 26, 40, 70}) {
    for (const char* letters : {"a", "b", "ay", "ab", "xa", "y"}) {
      std::string text;
      while (static_cast<int>(text.size()) < len) text += letters;
      text.resize(static_cast<size_t>(len));
      texts.push_back(text);
      texts.push_back(text + "y");
      texts.push_back("(" + text + ")");
    }
  }
  texts.insert(texts.end(), {"x", "(", ")", "y("});
  const auto trie = std::make_shared<const TokenTrie>(texts, static_cast<int>(texts.size()));
  const struct {
    const char* ebnf;
    const char* unit;
  } cases[] = {{"root ::= \"x\" [ab]{30,90} \"y\"", "a"},
               {"root ::= \"x\" unit{0,120} \"y\"\nunit ::= [ab] | \"(\" [ab]{1,80} \")\"", "(ab)"},
               {"root ::= \"x\" (\"a\"{2,60} \"y\"){40,50}", "aaay"},
               {"root ::= \"x\" ([ab]?){60} \"y\"", "b"}};
  for (const auto& each : cases) {
    INFO(std::string(each.ebnf));
    Result<Grammar> compiled = grammar_of(each.ebnf);
    REQUIRE(compiled.ok());
    const auto grammar = std::make_shared<const Grammar>(std::move(*compiled));
    const auto constraint = *TokenGrammar::create(grammar, trie);
    ParseStates states(grammar);
    std::string text = "x";
    std::set<const uint32_t*> masks;
    std::vector<std::unique_ptr<ConstraintCursor>> cursors;  // keep the masks
    for (int i = 0; i < 130; ++i) {
      int32_t at = states.initial();
      for (const char c : text) at = states.next(at, static_cast<uint8_t>(c));
      if (at == ParseStates::kDead) break;
      auto cursor = constraint->start();
      for (const char c : text) {
        REQUIRE(cursor->append(static_cast<int32_t>(std::ranges::find(texts, std::string(1, c)) - texts.begin())).ok());
      }
      if (!cursor->prepare_mask().ok()) break;
      for (size_t id = 1; id < texts.size(); ++id) {
        int32_t next = at;
        for (const char c : texts[id]) next = states.next(next, static_cast<uint8_t>(c));
        INFO(text << " + " << texts[id]);
        REQUIRE(mask_allows(cursor->mask().data(), static_cast<int32_t>(id)) == (next != ParseStates::kDead));
      }
      masks.insert(cursor->mask().data());
      cursors.push_back(std::move(cursor));
      text += each.unit[i % static_cast<int>(std::string_view(each.unit).size())];
    }
    CHECK(cursors.size() > 55);
  }
}

// The tokens whose bytes lead on from `at`, looked at one by one: the cursor's mask must allow these and no others.
std::vector<int32_t> checked_mask(const ConstraintCursor& cursor, ParseStates& states, int32_t at,
                                  std::span<const std::string> texts) {
  std::vector<int32_t> allowed;
  for (size_t id = 0; id < texts.size(); ++id) {
    int32_t next = texts[id].empty() ? ParseStates::kDead : at;
    for (const char c : texts[id]) {
      if (next == ParseStates::kDead) break;
      next = states.next(next, static_cast<uint8_t>(c));
    }
    const bool leads_on = next != ParseStates::kDead;
    if (mask_allows(cursor.mask().data(), static_cast<int32_t>(id)) != leads_on) {
      FAIL("token ", id, " \"", texts[id], "\" leads on: ", leads_on);
    }
    if (leads_on) allowed.push_back(static_cast<int32_t>(id));
  }
  return allowed;
}

// Goal    What is skipped in a walk, as every character there leads on alike, is what a walk would have allowed.
// Method  Strings of all kinds (counted, under a pattern, free, complete at every character) over a real vocabulary and
//         random tokens of whole and of broken characters: a token is allowed if and only if its bytes lead on.
TEST_CASE("grammar: masks of texts of many characters are those of their bytes") {
  const auto tokenizer = *Tokenizer::load(repo_root() / "models/mini-qwen3");
  Rng rng(test_seed());
  std::vector<std::string> texts;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    texts.push_back(tokenizer->is_special(id) ? std::string() : tokenizer->token_bytes(id));
  }
  const std::vector<std::string> pieces{
      "a",   "Z",  "é", "中",   "😀",    "\xe4", "\xe4\xb8",     "\xad",     "\xf0\x9f", "\"",       "\\\"", "\\",
      "\\u", "\n", " ", "\x7f", "\x01", "\xff", "\xed\xa0\x80", "\xc0\xaf", "<",        "</think>", ", ",   "0"};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint64_t n = 1 + rng.below(i % 10 == 0 ? 40 : 7); n > 0; --n) text += pieces[rng.below(pieces.size())];
    texts.push_back(text);
  }
  const auto trie = std::make_shared<const TokenTrie>(texts, static_cast<int>(texts.size()));
  std::vector<std::pair<std::string, std::shared_ptr<const Grammar>>> grammars;
  for (const char* regex :
       {R"("[^"]*")", R"("[^"]{0,12}"x)", R"([A-Z][a-z]{2,20}( [A-Z][a-z]{2,20}){0,3})", R"([^\n]*)",
        R"(.{3,9}(a|b).*)", R"(("([^"\\]|\\n)*",? ?)*)", R"(([^a]|aé)*)", R"(([ -~]|[À-ÿ]){0,30}中*)"}) {
    grammars.emplace_back(regex, regex_grammar(regex));
  }
  for (
      const char* schema :
      {R"({"type":"object","properties":{"n":{"type":"string"},"e":{"type":"string","format":"email"},"t":{"type":"array","items":
           {"type":"string","maxLength":20}},"p":{"type":"string","pattern":"^[^x]*$","minLength":4}},"required":["n","e","t"]})",
       R"({"type":"object"})", R"({"type":"string","minLength":2,"maxLength":5})"}) {
    CompileBudget budget;
    Result<Grammar> grammar = compile_json_schema(nlohmann::ordered_json::parse(schema), {}, budget);
    REQUIRE(grammar.ok());
    grammars.emplace_back(schema, std::make_shared<const Grammar>(std::move(*grammar)));
  }
  int num_checked = 0, num_allowed = 0;
  for (const auto& [name, grammar] : grammars) {
    INFO(name);
    const auto constraint = *TokenGrammar::create(grammar, trie);
    ParseStates states(grammar);
    std::unique_ptr<ConstraintCursor> cursor;
    int32_t at = 0;
    for (int step = 0; step < 60; ++step) {
      CAPTURE(step);
      if (!cursor || cursor->must_end()) {
        cursor = constraint->start();
        at = states.initial();
      }
      const std::vector<int32_t> allowed = checked_mask(*cursor, states, at, texts);
      num_checked += static_cast<int>(texts.size());
      num_allowed += static_cast<int>(allowed.size());
      REQUIRE((!allowed.empty() || cursor->may_end()));
      if (allowed.empty()) {
        cursor = nullptr;
        continue;
      }
      // Short ones more often: texts of few tokens see few places.
      int32_t chosen = allowed[rng.below(allowed.size())];
      for (int i = 0; i < 3; ++i) {
        const int32_t other = allowed[rng.below(allowed.size())];
        if (texts[static_cast<size_t>(other)].size() < texts[static_cast<size_t>(chosen)].size()) chosen = other;
      }
      REQUIRE(cursor->append(chosen).ok());
      for (const char c : texts[static_cast<size_t>(chosen)]) at = states.next(at, static_cast<uint8_t>(c));
      if (!cursor->must_end()) REQUIRE(cursor->prepare_mask().ok());
    }
  }
  CHECK(num_checked > 1'000'000);
  CHECK(num_allowed > 100'000);
}

// Goal    Texts of any characters, counted or not, in rules of any nesting have the masks of a plain walk.
// Method  Random grammars of lists and words, whose characters are random classes: of more kinds than the vocabulary
//         keeps masks of. A random text is written; a token is allowed if and only if its bytes lead on.
TEST_CASE("grammar: masks of random classes of characters in random rules are those of their bytes") {
  const auto tokenizer = *Tokenizer::load(repo_root() / "models/mini-qwen3");
  Rng rng(test_seed());
  std::vector<std::string> texts;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    texts.push_back(tokenizer->is_special(id) ? std::string() : tokenizer->token_bytes(id));
  }
  const std::vector<std::string> pieces{"a", "Zx", "word", "é", "中", "\xe4", "\xb8\xad", "\xff", "7",
                                        "[", "]",  ", ",   "(", "),", "]",    "\"",       "\",",  " "};
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (uint64_t n = 1 + rng.below(i % 10 == 0 ? 30 : 6); n > 0; --n) text += pieces[rng.below(pieces.size())];
    texts.push_back(text);
  }
  const auto trie = std::make_shared<const TokenTrie>(texts, static_cast<int>(texts.size()));
  const std::vector<std::string> ranges{"a-z", "A-Z", "0-9", "n-z", " ", "_", "b-y", "\u0080-\U0010ffff", "é-ÿ", "."};
  const auto word = [&] {
    std::string out = "[";
    for (uint64_t n = 1 + rng.below(4); n > 0; --n) out += ranges[rng.below(ranges.size())];
    const uint64_t min = rng.below(4), more = rng.below(2) == 0 ? rng.below(30) : rng.below(4);
    const std::string bounds[] = {"*", "+", "{" + std::to_string(min) + "," + std::to_string(min + more) + "}"};
    return out + "]" + bounds[rng.below(3)];
  };
  int num_checked = 0, num_allowed = 0, num_deep = 0;
  for (int round = 0; round < 40; ++round) {
    const std::string ebnf =
        "root ::= list\nlist ::= \"[\" (item (\",\" \" \"? item)*)? \"]\"\n"
        "item ::= list | pair | name | \"\\\"\" text \"\\\"\" | one\nname ::= [b-z] [a-z_]{2,40}\npair ::= \"(\" item "
        "\", \" item \")\"\n"
        "text ::= " +
        word() + " " + word() + "\none ::= " + word() + " | \"a\" " + word() + "\n";
    INFO("seed " << test_seed() << " round " << round << "\n" << ebnf);
    Result<Grammar> compiled = grammar_of(ebnf);
    REQUIRE(compiled.ok());
    const auto grammar = std::make_shared<const Grammar>(std::move(*compiled));
    TokenGrammarLimits limits;
    if (round % 4 == 0) limits = {.max_states = 300, .max_mask_bytes = 100'000, .max_ahead_work = 20'000};
    if (round % 4 == 1) limits = {.max_states = 1000, .max_ahead_work = 20'000};
    const auto constraint = *TokenGrammar::create(grammar, trie, limits);
    ParseStates states(grammar);
    std::unique_ptr<ConstraintCursor> cursor;
    int32_t at = 0;
    int depth = 0;
    for (int step = 0; step < 40; ++step) {
      CAPTURE(step);
      if (!cursor || cursor->must_end()) {
        cursor = constraint->start();
        at = states.initial();
        depth = 0;
      }
      const std::vector<int32_t> allowed = checked_mask(*cursor, states, at, texts);
      num_checked += static_cast<int>(texts.size());
      num_allowed += static_cast<int>(allowed.size());
      if (allowed.empty()) {
        cursor = nullptr;
        continue;
      }
      int32_t chosen = allowed[rng.below(allowed.size())];
      const auto nests = [&](int32_t id) {
        return texts[static_cast<size_t>(id)].find_first_of(depth < 4 ? "[(" : "])") != std::string::npos;
      };
      for (int i = 0; i < 8 && !nests(chosen); ++i) chosen = allowed[rng.below(allowed.size())];
      REQUIRE(cursor->append(chosen).ok());
      for (const char c : texts[static_cast<size_t>(chosen)]) {
        at = states.next(at, static_cast<uint8_t>(c));
        depth += c == '[' || c == '(' ? 1 : c == ']' || c == ')' ? -1 : 0;
      }
      num_deep += depth > 2;
      if (!cursor->must_end()) REQUIRE(cursor->prepare_mask().ok());
    }
  }
  CHECK(num_checked > 10'000'000);
  CHECK(num_allowed > 100'000);
  CHECK(num_deep > 100);
}

// Method  Random tokens of a few bytes; each is looked at by itself.
TEST_CASE("token trie: masks of texts and trees of rests are those of each token") {
  Rng rng(test_seed());
  const std::vector<std::string> pieces{"a", "b", "c", "\"", "é", "中", "😀", "\xe4", "\xad", "\xf0\x9f", "\xc0", "ab"};
  std::vector<std::string> texts{""};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (uint64_t n = 1 + rng.below(i % 50 == 0 ? 30 : 5); n > 0; --n) text += pieces[rng.below(pieces.size())];
    texts.push_back(text);
  }
  const TokenTrie trie(texts, static_cast<int>(texts.size()));
  std::set<const TokenTrie::TextMasks*> kinds;
  for (int round = 0; round < 40; ++round) {
    TokenTrie::CharSet chars{.has_wide_chars = rng.below(2) == 0};
    for (const char c : {'a', 'b', 'c', '"'}) {
      if (rng.below(2) == 0) chars.ascii.add(c);
    }
    const bool may_add = round % 3 != 0;
    const TokenTrie::TextMasks* const masks = trie.text_masks_for(chars, may_add);
    if (masks == nullptr) {
      REQUIRE((!may_add || kinds.size() + 2 >= TokenTrie::kMaxTextMasks));
      continue;
    }
    kinds.insert(masks);
    REQUIRE(chars.contains(masks->chars));
    REQUIRE((!may_add || masks->chars == chars || kinds.size() + 2 >= TokenTrie::kMaxTextMasks));
    const TokenTrie::Tree& tree = trie.short_tokens();
    for (const int length : {1, 2, 3, kLookAheadBytes}) {
      // Each token is known, or one of the nodes at which texts of this length are left is on its way; never both.
      std::set<int32_t> below;
      const auto take = [&](uint32_t node) {
        for (const int32_t id : tree.tokens_below(tree.nodes[node])) below.insert(id);
      };
      for (int byte = 0; byte < 256; ++byte) {
        for (int n = 0; n <= length; ++n) std::ranges::for_each(masks->exits.of(n, byte), take);
        std::ranges::for_each(masks->longer.of(length, byte), take);
      }
      for (const TokenTrie::TextMasks::BrokenChar& broken : masks->broken_chars) {
        if (broken.num_chars < length) take(broken.node);
      }
      for (const int32_t id : tree.token_ids) {
        INFO("\"" << texts[static_cast<size_t>(id)] << "\" length " << length);
        REQUIRE(mask_allows(masks->words[static_cast<size_t>(length)].data(), id) == (below.count(id) == 0));
      }
    }
  }
  CHECK(kinds.size() > 5);
  CHECK(kinds.size() <= TokenTrie::kMaxTextMasks);

  const TokenTrie::Tree& tree = trie.short_tokens();
  for (int round = 0; round < 50; ++round) {
    std::set<uint32_t> nodes;
    for (uint64_t n = 1 + rng.below(40); n > 0; --n) nodes.insert(static_cast<uint32_t>(rng.below(tree.nodes.size())));
    std::multiset<std::pair<std::string, int32_t>> expected, found;
    for (const uint32_t begin : nodes) {
      for (uint32_t i = begin + 1; i < tree.nodes[begin].subtree_end; ++i) {
        for (const int32_t id : tree.tokens_of(tree.nodes[i])) {
          const std::string& text = texts[static_cast<size_t>(id)];
          expected.insert({text.substr(text.size() - (tree.nodes[i].depth - size_t{tree.nodes[begin].depth})), id});
        }
      }
    }
    const TokenTrie::Tree rests = TokenTrie::texts_behind(tree, std::vector<uint32_t>(nodes.begin(), nodes.end()));
    std::string text;
    std::set<std::string> met;
    for (uint32_t i = 0; i < rests.nodes.size(); ++i) {
      const TokenTrie::Node& node = rests.nodes[i];
      text.resize(node.depth - 1u);
      text += static_cast<char>(node.byte);
      REQUIRE(met.insert(text).second);
      for (const int32_t id : rests.tokens_of(node)) found.insert({text, id});
      REQUIRE(node.subtree_end > i);
      REQUIRE(node.subtree_end <= rests.nodes.size());
      for (uint32_t below = i + 1; below < node.subtree_end; ++below) REQUIRE(rests.nodes[below].depth > node.depth);
      if (node.subtree_end < rests.nodes.size()) REQUIRE(rests.nodes[node.subtree_end].depth <= node.depth);
    }
    REQUIRE(found == expected);
  }
}

TEST_CASE("grammar: situations that nobody uses are forgotten, sequences stay where they are") {
  const std::vector<std::string> tokens{"", "[", "]", "x"};
  const auto trie = std::make_shared<const TokenTrie>(tokens, 4);
  Result<Grammar> grammar = grammar_of("root ::= \"[\" (root | \"x\")* \"]\"");
  REQUIRE(grammar.ok());
  const auto constraint = *TokenGrammar::create(std::make_shared<const Grammar>(std::move(*grammar)), trie,
                                                {.max_states = 50, .max_mask_bytes = 64});
  std::vector<std::unique_ptr<ConstraintCursor>> cursors;
  std::vector<int> depths;
  Rng rng(test_seed());
  for (int i = 0; i < 4; ++i) {
    cursors.push_back(constraint->start());
    depths.push_back(0);
  }
  for (int step = 0; step < 3000; ++step) {
    const size_t i = rng.below(4);
    if (depths[i] == 0 && cursors[i]->may_end()) {
      CHECK(cursors[i]->must_end());
      cursors[i] = constraint->start();
    }
    const int32_t token = depths[i] == 0 || (depths[i] < 200 && rng.below(20) < 9) ? 1 : rng.below(2) == 0 ? 2 : 3;
    REQUIRE(mask_allows(cursors[i]->mask().data(), token));
    REQUIRE(cursors[i]->append(token).ok());
    depths[i] += token == 1 ? 1 : token == 2 ? -1 : 0;
    REQUIRE(cursors[i]->may_end() == (depths[i] == 0));
    REQUIRE(cursors[i]->prepare_mask().ok());
  }
  CHECK(constraint->num_states() < 1000);
}

TEST_CASE("grammar: places that allow the same tokens share a mask, within bounds, also when rules are forgotten") {
  const std::vector<std::string> tokens{"", "[", "]", "x", "y", "x]", "]]"};
  const auto trie = std::make_shared<const TokenTrie>(tokens, static_cast<int>(tokens.size()));
  Result<Grammar> grammar = grammar_of("root ::= \"[\" (root | [xy])* \"]\"");
  REQUIRE(grammar.ok());
  const auto shared = std::make_shared<const Grammar>(std::move(*grammar));
  for (const size_t max_bytes : {size_t{1} << 20, size_t{64}}) {  // all are kept; or 16 masks, and rules are forgotten
    const auto constraint = *TokenGrammar::create(shared, trie, {.max_states = 60, .max_mask_bytes = max_bytes});
    std::set<const uint32_t*> masks;
    const auto cursor = constraint->start();
    std::vector<std::unique_ptr<ConstraintCursor>> kept;
    for (int depth = 1; depth <= 300; ++depth) {
      REQUIRE(cursor->append(1).ok());
      REQUIRE(cursor->prepare_mask().ok());
      for (int32_t id = 1; id < 7; ++id) {
        CHECK(mask_allows(cursor->mask().data(), id) == (id != 6 || depth > 1));
      }
      masks.insert(cursor->mask().data());
      kept.push_back(cursor->clone());  // so that no address is used again
      CHECK(constraint->num_masks_by_sets() <= constraint->num_masks());
      CHECK(constraint->num_masks() * 4 <= std::max<size_t>(max_bytes, 4));
    }
    if (max_bytes > 64) CHECK(masks.size() == 2);
  }
}

// Goal    A mask put together of what a rule allows and of what goes on behind its end is that of the whole situation.
// Method  Random texts of nested and ambiguous grammars, over all tokens of up to four of their bytes and some long
// ones:
//         a token is allowed if and only if the text with it leads on. Few masks are kept, so that some are made anew.
TEST_CASE("grammar: a mask is right whatever rules the text stands in") {
  const char* grammars[] = {
      "root ::= list\nlist ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= list | word | \"{\" word \",\" list \"}\"\n"
      "word ::= \"a\"{1,40} | \"a,\" \"a\"",
      "root ::= one \"]\" | two \",a\" | root2\none ::= \"[\" two? \"a\"*\ntwo ::= \"[\" (one | two)? \"]\" "
      "\"a\"{0,2}\n"
      "root2 ::= \"{\" root? \"}\"*"};
  std::vector<std::string> texts{""};
  const std::string bytes = "[]{},a";
  for (size_t begin = 0, length = 1; length <= 4; ++length) {
    const size_t end = texts.size();
    for (size_t i = begin; i < end; ++i) {
      for (const char byte : bytes) texts.push_back(texts[i] + byte);
    }
    begin = end;
  }
  for (const size_t length : {33u, 36u, 40u}) {
    texts.push_back(std::string(length, 'a'));
    texts.push_back(std::string(length, 'a') + "]");
    texts.push_back(std::string(length, 'a') + "],[a");
    texts.push_back(std::string(length, '['));
  }
  const auto trie = std::make_shared<const TokenTrie>(texts, static_cast<int>(texts.size()));
  Rng rng(test_seed());
  for (const char* text : grammars) {
    Result<Grammar> grammar = grammar_of(text);
    REQUIRE(grammar.ok());
    const auto shared = std::make_shared<const Grammar>(std::move(*grammar));
    ParseStates states(shared);
    const auto constraint =
        *TokenGrammar::create(shared, trie, {.max_states = 500, .max_mask_bytes = texts.size() * 2});
    for (int round = 0; round < 20; ++round) {
      const auto cursor = constraint->start();
      int32_t at = states.initial();
      std::string written;
      for (int step = 0; step < 12 && !cursor->must_end(); ++step) {
        REQUIRE(cursor->prepare_mask().ok());
        std::vector<int32_t> allowed;
        for (size_t id = 1; id < texts.size(); ++id) {
          int32_t next = at;
          for (const char c : texts[id]) next = states.next(next, static_cast<uint8_t>(c));
          const bool is_allowed = mask_allows(cursor->mask().data(), static_cast<int32_t>(id));
          if (is_allowed != (next != ParseStates::kDead)) FAIL(written << " + " << texts[id]);
          if (is_allowed) allowed.push_back(static_cast<int32_t>(id));
        }
        const int32_t id = allowed[rng.below(allowed.size())];
        REQUIRE(cursor->append(id).ok());
        for (const char c : texts[static_cast<size_t>(id)]) at = states.next(at, static_cast<uint8_t>(c));
        written += texts[static_cast<size_t>(id)];
      }
    }
  }
}

TEST_CASE("grammar: real vocabularies: random allowed tokens make matching texts, matching texts are allowed") {
  const auto tokenizer = *Tokenizer::load(repo_root() / "models/mini-qwen3");
  const auto trie = trie_of(*tokenizer, tokenizer->vocab_size() + 50);
  Rng rng(test_seed());
  const struct {
    const char* regex;
    std::vector<std::string> texts;
  } cases[] = {
      {"[0-9]{3}-[0-9]{4}", {"555-0123"}},
      {"(yes|no|maybe), (I|we) [a-z ]{1,20}\\.", {"maybe, we will see about that."}},
      {"[α-ωА-я]{1,12}", {"слово", "λογος"}},
      {"[\\u{1F600}-\\u{1F64F}]{1,3}x?", {"😀😃x"}},
      {"(.|\\n){0,40}", {"Any text 中文 é\n\n  end"}},
  };
  for (const auto& each : cases) {
    INFO(std::string(each.regex));
    const Result<ByteDfa> dfa = dfa_of(each.regex);
    const auto constraint = *TokenGrammar::create(regex_grammar(each.regex), trie);
    for (const std::string& text : each.texts) {
      const auto cursor = constraint->start();
      for (const int32_t id : tokenizer->encode(text)) {
        REQUIRE(mask_allows(cursor->mask().data(), id));
        REQUIRE(cursor->append(id).ok());
        REQUIRE(cursor->prepare_mask().ok());
      }
      CHECK(cursor->may_end());
    }
    for (int round = 0; round < 20; ++round) {
      const auto cursor = constraint->start();
      std::string text;
      while (!cursor->must_end() && !(cursor->may_end() && rng.below(4) == 0)) {
        REQUIRE(cursor->prepare_mask().ok());
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < trie->vocab_size(); ++id) {
          if (mask_allows(cursor->mask().data(), id)) allowed.push_back(id);
        }
        const int32_t id = allowed[rng.below(allowed.size())];
        REQUIRE_FALSE(tokenizer->is_special(id));
        text += tokenizer->token_bytes(id);
        REQUIRE(cursor->append(id).ok());
      }
      INFO(text);
      REQUIRE(dfa->accepts(text));
    }
  }
}

// What the engine does for a step: each sequence takes its token and finds its mask, which is copied into the plan.
TEST_CASE("grammar: the masks of a step of 256 sequences, 151,936 tokens") {
  const auto tokenizer = *Tokenizer::load(repo_root() / "models/mini-qwen3");
  std::vector<std::string> texts(151'936);
  Rng rng(test_seed());
  for (size_t id = 0; id < texts.size(); ++id) {
    const auto num_real = static_cast<uint64_t>(tokenizer->vocab_size());
    const auto real = [&](uint64_t each) {
      const auto token_id = static_cast<int32_t>(each);
      return tokenizer->is_special(token_id) ? std::string() : tokenizer->token_bytes(token_id);
    };
    texts[id] = id < num_real ? real(id) : real(rng.below(num_real)) + real(rng.below(num_real));
  }
  const auto trie = std::make_shared<const TokenTrie>(texts, static_cast<int>(texts.size()));
  // 256 places of one string; and 256 places that have nothing in common.
  std::string different;
  for (int i = 0; i < 256; ++i) {
    different += (i > 0 ? "|z" : "z") + std::to_string(i) + (i > 0 ? "-" : "") + "[a";
    for (int bit = 0; bit < 8; ++bit) {
      if ((i >> bit & 1) != 0) different += static_cast<char>('b' + bit);
    }
    different += "]*";
  }
  const auto token_of = [&](char c) { return tokenizer->encode(std::string(1, c)).at(0); };
  StepPlanBuilder builder;
  for (const bool distinct : {false, true}) {
    const auto constraint = *TokenGrammar::create(regex_grammar(distinct ? different : "\"[^\"]{0,600}\""), trie);
    double cold_us = 0, known_us = 1e9, with_plan_us = 1e9;
    size_t num_masks = 0;
    for (int round = 0; round < 3; ++round) {  // round 0 meets each situation for the first time
      std::vector<std::unique_ptr<ConstraintCursor>> cursors;
      for (size_t i = 0; i < 256; ++i) {
        cursors.push_back(constraint->start());
        std::string begin = "\"" + std::string(i, 'y');
        if (distinct) begin = "z" + std::to_string(i) + (i > 0 ? "-" : "");
        for (const char c : begin) REQUIRE(cursors[i]->append(token_of(c)).ok());
      }
      const int32_t next_token = token_of('a');
      const auto start = std::chrono::steady_clock::now();
      const auto microseconds = [&] {
        return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
      };
      for (const auto& cursor : cursors) {
        REQUIRE(cursor->append(next_token).ok());
        REQUIRE(cursor->prepare_mask().ok());
      }
      (round == 0 ? cold_us : known_us) = round == 0 ? microseconds() : std::min(known_us, microseconds());
      builder.begin(1);
      std::set<const uint32_t*> sent;
      for (const auto& cursor : cursors) {
        if (sent.insert(cursor->mask().data()).second) builder.add_mask(cursor->mask());
      }
      builder.finish();
      num_masks = sent.size();
      if (round > 0) with_plan_us = std::min(with_plan_us, microseconds());
    }
    CHECK(num_masks == (distinct ? 256 : 1));
    MESSAGE(num_masks, " masks: ", cold_us, " us at first, ", known_us, " us once known, ", with_plan_us,
            " us with the copy into the plan");
  }
}

}  // namespace spate
