#include "text/jinja/scope.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace spate::jinja {
namespace {

// A variable: the function that holds it and its slot there.
struct Ident {
  int function = -1;
  int index = -1;
  bool operator==(const Ident&) const = default;
};

enum class LoadAction { kParameter, kResolve, kAlias, kUnset };

struct PendingLoad {
  Ident ident;
  LoadAction action;
  std::string name;
  Ident source;
};

// A function of the compiled template: the template itself, a macro, the body of a recursive for, a for's condition.
struct Function {
  int parent = -1;
  std::map<std::pair<int, std::string>, int> slots;  // by level and name
};

// jinja2.idtracking.Symbols.
struct Symbols {
  Symbols* parent = nullptr;
  int level = 0;
  int function = 0;
  std::map<std::string, Ident> refs;
  std::vector<PendingLoad> loads;
  std::set<std::string> stores;
};

struct Frame {
  Symbols* symbols = nullptr;
  bool top_level = false;
  bool conditional = false;  // inside an if: unknown filters are an error only when they run
  bool in_loop = false;
};

[[noreturn]] void fail_line(int line, const std::string& message) {
  Error error(message);
  error.line = line;
  throw error;
}

// --- every child of a node

template <typename Visit>
void for_each_child(Expr& expr, Visit visit) {
  for (ExprPtr& child : expr.children) {
    if (child != nullptr) visit(*child);
  }
  if (expr.call == nullptr) return;
  for (ExprPtr& arg : expr.call->positional) visit(*arg);
  for (auto& [name, arg] : expr.call->named) visit(*arg);
  if (expr.call->star != nullptr) visit(*expr.call->star);
  if (expr.call->star_star != nullptr) visit(*expr.call->star_star);
}

// Does a body read one of `names` before it assigns it? (jinja2's find_undeclared, which looks through everything
// but blocks, in order.)
class UndeclaredFinder {
 public:
  explicit UndeclaredFinder(std::set<std::string> names) : names_(std::move(names)) {}

  std::set<std::string> find(const Body& body) {
    visit(body);
    return found_;
  }

 private:
  void visit(const Body& body) {
    for (const StmtPtr& stmt : body) visit(*stmt);
  }
  void visit(Expr& expr) {
    if (expr.kind == ExprKind::kName && names_.contains(expr.text)) found_.insert(expr.text);
    for_each_child(expr, [this](Expr& child) { visit(child); });
  }
  void visit_target(Expr& target) {
    if (target.kind == ExprKind::kName) names_.erase(target.text);
    for (ExprPtr& child : target.children) visit_target(*child);
  }
  void visit(const Stmt& stmt) {
    if (stmt.kind == StmtKind::kBlock) return;
    const bool target_first = stmt.kind != StmtKind::kWith;
    if (stmt.kind == StmtKind::kCallBlock && stmt.expr != nullptr) visit(*stmt.expr);
    if (target_first && stmt.target != nullptr && stmt.kind != StmtKind::kMacro) visit_target(*stmt.target);
    for (const ExprPtr& target : stmt.targets) visit_target(*target);
    for (const ExprPtr& value : stmt.values) {
      if (value != nullptr) visit(*value);
    }
    if (stmt.expr != nullptr && stmt.kind != StmtKind::kCallBlock && stmt.kind != StmtKind::kFilterBlock)
      visit(*stmt.expr);
    for (const Branch& branch : stmt.branches) {
      if (branch.test != nullptr) visit(*branch.test);
      visit(branch.body);
    }
    visit(stmt.body);
    visit(stmt.else_body);
    if (stmt.test != nullptr) visit(*stmt.test);
    if (stmt.kind == StmtKind::kFilterBlock) visit(*stmt.expr);
  }

