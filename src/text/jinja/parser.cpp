#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"

namespace spate::jinja {
namespace {

// Bounds evaluation and destruction, which recurse over the tree. Real templates stay below 20.
constexpr int kMaxExprDepth = 300;
constexpr int kMaxNestedStatements = 100;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Body parse() {
    Body body = parse_body({});
    if (current().kind != TokenKind::kEnd) fail_here("unexpected '" + describe(current()) + "'");
    return body;
  }

 private:
  using EndTags = std::vector<std::string_view>;

  // --- tokens

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

  ExprPtr make(ExprKind kind, int line) const { return std::make_unique<Expr>(kind, line); }
  // Call when a node has its children: keeps the tree shallow.
  ExprPtr finish(ExprPtr node) const {
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
  ExprPtr unary(ExprKind kind, int line, ExprPtr operand) const {
    ExprPtr node = make(kind, line);
    node->children.push_back(std::move(operand));
    return finish(std::move(node));
  }

  // --- statements

  Body parse_body(const EndTags& end_tags) {
    Body body;
    while (current().kind != TokenKind::kEnd) {
      const Token& token = current();
      if (token.kind == TokenKind::kData) {
        auto stmt = std::make_unique<Stmt>(StmtKind::kText, token.line);
        stmt->text = token.text;
        body.push_back(std::move(stmt));
        next();
      } else if (token.kind == TokenKind::kVariableBegin) {
        next();
        auto stmt = std::make_unique<Stmt>(StmtKind::kPrint, token.line);
        stmt->expr = parse_tuple(true, {});
        if (current().kind != TokenKind::kVariableEnd) fail_expected("end of print statement");
        next();
        body.push_back(std::move(stmt));
      } else {
        next();  // block begin
        if (std::any_of(end_tags.begin(), end_tags.end(), [this](std::string_view tag) { return at_name(tag); })) return body;
        parse_statement(body, end_tags);
        expect_block_end();
      }
    }
    if (!end_tags.empty()) {
      std::string tags;
      for (const std::string_view tag : end_tags) tags += fmt::format("{}'{}'", tags.empty() ? "" : " or ", tag);
      fail_here(fmt::format("Unexpected end of template. Jinja was looking for the following tags: {}.", tags));
    }
    return body;
  }

  // The body of a block tag up to one of the end tags, which becomes the current token.
  Body parse_block_body(const EndTags& end_tags) {
    skip_op(":");
    expect_block_end();
    return parse_body(end_tags);
  }
  Body parse_block_body_to(std::string_view end_tag) {
    Body body = parse_block_body({end_tag});
    next();
    return body;
  }

  void parse_statement(Body& body, const EndTags& end_tags) {
    check_stack();
    if (current().kind != TokenKind::kName) fail_here("tag name expected");
    if (++num_open_ > kMaxNestedStatements) fail_here("statements are nested too deeply");
    const std::string tag = current().text;
    const int line = current().line;
    if (tag == "for") {
      body.push_back(parse_for());
    } else if (tag == "if") {
      body.push_back(parse_if());
    } else if (tag == "set") {
      body.push_back(parse_set());
    } else if (tag == "macro") {
      body.push_back(parse_macro());
    } else if (tag == "call") {
      body.push_back(parse_call_block());
    } else if (tag == "filter") {
      body.push_back(parse_filter_block());
    } else if (tag == "with") {
      body.push_back(parse_with());
    } else if (tag == "generation") {
      next();
      auto stmt = std::make_unique<Stmt>(StmtKind::kGeneration, line);
      stmt->body = parse_block_body_to("endgeneration");
      body.push_back(std::move(stmt));
    } else if (tag == "print") {
      parse_print(body);
    } else if (tag == "break" || tag == "continue") {
      next();
      body.push_back(std::make_unique<Stmt>(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, line));
    } else if (tag == "block") {
      body.push_back(parse_block());
    } else if (tag == "autoescape") {
      body.push_back(parse_autoescape());
    } else if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") {
      fail_here("'" + tag + "' is not possible: a chat template has no other templates");
    } else if (end_tags.empty()) {
      fail_here(fmt::format("Encountered unknown tag '{}'.", tag));
    } else {
      std::string tags;
      for (const std::string_view end : end_tags) tags += fmt::format("{}'{}'", tags.empty() ? "" : " or ", end);
      fail_here(fmt::format("Encountered unknown tag '{}'. Jinja was looking for the following tags: {}.", tag, tags));
    }
    --num_open_;
  }

