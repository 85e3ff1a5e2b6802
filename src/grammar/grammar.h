// Grammar: a compiled context-free grammar over bytes, ready to be run. Immutable.
//
// Each rule is an automaton whose edges read a byte or call a rule. Three things hold, so that running it needs no
// search: every state leads to the end of its rule; a rule that allows the empty text can be skipped by an edge of its
// own, so that a call always reads at least one byte; no rule calls itself before it has read a byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/compile_budget.h"
#include "grammar/expression.h"

namespace spate {

class Grammar {
 public:
  struct ByteEdge {
    uint8_t first = 0, last = 0;
    uint32_t target = 0;  // a place
  };
  struct CallEdge {
    uint32_t rule = 0;    // by rank: a rule calls only rules of higher rank before it has read a byte
    uint32_t target = 0;  // a place
  };
  // Where a rule may stand after an edge: some of its states, or its end.
  struct Place {
    uint32_t first_state = 0, num_states = 0;  // of place_states
    bool is_end = false;
  };

  std::span<const uint32_t> states_of(const Place& place) const {
    return std::span(place_states_).subspan(place.first_state, place.num_states);
  }
  const Place& place(uint32_t place_id) const { return places_[place_id]; }
  const Place& entry(uint32_t rank) const { return places_[entries_[rank]]; }
  uint32_t root_place() const { return root_place_; }
  std::span<const ByteEdge> byte_edges(uint32_t state) const {
    return std::span(byte_edges_)
        .subspan(first_byte_edge_[state], first_byte_edge_[state + 1] - first_byte_edge_[state]);
  }
  std::span<const CallEdge> call_edges(uint32_t state) const {
    return std::span(call_edges_)
        .subspan(first_call_edge_[state], first_call_edge_[state + 1] - first_call_edge_[state]);
  }
  // What is the same within kLookAheadBytes (Nfa::like).
  uint32_t like_state(uint32_t state) const { return like_states_[state]; }
  uint32_t like_place(uint32_t place_id) const { return like_places_[place_id]; }
  size_t num_states() const { return first_byte_edge_.size() - 1; }
  size_t num_rules() const { return entries_.size(); }

 private:
  friend class GrammarBuilder;
  std::vector<Place> places_;
  std::vector<uint32_t> place_states_;
  std::vector<uint32_t> entries_;  // place ids by rank
  uint32_t root_place_ = 0;
  std::vector<uint32_t> like_states_, like_places_;
  std::vector<ByteEdge> byte_edges_;
  std::vector<uint32_t> first_byte_edge_;  // [num_states + 1]
  std::vector<CallEdge> call_edges_;
  std::vector<uint32_t> first_call_edge_;  // [num_states + 1]
};

// Rules by name, then finish(). A rule may be used before it is defined.
class GrammarBuilder {
 public:
  uint32_t declare_rule(std::string name);
  void define_rule(uint32_t rule, Expr expr) { rules_[rule].expr = std::move(expr); }
  bool is_defined(uint32_t rule) const { return rules_[rule].expr != nullptr; }
  const std::string& rule_name(uint32_t rule) const { return rules_[rule].name; }
  size_t num_rules() const { return rules_.size(); }

  // Every text begins with one of these.
  void set_prefix(Expr prefix) { prefix_ = std::move(prefix); }

  // Errors: the budget is spent; a rule calls itself first (left recursion; its name); no text at all is allowed.
  Result<Grammar> finish(uint32_t root, CompileBudget& budget) const;

 private:
  struct Rule {
    std::string name;
    Expr expr;
  };
  std::vector<Rule> rules_;
  Expr prefix_;  // null: nothing
};

}  // namespace spate