  std::set<std::string> names_, found_;
};

bool assigns_loop(const Expr& target) {
  if (target.kind == ExprKind::kName && target.text == "loop") return true;
  return std::any_of(target.children.begin(), target.children.end(),
                     [](const ExprPtr& child) { return assigns_loop(*child); });
}
bool assigns_loop(const Body& body);
bool assigns_loop(const Stmt& stmt) {
  if (stmt.kind == StmtKind::kFor || stmt.kind == StmtKind::kSet || stmt.kind == StmtKind::kSetBlock) {
    if (assigns_loop(*stmt.target)) return true;
  }
  if (assigns_loop(stmt.body) || assigns_loop(stmt.else_body)) return true;
  return std::any_of(stmt.branches.begin(), stmt.branches.end(),
                     [](const Branch& branch) { return assigns_loop(branch.body); });
}
bool assigns_loop(const Body& body) {
  return std::any_of(body.begin(), body.end(), [](const StmtPtr& stmt) { return assigns_loop(*stmt); });
}

class Resolver {
 public:
  RootScope run(Body& body) {
    functions_.emplace_back();
    Symbols* symbols = new_symbols(nullptr, 0);
    analyze(*symbols, body);
    visit(body, Frame{symbols, true, false, false});
    RootScope root;
    root.scope = finish_scope(*symbols);
    root.num_slots = num_slots(0);
    return root;
  }

 private:
  Symbols* new_symbols(Symbols* parent, int function) {
    pool_.push_back(std::make_unique<Symbols>());
    Symbols* symbols = pool_.back().get();
    symbols->parent = parent;
    symbols->level = parent == nullptr ? 0 : parent->level + 1;
    symbols->function = function;
    return symbols;
  }
  int new_function(int parent) {
    functions_.emplace_back();
    functions_.back().parent = parent;
    return static_cast<int>(functions_.size()) - 1;
  }
  int num_slots(int function) const { return static_cast<int>(functions_[static_cast<size_t>(function)].slots.size()); }

  // --- idtracking: what a scope loads

  Ident define(Symbols& symbols, const std::string& name, LoadAction action, const std::string& from, Ident source) {
    auto& slots = functions_[static_cast<size_t>(symbols.function)].slots;
    const auto [it, unused] = slots.try_emplace({symbols.level, name}, static_cast<int>(slots.size()));
    const Ident ident{symbols.function, it->second};
    symbols.refs[name] = ident;
    set_load(symbols, PendingLoad{ident, action, from, source});
    return ident;
  }
  static void set_load(Symbols& symbols, const PendingLoad& load) {
    charge_steps(static_cast<int64_t>(symbols.loads.size() / 16));
    for (PendingLoad& old : symbols.loads) {
      if (old.ident == load.ident) {
        old = load;
        return;
      }
    }
    symbols.loads.push_back(load);
  }
  static const Ident* find_ref(const Symbols* symbols, const std::string& name) {
    for (; symbols != nullptr; symbols = symbols->parent) {
      const auto it = symbols->refs.find(name);
      if (it != symbols->refs.end()) return &it->second;
    }
    return nullptr;
  }
  void load(Symbols& symbols, const std::string& name) {
    if (find_ref(&symbols, name) == nullptr) define(symbols, name, LoadAction::kResolve, name, {});
  }
  void store(Symbols& symbols, const std::string& name) {
    symbols.stores.insert(name);
    if (symbols.refs.contains(name)) return;
    if (const Ident* outer = find_ref(symbols.parent, name)) {
      define(symbols, name, LoadAction::kAlias, {}, *outer);
    } else {
      define(symbols, name, LoadAction::kUnset, {}, {});
    }
  }
  Ident declare_parameter(Symbols& symbols, const std::string& name) {
    symbols.stores.insert(name);
    return define(symbols, name, LoadAction::kParameter, {}, {});
  }
  void branch_update(Symbols& symbols, const std::vector<Symbols>& branches) {
    std::set<std::string> stores;
    for (const Symbols& branch : branches) stores.insert(branch.stores.begin(), branch.stores.end());
    for (const std::string& name : symbols.stores) stores.erase(name);
    for (const Symbols& branch : branches) {
      for (const auto& [name, ident] : branch.refs) symbols.refs[name] = ident;
      for (const PendingLoad& pending : branch.loads) set_load(symbols, pending);
      symbols.stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const std::string& name : stores) {
      const Ident target = *find_ref(&symbols, name);
      const Ident* outer = find_ref(symbols.parent, name);
      set_load(symbols, outer != nullptr ? PendingLoad{target, LoadAction::kAlias, {}, *outer}
                                         : PendingLoad{target, LoadAction::kResolve, name, {}});
    }
  }