  StmtPtr parse_for() {
    auto stmt = std::make_unique<Stmt>(StmtKind::kFor, next().line);
    const size_t target_begin = pos_;
    stmt->target = parse_target(false, "in");
    expect_name("in");
    stmt->expr = parse_tuple(false, "recursive");
    if (skip_name("if")) {
      stmt->test = parse_expression();
      const size_t resume = pos_;
      pos_ = target_begin;
      stmt->test_target = parse_target(false, "in");
      pos_ = resume;
    }
    stmt->recursive = skip_name("recursive");
    stmt->body = parse_block_body({"endfor", "else"});
    if (next().text == "else") stmt->else_body = parse_block_body_to("endfor");
    return stmt;
  }

  StmtPtr parse_if() {
    auto stmt = std::make_unique<Stmt>(StmtKind::kIf, next().line);
    while (true) {
      Branch branch;
      branch.test = parse_tuple(false, {});
      branch.body = parse_block_body({"elif", "else", "endif"});
      stmt->branches.push_back(std::move(branch));
      const std::string tag = next().text;
      if (tag == "elif") continue;
      if (tag == "else") {
        Branch otherwise;
        otherwise.body = parse_block_body_to("endif");
        stmt->branches.push_back(std::move(otherwise));
      }
      return stmt;
    }
  }

  StmtPtr parse_set() {
    const int line = next().line;
    ExprPtr target = parse_target(true, {});
    auto stmt = std::make_unique<Stmt>(StmtKind::kSet, line);
    stmt->target = std::move(target);
    if (skip_op("=")) {
      stmt->expr = parse_tuple(true, {});
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->expr = parse_filters(nullptr, false);
    stmt->body = parse_block_body_to("endset");
    return stmt;
  }

  void parse_signature(Stmt& stmt) {
    expect_op("(");
    bool has_default = false;
    while (!at_op(")")) {
      if (!stmt.targets.empty()) expect_op(",");
      stmt.targets.push_back(parse_name_target());
      ExprPtr value;
      if (skip_op("=")) {
        value = parse_expression();
        has_default = true;
      } else if (has_default) {
        fail_here("non-default argument follows default argument");
      }
      stmt.values.push_back(std::move(value));
    }
    expect_op(")");
  }

  StmtPtr parse_macro() {
    auto stmt = std::make_unique<Stmt>(StmtKind::kMacro, next().line);
    stmt->target = parse_name_target();
    stmt->name = stmt->target->text;
    parse_signature(*stmt);
    stmt->body = parse_block_body_to("endmacro");
    return stmt;
  }

  StmtPtr parse_call_block() {
    auto stmt = std::make_unique<Stmt>(StmtKind::kCallBlock, next().line);
    if (at_op("(")) parse_signature(*stmt);
    stmt->expr = parse_expression();
    if (stmt->expr->kind != ExprKind::kCall) fail_line(stmt->line, "expected call");
    stmt->body = parse_block_body_to("endcall");
    return stmt;
  }

  StmtPtr parse_filter_block() {
    auto stmt = std::make_unique<Stmt>(StmtKind::kFilterBlock, next().line);
    stmt->expr = parse_filters(nullptr, true);
    stmt->body = parse_block_body_to("endfilter");
    return stmt;
  }

  StmtPtr parse_with() {
    auto stmt = std::make_unique<Stmt>(StmtKind::kWith, next().line);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!stmt->targets.empty()) expect_op(",");
      stmt->targets.push_back(parse_target(false, {}));
      expect_op("=");
      stmt->values.push_back(parse_expression());
    }
    stmt->body = parse_block_body_to("endwith");
    return stmt;
  }

