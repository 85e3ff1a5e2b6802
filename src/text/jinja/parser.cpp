#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/expression_parser.h"

namespace spate::jinja {
namespace {

constexpr int kMaxNestedStatements = 100;

class Parser : private ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body parse() {
    Body body = parse_body({});
    if (current().kind != TokenKind::kEnd) fail_here("unexpected '" + describe(current()) + "'");
    return body;
  }

 private:
  using EndTags = std::vector<std::string_view>;

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
        if (std::any_of(end_tags.begin(), end_tags.end(), [this](std::string_view tag) { return at_name(tag); }))
          return body;
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

  int num_open_ = 0;
};

}  // namespace

Body parse_template(std::string_view source) { return Parser(source).parse(); }

}  // namespace spate::jinja
