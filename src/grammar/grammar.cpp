#include "grammar/grammar.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "grammar/nfa.h"

namespace spate {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

struct RuleEnds {
  uint32_t start = 0, end = 0;
};

// What GrammarBuilder::finish works on: the automata of all rules in one.
struct Draft {
  Nfa nfa;
  std::vector<RuleEnds> rules;
  std::vector<std::vector<uint32_t>> epsilons;
  std::vector<char> is_nullable;    // by rule: allows the empty text
  std::vector<char> is_productive;  // by rule: allows any text
  std::vector<char> leads_to_end;   // by state
};

// Rules for which `reaches_end` of their start becomes true. Rounds until nothing changes; each costs the automaton's
// size, so that a chain of rules in bad order is what the budget is for.
bool find_nullable(Draft& draft, CompileBudget& budget) {
  draft.is_nullable.assign(draft.rules.size(), 0);
  std::vector<std::vector<const Nfa::CallEdge*>> calls(draft.nfa.num_states());
  for (const Nfa::CallEdge& call : draft.nfa.calls()) calls[call.from].push_back(&call);
  std::vector<uint32_t> stack;
  std::vector<uint32_t> seen(draft.nfa.num_states(), 0);
  uint32_t round_id = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t rule = 0; rule < draft.rules.size(); ++rule) {
      if (draft.is_nullable[rule]) continue;
      ++round_id;
      stack.assign(1, draft.rules[rule].start);
      seen[stack.front()] = round_id;
      const auto visit = [&](uint32_t state) {
        if (std::exchange(seen[state], round_id) != round_id) stack.push_back(state);
      };
      while (!stack.empty()) {
        const uint32_t state = stack.back();
        stack.pop_back();
        if (!budget.spend(1 + static_cast<int64_t>(draft.epsilons[state].size() + calls[state].size()))) return false;
        for (const uint32_t next : draft.epsilons[state]) visit(next);
        for (const Nfa::CallEdge* call : calls[state]) {
          if (draft.is_nullable[call->rule]) visit(call->to);
        }
      }
      if (seen[draft.rules[rule].end] != round_id) continue;
      draft.is_nullable[rule] = 1;
      changed = true;
    }
  }
  for (const Nfa::CallEdge& call : draft.nfa.calls()) {
    if (draft.is_nullable[call.rule]) draft.epsilons[call.from].push_back(call.to);
  }
  return true;
}

// Backwards from the ends of the rules. A call leads on when its rule is productive; a rule becomes productive when its
// start is reached, and then the calls that waited for it are looked at again.
void find_productive(Draft& draft) {
  const uint32_t num_states = draft.nfa.num_states();
  draft.leads_to_end.assign(num_states, 0);
  draft.is_productive.assign(draft.rules.size(), 0);
  std::vector<std::vector<uint32_t>> sources(num_states);
  std::vector<std::vector<const Nfa::CallEdge*>> calls_to(num_states), calls_of_rule(draft.rules.size());
  std::vector<std::vector<uint32_t>> rules_at(num_states);
  for (uint32_t from = 0; from < num_states; ++from) {
    for (const uint32_t to : draft.epsilons[from]) sources[to].push_back(from);
  }
  for (const Nfa::ByteEdge& edge : draft.nfa.byte_edges()) sources[edge.to].push_back(edge.from);
  for (const Nfa::CallEdge& call : draft.nfa.calls()) {
    calls_to[call.to].push_back(&call);
    calls_of_rule[call.rule].push_back(&call);
  }
  std::vector<uint32_t> stack;
  const auto visit = [&](uint32_t state) {
    if (!std::exchange(draft.leads_to_end[state], 1)) stack.push_back(state);
  };
  for (uint32_t rule = 0; rule < draft.rules.size(); ++rule) {
    rules_at[draft.rules[rule].start].push_back(rule);
    visit(draft.rules[rule].end);
  }
  while (!stack.empty()) {
    const uint32_t state = stack.back();
    stack.pop_back();
    for (const uint32_t source : sources[state]) visit(source);
    for (const Nfa::CallEdge* call : calls_to[state]) {
      if (draft.is_productive[call->rule]) visit(call->from);
    }
    for (const uint32_t rule : rules_at[state]) {
      if (std::exchange(draft.is_productive[rule], 1)) continue;
      for (const Nfa::CallEdge* call : calls_of_rule[rule]) {
        if (draft.leads_to_end[call->to]) visit(call->from);
      }
    }
  }
}

}  // namespace