  void analyze_expr(Symbols& symbols, Expr& expr) {
    if (expr.kind == ExprKind::kName) load(symbols, expr.text);
    for_each_child(expr, [&](Expr& child) { analyze_expr(symbols, child); });
  }
  void analyze_expr(Symbols& symbols, const ExprPtr& expr) {
    if (expr != nullptr) analyze_expr(symbols, *expr);
  }
  void analyze_target(Symbols& symbols, Expr& target, bool as_parameter) {
    if (target.kind == ExprKind::kName) {
      if (as_parameter) {
        declare_parameter(symbols, target.text);
      } else {
        store(symbols, target.text);
      }
    } else if (target.kind == ExprKind::kNsRef) {
      load(symbols, target.text);
    }
    for (ExprPtr& child : target.children) analyze_target(symbols, *child, as_parameter);
  }
  void analyze(Symbols& symbols, Body& body) {
    for (StmtPtr& stmt : body) analyze(symbols, *stmt);
  }
  // What a statement does to the scope that it stands in.
  void analyze(Symbols& symbols, Stmt& stmt) {
    switch (stmt.kind) {
      case StmtKind::kPrint:
      case StmtKind::kFor:
      case StmtKind::kCallBlock:
      case StmtKind::kFilterBlock:
        return analyze_expr(symbols, stmt.expr);
      case StmtKind::kIf:
        return analyze_if(symbols, stmt);
      case StmtKind::kSet:
        analyze_expr(symbols, stmt.expr);
        return analyze_target(symbols, *stmt.target, false);
      case StmtKind::kSetBlock:
        return analyze_target(symbols, *stmt.target, false);
      case StmtKind::kMacro:
        return store(symbols, stmt.name);
      case StmtKind::kWith:
        for (ExprPtr& value : stmt.values) analyze_expr(symbols, value);
        return;
      default:
        return;
    }
  }
  // Copies for branches make long chains of conditions quadratic: hostile ones run out of steps.
  static Symbols copy(const Symbols& symbols) {
    charge_steps(static_cast<int64_t>(symbols.refs.size() + symbols.loads.size()));
    return symbols;
  }
  void analyze_if(Symbols& symbols, Stmt& stmt) {
    analyze_expr(symbols, stmt.branches[0].test);
    Symbols body = copy(symbols);
    analyze(body, stmt.branches[0].body);
    Symbols elifs = copy(symbols);
    Symbols otherwise = copy(symbols);
    for (size_t i = 1; i < stmt.branches.size(); ++i) {
      Branch& branch = stmt.branches[i];
      if (branch.test == nullptr) {
        analyze(otherwise, branch.body);
        continue;
      }
      analyze_expr(elifs, branch.test);
      Symbols elif_body = copy(elifs);
      analyze(elif_body, branch.body);
      branch_update(elifs, {std::move(elif_body)});
    }
    branch_update(symbols, {std::move(body), std::move(elifs), std::move(otherwise)});
  }

  // --- second pass: slots of names, scopes of statements

  Slot slot_of(const Frame& frame, const Ident& ident) const {
    Slot slot{0, ident.index};
    for (int f = frame.symbols->function; f != ident.function; f = functions_[static_cast<size_t>(f)].parent)
      ++slot.hops;
    return slot;
  }

  Scope finish_scope(const Symbols& symbols) const {
    Scope scope;
    const Frame frame{const_cast<Symbols*>(&symbols)};
    for (const PendingLoad& pending : symbols.loads) {
      switch (pending.action) {
        case LoadAction::kParameter:
          break;
        case LoadAction::kResolve:
          scope.push_back(Load{Load::kFromContext, pending.ident.index, pending.name, {}});
          break;
        case LoadAction::kAlias:
          scope.push_back(Load{Load::kCopy, pending.ident.index, {}, slot_of(frame, pending.source)});
          break;
        case LoadAction::kUnset:
          scope.push_back(Load{Load::kUnset, pending.ident.index, {}, {}});
          break;
      }
    }
    return scope;
  }

