#include "text/jinja/callable.h"

#include <algorithm>

#include "text/jinja/ast.h"

namespace spate::jinja {

Bound::Bound(std::string_view function, const Args& args, std::initializer_list<const char*> parameters,
             size_t num_required)
    : function_(function), parameters_(parameters), values_(parameters.size()) {
  if (args.positional.size() > parameters_.size()) {
    fail("{}() takes at most {} arguments ({} given)", function, parameters_.size(), args.positional.size());
  }
  std::copy(args.positional.begin(), args.positional.end(), values_.begin());
  for (const auto& [name, value] : args.named) {
    const auto it = std::find_if(parameters_.begin(), parameters_.end(),
                                 [&key = name](const char* parameter) { return key == parameter; });
    if (it == parameters_.end()) fail("{}() got an unexpected keyword argument '{}'", function, name);
    Value& slot = values_[static_cast<size_t>(it - parameters_.begin())];
    if (!slot.is_missing()) fail("{}() got multiple values for argument '{}'", function, name);
    slot = value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (values_[i].is_missing()) {
      fail("{}() missing required argument '{}'", function,
           parameters_[i][0] == '/' ? parameters_[i] + 1 : parameters_[i]);
    }
  }
}

int64_t Bound::integer(size_t i, int64_t absent) const {
  if (!has(i)) return absent;
  if (!values_[i].is_integral()) {
    fail("{}(): '{}' object cannot be interpreted as an integer", function_, type_name(values_[i]));
  }
  return values_[i].as_int();
}

const std::string& Bound::text(size_t i) const {
  if (!values_[i].is_string()) fail("{}() argument must be str, not {}", function_, type_name(values_[i]));
  return values_[i].text();
}

Value make_method(const Value& self, MethodBody body) {
  auto method = std::make_shared<MethodObject>();
  method->charge(sizeof(MethodObject));
  if (self.depth() >= kMaxNesting) throw LimitError("the template's values are nested too deeply");
  method->depth = self.depth() + 1;
  method->self = self;
  method->body = body;
  return Value(Kind::kMethod, std::move(method));
}

bool same_method(const Value& a, const Value& b) {
  const auto& x = a.object<MethodObject>();
  const auto& y = b.object<MethodObject>();
  return x.body == y.body && x.self.same_object(y.self);
}

Activation::Activation(std::shared_ptr<Activation> outer, size_t num_slots)
    : parent(std::move(outer)), slots(num_slots) {
  charge_live_bytes(sizeof(Activation) + num_slots * sizeof(Value));
}

Activation::~Activation() { release_live_bytes(sizeof(Activation) + slots.size() * sizeof(Value)); }

std::string macro_repr_name(const Value& macro) {
  const Stmt* stmt = macro.object<MacroObject>().stmt;
  return stmt->kind == StmtKind::kMacro ? repr_string(stmt->name) : "anonymous";
}

int64_t LoopObject::length() {
  if (known_length >= 0) return known_length;
  if (iterator == nullptr) return index0 + 1;
  // A generator: it has to run to its end; what comes out is kept for the iterations to come.
  std::vector<Value> rest = collect(Value(Kind::kIterator, iterator));
  known_length = static_cast<int64_t>(rest.size()) + index0 + 1 + (after.is_missing() ? 0 : 1);
  iterator = iterate(Value::list(std::move(rest)));
  return known_length;
}

const Value& LoopObject::peek() {
  if (after.is_missing() && iterator != nullptr && !iterator->next(&after)) after = Value();
  return after;
}

bool LoopObject::advance(Value* item) {
  peek();
  if (after.is_missing()) return false;
  ++index0;
  before = std::move(current);
  current = std::move(after);
  after = Value();
  *item = current;
  return true;
}

void LoopObject::detach() {
  if (known_length < 0) known_length = index0 + 1;
  iterator = nullptr;
  closure = nullptr;
  recursive = nullptr;
  after = current = before = last_changed = Value();
}

}  // namespace spate::jinja
