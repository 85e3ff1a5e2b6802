#include "grammar/token_trie.h"

#include <algorithm>
#include <unordered_map>

#include "core/step_plan.h"
#include "grammar/nfa.h"

namespace spate {
namespace {

constexpr size_t kMaxTokenBytes = 4096;  // a longer token is never chosen
constexpr int kMaxCountedChars = 255;

// Where a text stands in a character of UTF-8.
struct CharPlace {
  uint8_t num_missing = 0, low = 0x80, high = 0xBF;  // bytes that complete the character; the next one's range
  bool is_text = true;
  CharPlace after(uint8_t byte) const {
    if (!is_text) return *this;
    if (num_missing > 0) {
      return {.num_missing = static_cast<uint8_t>(num_missing - 1), .is_text = low <= byte && byte <= high};
    }
    if (byte < 0x80) return {};
    if (byte < 0xC2 || byte > 0xF4) return {.is_text = false};
    CharPlace place{.num_missing = static_cast<uint8_t>(byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3)};
    if (byte == 0xE0) place.low = 0xA0;
    if (byte == 0xED) place.high = 0x9F;
    if (byte == 0xF0) place.low = 0x90;
    if (byte == 0xF4) place.high = 0x8F;
    return place;
  }
};

bool begins_char(uint8_t byte) { return (byte & 0xC0) != 0x80; }

struct AsciiSetHash {
  size_t operator()(const TokenTrie::AsciiSet& set) const {
    return (set.words[0] * 0x9e3779b97f4a7c15u) ^ (set.words[1] * 0xc2b2ae3d27d4eb4fu) >> 7;
  }
};

struct GroupedNode {
  uint32_t group = 0, node = 0;
};

TokenTrie::NodeGroups groups_of(std::span<const GroupedNode> grouped) {
  constexpr size_t kNumGroups = 256 * (kLookAheadBytes + 1);
  TokenTrie::NodeGroups groups{.first_node = std::vector<uint32_t>(kNumGroups + 1, 0),
                               .nodes = std::vector<uint32_t>(grouped.size())};
  for (const GroupedNode& each : grouped) ++groups.first_node[each.group + 1];
  for (size_t i = 1; i <= kNumGroups; ++i) groups.first_node[i] += groups.first_node[i - 1];
  std::vector<uint32_t> next(groups.first_node);
  for (const GroupedNode& each : grouped) groups.nodes[next[each.group]++] = each.node;
  return groups;
}

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
  for (Tree* tree : {&short_tokens_, &long_tokens_}) {
    std::ranges::stable_sort(tree->token_ids, {},
                             [this](int32_t id) -> const std::string& { return this->token_bytes(id); });
    build(*tree);
  }
  CharSet any_text{.has_wide_chars = true}, json_text{.has_wide_chars = true};
  for (int byte = 0; byte < 0x80; ++byte) {
    any_text.ascii.add(byte);
    if (byte >= 0x20 && byte != '"' && byte != '\\') json_text.ascii.add(byte);
  }
  text_masks_for(any_text, true);
  text_masks_for(json_text, true);
}

const TokenTrie::TextMasks* TokenTrie::text_masks_for(const CharSet& chars, bool may_add) const {
  std::unique_ptr<const TextMasks> made;
  for (;;) {
    {
      const std::lock_guard lock(text_masks_mutex_);
      const TextMasks* largest = nullptr;
      for (const auto& masks : text_masks_) {
        if (masks->chars == chars) return masks.get();
        if (!chars.contains(masks->chars)) continue;
        if (largest == nullptr || masks->chars.ascii.size() > largest->chars.ascii.size()) largest = masks.get();
      }
      if (!may_add || text_masks_.size() >= kMaxTextMasks) return largest;
      if (made != nullptr) return text_masks_.emplace_back(std::move(made)).get();
    }
    made = text_masks_of(chars);  // takes milliseconds, in which the engine's thread must not wait
  }
}

TokenTrie::Tree TokenTrie::texts_behind(const Tree& tree, std::span<const uint32_t> nodes) {
  Tree rests;
  // Nodes of `tree` whose children are nodes of `rests` next; the newest first.
  struct Open {
    std::vector<std::pair<uint8_t, uint32_t>> children;  // by byte, in the tree's order
    size_t next = 0;
    uint32_t node = 0;  // of rests
  };
  std::vector<Open> path(1);
  const auto add_children = [&](std::vector<std::pair<uint8_t, uint32_t>>& children, uint32_t parent) {
    for (uint32_t i = parent + 1; i < tree.nodes[parent].subtree_end; i = tree.nodes[i].subtree_end) {
      children.emplace_back(tree.nodes[i].byte, i);
    }
  };
  for (const uint32_t node : nodes) add_children(path.front().children, node);
  std::ranges::sort(path.front().children);
  for (size_t depth = 0;;) {
    Open& open = path[depth];
    if (open.next == open.children.size()) {
      if (depth == 0) break;
      rests.nodes[open.node].subtree_end = static_cast<uint32_t>(rests.nodes.size());
      --depth;
      continue;
    }
    ++depth;
    if (depth == path.size()) path.emplace_back();
    Open& parent = path[depth - 1];
    Open& child = path[depth];
    child.children.clear();
    child.next = 0;
    child.node = static_cast<uint32_t>(rests.nodes.size());
    const uint8_t byte = parent.children[parent.next].first;
    Node made{.first_token = static_cast<uint32_t>(rests.token_ids.size()),
              .depth = static_cast<uint16_t>(depth),
              .byte = byte};
    size_t num_merged = 0;
    for (; parent.next < parent.children.size() && parent.children[parent.next].first == byte; ++parent.next) {
      const uint32_t node = parent.children[parent.next].second;
      const std::span<const int32_t> ids = tree.tokens_of(tree.nodes[node]);
      rests.token_ids.insert(rests.token_ids.end(), ids.begin(), ids.end());
      add_children(child.children, node);
      ++num_merged;
    }
    if (num_merged > 1) std::ranges::sort(child.children);
    made.num_tokens = static_cast<uint16_t>(rests.token_ids.size() - made.first_token);
    rests.nodes.push_back(made);
  }
  describe(rests);
  return rests;
}

void TokenTrie::build(Tree& tree) {
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
  describe(tree);
}

// What is said of the nodes below each, from the last node to the first.
void TokenTrie::describe(Tree& tree) {
  std::vector<CharPlace> places(tree.nodes.size());
  std::vector<CharPlace> path(1);
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    const Node& node = tree.nodes[i];
    path.resize(node.depth);
    places[i] = path.back().after(node.byte);
    path.push_back(places[i]);
  }
  std::unordered_map<AsciiSet, uint32_t, AsciiSetHash> numbers;
  tree.ascii_sets.assign(1, {});
  for (size_t i = tree.nodes.size(); i-- > 0;) {
    Node& node = tree.nodes[i];
    AsciiSet ascii;
    bool is_text = places[i].is_text;  // so far of the subtree, whether or not a character is open here
    for (uint32_t child = static_cast<uint32_t>(i) + 1; child < node.subtree_end;
         child = tree.nodes[child].subtree_end) {
      const Node& below = tree.nodes[child];
      for (int word = 0; word < 2; ++word) ascii.words[word] |= tree.ascii_sets[below.ascii].words[word];
      if (below.byte < 0x80) ascii.add(below.byte);
      node.has_wide_chars |= below.byte >= 0x80 || below.has_wide_chars;
      const int num_chars = below.max_chars + (begins_char(below.byte) ? 1 : 0);
      node.max_chars = static_cast<uint8_t>(std::max<int>(node.max_chars, std::min(num_chars, kMaxCountedChars)));
      is_text &= below.is_text;
    }
    node.is_text = is_text;
    if (ascii == AsciiSet{}) continue;  // the first set; most nodes are leaves
    const auto [it, is_new] = numbers.try_emplace(ascii, static_cast<uint32_t>(tree.ascii_sets.size()));
    if (is_new) tree.ascii_sets.push_back(ascii);
    node.ascii = it->second;
  }
  for (size_t i = 0; i < tree.nodes.size(); ++i) tree.nodes[i].is_text &= places[i].num_missing == 0;
}

