// Goal    Forced tokens, bounds of what is kept, real vocabularies, and what a step of many sequences takes.
// Method  Small vocabularies where each case can be counted; then a real one.
#include <algorithm>
#include <chrono>
#include <set>

#include "base/rng.h"
#include "batch/plan_builder.h"
#include "grammar/grammar_test_support.h"
#include "grammar/token_grammar.h"

#include "base/test.h"

namespace spate {

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
