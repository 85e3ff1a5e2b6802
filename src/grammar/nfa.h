// Nfa: the automaton of expressions before it is used: states with byte edges, calls of rules, and edges that read
// nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/compile_budget.h"
#include "grammar/expression.h"

namespace spate {

// Tokens up to this length find their mask in one walk for all places of a long repetition (TokenGrammar).
constexpr int kLookAheadBytes = 24;

class Nfa {
 public:
  struct ByteEdge {
    uint32_t from = 0, to = 0;
    uint8_t first = 0, last = 0;
  };
  struct CallEdge {
    uint32_t from = 0, to = 0, rule = 0;
  };
  struct Epsilon {
    uint32_t from = 0, to = 0;
  };

  uint32_t add_state() {
    likes_.push_back(num_states_);
    return num_states_++;
  }
  // Every text of `expr` leads from `from` to `to`. No edge leaves `to`. False: the budget is spent.
  bool add_expr(const Expr& expr, uint32_t from, uint32_t to, CompileBudget& budget);
  void add_epsilon(uint32_t from, uint32_t to) { epsilons_.push_back({from, to}); }

  uint32_t num_states() const { return num_states_; }
  // A state from which the same texts of up to kLookAheadBytes can be read, of those in a long repetition the first.
  // Most states have themselves.
  uint32_t like(uint32_t state) const { return likes_[state]; }
  const std::vector<ByteEdge>& byte_edges() const { return byte_edges_; }
  const std::vector<CallEdge>& calls() const { return calls_; }
  std::vector<std::vector<uint32_t>> epsilon_lists() const;  // by state

 private:
  bool add_copy(const Expr& child, uint32_t& from, uint32_t first_copy, bool is_like_first, CompileBudget& budget);

  uint32_t num_states_ = 0;
  std::vector<uint32_t> likes_;
  std::vector<ByteEdge> byte_edges_;
  std::vector<CallEdge> calls_;
  std::vector<Epsilon> epsilons_;
};

}  // namespace spate
