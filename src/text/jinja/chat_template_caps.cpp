#include "text/jinja/chat_template_caps.h"

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "text/jinja/ast.h"

namespace spate {
namespace {

using jinja::Body;
using jinja::Branch;
using jinja::Expr;
using jinja::ExprKind;
using jinja::ExprPtr;
using jinja::Stmt;
using jinja::StmtKind;
using jinja::StmtPtr;

template <typename Visit>
void for_each_stmt(const Body& body, const Visit& visit) {
  for (const StmtPtr& stmt : body) {
    visit(*stmt);
    for (const Branch& branch : stmt->branches) for_each_stmt(branch.body, visit);
    for_each_stmt(stmt->body, visit);
    for_each_stmt(stmt->else_body, visit);
  }
}

template <typename Visit>
void for_each_expr(const Expr& expr, const Visit& visit) {
  visit(expr);
  for (const ExprPtr& child : expr.children) {
    if (child != nullptr) for_each_expr(*child, visit);
  }
  if (expr.call == nullptr) return;
  for (const ExprPtr& arg : expr.call->positional) for_each_expr(*arg, visit);
  for (const auto& [name, arg] : expr.call->named) for_each_expr(*arg, visit);
}

template <typename Visit>
void for_each_expr(const Body& body, const Visit& visit) {
  for_each_stmt(body, [&visit](const Stmt& stmt) {
    for (const ExprPtr* expr : {&stmt.expr, &stmt.test}) {
      if (*expr != nullptr) for_each_expr(**expr, visit);
    }
    for (const ExprPtr& value : stmt.values) {
      if (value != nullptr) for_each_expr(*value, visit);
    }
    for (const Branch& branch : stmt.branches) {
      if (branch.test != nullptr) for_each_expr(*branch.test, visit);
    }
  });
}

// The value without filters and slices: x in `x | list`, x[1:].
const Expr& bare(const Expr& expr) {
  const bool wrapped = expr.kind == ExprKind::kFilter || expr.kind == ExprKind::kSlice;
  return wrapped && expr.children[0] != nullptr ? bare(*expr.children[0]) : expr;
}

bool is_variable(const Expr& expr, const std::set<std::string>& names) {
  const Expr& value = bare(expr);
  return value.kind == ExprKind::kName && names.contains(value.text);
}

bool is_text(const Expr& expr, std::string_view text) {
  return expr.kind == ExprKind::kConst && expr.value.is_string() && expr.value.text() == text;
}

// The message of message.content, message['content'] or message.get('content'); null for anything else.
const Expr* content_owner(const Expr& expr) {
  const Expr& value = bare(expr);
  if (value.kind == ExprKind::kGetattr) return value.text == "content" ? value.children[0].get() : nullptr;
  if (value.kind == ExprKind::kGetitem)
    return is_text(*value.children[1], "content") ? value.children[0].get() : nullptr;
  if (value.kind != ExprKind::kCall || value.call->positional.empty()) return nullptr;
  const Expr& method = *value.children[0];
  const bool is_get =
      method.kind == ExprKind::kGetattr && method.text == "get" && is_text(*value.call->positional[0], "content");
  return is_get ? method.children[0].get() : nullptr;
}

// The variables to which something is assigned for which `matches` holds, those assigned from them included.
template <typename Matches>
std::set<std::string> find_aliases(const Body& body, std::set<std::string> names, const Matches& matches) {
  for (size_t before = names.size() + 1; before != names.size();) {
    before = names.size();
    for_each_stmt(body, [&](const Stmt& stmt) {
      if (stmt.kind != StmtKind::kSet || stmt.target->kind != ExprKind::kName) return;
      if (is_variable(*stmt.expr, names) || matches(*stmt.expr)) names.insert(stmt.target->text);
    });
  }
  return names;
}

// The parameters of macros that are given a value for which `matches` holds.
template <typename Matches>
void add_macro_parameters(const Body& body, std::set<std::string>& names, const Matches& matches) {
  std::map<std::string, const Stmt*> macros;
  for_each_stmt(body, [&macros](const Stmt& stmt) {
    if (stmt.kind == StmtKind::kMacro) macros[stmt.name] = &stmt;
  });
  for_each_expr(body, [&](const Expr& call) {
    if (call.kind != ExprKind::kCall || call.children[0]->kind != ExprKind::kName) return;
    const auto macro = macros.find(call.children[0]->text);
    if (macro == macros.end()) return;
    const auto& parameters = macro->second->targets;
    for (size_t i = 0; i < call.call->positional.size() && i < parameters.size(); ++i) {
      if (matches(*call.call->positional[i])) names.insert(parameters[i]->text);
    }
  });
}

// Aliases by assignment and by macro parameter, until there are no more.
template <typename Matches>
std::set<std::string> find_all_aliases(const Body& body, std::set<std::string> names, const Matches& matches) {
  for (size_t before = names.size() + 1; before != names.size();) {
    before = names.size();
    names = find_aliases(body, std::move(names), matches);
    add_macro_parameters(body, names, [&](const Expr& expr) { return is_variable(expr, names) || matches(expr); });
  }
  return names;
}

// Does the body of a loop read its item as a part of a content?
bool reads_parts(const Stmt& loop) {
  bool found = false;
  for_each_expr(loop.body, [&found](const Expr& expr) {
    const bool key = expr.kind == ExprKind::kGetattr && (expr.text == "text" || expr.text == "type");
    found = found || key || is_text(expr, "text") || is_text(expr, "type");
  });
  return found;
}

bool reads_content_parts(const Body& body) {
  const auto nothing = [](const Expr&) { return false; };
  const std::set<std::string> lists = find_all_aliases(body, {"messages"}, nothing);
  std::set<std::string> messages;
  for_each_stmt(body, [&](const Stmt& stmt) {
    if (stmt.kind == StmtKind::kFor && stmt.target->kind == ExprKind::kName && is_variable(*stmt.expr, lists)) {
      messages.insert(stmt.target->text);
    }
  });
  messages = find_all_aliases(body, std::move(messages), nothing);
  const auto is_message_content = [&messages](const Expr& expr) {
    const Expr* owner = content_owner(expr);
    return owner != nullptr && is_variable(*owner, messages);
  };
  const std::set<std::string> contents = find_all_aliases(body, {}, is_message_content);
  bool found = false;
  for_each_stmt(body, [&](const Stmt& stmt) {
    if (stmt.kind != StmtKind::kFor) return;
    found = found || is_message_content(*stmt.expr) || (is_variable(*stmt.expr, contents) && reads_parts(stmt));
  });
  return found;
}

bool reads_null_content(const Body& body) {
  const auto is_content = [](const Expr& expr) { return content_owner(expr) != nullptr; };
  const std::set<std::string> contents = find_aliases(body, {}, is_content);
  bool found = false;
  for_each_expr(body, [&](const Expr& expr) {
    if (expr.kind != ExprKind::kTest || expr.text != "none") return;
    found = found || is_content(*expr.children[0]) || is_variable(*expr.children[0], contents);
  });
  return found;
}

}  // namespace

ChatTemplateCaps find_caps(const jinja::Template& parsed) {
  ChatTemplateCaps caps;
  caps.reads_content_parts = reads_content_parts(parsed.body());
  caps.reads_null_content = reads_null_content(parsed.body());
  caps.reads_tools = parsed.mentions("tools");
  caps.reads_documents = parsed.mentions("documents");
  caps.reads_enable_thinking = parsed.mentions("enable_thinking") || parsed.mentions("thinking");
  caps.reads_reasoning_content = parsed.mentions("reasoning_content");
  return caps;
}

}  // namespace spate
