#include "speculative/suffix_automaton.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace spate {

// A text of n tokens gives at most 2n states and 3n edges.
SuffixAutomaton::SuffixAutomaton(std::vector<int32_t> text) : text_(std::move(text)) {
  states_.reserve(2 * text_.size() + 1);
  edges_.reserve(3 * text_.size() + 1);
  table_.assign(std::bit_ceil(6 * text_.size() + 2), -1);
  states_.push_back({});
}

size_t SuffixAutomaton::extend(size_t max_tokens) {
  const size_t count = std::min(max_tokens, text_.size() - num_known_);
  for (size_t i = 0; i < count; ++i) append(text_[num_known_++]);
  return count;
}

void SuffixAutomaton::read(Match& match, int32_t token_id) const {
  while (true) {
    const int32_t edge = find_edge(match.state, token_id);
    if (edge >= 0) {
      match = {.state = edges_[static_cast<size_t>(edge)].to, .length = match.length + 1};
      return;
    }
    const int32_t link = states_[static_cast<size_t>(match.state)].link;
    if (link < 0) {
      match = {};
      return;
    }
    match = {.state = link, .length = states_[static_cast<size_t>(link)].length};
  }
}

// The construction of Blumer et al.: the states of all suffixes of the text so far get an edge with the new token.
void SuffixAutomaton::append(int32_t token_id) {
  const int32_t length = states_[static_cast<size_t>(last_)].length + 1;
  const auto added = static_cast<int32_t>(states_.size());
  states_.push_back({.length = length, .first_end = length});
  int32_t state = last_;
  last_ = added;
  int32_t edge = -1;
  for (; state >= 0; state = states_[static_cast<size_t>(state)].link) {
    edge = find_edge(state, token_id);
    if (edge >= 0) break;
    add_edge(state, token_id, added);
  }
  int32_t link = 0;
  if (state >= 0) {
    link = edges_[static_cast<size_t>(edge)].to;
    const int32_t wanted_length = states_[static_cast<size_t>(state)].length + 1;
    if (states_[static_cast<size_t>(link)].length != wanted_length) {
      const int32_t shorter = copy_with_length(link, wanted_length);
      states_[static_cast<size_t>(link)].link = shorter;
      for (; state >= 0; state = states_[static_cast<size_t>(state)].link) {
        edge = find_edge(state, token_id);
        if (edge < 0 || edges_[static_cast<size_t>(edge)].to != link) break;
        edges_[static_cast<size_t>(edge)].to = shorter;
      }
      link = shorter;
    }
  }
  states_[static_cast<size_t>(added)].link = link;
}

int32_t SuffixAutomaton::copy_with_length(int32_t state, int32_t length) {
  const auto copy = static_cast<int32_t>(states_.size());
  State copied = states_[static_cast<size_t>(state)];
  int32_t edge = std::exchange(copied.first_edge, -1);
  copied.length = length;
  states_.push_back(copied);
  for (; edge >= 0; edge = edges_[static_cast<size_t>(edge)].next) {
    const Edge from = edges_[static_cast<size_t>(edge)];
    add_edge(copy, from.token_id, from.to);
  }
  return copy;
}

int32_t SuffixAutomaton::find_edge(int32_t state, int32_t token_id) const {
  return table_[slot(state, token_id)];
}

void SuffixAutomaton::add_edge(int32_t state, int32_t token_id, int32_t to) {
  const auto edge = static_cast<int32_t>(edges_.size());
  int32_t& first = states_[static_cast<size_t>(state)].first_edge;
  edges_.push_back({.from = state, .token_id = token_id, .to = to, .next = first});
  first = edge;
  table_[slot(state, token_id)] = edge;
}

// Where the edge is, or is to go.
size_t SuffixAutomaton::slot(int32_t state, int32_t token_id) const {
  const uint64_t key = (uint64_t{static_cast<uint32_t>(state)} << 32) | static_cast<uint32_t>(token_id);
  size_t slot = static_cast<size_t>((key * 0x9e3779b97f4a7c15) >> 20) & (table_.size() - 1);
  while (table_[slot] >= 0) {
    const Edge& edge = edges_[static_cast<size_t>(table_[slot])];
    if (edge.from == state && edge.token_id == token_id) break;
    slot = (slot + 1) & (table_.size() - 1);
  }
  return slot;
}

}  // namespace spate
