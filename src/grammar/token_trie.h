// TokenTrie: the texts of a vocabulary's tokens as a tree over bytes, laid out in the order in which a walk meets it.
// Immutable; one a tokenizer, shared by all grammars.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace spate {

class TokenTrie {
 public:
  // Depth first. The children of a node are the nodes behind it of depth + 1, up to its subtree_end.
  struct Node {
    uint32_t subtree_end = 0;  // the first node that is not below this one
    uint32_t first_token = 0;  // of the tree's token_ids: those whose text ends here
    uint16_t num_tokens = 0;
    uint16_t depth = 0;  // bytes of its text, 1 and more
    uint8_t byte = 0;    // the last of them
  };

  // token_bytes[id] is the token's text; empty for a token that no grammar may choose (special tokens, holes).
  // vocab_size is the logits' and may be larger.
  TokenTrie(std::span<const std::string> token_bytes, int vocab_size);

  // Tokens of up to kLookAheadBytes, and the few longer ones.
  struct Tree {
    std::vector<Node> nodes;
    std::vector<int32_t> token_ids;
    std::span<const int32_t> tokens_of(const Node& node) const {
      return std::span(token_ids).subspan(node.first_token, node.num_tokens);
    }
  };
  const Tree& short_tokens() const { return short_tokens_; }
  const Tree& long_tokens() const { return long_tokens_; }
  int vocab_size() const { return vocab_size_; }
  int max_depth() const { return max_depth_; }
  const std::string& token_bytes(int32_t id) const { return token_bytes_[static_cast<size_t>(id)]; }

 private:
  void build(Tree& tree);

  int vocab_size_;
  int max_depth_ = 0;
  Tree short_tokens_, long_tokens_;
  std::vector<std::string> token_bytes_;  // [vocab_size]
};

}  // namespace spate
