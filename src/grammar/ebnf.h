// EBNF to a grammar: the dialect of llama.cpp's GBNF and of xgrammar.
//
//   root   ::= "SELECT " column ( "," column )*      # from `root` everything is reached
//   column ::= [a-z] [a-z0-9_]{0,20} | "*"
//
//   "text" and 'text' with \n \r \t \\ \" \' \[ \] \xHH \uHHHH \UHHHHHHHH; [a-z], [^a-z]; . is any character
//   x*  x+  x?  x{m}  x{m,}  x{m,n}  ( x )  x | y  # comment
//
// A rule ends where the next `name ::=` begins. Rules may call each other freely; a rule that calls itself at the
// beginning of an alternative (expr ::= expr "+" term | term) is rewritten, other left recursion is refused by name.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/compile_budget.h"
#include "grammar/grammar.h"

namespace spate {

// Errors name line and column. With a prefix, every text begins with one of its texts.
Result<Grammar> compile_ebnf(std::string_view text, CompileBudget& budget, const Expr& prefix = nullptr);

}  // namespace spate