  void parse_print(Body& body) {
    const int line = next().line;
    bool first = true;
    while (current().kind != TokenKind::kBlockEnd) {
      if (!first) expect_op(",");
      first = false;
      auto stmt = std::make_unique<Stmt>(StmtKind::kPrint, line);
      stmt->expr = parse_expression();
      body.push_back(std::move(stmt));
    }
  }

  StmtPtr parse_block() {
    auto stmt = std::make_unique<Stmt>(StmtKind::kBlock, next().line);
    stmt->name = take_name();
    if (at_name("scoped") || at_name("required")) fail_here("scoped and required blocks are not supported");
    stmt->body = parse_block_body_to("endblock");
    skip_name(stmt->name);
    return stmt;
  }

  // Chat templates are never HTML: only "autoescape false" can be meant. It is a scope.
  StmtPtr parse_autoescape() {
    auto stmt = std::make_unique<Stmt>(StmtKind::kWith, next().line);
    const ExprPtr on = parse_expression();
    if (on->kind != ExprKind::kConst || truthy(on->value)) fail_line(stmt->line, "autoescape is not supported");
    stmt->body = parse_block_body_to("endautoescape");
    return stmt;
  }

  // --- targets

  ExprPtr parse_name_target() {
    ExprPtr target = make(ExprKind::kName, current().line);
    target->text = take_name();
    static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
    if (std::find(std::begin(kConstants), std::end(kConstants), target->text) != std::end(kConstants)) {
      fail_line(target->line, "can't assign to 'name'");
    }
    return target;
  }

