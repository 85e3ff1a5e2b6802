// Expr: what may stand at a place of a text, as an immutable tree. Every front end (regex, EBNF, JSON Schema) ends in
// these; GrammarBuilder makes automata of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/code_points.h"

namespace spate {

class ByteDfa;
struct ExprNode;
using Expr = std::shared_ptr<const ExprNode>;

constexpr int kUnbounded = -1;

enum class ExprKind : uint8_t {
  kNothing,   // no text at all
  kEmpty,     // the empty text
  kBytes,     // `bytes`
  kByteSet,   // one byte out of [first_byte, last_byte]
  kChars,     // one character out of `chars`, as UTF-8
  kSequence,  // all children, one behind the other
  kChoice,    // one of the children
  kRepeat,    // children[0], min to max times
  kRule,      // what `rule` allows
  kDfa,       // the texts that `dfa` accepts
};

struct ExprNode {
  ExprKind kind = ExprKind::kEmpty;
  uint8_t first_byte = 0, last_byte = 0;
  int min = 0, max = kUnbounded;
  uint32_t rule = 0;
  std::string bytes;
  CodePointSet chars;
  std::vector<Expr> children;
  std::shared_ptr<const ByteDfa> dfa;
};

Expr expr_nothing();
Expr expr_empty();
Expr expr_bytes(std::string_view bytes);
Expr expr_byte_range(uint8_t first, uint8_t last);
Expr expr_chars(CodePointSet chars);
Expr expr_sequence(std::vector<Expr> children);
Expr expr_choice(std::vector<Expr> children);
Expr expr_repeat(Expr child, int min, int max = kUnbounded);
Expr expr_optional(Expr child);
Expr expr_rule(uint32_t rule);
Expr expr_dfa(std::shared_ptr<const ByteDfa> dfa);
// One of the texts. Common beginnings are shared, so that thousands cost little.
Expr expr_texts(std::vector<std::string> texts);

}  // namespace spate
