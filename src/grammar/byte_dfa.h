// ByteDfa: a deterministic automaton over bytes, for the sets of texts that a schema combines: "matches the pattern and
// has 3 to 10 characters", "is none of these keys". Immutable.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/compile_budget.h"
#include "grammar/expression.h"

namespace spate {

class ByteDfa {
 public:
  struct Edge {
    uint8_t first = 0, last = 0;
    uint32_t target = 0;
    auto operator<=>(const Edge&) const = default;
  };
  struct State {
    bool accepts = false;
    std::vector<Edge> edges;  // by byte, without overlap
  };

  // An expression without rules. An error when the budget is spent.
  static Result<ByteDfa> of_expr(const Expr& expr, CompileBudget& budget);
  static ByteDfa of_sorted_texts(std::span<const std::string> texts);
  // Built by hand: state 0 is the start.
  explicit ByteDfa(std::vector<State> states) : states_(std::move(states)) {}

  // Texts that both accept, or that the first accepts and the second does not. Without states that lead nowhere.
  static Result<ByteDfa> intersection(const ByteDfa& a, const ByteDfa& b, CompileBudget& budget);
  static Result<ByteDfa> difference(const ByteDfa& a, const ByteDfa& b, CompileBudget& budget);

  // By state, the first one from which the same texts of up to `length` bytes can be read and are accepted. Looks at
  // each edge `length` times.
  std::vector<uint32_t> states_alike(int length) const;

  bool accepts(std::string_view text) const;
  bool is_empty() const;                                        // accepts no text
  const std::vector<State>& states() const { return states_; }  // 0 is the start

 private:
  std::vector<State> states_;
};

}  // namespace spate