  ExprPtr parse_target(bool with_namespace, std::string_view end_name) {
    const int line = current().line;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    while (true) {
      if (!items.empty()) expect_op(",");
      if (at_tuple_end(end_name)) break;
      items.push_back(parse_one_target(with_namespace));
      if (!at_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      if (items.empty()) fail_here(fmt::format("Expected an expression, got '{}'", describe(current())));
      return std::move(items[0]);
    }
    ExprPtr tuple = make(ExprKind::kTuple, line);
    tuple->children = std::move(items);
    return finish(std::move(tuple));
  }

  ExprPtr parse_one_target(bool with_namespace) {
    check_stack();
    const int line = current().line;
    if (skip_op("(")) {
      ExprPtr tuple = make(ExprKind::kTuple, line);
      bool has_comma = false;
      while (!at_op(")")) {
        if (!tuple->children.empty()) {
          expect_op(",");
          has_comma = true;
        }
        if (at_op(")")) break;
        tuple->children.push_back(parse_one_target(false));
      }
      expect_op(")");
      if (!has_comma && tuple->children.size() == 1) return std::move(tuple->children[0]);
      return finish(std::move(tuple));
    }
    if (current().kind != TokenKind::kName) fail_here(fmt::format("can't assign to '{}'", describe(current())));
    ExprPtr target = parse_name_target();
    if (with_namespace && skip_op(".")) {
      target->kind = ExprKind::kNsRef;
      target->attribute = take_name();
    }
    return target;
  }

  bool at_tuple_end(std::string_view end_name) const {
    return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd || at_op(")") ||
           (!end_name.empty() && at_name(end_name));
  }

  // --- expressions

  // One expression, or several with commas: a tuple.
  ExprPtr parse_tuple(bool with_condition, std::string_view end_name, bool in_parentheses = false) {
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

  ExprPtr parse_expression() {
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
  ExprPtr parse_chain(ExprKind kind, ParseOperand parse_operand, Match match) {
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

  ExprPtr parse_or() {
    return parse_chain(ExprKind::kOr, [this] { return parse_and(); }, [this] { return skip_name("or") ? '|' : '\0'; });
  }
  ExprPtr parse_and() {
    return parse_chain(ExprKind::kAnd, [this] { return parse_not(); }, [this] { return skip_name("and") ? '&' : '\0'; });
  }

  ExprPtr parse_not() {
    check_stack();
    const int line = current().line;
    if (skip_name("not")) return unary(ExprKind::kNot, line, parse_not());
    return parse_chain(ExprKind::kCompare, [this] { return parse_sum(); }, [this] { return match_comparison(); });
  }

  char match_comparison() {
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

  ExprPtr parse_sum() {
    return parse_chain(ExprKind::kSum, [this] { return parse_concat(); },
                       [this] { return skip_op("+") ? '+' : skip_op("-") ? '-' : '\0'; });
  }
  ExprPtr parse_concat() {
    return parse_chain(ExprKind::kConcat, [this] { return parse_product(); }, [this] { return skip_op("~") ? '~' : '\0'; });
  }
  ExprPtr parse_product() {
    return parse_chain(ExprKind::kProduct, [this] { return parse_power(); }, [this] {
      return skip_op("*") ? '*' : skip_op("/") ? '/' : skip_op("//") ? 'f' : skip_op("%") ? '%' : '\0';
    });
  }
  ExprPtr parse_power() {
    return parse_chain(ExprKind::kPower, [this] { return parse_unary(true); }, [this] { return skip_op("**") ? '^' : '\0'; });
  }

  ExprPtr parse_unary(bool with_filter) {
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

  ExprPtr constant(int line, Value value) const {
    ExprPtr node = make(ExprKind::kConst, line);
    node->value = std::move(value);
    return node;
  }

  ExprPtr parse_primary() {
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
      case TokenKind::kInteger: return constant(line, Value::integer(next().integer));
      case TokenKind::kFloat: return constant(line, Value::real(next().real));
      case TokenKind::kOperator:
        if (skip_op("(")) {
          ExprPtr node = parse_tuple(true, {}, true);
          expect_op(")");
          return node;
        }
        if (at_op("[")) return parse_list();
        if (at_op("{")) return parse_dict();
        break;
      default: break;
    }
    fail_here(fmt::format("unexpected '{}'", describe(token)));
  }

  ExprPtr parse_list() {
    ExprPtr list = make(ExprKind::kList, next().line);
    while (!at_op("]")) {
      if (!list->children.empty()) expect_op(",");
      if (at_op("]")) break;
      list->children.push_back(parse_expression());
    }
    expect_op("]");
    return finish(std::move(list));
  }

  ExprPtr parse_dict() {
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

  ExprPtr parse_postfix(ExprPtr node) {
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

  ExprPtr parse_filters_and_tests(ExprPtr node) {
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

  ExprPtr parse_subscript(ExprPtr object) {
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
  ExprPtr parse_subscript_part(ExprPtr& slice) {
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

  std::unique_ptr<CallArgs> parse_call_args() {
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

  ExprPtr parse_call(ExprPtr callee) {
    ExprPtr node = make(ExprKind::kCall, current().line);
    node->children.push_back(std::move(callee));
    node->call = parse_call_args();
    return finish(std::move(node));
  }

  std::string parse_dotted_name() {
    std::string name = take_name();
    while (skip_op(".")) name += "." + take_name();
    return name;
  }

  // A chain of filters on `node`; null stands for the text of the block around.
  ExprPtr parse_filters(ExprPtr node, bool start_with_name) {
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

  ExprPtr parse_test(ExprPtr node) {
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

  bool at_bare_argument() const {
    switch (current().kind) {
      case TokenKind::kName: return !at_name("else") && !at_name("or") && !at_name("and");
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat: return true;
      default: return at_op("[") || at_op("{");
    }
  }

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int num_open_ = 0;
};

}  // namespace

Body parse_template(std::string_view source) { return Parser(source).parse(); }

}  // namespace spate::jinja
