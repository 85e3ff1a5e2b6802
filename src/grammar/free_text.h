// Text that a grammar leaves to the model, up to the markers that end it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/compile_budget.h"
#include "grammar/expression.h"

namespace spate {

Expr any_text();
// Texts of the first that the second does not allow. Neither has rules.
Result<Expr> difference(const Expr& texts, const Expr& others, CompileBudget& budget);
// Any text in which none of the markers stands.
Result<Expr> text_without(const std::vector<std::string>& markers, CompileBudget& budget);
// Any text up to `marker`, that included, in which none of `markers` stands before that; `marker` is one of them.
Result<Expr> text_up_to(std::string_view marker, const std::vector<std::string>& markers, CompileBudget& budget);
Result<Expr> text_up_to(std::string_view marker, CompileBudget& budget);

}  // namespace spate
