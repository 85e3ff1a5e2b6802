#include "grammar/token_trie.h"

#include <algorithm>

#include "grammar/nfa.h"

namespace spate {
namespace {

constexpr size_t kMaxTokenBytes = 4096;  // a longer token is never chosen

}  // namespace

TokenTrie::TokenTrie(std::span<const std::string> token_bytes, int vocab_size)
    : vocab_size_(vocab_size), token_bytes_(static_cast<size_t>(vocab_size)) {
  for (size_t id = 0; id < std::min(token_bytes.size(), token_bytes_.size()); ++id) {
    const std::string& text = token_bytes[id];
    if (text.empty() || text.size() > kMaxTokenBytes) continue;
    token_bytes_[id] = text;
    Tree& tree = text.size() <= static_cast<size_t>(kLookAheadBytes) ? short_tokens_ : long_tokens_;
    tree.token_ids.push_back(static_cast<int32_t>(id));
    max_depth_ = std::max(max_depth_, static_cast<int>(text.size()));
  }
  build(short_tokens_);
  build(long_tokens_);
}

void TokenTrie::build(Tree& tree) {
  std::ranges::stable_sort(tree.token_ids, {}, [this](int32_t id) -> const std::string& { return token_bytes(id); });
  std::vector<uint32_t> path;  // the nodes of the text at hand
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      tree.nodes[path.back()].subtree_end = static_cast<uint32_t>(tree.nodes.size());
    }
  };
  std::string_view previous;
  for (size_t i = 0; i < tree.token_ids.size(); ++i) {
    const std::string& text = token_bytes(tree.token_ids[i]);
    const auto [a, b] = std::ranges::mismatch(previous, text);
    close(static_cast<size_t>(a - previous.begin()));
    for (size_t depth = path.size(); depth < text.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(tree.nodes.size()));
      tree.nodes.push_back({.first_token = static_cast<uint32_t>(i),
                            .depth = static_cast<uint16_t>(depth + 1),
                            .byte = static_cast<uint8_t>(text[depth])});
    }
    Node& node = tree.nodes[path.back()];
    if (node.num_tokens == 0) node.first_token = static_cast<uint32_t>(i);
    ++node.num_tokens;
    previous = text;
  }
  close(0);
}

}  // namespace spate
