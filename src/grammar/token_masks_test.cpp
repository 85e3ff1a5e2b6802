// Goal    However a mask is found, it is that of a plain walk: a token is allowed if and only if its bytes lead on.
// Method  Long repetitions, classes of characters and nested rules, over real and random tokens, each looked at.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/rng.h"
#include "grammar/grammar_test_support.h"
#include "grammar/json_schema.h"
#include "grammar/token_grammar.h"

#include "base/test.h"

namespace spate {

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
  int num_checked = 0, num_allowed = 0, num_deep = 0, num_ahead = 0, num_done = 0;
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
      if (step % 3 == 0) ++(constraint->work_ahead(rng.below(2000)) ? num_ahead : num_done);
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
  CHECK(num_ahead > 50);
  CHECK(num_done > 50);
}

// Goal    What was looked at ahead between steps, in small pieces, is not looked for again by sequences.
// Method  The same random texts of a schema after none of that work and after all of it: the masks are equal, and fewer
//         nodes and situations are met.
TEST_CASE("grammar: work ahead saves the sequences' own") {
  const auto tokenizer = *Tokenizer::load(repo_root() / "models/mini-qwen3");
  std::vector<std::string> texts;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    texts.push_back(tokenizer->is_special(id) ? std::string() : tokenizer->token_bytes(id));
  }
  const auto trie = std::make_shared<const TokenTrie>(texts, static_cast<int>(texts.size()));
  CompileBudget budget;
  const auto schema = nlohmann::ordered_json::parse(
      R"({"type":"array","items":{"type":"object","properties":{"id":{"type":"string","format":"uuid"},"kind":{"enum":["a","b"]},
          "tags":{"type":"array","items":{"type":"string","maxLength":20}}},"required":["id","kind"]}})");
  const auto grammar = std::make_shared<const Grammar>(*compile_json_schema(schema, {}, budget));
  const auto plain = *TokenGrammar::create(grammar, trie, {.max_ahead_work = 1000});
  const auto ahead = *TokenGrammar::create(grammar, trie, {.max_ahead_work = 1000});
  int num_calls = 1;
  while (ahead->work_ahead(500)) ++num_calls;
  CHECK(num_calls > 20);
  CHECK_FALSE(ahead->work_ahead(500));
  const TokenGrammar::Counts plain_before = plain->counts(), ahead_before = ahead->counts();
  Rng rng(test_seed());
  std::unique_ptr<ConstraintCursor> cursor, twin;
  for (int step = 0; step < 200; ++step) {
    if (!cursor || cursor->must_end()) cursor = plain->start(), twin = ahead->start();
    REQUIRE(std::ranges::equal(cursor->mask(), twin->mask()));
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < trie->vocab_size(); ++id) {
      if (mask_allows(cursor->mask().data(), id)) allowed.push_back(id);
    }
    if (allowed.empty()) {
      cursor = nullptr;
      continue;
    }
    const int32_t chosen = allowed[rng.below(allowed.size())];
    for (ConstraintCursor* each : {cursor.get(), twin.get()}) {
      REQUIRE(each->append(chosen).ok());
      if (!each->must_end()) REQUIRE(each->prepare_mask().ok());
    }
  }
  const TokenGrammar::Counts plain_after = plain->counts(), ahead_after = ahead->counts();
  CHECK(2 * (ahead_after.num_walked - ahead_before.num_walked) < plain_after.num_walked - plain_before.num_walked);
  CHECK(ahead_after.num_units - ahead_before.num_units < plain_after.num_units - plain_before.num_units);
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

}  // namespace spate
