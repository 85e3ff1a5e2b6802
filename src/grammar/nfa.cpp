#include "grammar/nfa.h"

#include "grammar/byte_dfa.h"

namespace spate {
namespace {

constexpr int64_t kUnitsPerState = 20;
constexpr size_t kMaxComparedStates = 1000;  // of an automaton: comparing them takes up to 10 ms

}  // namespace

bool Nfa::add_expr(const Expr& expr, uint32_t from, uint32_t to, CompileBudget& budget) {
  if (!budget.spend(kUnitsPerState)) return false;
  switch (expr->kind) {
    case ExprKind::kNothing:
      return true;
    case ExprKind::kEmpty:
      add_epsilon(from, to);
      return true;
    case ExprKind::kBytes: {
      if (expr->bytes.empty()) add_epsilon(from, to);
      if (!budget.spend(kUnitsPerState * static_cast<int64_t>(expr->bytes.size()))) return false;
      for (size_t i = 0; i < expr->bytes.size(); ++i) {
        const uint32_t next = i + 1 == expr->bytes.size() ? to : add_state();
        const auto byte = static_cast<uint8_t>(expr->bytes[i]);
        byte_edges_.push_back({from, next, byte, byte});
        from = next;
      }
      return true;
    }
    case ExprKind::kByteSet:
      byte_edges_.push_back({from, to, expr->first_byte, expr->last_byte});
      return true;
    case ExprKind::kChars:
      for (const ByteRangeSequence& sequence : utf8_sequences(expr->chars)) {
        if (!budget.spend(kUnitsPerState)) return false;
        uint32_t at = from;
        for (size_t i = 0; i < sequence.ranges.size(); ++i) {
          const uint32_t next = i + 1 == sequence.ranges.size() ? to : add_state();
          byte_edges_.push_back({at, next, sequence.ranges[i].first, sequence.ranges[i].last});
          at = next;
        }
      }
      return true;
    case ExprKind::kSequence:
      if (expr->children.empty()) add_epsilon(from, to);
      for (size_t i = 0; i < expr->children.size(); ++i) {
        const uint32_t next = i + 1 == expr->children.size() ? to : add_state();
        if (!add_expr(expr->children[i], from, next, budget)) return false;
        from = next;
      }
      return true;
    case ExprKind::kChoice:
      for (const Expr& child : expr->children) {
        if (!add_expr(child, from, to, budget)) return false;
      }
      return true;
    case ExprKind::kRepeat: {
      const Expr& child = expr->children.front();
      uint32_t first_copy = num_states_;
      for (int i = 0; i < expr->min; ++i) {
        if (!add_copy(child, from, first_copy, expr->min - (i + 1) > kLookAheadBytes, budget)) return false;
      }
      if (expr->max == kUnbounded) {
        const uint32_t loop = add_state();
        add_epsilon(from, loop);
        add_epsilon(loop, to);
        return add_expr(child, loop, loop, budget);
      }
      add_epsilon(from, to);
      first_copy = num_states_;
      for (int i = expr->min; i < expr->max; ++i) {
        if (!add_copy(child, from, first_copy, expr->max - (i + 1) > kLookAheadBytes, budget)) return false;
        add_epsilon(from, to);
      }
      return true;
    }
    case ExprKind::kRule:
      calls_.push_back({from, to, expr->rule});
      return true;
    case ExprKind::kDfa: {
      const std::vector<ByteDfa::State>& states = expr->dfa->states();
      const uint32_t first_state = num_states_;
      for (size_t i = 0; i < states.size(); ++i) add_state();
      // A repetition with a count, as of characters in a label of a host, was made many states. The work is in
      // proportion to what the loop below spends, so it is not counted.
      if (states.size() > static_cast<size_t>(kLookAheadBytes) && states.size() <= kMaxComparedStates) {
        const std::vector<uint32_t> alike = expr->dfa->states_alike(kLookAheadBytes);
        for (size_t i = 0; i < alike.size(); ++i) likes_[first_state + i] = first_state + alike[i];
      }
      add_epsilon(from, first_state);
      for (uint32_t i = 0; i < states.size(); ++i) {
        if (!budget.spend(kUnitsPerState * static_cast<int64_t>(1 + states[i].edges.size()))) return false;
        if (states[i].accepts) add_epsilon(first_state + i, to);
        for (const ByteDfa::Edge& edge : states[i].edges) {
          byte_edges_.push_back({first_state + i, first_state + edge.target, edge.first, edge.last});
        }
      }
      return true;
    }
  }
  return true;
}

// One copy of a repetition: from `from`, which becomes the state behind it. All copies have equally many states, in the
// same order. is_like_first: so many copies follow that within kLookAheadBytes it makes no difference.
bool Nfa::add_copy(const Expr& child, uint32_t& from, uint32_t first_copy, bool is_like_first, CompileBudget& budget) {
  const uint32_t begin = num_states_;
  const uint32_t next = add_state();
  if (!add_expr(child, from, next, budget)) return false;
  for (uint32_t state = begin; is_like_first && state < num_states_; ++state) likes_[state] -= begin - first_copy;
  from = next;
  return true;
}

std::vector<std::vector<uint32_t>> Nfa::epsilon_lists() const {
  std::vector<std::vector<uint32_t>> lists(num_states_);
  for (const Epsilon& epsilon : epsilons_) lists[epsilon.from].push_back(epsilon.to);
  return lists;
}

}  // namespace spate
