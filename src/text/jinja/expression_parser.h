// Expressions of jinja2's grammar; statements are in parser.cpp.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace spate::jinja {

// The tokens of a template and the place in them. Errors are thrown with the line of a token.
class TokenCursor {
 public:
  explicit TokenCursor(std::string_view source) : tokens_(tokenize(source)) {}

 protected:
  const Token& current() const { return tokens_[pos_]; }
  const Token& look() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  const Token& next() {
    const Token& token = tokens_[pos_];
    if (token.kind != TokenKind::kEnd) ++pos_;
    return token;
  }
  bool at_name(std::string_view name) const { return current().kind == TokenKind::kName && current().text == name; }
  bool at_op(std::string_view op) const { return current().kind == TokenKind::kOperator && current().text == op; }
  bool skip_name(std::string_view name) {
    if (!at_name(name)) return false;
    next();
    return true;
  }
  bool skip_op(std::string_view op) {
    if (!at_op(op)) return false;
    next();
    return true;
  }
  [[noreturn]] void fail_here(const std::string& message) const { fail_line(current().line, message); }
  [[noreturn]] static void fail_line(int line, const std::string& message) {
    Error error(message);
    error.line = line;
    throw error;
  }
  [[noreturn]] void fail_expected(std::string_view what) const {
    if (current().kind == TokenKind::kEnd) fail_here(fmt::format("unexpected end of template, expected '{}'.", what));
    fail_here(fmt::format("expected token '{}', got '{}'", what, describe(current())));
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail_expected(op);
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail_expected(name);
  }
  std::string take_name() {
    if (current().kind != TokenKind::kName) fail_expected("name");
    return next().text;
  }
  void expect_block_end() {
    if (current().kind != TokenKind::kBlockEnd) fail_expected("end of statement block");
    next();
  }

  std::vector<Token> tokens_;
  size_t pos_ = 0;
};

class ExpressionParser : public TokenCursor {
 public:
  using TokenCursor::TokenCursor;

 protected:
  // One expression, or several with commas: a tuple. It ends before `end_name` too.
  ExprPtr parse_tuple(bool with_condition, std::string_view end_name, bool in_parentheses = false);
  ExprPtr parse_expression();
  // A chain of filters on `node`; null stands for the text of the block around.
  ExprPtr parse_filters(ExprPtr node, bool start_with_name);
  bool at_tuple_end(std::string_view end_name) const;
  ExprPtr make(ExprKind kind, int line) const;
  // Call when a node has its children: keeps the tree shallow.
  ExprPtr finish(ExprPtr node) const;

 private:
  ExprPtr unary(ExprKind kind, int line, ExprPtr operand) const;
  template <typename ParseOperand, typename Match>
  ExprPtr parse_chain(ExprKind kind, ParseOperand parse_operand, Match match);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  char match_comparison();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filter);
  ExprPtr constant(int line, Value value) const;
  ExprPtr parse_primary();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_filters_and_tests(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_subscript_part(ExprPtr& slice);
  std::unique_ptr<CallArgs> parse_call_args();
  ExprPtr parse_call(ExprPtr callee);
  std::string parse_dotted_name();
  ExprPtr parse_test(ExprPtr node);
  bool at_bare_argument() const;
};

}  // namespace spate::jinja
