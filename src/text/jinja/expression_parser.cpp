#include "text/jinja/expression_parser.h"

#include "text/jinja/builtins.h"

namespace spate::jinja {
namespace {

// Bounds evaluation and destruction, which recurse over the tree. Real templates stay below 20.
constexpr int kMaxExprDepth = 300;

}  // namespace

ExprPtr ExpressionParser::make(ExprKind kind, int line) const { return std::make_unique<Expr>(kind, line); }
// Call when a node has its children: keeps the tree shallow.
ExprPtr ExpressionParser::finish(ExprPtr node) const {
  int inner = 0;
  for (const ExprPtr& child : node->children) inner = std::max(inner, child == nullptr ? 0 : child->depth);
  if (node->call != nullptr) {
    for (const ExprPtr& arg : node->call->positional) inner = std::max(inner, arg->depth);
    for (const auto& [name, arg] : node->call->named) inner = std::max(inner, arg->depth);
    if (node->call->star != nullptr) inner = std::max(inner, node->call->star->depth);
    if (node->call->star_star != nullptr) inner = std::max(inner, node->call->star_star->depth);
  }
  node->depth = inner + 1;
  if (node->depth > kMaxExprDepth) fail_line(node->line, "the expression is nested too deeply");
  return node;
}
ExprPtr ExpressionParser::unary(ExprKind kind, int line, ExprPtr operand) const {
  ExprPtr node = make(kind, line);
  node->children.push_back(std::move(operand));
  return finish(std::move(node));
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd || at_op(")") ||
         (!end_name.empty() && at_name(end_name));
}

// One expression, or several with commas: a tuple.
ExprPtr ExpressionParser::parse_tuple(bool with_condition, std::string_view end_name, bool in_parentheses) {
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_op(",");
    if (at_tuple_end(end_name)) break;
    items.push_back(with_condition ? parse_expression() : parse_or());
    if (!at_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!in_parentheses) fail_here(fmt::format("Expected an expression, got '{}'", describe(current())));
  }
  ExprPtr tuple = make(ExprKind::kTuple, line);
  tuple->children = std::move(items);
  return finish(std::move(tuple));
}

ExprPtr ExpressionParser::parse_expression() {
  check_stack();
  const int line = current().line;
  ExprPtr value = parse_or();
  while (skip_name("if")) {
    ExprPtr node = make(ExprKind::kCondition, line);
    node->children.push_back(std::move(value));
    node->children.push_back(parse_or());
    node->children.push_back(skip_name("else") ? parse_expression() : nullptr);
    value = finish(std::move(node));
  }
  return value;
}

template <typename ParseOperand, typename Match>
ExprPtr ExpressionParser::parse_chain(ExprKind kind, ParseOperand parse_operand, Match match) {
  const int line = current().line;
  ExprPtr first = parse_operand();
  ExprPtr chain;
  while (const char op = match()) {
    if (chain == nullptr) {
      chain = make(kind, line);
      chain->children.push_back(std::move(first));
    }
    chain->ops.push_back(op);
    chain->children.push_back(parse_operand());
  }
  return chain == nullptr ? std::move(first) : finish(std::move(chain));
}

ExprPtr ExpressionParser::parse_or() {
  return parse_chain(
      ExprKind::kOr, [this] { return parse_and(); }, [this] { return skip_name("or") ? '|' : '\0'; });
}
ExprPtr ExpressionParser::parse_and() {
  return parse_chain(
      ExprKind::kAnd, [this] { return parse_not(); }, [this] { return skip_name("and") ? '&' : '\0'; });
}

ExprPtr ExpressionParser::parse_not() {
  check_stack();
  const int line = current().line;
  if (skip_name("not")) return unary(ExprKind::kNot, line, parse_not());
  return parse_chain(
      ExprKind::kCompare, [this] { return parse_sum(); }, [this] { return match_comparison(); });
}

char ExpressionParser::match_comparison() {
  if (skip_op("==")) return '=';
  if (skip_op("!=")) return '!';
  if (skip_op("<=")) return 'l';
  if (skip_op(">=")) return 'g';
  if (skip_op("<")) return '<';
  if (skip_op(">")) return '>';
  if (skip_name("in")) return 'i';
  if (at_name("not") && look().kind == TokenKind::kName && look().text == "in") {
    next();
    next();
    return 'n';
  }
  return '\0';
}

