#include "text/byte_trie.h"

#include <algorithm>

namespace spate {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  // Breadth first over ranges of the sorted keys: a node owns the keys that share its prefix.
  struct Range {
    uint32_t node;
    size_t begin, end, depth;
  };
  if (entries.empty()) return;
  nodes_.emplace_back();
  std::vector<Range> queue{{kRoot, 0, entries.size(), 0}};
  for (size_t next = 0; next < queue.size(); ++next) {
    const Range range = queue[next];
    size_t i = range.begin;
    for (; i < range.end && entries[i].first.size() == range.depth; ++i) {
      if (range.depth > 0) nodes_[range.node].value = entries[i].second;
    }
    nodes_[range.node].first_child = static_cast<uint32_t>(nodes_.size());
    while (i < range.end) {
      const auto byte = static_cast<uint8_t>(entries[i].first[range.depth]);
      size_t j = i + 1;
      while (j < range.end && static_cast<uint8_t>(entries[j].first[range.depth]) == byte) ++j;
      queue.push_back({static_cast<uint32_t>(nodes_.size()), i, j, range.depth + 1});
      nodes_.push_back({.byte = byte});
      ++nodes_[range.node].num_children;
      i = j;
    }
  }
}

uint32_t ByteTrie::child(uint32_t node, unsigned char byte) const {
  const Node& parent = nodes_[node];
  uint32_t low = parent.first_child, high = parent.first_child + parent.num_children;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (nodes_[middle].byte == byte) return middle;
    if (nodes_[middle].byte < byte)
      low = middle + 1;
    else
      high = middle;
  }
  return kNoNode;
}

int32_t ByteTrie::find_longest(std::string_view text, size_t pos, uint32_t node, size_t* end) const {
  int32_t best = -1;
  if (nodes_.empty()) return best;
  for (; pos < text.size(); ++pos) {
    node = child(node, static_cast<unsigned char>(text[pos]));
    if (node == kNoNode) break;
    if (nodes_[node].value >= 0) {
      best = nodes_[node].value;
      *end = pos + 1;
    }
  }
  return best;
}

}  // namespace spate
