// What the tests of grammars share: grammars of a text, whether a text matches, and a mask looked at token by token.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/test_support.h"
#include "core/step_plan.h"
#include "core/token_constraint.h"
#include "grammar/byte_dfa.h"
#include "grammar/ebnf.h"
#include "grammar/parse_states.h"
#include "grammar/regex.h"
#include "grammar/token_trie.h"
#include "text/tokenizer.h"

#include "base/test.h"

namespace spate {

inline Result<Grammar> grammar_of(const std::string& ebnf) {
  CompileBudget budget;
  return compile_ebnf(ebnf, budget);
}

inline std::string ebnf_error(const std::string& ebnf) { return grammar_of(ebnf).status().message(); }

inline Result<ByteDfa> dfa_of(std::string_view regex, RegexMatch match = RegexMatch::kWhole) {
  CompileBudget budget;
  ASSIGN_OR_RETURN(const Expr expr, parse_regex(regex, match, expr_chars, &budget));
  return ByteDfa::of_expr(expr, budget);
}

inline bool matches(std::string_view regex, std::string_view text, RegexMatch match = RegexMatch::kWhole) {
  const Result<ByteDfa> dfa = dfa_of(regex, match);
  INFO(regex);
  REQUIRE(dfa.ok());
  return dfa->accepts(text);
}

inline std::string regex_error(std::string_view regex) { return parse_regex(regex, RegexMatch::kWhole).status().message(); }

inline std::shared_ptr<const Grammar> regex_grammar(std::string_view regex) {
  GrammarBuilder builder;
  builder.define_rule(builder.declare_rule("root"), *parse_regex(regex, RegexMatch::kWhole));
  CompileBudget budget;
  return std::make_shared<const Grammar>(*builder.finish(0, budget));
}

inline bool accepts(ParseStates& states, std::string_view text) {
  int32_t state = states.initial();
  for (const char c : text) state = states.next(state, static_cast<uint8_t>(c));
  return states.accepts(state);
}

inline bool accepts(const std::string& ebnf, std::string_view text) {
  Result<Grammar> grammar = grammar_of(ebnf);
  INFO(grammar.status().message());
  REQUIRE(grammar.ok());
  ParseStates states(std::make_shared<const Grammar>(std::move(*grammar)));
  return accepts(states, text);
}

// The text of special tokens is nothing that a grammar may choose.
inline std::shared_ptr<const TokenTrie> trie_of(const Tokenizer& tokenizer, int vocab_size) {
  std::vector<std::string> texts(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_special(id)) texts[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return std::make_shared<const TokenTrie>(texts, vocab_size);
}

// The tokens whose bytes lead on from `at`, looked at one by one: the cursor's mask must allow these and no others.
inline std::vector<int32_t> checked_mask(const ConstraintCursor& cursor, ParseStates& states, int32_t at,
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

}  // namespace spate
