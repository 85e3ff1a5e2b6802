// TokenTrie: the texts of a vocabulary's tokens as a tree over bytes, laid out in the order in which a walk meets it.
// One a tokenizer, shared by all grammars; immutable but for the masks of texts, which are added.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
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
    // Of the bytes that lead from here to the nodes below:
    uint8_t max_chars = 0;        // most characters of one; 255: so many and more
    bool is_text = false;         // its own text is whole characters, and all below are too but for a cut last one
    bool has_wide_chars = false;  // some are not ASCII
    uint32_t ascii = 0;           // of Tree::ascii_sets: the ASCII bytes among them
  };
  // Bits of the bytes below 128.
  struct AsciiSet {
    uint64_t words[2] = {0, 0};
    void add(int byte) { words[byte / 64] |= uint64_t{1} << (byte % 64); }
    bool has(int byte) const { return (words[byte / 64] >> (byte % 64) & 1) != 0; }
    bool contains(const AsciiSet& other) const {
      return ((other.words[0] & ~words[0]) | (other.words[1] & ~words[1])) == 0;
    }
    AsciiSet without(const AsciiSet& other) const { return {{words[0] & ~other.words[0], words[1] & ~other.words[1]}}; }
    int size() const { return std::popcount(words[0]) + std::popcount(words[1]); }
    bool operator==(const AsciiSet&) const = default;
  };
  // Texts of some characters: these of ASCII and, or without, all others.
  struct CharSet {
    AsciiSet ascii;
    bool has_wide_chars = false;
    bool contains(const CharSet& other) const {
      return ascii.contains(other.ascii) && (has_wide_chars || !other.has_wide_chars);
    }
    bool operator==(const CharSet&) const = default;
  };

  // token_bytes[id] is the token's text; empty for a token that no grammar may choose (special tokens, holes).
  // vocab_size is the logits' and may be larger.
  TokenTrie(std::span<const std::string> token_bytes, int vocab_size);

  // Tokens of up to kLookAheadBytes, and the few longer ones.
  struct Tree {
    std::vector<Node> nodes;
    std::vector<int32_t> token_ids;
    std::vector<AsciiSet> ascii_sets;  // that nodes have, each once
    std::span<const int32_t> tokens_of(const Node& node) const {
      return std::span(token_ids).subspan(node.first_token, node.num_tokens);
    }
    std::span<const int32_t> tokens_below(const Node& node) const {  // and its own
      const size_t end = node.subtree_end < nodes.size() ? nodes[node.subtree_end].first_token : token_ids.size();
      return std::span(token_ids).subspan(node.first_token, end - node.first_token);
    }
    CharSet chars_below(const Node& node) const { return {ascii_sets[node.ascii], node.has_wide_chars}; }
  };
  // Nodes by the number of whole characters before them and by their byte.
  struct NodeGroups {
    std::vector<uint32_t> first_node;  // [kNumGroups + 1], of `nodes`
    std::vector<uint32_t> nodes;       // in each group in the tree's order
    std::span<const uint32_t> of(int num_chars, int byte) const {
      const auto group = static_cast<size_t>(num_chars * 256 + byte);
      return std::span(nodes).subspan(first_node[group], first_node[group + 1] - first_node[group]);
    }
  };
  // The short tokens that are texts of some characters, the last perhaps cut, and the nodes at which the others leave
  // such a text: of each the first byte that does not go on with it.
  struct TextMasks {
    CharSet chars;
    std::vector<std::vector<uint32_t>> words;  // [kLookAheadBytes + 1]; [n] has those of up to n characters
    NodeGroups longer;                         // do not leave it, but begin one character more
    NodeGroups exits;                          // leave it between two characters
    struct BrokenChar {
      uint32_t node = 0;
      uint8_t byte = 0;       // the node's
      uint8_t num_chars = 0;  // whole characters before it
      uint8_t num_open = 0;   // then bytes of one that is begun, `open`, and that the node's byte breaks off
      std::array<uint8_t, 3> open = {};
    };
    std::vector<BrokenChar> broken_chars;  // leave it inside a character
  };
  static constexpr size_t kMaxTextMasks = 16;  // kinds; each takes about 1 MB for 150,000 tokens
  // Those of `chars`. Not kept so far: made now, where may_add and fewer than kMaxTextMasks are kept; else the largest
  // kind kept that has these characters only; null: none is. Any thread; valid as long as the tree.
  const TextMasks* text_masks_for(const CharSet& chars, bool may_add) const;
  // The tree of what is left behind `nodes` of the tokens of `tree`. Equal rests share a node.
  static Tree texts_behind(const Tree& tree, std::span<const uint32_t> nodes);
  const Tree& short_tokens() const { return short_tokens_; }
  const Tree& long_tokens() const { return long_tokens_; }
  int vocab_size() const { return vocab_size_; }
  int max_depth() const { return max_depth_; }
  const std::string& token_bytes(int32_t id) const { return token_bytes_[static_cast<size_t>(id)]; }

 private:
  void build(Tree& tree);
  static void describe(Tree& tree);
  std::unique_ptr<const TextMasks> text_masks_of(const CharSet& chars) const;

  int vocab_size_;
  int max_depth_ = 0;
  Tree short_tokens_, long_tokens_;
  mutable std::mutex text_masks_mutex_;
  mutable std::vector<std::unique_ptr<const TextMasks>> text_masks_;
  std::vector<std::string> token_bytes_;  // [vocab_size]
};

}  // namespace spate
