#include "grammar/expression.h"

#include <algorithm>
#include <span>

#include "grammar/byte_dfa.h"

namespace spate {
namespace {

Expr make(ExprNode node) { return std::make_shared<const ExprNode>(std::move(node)); }

}  // namespace

Expr expr_nothing() { return make({.kind = ExprKind::kNothing}); }
Expr expr_empty() { return make({.kind = ExprKind::kEmpty}); }
Expr expr_bytes(std::string_view bytes) { return make({.kind = ExprKind::kBytes, .bytes = std::string(bytes)}); }
Expr expr_byte_range(uint8_t first, uint8_t last) {
  return make({.kind = ExprKind::kByteSet, .first_byte = first, .last_byte = last});
}
Expr expr_chars(CodePointSet chars) { return make({.kind = ExprKind::kChars, .chars = std::move(chars)}); }
Expr expr_sequence(std::vector<Expr> children) {
  if (children.size() == 1) return std::move(children.front());
  return make({.kind = ExprKind::kSequence, .children = std::move(children)});
}
Expr expr_choice(std::vector<Expr> children) {
  if (children.size() == 1) return std::move(children.front());
  if (children.empty()) return expr_nothing();
  return make({.kind = ExprKind::kChoice, .children = std::move(children)});
}
Expr expr_repeat(Expr child, int min, int max) {
  return make({.kind = ExprKind::kRepeat, .min = min, .max = max, .children = {std::move(child)}});
}
Expr expr_optional(Expr child) { return expr_repeat(std::move(child), 0, 1); }
Expr expr_rule(uint32_t rule) { return make({.kind = ExprKind::kRule, .rule = rule}); }
Expr expr_dfa(std::shared_ptr<const ByteDfa> dfa) { return make({.kind = ExprKind::kDfa, .dfa = std::move(dfa)}); }

Expr expr_texts(std::vector<std::string> texts) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return expr_dfa(std::make_shared<const ByteDfa>(ByteDfa::of_sorted_texts(texts)));
}

}  // namespace spate