  void resolve_name(Expr& expr, const Frame& frame) {
    load(*frame.symbols, expr.text);  // already there, but for the few names that the first pass does not visit
    expr.slot = slot_of(frame, *find_ref(frame.symbols, expr.text));
  }
  void visit(Expr& expr, Frame frame) {
    if (expr.kind == ExprKind::kName) resolve_name(expr, frame);
    if (expr.kind == ExprKind::kFilter && expr.filter == nullptr && !frame.conditional) {
      fail_line(expr.line, fmt::format("No filter named '{}'.", expr.text));
    }
    if (expr.kind == ExprKind::kTest && expr.test == nullptr && !frame.conditional) {
      fail_line(expr.line, fmt::format("No test named '{}'.", expr.text));
    }
    if (expr.kind == ExprKind::kCondition) frame.conditional = true;
    for_each_child(expr, [&](Expr& child) { visit(child, frame); });
  }
  void visit(const ExprPtr& expr, const Frame& frame) {
    if (expr != nullptr) visit(*expr, frame);
  }
  void visit_target(Expr& target, const Frame& frame) {
    if (target.kind == ExprKind::kName || target.kind == ExprKind::kNsRef) resolve_name(target, frame);
    for (ExprPtr& child : target.children) visit_target(*child, frame);
  }

  void visit(Body& body, const Frame& frame) {
    for (StmtPtr& stmt : body) visit(*stmt, frame);
  }
  void visit(Stmt& stmt, const Frame& frame) {
    switch (stmt.kind) {
      case StmtKind::kText:
        return;
      case StmtKind::kPrint:
        return visit(stmt.expr, frame);
      case StmtKind::kIf: {
        Frame inner = frame;
        inner.conditional = true;
        for (Branch& branch : stmt.branches) {
          visit(branch.test, inner);
          visit(branch.body, inner);
        }
        return;
      }
      case StmtKind::kFor:
        return visit_for(stmt, frame);
      case StmtKind::kSet:
        stmt.at_top_level = frame.top_level;
        visit_target(*stmt.target, frame);
        return visit(stmt.expr, frame);
      case StmtKind::kSetBlock: {
        stmt.at_top_level = frame.top_level;
        Frame inner = inner_frame(frame);
        analyze(*inner.symbols, stmt.body);
        analyze_expr(*inner.symbols, stmt.expr);
        visit(stmt.body, inner);
        visit_target(*stmt.target, frame);
        visit(stmt.expr, inner);
        stmt.scope = finish_scope(*inner.symbols);
        return;
      }
      case StmtKind::kMacro:
        stmt.at_top_level = frame.top_level;
        visit_target(*stmt.target, frame);
        return visit_macro(stmt, frame);
      case StmtKind::kCallBlock:
        visit_macro(stmt, frame);
        return visit(stmt.expr, frame);
      case StmtKind::kGeneration:
        return visit_macro(stmt, frame);
      case StmtKind::kFilterBlock: {
        Frame inner = inner_frame(frame);
        analyze(*inner.symbols, stmt.body);
        analyze_expr(*inner.symbols, stmt.expr);
        visit(stmt.body, inner);
        visit(stmt.expr, inner);
        stmt.scope = finish_scope(*inner.symbols);
        return;
      }
      case StmtKind::kWith: {
        Frame inner = inner_frame(frame);
        for (ExprPtr& target : stmt.targets) analyze_target(*inner.symbols, *target, true);
        analyze(*inner.symbols, stmt.body);
        for (ExprPtr& target : stmt.targets) visit_target(*target, inner);
        for (ExprPtr& value : stmt.values) visit(value, frame);
        visit(stmt.body, inner);
        stmt.scope = finish_scope(*inner.symbols);
        return;
      }
      case StmtKind::kBlock:
        return visit_block(stmt);
      case StmtKind::kBreak:
      case StmtKind::kContinue:
        if (!frame.in_loop)
          fail_line(stmt.line, stmt.kind == StmtKind::kBreak ? "'break' outside loop" : "'continue' not in loop");
        return;
    }
  }

  Frame inner_frame(const Frame& frame) {
    Frame inner;
    inner.symbols = new_symbols(frame.symbols, frame.symbols->function);
    inner.in_loop = frame.in_loop;
    return inner;
  }

