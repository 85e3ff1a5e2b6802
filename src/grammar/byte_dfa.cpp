#include "grammar/byte_dfa.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "grammar/nfa.h"

namespace spate {
namespace {

constexpr uint32_t kNowhere = UINT32_MAX;

const ByteDfa::Edge* edge_for(const ByteDfa::State& state, uint8_t byte) {
  const auto it = std::ranges::upper_bound(state.edges, byte, {}, &ByteDfa::Edge::first);
  if (it == state.edges.begin() || (it - 1)->last < byte) return nullptr;
  return &*(it - 1);
}

// Drops what leads to no accepting state; the start stays.
std::vector<ByteDfa::State> prune(std::vector<ByteDfa::State> states) {
  std::vector<std::vector<uint32_t>> sources(states.size());
  std::vector<uint32_t> stack;
  std::vector<char> alive(states.size(), 0);
  for (uint32_t i = 0; i < states.size(); ++i) {
    for (const ByteDfa::Edge& edge : states[i].edges) sources[edge.target].push_back(i);
    if (states[i].accepts) {
      alive[i] = 1;
      stack.push_back(i);
    }
  }
  while (!stack.empty()) {
    const uint32_t state = stack.back();
    stack.pop_back();
    for (const uint32_t source : sources[state]) {
      if (!std::exchange(alive[source], 1)) stack.push_back(source);
    }
  }
  std::vector<uint32_t> renamed(states.size(), kNowhere);
  uint32_t num_states = 0;
  for (uint32_t i = 0; i < states.size(); ++i) {
    if (alive[i] || i == 0) renamed[i] = num_states++;
  }
  std::vector<ByteDfa::State> kept(num_states);
  for (uint32_t i = 0; i < states.size(); ++i) {
    if (renamed[i] == kNowhere) continue;
    ByteDfa::State& state = kept[renamed[i]];
    state.accepts = states[i].accepts;
    for (ByteDfa::Edge edge : states[i].edges) {
      if (!alive[edge.target]) continue;
      edge.target = renamed[edge.target];
      state.edges.push_back(edge);
    }
  }
  return kept;
}

void add_edge(ByteDfa::State& state, uint8_t first, uint8_t last, uint32_t target) {
  if (!state.edges.empty() && state.edges.back().target == target && state.edges.back().last + 1 == first) {
    state.edges.back().last = last;
  } else {
    state.edges.push_back({first, last, target});
  }
}

// Pairs of states; b_state is kNowhere once b has fallen out.
Result<ByteDfa> product(const ByteDfa& a, const ByteDfa& b, bool is_difference, CompileBudget& budget) {
  std::unordered_map<uint64_t, uint32_t> ids;  // by both states
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  std::vector<ByteDfa::State> states;
  const auto id_of = [&](uint32_t a_state, uint32_t b_state) {
    const auto [it, is_new] = ids.try_emplace(uint64_t{a_state} << 32 | b_state, static_cast<uint32_t>(pairs.size()));
    if (is_new) {
      pairs.emplace_back(a_state, b_state);
      states.emplace_back();
    }
    return it->second;
  };
  id_of(0, 0);
  for (uint32_t i = 0; i < pairs.size(); ++i) {
    const auto [a_state, b_state] = pairs[i];
    if (!budget.spend(20 + 4 * static_cast<int64_t>(a.states()[a_state].edges.size()))) return budget.error();
    const bool b_accepts = b_state != kNowhere && b.states()[b_state].accepts;
    states[i].accepts = a.states()[a_state].accepts && b_accepts != is_difference;
    for (const ByteDfa::Edge& edge : a.states()[a_state].edges) {
      int byte = edge.first;
      while (byte <= edge.last) {
        const ByteDfa::Edge* other =
            b_state == kNowhere ? nullptr : edge_for(b.states()[b_state], static_cast<uint8_t>(byte));
        int end = edge.last;
        if (other != nullptr) {
          end = std::min<int>(end, other->last);
        } else if (b_state != kNowhere) {
          const auto& edges = b.states()[b_state].edges;
          const auto next = std::ranges::upper_bound(edges, static_cast<uint8_t>(byte), {}, &ByteDfa::Edge::first);
          if (next != edges.end()) end = std::min<int>(end, next->first - 1);
        }
        if (other != nullptr || is_difference) {
          const uint32_t target = id_of(edge.target, other != nullptr ? other->target : kNowhere);
          add_edge(states[i], static_cast<uint8_t>(byte), static_cast<uint8_t>(end), target);
        }
        byte = end + 1;
      }
    }
  }
  return ByteDfa(prune(std::move(states)));
}

}  // namespace

Result<ByteDfa> ByteDfa::of_expr(const Expr& expr, CompileBudget& budget) {
  Nfa nfa;
  const uint32_t start = nfa.add_state(), end = nfa.add_state();
  if (!nfa.add_expr(expr, start, end, budget)) return budget.error();
  CHECK(nfa.calls().empty(), "an expression with rules has no automaton of its own");
  const std::vector<std::vector<uint32_t>> epsilons = nfa.epsilon_lists();
  std::vector<std::vector<const Nfa::ByteEdge*>> edges(nfa.num_states());
  for (const Nfa::ByteEdge& edge : nfa.byte_edges()) edges[edge.from].push_back(&edge);

  std::map<std::vector<uint32_t>, uint32_t> ids;
  std::vector<std::vector<uint32_t>> sets;
  std::vector<State> states;
  std::vector<char> seen(nfa.num_states(), 0);
  const auto id_of = [&](std::vector<uint32_t> set) {
    for (size_t i = 0; i < set.size(); ++i) seen[set[i]] = 1;
    for (size_t i = 0; i < set.size(); ++i) {
      for (const uint32_t next : epsilons[set[i]]) {
        if (!std::exchange(seen[next], 1)) set.push_back(next);
      }
    }
    for (const uint32_t state : set) seen[state] = 0;
    budget.spend(static_cast<int64_t>(set.size()));
    std::erase_if(set, [&](uint32_t state) { return edges[state].empty() && state != end; });
    std::ranges::sort(set);
    const auto [it, is_new] = ids.try_emplace(set, static_cast<uint32_t>(sets.size()));
    if (is_new) {
      sets.push_back(std::move(set));
      states.emplace_back();
    }
    return it->second;
  };
  id_of({start});
  for (uint32_t i = 0; i < sets.size(); ++i) {
    const std::vector<uint32_t> set = sets[i];
    states[i].accepts = std::ranges::binary_search(set, end);
    std::vector<int> cuts{0, 256};
    size_t num_edges = 0;
    for (const uint32_t state : set) {
      num_edges += edges[state].size();
      for (const Nfa::ByteEdge* edge : edges[state]) {
        cuts.push_back(edge->first);
        cuts.push_back(edge->last + 1);
      }
    }
    std::ranges::sort(cuts);
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    if (!budget.spend(20 + static_cast<int64_t>(num_edges * cuts.size()))) return budget.error();
    for (size_t cut = 0; cut + 1 < cuts.size(); ++cut) {
      std::vector<uint32_t> targets;
      for (const uint32_t state : set) {
        for (const Nfa::ByteEdge* edge : edges[state]) {
          if (edge->first <= cuts[cut] && cuts[cut] <= edge->last) targets.push_back(edge->to);
        }
      }
      if (targets.empty()) continue;
      std::ranges::sort(targets);
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      const uint32_t target = id_of(std::move(targets));
      if (budget.is_spent()) return budget.error();
      add_edge(states[i], static_cast<uint8_t>(cuts[cut]), static_cast<uint8_t>(cuts[cut + 1] - 1), target);
    }
  }
  if (budget.is_spent()) return budget.error();
  return ByteDfa(prune(std::move(states)));
}

ByteDfa ByteDfa::of_sorted_texts(std::span<const std::string> texts) {
  std::vector<State> states(1);
  std::vector<uint32_t> path{0};  // the states of the text before
  std::string_view previous;
  for (const std::string& text : texts) {
    size_t shared = 0;
    while (shared < previous.size() && shared < text.size() && previous[shared] == text[shared]) ++shared;
    path.resize(shared + 1);
    for (size_t i = shared; i < text.size(); ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      const auto target = static_cast<uint32_t>(states.size());
      states[path.back()].edges.push_back({byte, byte, target});
      states.emplace_back();
      path.push_back(target);
    }
    states[path.back()].accepts = true;
    previous = text;
  }
  return ByteDfa(std::move(states));
}

Result<ByteDfa> ByteDfa::intersection(const ByteDfa& a, const ByteDfa& b, CompileBudget& budget) {
  return product(a, b, false, budget);
}

Result<ByteDfa> ByteDfa::difference(const ByteDfa& a, const ByteDfa& b, CompileBudget& budget) {
  return product(a, b, true, budget);
}

// Rounds of Moore's refinement: after n of them, states of one class are alike for texts of n bytes.
std::vector<uint32_t> ByteDfa::states_alike(int length) const {
  const auto num_states = static_cast<uint32_t>(states_.size());
  std::vector<uint32_t> alike(num_states), order(num_states), refined(num_states);
  uint32_t first_of[2] = {kNowhere, kNowhere};
  for (uint32_t i = 0; i < num_states; ++i) {
    uint32_t& first = first_of[states_[i].accepts ? 1 : 0];
    if (first == kNowhere) first = i;
    alike[i] = first;
    order[i] = i;
  }
  std::vector<std::vector<Edge>> edges(num_states);  // to classes, neighbours of one class made one
  size_t num_classes = 0;
  for (int n = 0; n < length; ++n) {
    for (uint32_t i = 0; i < num_states; ++i) {
      State merged;
      for (const Edge& edge : states_[i].edges) add_edge(merged, edge.first, edge.last, alike[edge.target]);
      edges[i] = std::move(merged.edges);
    }
    const auto compare = [&](uint32_t a, uint32_t b) {
      return alike[a] != alike[b] ? alike[a] <=> alike[b] : edges[a] <=> edges[b];
    };
    std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return compare(a, b) < 0; });
    const size_t num_before = std::exchange(num_classes, 0);
    uint32_t first = 0;
    for (uint32_t i = 0; i < num_states; ++i) {
      if (i == 0 || compare(order[i - 1], order[i]) != 0) {
        first = order[i];
        ++num_classes;
      }
      refined[order[i]] = first;
    }
    alike = refined;
    if (num_classes == num_before || num_classes == num_states) break;
  }
  return alike;
}

bool ByteDfa::accepts(std::string_view text) const {
  uint32_t state = 0;
  for (const char c : text) {
    const Edge* edge = edge_for(states_[state], static_cast<uint8_t>(c));
    if (edge == nullptr) return false;
    state = edge->target;
  }
  return states_[state].accepts;
}

bool ByteDfa::is_empty() const {
  return std::ranges::none_of(states_, [](const State& state) { return state.accepts; });
}

}  // namespace spate