ExprPtr ExpressionParser::parse_sum() {
  return parse_chain(
      ExprKind::kSum, [this] { return parse_concat(); },
      [this] { return skip_op("+")   ? '+'
                      : skip_op("-") ? '-'
                                     : '\0'; });
}
ExprPtr ExpressionParser::parse_concat() {
  return parse_chain(
      ExprKind::kConcat, [this] { return parse_product(); }, [this] { return skip_op("~") ? '~' : '\0'; });
}
ExprPtr ExpressionParser::parse_product() {
  return parse_chain(
      ExprKind::kProduct, [this] { return parse_power(); },
      [this] {
        return skip_op("*") ? '*' : skip_op("/") ? '/' : skip_op("//") ? 'f' : skip_op("%") ? '%' : '\0';
      });
}
ExprPtr ExpressionParser::parse_power() {
  return parse_chain(
      ExprKind::kPower, [this] { return parse_unary(true); }, [this] { return skip_op("**") ? '^' : '\0'; });
}

ExprPtr ExpressionParser::parse_unary(bool with_filter) {
  check_stack();
  const int line = current().line;
  ExprPtr node;
  if (skip_op("-")) {
    node = unary(ExprKind::kNegate, line, parse_unary(false));
  } else if (skip_op("+")) {
    node = unary(ExprKind::kPlus, line, parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::constant(int line, Value value) const {
  ExprPtr node = make(ExprKind::kConst, line);
  node->value = std::move(value);
  return node;
}

ExprPtr ExpressionParser::parse_primary() {
  const Token& token = current();
  const int line = token.line;
  switch (token.kind) {
    case TokenKind::kName: {
      next();
      if (token.text == "true" || token.text == "True") return constant(line, Value::boolean(true));
      if (token.text == "false" || token.text == "False") return constant(line, Value::boolean(false));
      if (token.text == "none" || token.text == "None") return constant(line, Value::none());
      ExprPtr name = make(ExprKind::kName, line);
      name->text = token.text;
      return name;
    }
    case TokenKind::kString: {
      std::string text;
      while (current().kind == TokenKind::kString) text += next().text;
      return constant(line, Value::string(std::move(text)));
    }
    case TokenKind::kInteger:
      return constant(line, Value::integer(next().integer));
    case TokenKind::kFloat:
      return constant(line, Value::real(next().real));
    case TokenKind::kOperator:
      if (skip_op("(")) {
        ExprPtr node = parse_tuple(true, {}, true);
        expect_op(")");
        return node;
      }
      if (at_op("[")) return parse_list();
      if (at_op("{")) return parse_dict();
      break;
    default:
      break;
  }
  fail_here(fmt::format("unexpected '{}'", describe(token)));
}

ExprPtr ExpressionParser::parse_list() {
  ExprPtr list = make(ExprKind::kList, next().line);
  while (!at_op("]")) {
    if (!list->children.empty()) expect_op(",");
    if (at_op("]")) break;
    list->children.push_back(parse_expression());
  }
  expect_op("]");
  return finish(std::move(list));
}

ExprPtr ExpressionParser::parse_dict() {
  ExprPtr dict = make(ExprKind::kDict, next().line);
  while (!at_op("}")) {
    if (!dict->children.empty()) expect_op(",");
    if (at_op("}")) break;
    dict->children.push_back(parse_expression());
    expect_op(":");
    dict->children.push_back(parse_expression());
  }
  expect_op("}");
  return finish(std::move(dict));
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr node) {
  while (true) {
    if (at_op(".") || at_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (at_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_filters_and_tests(ExprPtr node) {
  while (true) {
    if (at_op("|")) {
      node = parse_filters(std::move(node), false);
    } else if (at_name("is")) {
      node = parse_test(std::move(node));
    } else if (at_op("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr object) {
  const Token& token = next();
  if (token.text == ".") {
    const Token& name = next();
    ExprPtr node = make(name.kind == TokenKind::kName ? ExprKind::kGetattr : ExprKind::kGetitem, token.line);
    node->children.push_back(std::move(object));
    if (name.kind == TokenKind::kName) {
      node->text = name.text;
    } else if (name.kind == TokenKind::kInteger) {
      node->children.push_back(constant(name.line, Value::integer(name.integer)));
    } else {
      fail_line(name.line, "expected name or number");
    }
    return finish(std::move(node));
  }
  std::vector<ExprPtr> parts;
  ExprPtr slice;
  while (!at_op("]")) {
    if (!parts.empty() || slice != nullptr) expect_op(",");
    ExprPtr part = parse_subscript_part(slice);
    if (part != nullptr) parts.push_back(std::move(part));
  }
  expect_op("]");
  if (slice != nullptr) {
    if (!parts.empty()) fail_line(token.line, "a slice cannot be a part of a tuple");
    slice->children[0] = std::move(object);
    return finish(std::move(slice));
  }
  ExprPtr node = make(ExprKind::kGetitem, token.line);
  node->children.push_back(std::move(object));
  if (parts.size() == 1) {
    node->children.push_back(std::move(parts[0]));
  } else {
    ExprPtr tuple = make(ExprKind::kTuple, token.line);
    tuple->children = std::move(parts);
    node->children.push_back(finish(std::move(tuple)));
  }
  return finish(std::move(node));
}

// One expression, or null when it is a slice, which goes to `slice`.
ExprPtr ExpressionParser::parse_subscript_part(ExprPtr& slice) {
  const int line = current().line;
  ExprPtr start;
  if (!at_op(":")) {
    start = parse_expression();
    if (!at_op(":")) return start;
  }
  next();
  if (slice != nullptr) fail_line(line, "a slice cannot be a part of a tuple");
  slice = make(ExprKind::kSlice, line);
  slice->children.push_back(nullptr);
  slice->children.push_back(std::move(start));
  const auto at_end = [this] { return at_op(":") || at_op("]") || at_op(","); };
  slice->children.push_back(at_end() ? nullptr : parse_expression());
  slice->children.push_back(skip_op(":") && !at_end() ? parse_expression() : nullptr);
  return nullptr;
}

std::unique_ptr<CallArgs> ExpressionParser::parse_call_args() {
  auto args = std::make_unique<CallArgs>();
  const int line = current().line;
  const auto ensure = [line](bool valid) {
    if (!valid) fail_line(line, "invalid syntax for function call expression");
  };
  expect_op("(");
  bool need_comma = false;
  while (!at_op(")")) {
    if (need_comma) {
      expect_op(",");
      if (at_op(")")) break;
    }
    if (skip_op("*")) {
      ensure(args->star == nullptr && args->star_star == nullptr);
      args->star = parse_expression();
    } else if (skip_op("**")) {
      ensure(args->star_star == nullptr);
      args->star_star = parse_expression();
    } else if (current().kind == TokenKind::kName && look().kind == TokenKind::kOperator && look().text == "=") {
      ensure(args->star_star == nullptr);
      std::string name = next().text;
      next();
      for (const auto& [given, value] : args->named) {
        if (given == name) fail_here("keyword argument repeated: " + name);
      }
      args->named.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(args->star == nullptr && args->star_star == nullptr && args->named.empty());
      args->positional.push_back(parse_expression());
    }
    need_comma = true;
  }
  expect_op(")");
  return args;
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  ExprPtr node = make(ExprKind::kCall, current().line);
  node->children.push_back(std::move(callee));
  node->call = parse_call_args();
  return finish(std::move(node));
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = take_name();
  while (skip_op(".")) name += "." + take_name();
  return name;
}

// A chain of filters on `node`; null stands for the text of the block around.
ExprPtr ExpressionParser::parse_filters(ExprPtr node, bool start_with_name) {
  while (start_with_name || skip_op("|")) {
    ExprPtr filter = make(ExprKind::kFilter, current().line);
    filter->text = parse_dotted_name();
    filter->filter = find_filter(filter->text);
    filter->children.push_back(std::move(node));
    filter->call = at_op("(") ? parse_call_args() : std::make_unique<CallArgs>();
    node = finish(std::move(filter));
    start_with_name = false;
  }
  return node;
}

ExprPtr ExpressionParser::parse_test(ExprPtr node) {
  const int line = next().line;
  const bool negated = skip_name("not");
  ExprPtr test = make(ExprKind::kTest, line);
  test->text = parse_dotted_name();
  test->test = find_test(test->text);
  test->children.push_back(std::move(node));
  if (at_op("(")) {
    test->call = parse_call_args();
  } else {
    test->call = std::make_unique<CallArgs>();
    if (at_bare_argument()) {
      if (at_name("is")) fail_here("You cannot chain multiple tests with is");
      test->call->positional.push_back(parse_postfix(parse_primary()));
    }
  }
  ExprPtr result = finish(std::move(test));
  return negated ? unary(ExprKind::kNot, line, std::move(result)) : std::move(result);
}

bool ExpressionParser::at_bare_argument() const {
  switch (current().kind) {
    case TokenKind::kName:
      return !at_name("else") && !at_name("or") && !at_name("and");
    case TokenKind::kString:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return true;
    default:
      return at_op("[") || at_op("{");
  }
}

}  // namespace spate::jinja