  void visit_for(Stmt& stmt, const Frame& frame) {
    stmt.needs_loop = stmt.recursive || !UndeclaredFinder({"loop"}).find(stmt.body).empty();
    if (assigns_loop(stmt)) fail_line(stmt.line, "Can't assign to special loop variable in for-loop target");

    const int outer_function = frame.symbols->function;
    Frame body_frame;
    body_frame.in_loop = true;
    body_frame.symbols = new_symbols(frame.symbols, stmt.recursive ? new_function(outer_function) : outer_function);
    if (stmt.needs_loop) stmt.loop_index = declare_parameter(*body_frame.symbols, "loop").index;
    analyze_target(*body_frame.symbols, *stmt.target, true);
    analyze(*body_frame.symbols, stmt.body);

    Frame else_frame;
    else_frame.in_loop = frame.in_loop && !stmt.recursive;
    else_frame.symbols = new_symbols(frame.symbols, body_frame.symbols->function);
    analyze(*else_frame.symbols, stmt.else_body);

    if (stmt.test != nullptr) {
      Frame test_frame;
      test_frame.symbols = new_symbols(frame.symbols, new_function(outer_function));
      analyze_target(*test_frame.symbols, *stmt.test_target, true);
      analyze_expr(*test_frame.symbols, stmt.test);
      visit_target(*stmt.test_target, test_frame);
      visit(stmt.test, test_frame);
      stmt.test_scope = finish_scope(*test_frame.symbols);
      stmt.num_test_slots = num_slots(test_frame.symbols->function);
    }
    visit_target(*stmt.target, body_frame);
    visit(stmt.expr, frame);
    visit(stmt.body, body_frame);
    visit(stmt.else_body, else_frame);
    stmt.scope = finish_scope(*body_frame.symbols);
    stmt.else_scope = finish_scope(*else_frame.symbols);
    if (stmt.recursive) stmt.num_slots = num_slots(body_frame.symbols->function);
  }

  // A macro, a call block or a generation block: a function.
  void visit_macro(Stmt& stmt, const Frame& frame) {
    Frame inner;
    inner.symbols = new_symbols(frame.symbols, new_function(frame.symbols->function));
    Symbols& symbols = *inner.symbols;
    for (ExprPtr& target : stmt.targets) analyze_target(symbols, *target, true);
    for (ExprPtr& value : stmt.values) analyze_expr(symbols, value);
    analyze(symbols, stmt.body);

    bool named_caller = false, named_kwargs = false, named_varargs = false;
    for (size_t i = 0; i < stmt.targets.size(); ++i) {
      if (stmt.targets[i]->text == "caller") {
        named_caller = true;
        stmt.caller_index = static_cast<int>(i);
      }
      named_kwargs = named_kwargs || stmt.targets[i]->text == "kwargs";
      named_varargs = named_varargs || stmt.targets[i]->text == "varargs";
    }
    const std::set<std::string> used = UndeclaredFinder({"caller", "kwargs", "varargs"}).find(stmt.body);
    if (used.contains("caller")) {
      stmt.catches_caller = true;
      if (!named_caller) {
        stmt.caller_index = declare_parameter(symbols, "caller").index;
      } else if (stmt.values[static_cast<size_t>(stmt.caller_index)] == nullptr) {
        fail_line(stmt.line,
                  "When defining macros or call blocks the special \"caller\" argument must be omitted or be given a "
                  "default.");
      }
    }
    if (named_caller) stmt.caller_index = -1;  // an ordinary parameter then
    if (used.contains("kwargs") && !named_kwargs) {
      stmt.catches_kwargs = true;
      stmt.kwargs_index = declare_parameter(symbols, "kwargs").index;
    }
    if (used.contains("varargs") && !named_varargs) {
      stmt.catches_varargs = true;
      stmt.varargs_index = declare_parameter(symbols, "varargs").index;
    }
    for (ExprPtr& target : stmt.targets) visit_target(*target, inner);
    for (ExprPtr& value : stmt.values) visit(value, inner);
    visit(stmt.body, inner);
    stmt.scope = finish_scope(symbols);
    stmt.num_slots = num_slots(symbols.function);
  }

  // A block sees what render() was given and what the top level has set, not the scope around it.
  void visit_block(Stmt& stmt) {
    if (!block_names_.insert(stmt.name).second)
      fail_line(stmt.line, fmt::format("block '{}' defined twice", stmt.name));
    Frame inner;
    inner.symbols = new_symbols(nullptr, new_function(-1));
    analyze(*inner.symbols, stmt.body);
    visit(stmt.body, inner);
    stmt.scope = finish_scope(*inner.symbols);
    stmt.num_slots = num_slots(inner.symbols->function);
  }

  std::vector<Function> functions_;
  std::vector<std::unique_ptr<Symbols>> pool_;
  std::set<std::string> block_names_;
};

}  // namespace

RootScope resolve_names(Body& body) { return Resolver().run(body); }

}  // namespace spate::jinja
