// A read-only trie over byte strings: all keys that are prefixes of a text, shortest first. Unigram, WordPiece and
// the added tokens walk it. 12 bytes a node; children of a node lie side by side, sorted.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace spate {

class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNoNode = UINT32_MAX;

  ByteTrie() = default;
  // Keys and their values (>= 0); of equal keys the last value holds. An empty key is ignored.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> entries);

  bool empty() const { return nodes_.empty(); }
  // From kRoot; kNoNode when no key goes on with `byte`.
  uint32_t child(uint32_t node, unsigned char byte) const;
  int32_t value(uint32_t node) const { return nodes_[node].value; }  // -1 when no key ends here

  // The longest key that text starts with from `pos`, beginning at `node`: its value and end, or -1.
  int32_t find_longest(std::string_view text, size_t pos, uint32_t node, size_t* end) const;

 private:
  struct Node {
    uint32_t first_child = 0;
    int32_t value = -1;
    uint16_t num_children = 0;
    uint8_t byte = 0;
  };
  std::vector<Node> nodes_;
};

}  // namespace spate