uint32_t GrammarBuilder::declare_rule(std::string name) {
  rules_.push_back({.name = std::move(name), .expr = nullptr});
  return static_cast<uint32_t>(rules_.size() - 1);
}

Result<Grammar> GrammarBuilder::finish(uint32_t root, CompileBudget& budget) const {
  if (prefix_ != nullptr) {
    GrammarBuilder with_prefix = *this;
    with_prefix.prefix_ = nullptr;
    const uint32_t whole = with_prefix.declare_rule("text");
    with_prefix.define_rule(whole, expr_sequence({prefix_, expr_rule(root)}));
    return with_prefix.finish(whole, budget);
  }
  Draft draft;
  for (const Rule& rule : rules_) {
    CHECK(rule.expr != nullptr, "rule {} is used and not defined", rule.name);
    const RuleEnds ends{draft.nfa.add_state(), draft.nfa.add_state()};
    draft.rules.push_back(ends);
    if (!draft.nfa.add_expr(rule.expr, ends.start, ends.end, budget)) return budget.error();
  }
  draft.epsilons = draft.nfa.epsilon_lists();
  if (!find_nullable(draft, budget)) return budget.error();
  find_productive(draft);
  if (!draft.is_productive[root]) return invalid_argument("the grammar allows no text at all");

  // States that have an edge which is worth taking, numbered anew.
  const uint32_t num_nfa_states = draft.nfa.num_states();
  const auto is_kept = [&](const Nfa::ByteEdge& edge) { return draft.leads_to_end[edge.to] != 0; };
  const auto is_kept_call = [&](const Nfa::CallEdge& call) {
    return draft.leads_to_end[call.to] != 0 && draft.is_productive[call.rule] != 0;
  };
  std::vector<uint32_t> state_of(num_nfa_states, kNone);
  std::vector<uint32_t> num_byte_edges(num_nfa_states, 0), num_call_edges(num_nfa_states, 0);
  for (const Nfa::ByteEdge& edge : draft.nfa.byte_edges()) num_byte_edges[edge.from] += is_kept(edge);
  for (const Nfa::CallEdge& call : draft.nfa.calls()) num_call_edges[call.from] += is_kept_call(call);
  Grammar grammar;
  grammar.first_byte_edge_.push_back(0);
  grammar.first_call_edge_.push_back(0);
  for (uint32_t state = 0; state < num_nfa_states; ++state) {
    if (num_byte_edges[state] + num_call_edges[state] == 0) continue;
    state_of[state] = static_cast<uint32_t>(grammar.num_states());
    grammar.first_byte_edge_.push_back(grammar.first_byte_edge_.back() + num_byte_edges[state]);
    grammar.first_call_edge_.push_back(grammar.first_call_edge_.back() + num_call_edges[state]);
  }

  grammar.like_states_.resize(grammar.num_states());
  for (uint32_t state = 0; state < num_nfa_states; ++state) {
    const uint32_t like = draft.nfa.like(state);
    if (state_of[state] != kNone)
      grammar.like_states_[state_of[state]] = state_of[state_of[like] != kNone ? like : state];
  }

  // Places: what a state reaches without reading.
  std::vector<char> is_end(num_nfa_states, 0);
  for (const RuleEnds& rule : draft.rules) is_end[rule.end] = 1;
  std::vector<uint32_t> place_of(num_nfa_states, kNone), seen(num_nfa_states, kNone), stack;
  const auto find_place = [&](uint32_t origin) {
    if (place_of[origin] != kNone) return place_of[origin];
    Grammar::Place place{.first_state = static_cast<uint32_t>(grammar.place_states_.size())};
    stack.assign(1, origin);
    seen[origin] = origin;
    while (!stack.empty()) {
      const uint32_t state = stack.back();
      stack.pop_back();
      if (!budget.spend(1 + static_cast<int64_t>(draft.epsilons[state].size()))) break;  // finish() gives the error
      if (is_end[state]) place.is_end = true;
      if (state_of[state] != kNone) grammar.place_states_.push_back(state_of[state]);
      for (const uint32_t next : draft.epsilons[state]) {
        if (std::exchange(seen[next], origin) != origin) stack.push_back(next);
      }
    }
    place.num_states = static_cast<uint32_t>(grammar.place_states_.size()) - place.first_state;
    std::sort(grammar.place_states_.begin() + place.first_state, grammar.place_states_.end());
    place_of[origin] = static_cast<uint32_t>(grammar.places_.size());
    grammar.places_.push_back(place);
    return place_of[origin];
  };

  // Ranks: callers before those that they call before reading; depth first, children are finished first.
  std::vector<std::vector<uint32_t>> first_calls(draft.rules.size());  // rules
  {
    std::vector<std::vector<uint32_t>> rules_called(grammar.num_states());
    for (const Nfa::CallEdge& call : draft.nfa.calls()) {
      if (is_kept_call(call)) rules_called[state_of[call.from]].push_back(call.rule);
    }
    for (uint32_t rule = 0; rule < draft.rules.size(); ++rule) {
      const uint32_t entry = find_place(draft.rules[rule].start);
      for (const uint32_t state : grammar.states_of(grammar.places_[entry])) {
        first_calls[rule].insert(first_calls[rule].end(), rules_called[state].begin(), rules_called[state].end());
      }
      budget.spend(static_cast<int64_t>(first_calls[rule].size()));
      if (budget.is_spent()) return budget.error();
    }
  }
  enum class Visit : uint8_t { kNew, kOpen, kDone };
  std::vector<Visit> visits(draft.rules.size(), Visit::kNew);
  std::vector<uint32_t> finished;
  std::vector<std::pair<uint32_t, size_t>> path;
  const auto visit_from = [&](uint32_t origin) -> Status {
    path.assign(1, {origin, 0});
    visits[origin] = Visit::kOpen;
    while (!path.empty()) {
      auto& [rule, next_call] = path.back();
      if (next_call == first_calls[rule].size()) {
        visits[rule] = Visit::kDone;
        finished.push_back(rule);
        path.pop_back();
        continue;
      }
      const uint32_t called = first_calls[rule][next_call++];
      if (visits[called] == Visit::kOpen) {
        return invalid_argument(
            "rule '{}' is left-recursive: it calls itself before it has read anything; write it with a repetition",
            rules_[called].name);
      }
      if (visits[called] == Visit::kDone) continue;
      visits[called] = Visit::kOpen;
      path.emplace_back(called, 0);
    }
    return ok_status();
  };
  for (uint32_t rule = 0; rule < draft.rules.size(); ++rule) {
    if (visits[rule] == Visit::kNew) RETURN_IF_ERROR(visit_from(rule));
  }
  std::ranges::reverse(finished);
  std::vector<uint32_t> rank_of(draft.rules.size());
  for (uint32_t rank = 0; rank < finished.size(); ++rank) rank_of[finished[rank]] = rank;
  for (const uint32_t rule : finished) grammar.entries_.push_back(find_place(draft.rules[rule].start));
  grammar.root_place_ = find_place(draft.rules[root].start);

  grammar.byte_edges_.resize(grammar.first_byte_edge_.back());
  grammar.call_edges_.resize(grammar.first_call_edge_.back());
  std::vector<uint32_t> next_byte_edge(grammar.first_byte_edge_), next_call_edge(grammar.first_call_edge_);
  for (const Nfa::ByteEdge& edge : draft.nfa.byte_edges()) {
    if (!is_kept(edge)) continue;
    grammar.byte_edges_[next_byte_edge[state_of[edge.from]]++] = {edge.first, edge.last, find_place(edge.to)};
  }
  for (const Nfa::CallEdge& call : draft.nfa.calls()) {
    if (!is_kept_call(call)) continue;
    grammar.call_edges_[next_call_edge[state_of[call.from]]++] = {rank_of[call.rule], find_place(call.to)};
  }
  for (uint32_t state = 0; state < num_nfa_states; ++state) {
    if (place_of[state] != kNone) find_place(draft.nfa.like(state));
  }
  grammar.like_places_.resize(grammar.places_.size());
  for (uint32_t state = 0; state < num_nfa_states; ++state) {
    if (place_of[state] != kNone) grammar.like_places_[place_of[state]] = place_of[draft.nfa.like(state)];
  }
  if (budget.is_spent()) return budget.error();
  return grammar;
}

}  // namespace spate
