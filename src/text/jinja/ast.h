// The parsed template. Immutable after Template::parse; shared by all renders.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/callable.h"
#include "text/jinja/value.h"

namespace spate::jinja {

enum class ExprKind : uint8_t {
  kConst,    // value
  kName,     // text; slot
  kNsRef,    // text.attribute as the target of a set; slot is the namespace's
  kTuple,    // children
  kList,     // children
  kDict,     // children: key, value, key, value ...
  kSum,      // children joined by ops '+' '-', from left to right
  kProduct,  // children joined by ops '*' '/' 'f' (//) '%'
  kPower,    // children joined by '**', from left to right as jinja2 does
  kAnd,
  kOr,  // children
  kNot,
  kNegate,
  kPlus,       // children[0]
  kConcat,     // children joined by ~
  kCompare,    // children joined by ops: '=' '!' '<' 'l' (<=) '>' 'g' (>=) 'i' (in) 'n' (not in)
  kCondition,  // children: value, condition, else (null when absent)
  kGetattr,    // children[0], text
  kGetitem,    // children: object, index
  kSlice,      // children: object, start, stop, step (null when absent)
  kCall,       // children[0], call
  kFilter,     // children[0] (null in a filter block: the text of the block), text, call, filter
  kTest,       // children[0], text, call, test
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, star_star;  // *args, **kwargs
};

// A variable: how many functions (macros, the template) outward, and its place there.
struct Slot {
  int hops = 0;
  int index = -1;
};

using FilterBody = Value (*)(Runtime& runtime, const Value& input, const Args& args);
using TestBody = bool (*)(Runtime& runtime, const Value& input, const Args& args);

struct Expr {
  Expr(ExprKind given, int at) : kind(given), line(at) {}

  ExprKind kind;
  int line;
  int depth = 1;  // nodes from here to the deepest leaf
  Slot slot;
  Value value;
  std::string text;
  std::string attribute;
  std::string ops;
  std::vector<ExprPtr> children;
  std::unique_ptr<CallArgs> call;
  FilterBody filter = nullptr;
  TestBody test = nullptr;
};

// What happens to a variable when a scope is entered (jinja2 decides this at compile time, see scope.h).
struct Load {
  enum Action : uint8_t {
    kFromContext,  // the value that render() was given under `name`
    kCopy,         // the value of an outer scope's variable
    kUnset,
  };
  Action action;
  int index;  // slot in the running function
  std::string name;
  Slot source;
};
using Scope = std::vector<Load>;

enum class StmtKind : uint8_t {
  kText,         // text
  kPrint,        // expr
  kIf,           // branches (the last may have no test)
  kFor,          // target, expr, test, body, else_body
  kSet,          // target, expr
  kSetBlock,     // target, expr (filter chain or null), body
  kMacro,        // name, parameters, defaults, body
  kCallBlock,    // expr (the call), parameters, defaults, body
  kGeneration,   // body
  kFilterBlock,  // expr (filter chain), body
  kWith,         // targets, values, body
  kBlock,        // name, body
  kBreak,
  kContinue,
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct Branch {
  ExprPtr test;  // null: else
  Body body;
};

struct Stmt {
  Stmt(StmtKind given, int at) : kind(given), line(at) {}

  StmtKind kind;
  int line;
  std::string text;  // of kText
  std::string name;  // of a macro or block
  ExprPtr target, expr, test;
  std::vector<ExprPtr> targets, values;  // of with; parameters and their defaults of a macro
  std::vector<Branch> branches;
  Body body, else_body;

  Scope scope;             // on entry of body (in a for: each iteration)
  Scope else_scope;        // of a for
  Scope test_scope;        // of a for's condition, which is a function of its own
  int num_slots = 0;       // of the function that this statement makes (macro, recursive for, block)
  int num_test_slots = 0;  // of the condition's function
  bool recursive = false;
  bool needs_loop = false;  // the body mentions `loop`
  int loop_index = -1;      // slot of `loop`
  ExprPtr test_target;      // the target once more, in the slots of the condition's function
  bool catches_kwargs = false, catches_varargs = false, catches_caller = false;  // used in a macro's body
  int kwargs_index = -1, varargs_index = -1, caller_index = -1;
  bool at_top_level = false;  // a set or macro whose name blocks can see
};

}  // namespace spate::jinja
