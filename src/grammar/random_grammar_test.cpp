// Goal    A mask bit is set exactly where the text with that token can be completed.
// Method  Random grammars over {a, b, c}, and a recogniser that tries everything. A text that it accepts must be allowed
//         token by token; behind every allowed token a completion is searched and must be accepted.
#include <map>
#include <optional>
#include <set>

#include "base/rng.h"
#include "grammar/grammar_test_support.h"
#include "grammar/token_grammar.h"

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

}  // namespace spate
