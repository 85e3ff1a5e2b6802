// Goal    What the tree of a vocabulary says of its nodes is what their texts say.
// Method  Random tokens of a few bytes; each is looked at by itself.
#include <algorithm>
#include <set>

#include "base/rng.h"
#include "grammar/nfa.h"
#include "grammar/grammar_test_support.h"

#include "base/test.h"

namespace spate {

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

}  // namespace spate
