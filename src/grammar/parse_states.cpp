#include "grammar/parse_states.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "base/check.h"

namespace spate {
namespace {

constexpr size_t kFewParts = 16;       // of an ordinary situation
constexpr int64_t kUnitsPerPart = 20;  // where there are more

template <typename T>
void sort_unique(std::vector<T>& values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

// To sort, to compare and to keep a set; nothing for those of ordinary grammars.
int64_t units_to_sort(size_t num_pairs) {
  return static_cast<int64_t>(num_pairs / 16 * static_cast<size_t>(std::bit_width(num_pairs)));
}

}  // namespace

size_t ParseStates::PairSetHash::operator()(const PairSet& set) const {
  uint64_t hash = set.size();
  for (const Pair pair : set) {
    hash = (hash ^ pair) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

ParseStates::ParseStates(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  add_state({});  // kDead
  const uint32_t root_return = number_of_return({make_pair(kTextEnd, 0)});
  CHECK(root_return == 0);
  PairSet key;
  begin_step();
  add_place(grammar_->root_place(), root_return, key);
  initial_ = number_of(std::move(key));
}

int32_t ParseStates::find_next(int32_t from, uint8_t byte) {
  if (is_over_limit() || from == kDead) return kDead;
  PairSet key;
  begin_step();
  int first = 0, last = 255;  // the bytes around this one that all edges take alike
  const size_t num_items = states_[static_cast<size_t>(from)].items.size();
  for (size_t i = 0; i < num_items; ++i) {
    const Pair item = states_[static_cast<size_t>(from)].items[i];
    const auto edges = grammar_->byte_edges(first_of(item));
    work_ += 1 + static_cast<int64_t>(edges.size());
    for (const Grammar::ByteEdge& edge : edges) {
      if (edge.last < byte) {
        first = std::max(first, edge.last + 1);
      } else if (edge.first > byte) {
        last = std::min(last, edge.first - 1);
      } else {
        first = std::max<int>(first, edge.first);
        last = std::min<int>(last, edge.last);
        add_place(edge.target, return_of(item), key);
      }
    }
  }
  const int32_t found = number_of(std::move(key));
  std::unique_ptr<ByteTable>& table = tables_[static_cast<size_t>(from)];
  if (table == nullptr) {
    table = std::make_unique<ByteTable>();
    table->fill(kUnknown);
    work_ += 32;
  }
  std::fill(table->begin() + first, table->begin() + last + 1, found);
  return found;
}

int ParseStates::forced_byte(int32_t id) const {
  if (accepts(id)) return -1;
  int forced = -1;
  for (const Pair item : states_[static_cast<size_t>(id)].items) {
    for (const Grammar::ByteEdge& edge : grammar_->byte_edges(first_of(item))) {
      if (edge.first != edge.last || (forced >= 0 && forced != edge.first)) return -1;
      forced = edge.first;
    }
  }
  return forced;
}

void ParseStates::add_place(uint32_t place_id, uint32_t ret, PairSet& key) {
  const Grammar::Place& place = grammar_->place(place_id);
  add_states(place, ret, key);
  if (place.is_end) pop(ret, key);
}

void ParseStates::add_states(const Grammar::Place& place, uint32_t ret, PairSet& key) {
  for (const uint32_t state : grammar_->states_of(place)) key.push_back(make_pair(state, ret));
  work_ += 1 + static_cast<int64_t>(place.num_states);
}

void ParseStates::begin_step() {
  ++step_;
  popped_in_.resize(returns_.size(), 0);
}

// The rule has ended: its callers go on, and where they end too, theirs. Nesting is as deep as the text is long: no
// recursion.
void ParseStates::pop(uint32_t ended, PairSet& key) {
  to_pop_.assign(1, ended);
  while (!to_pop_.empty()) {
    const uint32_t ret = to_pop_.back();
    to_pop_.pop_back();
    if (std::exchange(popped_in_[ret], step_) == step_) continue;
    for (const Pair frame : returns_[ret]) {
      ++work_;
      if (first_of(frame) == kTextEnd) {
        key.push_back(make_pair(kTextEnd, 0));
        continue;
      }
      const Grammar::Place& place = grammar_->place(first_of(frame));
      add_states(place, return_of(frame), key);
      if (place.is_end) to_pop_.push_back(return_of(frame));
    }
  }
}

int32_t ParseStates::number_of(PairSet key) {
  if (key.empty()) return kDead;
  work_ += units_to_sort(key.size());
  sort_unique(key);
  const auto [it, is_new] = state_numbers_.try_emplace(std::move(key), static_cast<uint32_t>(states_.size()));
  if (!is_new) return static_cast<int32_t>(it->second);
  State state{.key = it->first};
  add_calls(state);
  work_ += 64 + static_cast<int64_t>(state.items.size());
  add_state(std::move(state));
  return static_cast<int32_t>(states_.size() - 1);
}

void ParseStates::add_state(State state) {
  flags_.push_back(
      {.accepts = !state.key.empty() && first_of(state.key.back()) == kTextEnd, .has_next = !state.items.empty()});
  tables_.emplace_back();
  states_.push_back(std::move(state));
}

// Starts the rules that the items call, and those that these call, in the order of their ranks: when a rule is taken
// up, all its callers are known.
void ParseStates::add_calls(State& state) {
  std::map<uint32_t, PairSet> callers;
  const auto look_at = [&](uint32_t rule_state, uint32_t ret) {
    if (!grammar_->byte_edges(rule_state).empty()) state.items.push_back(make_pair(rule_state, ret));
    for (const Grammar::CallEdge& call : grammar_->call_edges(rule_state)) {
      ++work_;
      PairSet& frames = callers[call.rule];
      const Grammar::Place& place = grammar_->place(call.target);
      if (place.num_states == 0) {  // nothing is left of the calling rule
        frames.insert(frames.end(), returns_[ret].begin(), returns_[ret].end());
        work_ += static_cast<int64_t>(returns_[ret].size());
      } else {
        frames.push_back(make_pair(call.target, ret));
      }
    }
  };
  for (const Pair item : state.key) {
    if (first_of(item) != kTextEnd) look_at(first_of(item), return_of(item));
  }
  while (!callers.empty()) {
    auto first = callers.extract(callers.begin());
    work_ += units_to_sort(first.mapped().size());
    sort_unique(first.mapped());
    const uint32_t ret = number_of_return(std::move(first.mapped()));
    for (const uint32_t rule_state : grammar_->states_of(grammar_->entry(first.key()))) look_at(rule_state, ret);
  }
  sort_unique(state.items);
}

uint32_t ParseStates::number_of_return(PairSet frames) {
  const auto [it, is_new] = return_numbers_.try_emplace(std::move(frames), static_cast<uint32_t>(returns_.size()));
  if (is_new) returns_.push_back(it->first);
  return it->second;
}

int32_t ParseStates::alike(int32_t state) {
  // A return refers to older ones only. Those that this loop adds are their own.
  while (like_returns_.size() < returns_.size()) {
    PairSet frames = returns_[like_returns_.size()];
    for (Pair& frame : frames) {
      if (first_of(frame) != kTextEnd) {
        frame = make_pair(grammar_->like_place(first_of(frame)), like_returns_[return_of(frame)]);
      }
    }
    sort_unique(frames);
    work_ += static_cast<int64_t>(frames.size());
    const auto index = like_returns_.size();
    like_returns_.push_back(static_cast<uint32_t>(index));
    like_returns_[index] = number_of_return(std::move(frames));
  }
  PairSet key = states_[static_cast<size_t>(state)].key;
  for (Pair& item : key) {
    if (first_of(item) != kTextEnd) {
      item = make_pair(grammar_->like_state(first_of(item)), like_returns_[return_of(item)]);
    }
  }
  return number_of(std::move(key));
}

std::span<const ParseStates::Part> ParseStates::parts_of(int32_t state) {
  const auto index = static_cast<size_t>(state);
  if (index < parts_.size() && parts_[index] != nullptr) {
    work_ += static_cast<int64_t>(parts_[index]->size());
    return *parts_[index];
  }
  std::map<uint32_t, PairSet> by_return;
  for (const Pair item : states_[static_cast<size_t>(state)].key) {
    if (first_of(item) != kTextEnd) by_return[return_of(item)].push_back(make_pair(first_of(item), 0));
    ++work_;
  }
  std::vector<Part> parts;
  if (by_return.size() > kFewParts) work_ += kUnitsPerPart * static_cast<int64_t>(by_return.size());
  for (auto& [ret, key] : by_return) {
    rests_.resize(returns_.size(), kUnknown);
    if (rests_[ret] == kUnknown) {
      PairSet behind;
      begin_step();
      pop(ret, behind);
      const int32_t rest = number_of(std::move(behind));
      rests_[ret] = rest;
    }
    const int32_t rest = rests_[ret];
    parts.push_back({.local = number_of(std::move(key)), .rest = rest});
  }
  parts_.resize(std::max(parts_.size(), states_.size()));
  parts_[index] = std::make_unique<const std::vector<Part>>(std::move(parts));
  return *parts_[index];
}

void ParseStates::reserve(size_t num_states) {
  states_.reserve(num_states);
  tables_.reserve(num_states);
  flags_.reserve(num_states);
  parts_.reserve(num_states);
  state_numbers_.reserve(num_states);
  returns_.reserve(num_states);
  return_numbers_.reserve(num_states);
}

void ParseStates::keep_only(std::span<int32_t* const> kept) {
  std::vector<State> old_states = std::move(states_);
  const std::vector<PairSet> old_returns = std::move(returns_);
  std::vector<char> is_needed(old_returns.size(), 0);
  is_needed[0] = 1;
  const PairSet& initial_key = old_states[static_cast<size_t>(initial_)].key;
  const auto need = [&](const PairSet& pairs) {
    for (const Pair pair : pairs) is_needed[return_of(pair)] = 1;
  };
  need(initial_key);
  for (const int32_t* state : kept) need(old_states[static_cast<size_t>(*state)].key);
  for (size_t i = old_returns.size(); i-- > 0;) {
    if (is_needed[i]) need(old_returns[i]);
  }
  states_.clear();
  tables_.clear();
  flags_.clear();
  state_numbers_.clear();
  returns_.clear();
  return_numbers_.clear();
  like_returns_.clear();
  rests_.clear();
  parts_.clear();
  std::vector<uint32_t> renamed(old_returns.size(), 0);
  const auto translate = [&](const PairSet& pairs) {
    PairSet out;
    for (const Pair pair : pairs) out.push_back(make_pair(first_of(pair), renamed[return_of(pair)]));
    sort_unique(out);
    return out;
  };
  for (size_t i = 0; i < old_returns.size(); ++i) {
    if (is_needed[i]) renamed[i] = number_of_return(translate(old_returns[i]));
  }
  add_state({});  // kDead
  initial_ = number_of(translate(initial_key));
  for (int32_t* state : kept) *state = number_of(translate(old_states[static_cast<size_t>(*state)].key));
}

}  // namespace spate
