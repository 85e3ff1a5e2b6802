#include "grammar/free_text.h"

#include <memory>

#include "grammar/byte_dfa.h"

namespace spate {

Expr any_text() { return expr_repeat(expr_chars(CodePointSet::all()), 0); }

Result<Expr> difference(const Expr& texts, const Expr& others, CompileBudget& budget) {
  ASSIGN_OR_RETURN(const ByteDfa a, ByteDfa::of_expr(texts, budget));
  ASSIGN_OR_RETURN(const ByteDfa b, ByteDfa::of_expr(others, budget));
  ASSIGN_OR_RETURN(ByteDfa rest, ByteDfa::difference(a, b, budget));
  return expr_dfa(std::make_shared<const ByteDfa>(std::move(rest)));
}

Result<Expr> text_without(const std::vector<std::string>& markers, CompileBudget& budget) {
  if (markers.empty()) return any_text();
  return difference(any_text(), expr_sequence({any_text(), expr_texts(markers), any_text()}), budget);
}

Result<Expr> text_up_to(std::string_view marker, const std::vector<std::string>& markers, CompileBudget& budget) {
  const Expr upto = expr_sequence({any_text(), expr_bytes(marker)});
  const Expr beyond = expr_sequence({any_text(), expr_texts(markers), expr_repeat(expr_chars(CodePointSet::all()), 1)});
  return difference(upto, beyond, budget);
}

Result<Expr> text_up_to(std::string_view marker, CompileBudget& budget) {
  return text_up_to(marker, {std::string(marker)}, budget);
}

}  // namespace spate
