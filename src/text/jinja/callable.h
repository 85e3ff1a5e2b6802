// What a template can call: built-in functions, bound methods, macros, a recursive loop, joiners; the arguments of a
// call; and the objects that live between calls (loop, cycler).
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace spate::jinja {

class Runtime;
struct Stmt;
struct Expr;

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments of a call brought into the order of the parameters, as Python does. A parameter name that begins with
// '/' can only be given by position. An absent argument is a missing Value.
class Bound {
 public:
  Bound(std::string_view function, const Args& args, std::initializer_list<const char*> parameters,
        size_t num_required);
  bool has(size_t i) const { return !values_[i].is_missing(); }
  const Value& operator[](size_t i) const { return values_[i]; }
  // With conversions; the error names function and parameter.
  int64_t integer(size_t i, int64_t absent) const;
  const std::string& text(size_t i) const;  // a string is needed
  bool flag(size_t i, bool absent) const { return has(i) ? truthy(values_[i]) : absent; }

 private:
  std::string_view function_;
  std::vector<const char*> parameters_;
  std::vector<Value> values_;
};

using FunctionBody = Value (*)(Runtime& runtime, const Args& args);
using MethodBody = Value (*)(Runtime& runtime, const Value& self, const Args& args);

struct FunctionObject : Object {
  const char* name = "";
  FunctionBody body = nullptr;
};

struct MethodObject : Object {
  Value self;
  MethodBody body = nullptr;
};
Value make_method(const Value& self, MethodBody body);
bool same_method(const Value& a, const Value& b);

// The variables of one call of a macro (or of the whole template); slots as scope.h numbers them.
struct Activation {
  Activation(std::shared_ptr<Activation> outer, size_t num_slots);
  ~Activation();
  Activation(const Activation&) = delete;
  Activation& operator=(const Activation&) = delete;

  std::shared_ptr<Activation> parent;  // of the code around the macro's definition
  std::vector<Value> slots;
};

struct MacroObject : Object {
  const Stmt* stmt = nullptr;
  std::shared_ptr<Activation> closure;
};
std::string macro_repr_name(const Value& macro);

// `loop` inside a for block.
struct LoopObject : Object {
  int64_t length();
  // The next item into *item; false at the end. Moves on to it.
  bool advance(Value* item);
  const Value& peek();  // missing at the end
  // After the loop: lets go of what is iterated and of the code around the loop.
  void detach();

  std::shared_ptr<IteratorObject> iterator;
  int64_t known_length = -1;
  int64_t index0 = -1;
  int64_t depth0 = 0;
  Value after, current, before;  // missing when not there
  Value last_changed;
  const Stmt* recursive = nullptr;      // set when the loop may be called
  std::shared_ptr<Activation> closure;  // of the code around a recursive loop
};

struct CyclerObject : Object {
  std::vector<Value> items;
  size_t pos = 0;
};

struct JoinerObject : Object {
  std::string separator;
  bool used = false;
};

}  // namespace spate::jinja
