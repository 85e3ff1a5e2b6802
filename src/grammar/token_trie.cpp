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
  CharSet any_text{.has_wide_chars = true}, json_text{.has_wide_chars = true};
  for (int byte = 0; byte < 0x80; ++byte) {
    any_text.ascii.add(byte);
    if (byte >= 0x20 && byte != '"' && byte != '\\') json_text.ascii.add(byte);
  }
  text_masks_ = {text_masks_of(any_text), text_masks_of(json_text)};
}

const TokenTrie::TextMasks* TokenTrie::find_text_masks(const CharSet& chars) const {
  const auto found =
      std::ranges::find_if(text_masks_, [&](const TextMasks& masks) { return chars.contains(masks.chars); });
  return found == text_masks_.end() ? nullptr : &*found;
}

const TokenTrie::TextMasks* TokenTrie::find_nearest_text_masks(const CharSet& chars) const {
  const auto found = std::ranges::find_if(text_masks_, [&](const TextMasks& masks) {
    return chars.has_wide_chars && masks.chars.ascii.without(chars.ascii).size() <= kMaxMissing;
  });
  return found == text_masks_.end() ? nullptr : &*found;
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
    const auto [it, is_new] = numbers.try_emplace(ascii, static_cast<uint32_t>(tree.ascii_sets.size()));
    if (is_new) tree.ascii_sets.push_back(ascii);
    node.ascii = it->second;
  }
  for (size_t i = 0; i < tree.nodes.size(); ++i) tree.nodes[i].is_text &= places[i].num_missing == 0;
}

TokenTrie::TextMasks TokenTrie::text_masks_of(const CharSet& chars) const {
  TextMasks masks{.chars = chars};
  masks.words.assign(kLookAheadBytes + 1, std::vector<uint32_t>(static_cast<size_t>(mask_words_of(vocab_size_)), 0));
  for (const int32_t id : short_tokens_.token_ids) {
    CharPlace place;
    int num_chars = 0;
    bool is_in = true;
    for (const char c : token_bytes(id)) {
      const auto byte = static_cast<uint8_t>(c);
      place = place.after(byte);
      is_in = place.is_text && (byte < 0x80 ? chars.ascii.has(byte) : chars.has_wide_chars);
      if (!is_in) break;
      num_chars += begins_char(byte) ? 1 : 0;
    }
    if (is_in) masks.words[static_cast<size_t>(num_chars)][static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  for (size_t n = 1; n < masks.words.size(); ++n) {
    for (size_t i = 0; i < masks.words[n].size(); ++i) masks.words[n][i] |= masks.words[n - 1][i];
  }
  find_exits(masks);
  return masks;
}

void TokenTrie::find_exits(TextMasks& masks) const {
  struct Before {
    CharPlace place;
    TextMasks::Exit exit;  // as it would be behind this node
  };
  std::vector<Before> path(1);
  for (uint32_t i = 0; i < short_tokens_.nodes.size();) {
    const Node& node = short_tokens_.nodes[i];
    path.resize(node.depth);
    Before here = path.back();
    here.place = here.place.after(node.byte);
    if (!here.place.is_text || !(node.byte < 0x80 ? masks.chars.ascii.has(node.byte) : masks.chars.has_wide_chars)) {
      masks.exits.push_back(path.back().exit);
      masks.exits.back().node = i;
      masks.exits.back().byte = node.byte;
      i = node.subtree_end;
      continue;
    }
    if (here.place.num_missing == 0) {
      ++here.exit.num_chars;
      here.exit.num_open = 0;
    } else {
      here.exit.open[here.exit.num_open++] = node.byte;
    }
    path.push_back(here);
    ++i;
  }
}

}  // namespace spate