std::unique_ptr<const TokenTrie::TextMasks> TokenTrie::text_masks_of(const CharSet& chars) const {
  auto masks = std::make_unique<TextMasks>(TextMasks{.chars = chars});
  masks->words.assign(kLookAheadBytes + 1, std::vector<uint32_t>(static_cast<size_t>(mask_words_of(vocab_size_)), 0));
  struct Before {
    CharPlace place;
    TextMasks::BrokenChar broken;  // as it would be behind this node
  };
  std::vector<Before> path(1);
  std::vector<GroupedNode> longer, exits;
  for (uint32_t i = 0; i < short_tokens_.nodes.size();) {
    const Node& node = short_tokens_.nodes[i];
    path.resize(node.depth);
    Before here = path.back();
    here.place = here.place.after(node.byte);
    const GroupedNode grouped{static_cast<uint32_t>(here.broken.num_chars) * 256 + node.byte, i};
    if (!here.place.is_text || !(node.byte < 0x80 ? chars.ascii.has(node.byte) : chars.has_wide_chars)) {
      if (here.broken.num_open == 0) {
        exits.push_back(grouped);
      } else {
        here.broken.node = i;
        here.broken.byte = node.byte;
        masks->broken_chars.push_back(here.broken);
      }
      i = node.subtree_end;
      continue;
    }
    if (here.broken.num_open == 0) longer.push_back(grouped);
    std::vector<uint32_t>& words = masks->words[here.broken.num_chars + size_t{1}];
    for (const int32_t id : short_tokens_.tokens_of(node)) words[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    if (here.place.num_missing == 0) {
      ++here.broken.num_chars;
      here.broken.num_open = 0;
    } else {
      here.broken.open[here.broken.num_open++] = node.byte;
    }
    path.push_back(here);
    ++i;
  }
  for (size_t n = 1; n < masks->words.size(); ++n) {
    for (size_t i = 0; i < masks->words[n].size(); ++i) masks->words[n][i] |= masks->words[n - 1][i];
  }
  masks->longer = groups_of(longer);
  masks->exits = groups_of(exits);
  return masks;
}

}  // namespace spate
