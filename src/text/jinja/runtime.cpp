#include "text/jinja/runtime.h"

#include <algorithm>

#include "text/jinja/builtins.h"

namespace spate::jinja {

class Runtime::Capture {
 public:
  explicit Capture(Runtime& runtime) : runtime_(runtime), outer_(runtime.out_) { runtime.out_ = &text_; }
  ~Capture() {
    runtime_.out_ = outer_;
    runtime_.num_buffered_bytes_ -= num_bytes_ + text_.size();
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  // The text so far. It is a value from here on and counted as one.
  Value take() {
    num_bytes_ += text_.size();
    std::string text = std::move(text_);
    text_.clear();
    return Value::string(std::move(text));
  }

 private:
  Runtime& runtime_;
  std::string* outer_;
  std::string text_;
  size_t num_bytes_ = 0;
};

Runtime::Runtime(const Body& body, const RootScope& root, const DictObject& context, const Clock& clock)
    : body_(body), root_(root), context_(context), clock_(clock) {}

Runtime::~Runtime() {
  // One at a time and from the oldest on: whatever an object holds is empty or still kept, so nothing recurses.
  for (const std::shared_ptr<Object>& object : kept_) {
    if (auto* ns = dynamic_cast<NamespaceObject*>(object.get())) {
      ns->attributes.clear();
    } else if (auto* loop = dynamic_cast<LoopObject*>(object.get())) {
      loop->detach();
    }
  }
  for (const std::shared_ptr<Activation>& activation : kept_activations_) {
    for (Value& value : activation->slots) value = Value();
  }
}

std::string Runtime::render() {
  std::string text;
  out_ = &text;
  activation_ = std::make_shared<Activation>(nullptr, static_cast<size_t>(root_.num_slots));
  kept_activations_.push_back(activation_);
  enter(root_.scope);
  run(body_);
  out_ = nullptr;
  return text;
}

// --- statements

Runtime::Flow Runtime::run(const Body& body) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = run(*stmt);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Runtime::Flow Runtime::run(const Stmt& stmt) {
  try {
    charge_steps(1);
    return run_statement(stmt);
  } catch (Error& error) {
    if (error.line == 0) error.line = stmt.line;
    throw;
  }
}

Runtime::Flow Runtime::run_statement(const Stmt& stmt) {
  switch (stmt.kind) {
    case StmtKind::kText:
      write(stmt.text);
      break;
    case StmtKind::kPrint: {
      const Value value = eval(*stmt.expr);
      if (value.is_string()) {
        write(value.text());
      } else {
        write(to_text(value));
      }
      break;
    }
    case StmtKind::kIf:
      return run_if(stmt);
    case StmtKind::kFor:
      return run_for(stmt);
    case StmtKind::kSet:
      assign(*stmt.target, eval(*stmt.expr), stmt.at_top_level);
      break;
    case StmtKind::kSetBlock:
      return run_set_block(stmt);
    case StmtKind::kMacro:
      define_macro(stmt);
      break;
    case StmtKind::kCallBlock:
      run_call_block(stmt);
      break;
    case StmtKind::kGeneration:
      write(call(make_macro(stmt), {}).text());
      break;
    case StmtKind::kFilterBlock:
      return run_filter_block(stmt);
    case StmtKind::kWith:
      return run_with(stmt);
    case StmtKind::kBlock:
      run_block(stmt);
      break;
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Runtime::Flow Runtime::run_if(const Stmt& stmt) {
  for (const Branch& branch : stmt.branches) {
    if (branch.test == nullptr || truthy(eval(*branch.test))) return run(branch.body);
  }
  return Flow::kNormal;
}

Runtime::Flow Runtime::run_for(const Stmt& stmt) {
  const Value items = eval(*stmt.expr);
  if (stmt.recursive) {
    write(run_recursive(stmt, items, 0, activation_).text());
    return Flow::kNormal;
  }
  return run_loop(stmt, items, 0, activation_);
}

// The items for which the condition of a for holds. It is asked when an item is due: a body may change the
// namespace that the condition reads.
Value Runtime::filtered(const Stmt& stmt, const Value& items) {
  const uint32_t depth = items.depth();
  return make_iterator(
      [this, &stmt, source = iterate(items), closure = activation_](Value* item) {
        while (source->next(item)) {
          charge_steps(1);
          const std::shared_ptr<Activation> outside = activation_;
          activation_ = std::make_shared<Activation>(closure, static_cast<size_t>(stmt.num_test_slots));
          bool keep_item = false;
          try {
            assign(*stmt.test_target, *item, false);
            enter(stmt.test_scope);
            keep_item = truthy(eval(*stmt.test));
          } catch (...) {
            activation_ = outside;
            throw;
          }
          activation_ = outside;
          if (!keep_item) continue;
          if (stmt.target->kind == ExprKind::kTuple) *item = Value::tuple(collect(*item));
          return true;
        }
        return false;
      },
      depth);
}

Runtime::Flow Runtime::run_loop(const Stmt& stmt, const Value& items, int64_t depth0,
                                const std::shared_ptr<Activation>& closure) {
  const Value source = stmt.test == nullptr ? items : filtered(stmt, items);
  std::shared_ptr<LoopObject> loop;
  std::shared_ptr<IteratorObject> iterator;
  if (stmt.needs_loop) {
    loop = std::make_shared<LoopObject>();
    loop->charge(sizeof(LoopObject));
    loop->iterator = iterate(source);
    loop->known_length = has_length(source) ? length(source) : -1;
    loop->depth0 = depth0;
    if (stmt.recursive) {
      loop->recursive = &stmt;
      loop->closure = closure;
    }
    activation_->slots[static_cast<size_t>(stmt.loop_index)] = Value(Kind::kLoop, loop);
  } else {
    iterator = iterate(source);
  }
  struct Detach {
    LoopObject* loop;
    ~Detach() {
      if (loop != nullptr) loop->detach();
    }
  } detach{loop.get()};

  bool completed_one = false;  // what jinja2's else asks for: a body that ran to its end
  Flow flow = Flow::kNormal;
  Value item;
  while (loop != nullptr ? loop->advance(&item) : iterator->next(&item)) {
    charge_steps(1);
    if (loop != nullptr) activation_->slots[static_cast<size_t>(stmt.loop_index)] = Value(Kind::kLoop, loop);
    assign(*stmt.target, item, false);
    enter(stmt.scope);
    flow = run(stmt.body);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) completed_one = true;
  }
  if (completed_one || stmt.else_body.empty()) return Flow::kNormal;
  enter(stmt.else_scope);
  return run(stmt.else_body);
}

Value Runtime::run_recursive(const Stmt& stmt, const Value& items, int64_t depth0,
                             const std::shared_ptr<Activation>& closure) {
  if (++num_open_calls_ > current_meter->limits.max_calls) throw LimitError("recursion is too deep");
  check_stack();
  const std::shared_ptr<Activation> outside = activation_;
  activation_ = std::make_shared<Activation>(closure, static_cast<size_t>(stmt.num_slots));
  struct Leave {
    Runtime& runtime;
    const std::shared_ptr<Activation>& outside;
    ~Leave() {
      if (runtime.activation_.use_count() > 1) runtime.kept_activations_.push_back(runtime.activation_);
      runtime.activation_ = outside;
      --runtime.num_open_calls_;
    }
  } leave{*this, outside};
  Capture capture(*this);
  run_loop(stmt, items, depth0, closure);
  return capture.take();
}

Runtime::Flow Runtime::run_set_block(const Stmt& stmt) {
  enter(stmt.scope);
  Capture capture(*this);
  const Flow flow = run(stmt.body);
  if (flow != Flow::kNormal) return flow;
  Value text = capture.take();
  if (stmt.expr != nullptr) text = eval_filter(*stmt.expr, &text);
  assign(*stmt.target, text, stmt.at_top_level);
  return Flow::kNormal;
}

Runtime::Flow Runtime::run_filter_block(const Stmt& stmt) {
  enter(stmt.scope);
  Value text;
  {
    Capture capture(*this);
    const Flow flow = run(stmt.body);
    if (flow != Flow::kNormal) return flow;
    text = capture.take();
  }
  write_text_value(eval_filter(*stmt.expr, &text));
  return Flow::kNormal;
}

Runtime::Flow Runtime::run_with(const Stmt& stmt) {
  enter(stmt.scope);
  for (size_t i = 0; i < stmt.targets.size(); ++i) assign(*stmt.targets[i], eval(*stmt.values[i]), false);
  return run(stmt.body);
}

void Runtime::run_call_block(const Stmt& stmt) {
  const Value caller = make_macro(stmt);
  write_text_value(eval_call(*stmt.expr, &caller));
}

void Runtime::run_block(const Stmt& stmt) {
  const std::shared_ptr<Activation> outside = activation_;
  activation_ = std::make_shared<Activation>(nullptr, static_cast<size_t>(stmt.num_slots));
  struct Leave {
    Runtime& runtime;
    const std::shared_ptr<Activation>& outside;
    ~Leave() {
      if (runtime.activation_.use_count() > 1) runtime.kept_activations_.push_back(runtime.activation_);
      runtime.activation_ = outside;
    }
  } leave{*this, outside};
  enter(stmt.scope);
  run(stmt.body);
}

// --- macros

Value Runtime::make_macro(const Stmt& stmt) {
  auto macro = std::make_shared<MacroObject>();
  macro->charge(sizeof(MacroObject));
  macro->stmt = &stmt;
  macro->closure = activation_;
  return Value(Kind::kMacro, std::move(macro));
}

void Runtime::define_macro(const Stmt& stmt) { assign(*stmt.target, make_macro(stmt), stmt.at_top_level); }

Value Runtime::call_macro(const MacroObject& macro, const Args& args) {
  const Stmt& stmt = *macro.stmt;
  if (++num_open_calls_ > current_meter->limits.max_calls) throw LimitError("recursion is too deep");
  check_stack();
  const std::shared_ptr<Activation> outside = activation_;
  activation_ = std::make_shared<Activation>(macro.closure, static_cast<size_t>(stmt.num_slots));
  struct Leave {
    Runtime& runtime;
    const std::shared_ptr<Activation>& outside;
    ~Leave() {
      if (runtime.activation_.use_count() > 1) runtime.kept_activations_.push_back(runtime.activation_);
      runtime.activation_ = outside;
      --runtime.num_open_calls_;
    }
  } leave{*this, outside};
  set_macro_arguments(stmt, args);
  Capture capture(*this);
  run(stmt.body);
  return capture.take();
}

void Runtime::set_macro_arguments(const Stmt& stmt, const Args& args) {
  const size_t num_parameters = stmt.targets.size();
  const std::string name = stmt.kind == StmtKind::kMacro ? repr_string(stmt.name) : "None";
  std::vector<Value> given(
      args.positional.begin(),
      args.positional.begin() + static_cast<long>(std::min(args.positional.size(), num_parameters)));
  given.resize(num_parameters);
  Value caller;
  DictBuilder rest;
  std::string unexpected;
  for (const auto& [key, value] : args.named) {
    const auto it =
        std::find_if(stmt.targets.begin(), stmt.targets.end(), [&k = key](const ExprPtr& p) { return p->text == k; });
    const auto i = static_cast<size_t>(it - stmt.targets.begin());
    if (i < num_parameters && i >= args.positional.size()) {
      given[i] = value;
    } else if (key == "caller" && stmt.catches_caller && stmt.caller_index >= 0) {
      caller = value;
    } else {
      if (unexpected.empty()) unexpected = key;
      rest.set(key, value);
    }
  }
  if (!stmt.catches_kwargs && !unexpected.empty()) fail("macro {} takes no keyword argument '{}'", name, unexpected);
  if (!stmt.catches_varargs && args.positional.size() > num_parameters) {
    fail("macro {} takes not more than {} argument(s)", name, num_parameters);
  }
  std::vector<Value>& slots = activation_->slots;
  if (stmt.caller_index >= 0) {
    slots[static_cast<size_t>(stmt.caller_index)] =
        caller.is_missing() || caller.is_none() ? Value::undefined("No caller defined") : caller;
  }
  if (stmt.catches_kwargs) slots[static_cast<size_t>(stmt.kwargs_index)] = rest.finish();
  if (stmt.catches_varargs) {
    std::vector<Value> more;
    for (size_t i = num_parameters; i < args.positional.size(); ++i) more.push_back(args.positional[i]);
    slots[static_cast<size_t>(stmt.varargs_index)] = Value::tuple(std::move(more));
  }
  for (size_t i = 0; i < num_parameters; ++i) slot(stmt.targets[i]->slot) = given[i];
  enter(stmt.scope);
  for (size_t i = 0; i < num_parameters; ++i) {
    Value& value = slot(stmt.targets[i]->slot);
    if (!value.is_missing()) continue;
    Value fallback = stmt.values[i] != nullptr
                         ? eval(*stmt.values[i])
                         : Value::undefined(fmt::format("parameter '{}' was not provided", stmt.targets[i]->text));
    slot(stmt.targets[i]->slot) = std::move(fallback);
  }
}

Value Runtime::call_loop(LoopObject& loop, const Args& args) {
  const Bound bound("loop", args, {"/iterable"}, 1);
  if (loop.recursive == nullptr) fail("The loop must have the 'recursive' marker to be called recursively.");
  return run_recursive(*loop.recursive, bound[0], loop.depth0 + 1, loop.closure);
}

Value Runtime::call(const Value& callee, const Args& args) {
  switch (callee.kind()) {
    case Kind::kFunction:
      return callee.object<FunctionObject>().body(*this, args);
    case Kind::kMethod: {
      const auto& method = callee.object<MethodObject>();
      return method.body(*this, method.self, args);
    }
    case Kind::kMacro:
      return call_macro(callee.object<MacroObject>(), args);
    case Kind::kLoop:
      return call_loop(callee.object<LoopObject>(), args);
    case Kind::kJoiner: {
      auto& joiner = callee.object<JoinerObject>();
      const Bound bound("joiner", args, {}, 0);
      if (joiner.used) return Value::string(joiner.separator);
      joiner.used = true;
      return Value::string("");
    }
    case Kind::kUndefined:
      fail("{}", callee.undefined_message());
    default:
      fail("'{}' object is not callable", type_name(callee));
  }
}

Value Runtime::call_filter(const std::string& name, const Value& input, const Args& args) {
  const FilterBody filter = find_filter(name);
  if (filter == nullptr) fail("No filter named '{}'.", name);
  return filter(*this, input, args);
}

bool Runtime::call_test(const std::string& name, const Value& input, const Args& args) {
  const TestBody test = find_test(name);
  if (test == nullptr) fail("No test named '{}'.", name);
  return test(*this, input, args);
}

// --- variables and output

Value& Runtime::slot(const Slot& place) {
  Activation* activation = activation_.get();
  for (int i = 0; i < place.hops; ++i) activation = activation->parent.get();
  return activation->slots[static_cast<size_t>(place.index)];
}

void Runtime::enter(const Scope& scope) {
  for (const Load& load : scope) {
    Value& target = activation_->slots[static_cast<size_t>(load.index)];
    switch (load.action) {
      case Load::kUnset:
        target = Value();
        break;
      case Load::kCopy:
        target = slot(load.source);
        break;
      case Load::kFromContext: {
        const Value* value = exported_.find(load.name);
        if (value == nullptr) value = context_.find(load.name);
        target = value != nullptr ? *value : find_global(load.name);
        break;
      }
    }
  }
}

void Runtime::assign(const Expr& target, const Value& value, bool at_top_level) {
  switch (target.kind) {
    case ExprKind::kName:
      slot(target.slot) = value;
      if (at_top_level) exported_.set(Value::string(target.text), value);
      return;
    case ExprKind::kNsRef: {
      const Value& ns = slot(target.slot);
      if (!ns.is(Kind::kNamespace)) fail("cannot assign attribute on non-namespace object");
      if (target.attribute[0] == '_') {
        fail("Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{}'.",
             target.attribute);
      }
      ns.object<NamespaceObject>().attributes.set(Value::string(target.attribute), value);
      return;
    }
    default:
      break;
  }
  if (!iterable(value)) fail("cannot unpack non-iterable {} object", type_name(value));
  const std::shared_ptr<IteratorObject> items = iterate(value);
  std::vector<Value> parts;
  Value item;
  while (parts.size() <= target.children.size() && items->next(&item)) parts.push_back(item);
  if (parts.size() > target.children.size()) fail("too many values to unpack (expected {})", target.children.size());
  if (parts.size() < target.children.size()) {
    fail("not enough values to unpack (expected {}, got {})", target.children.size(), parts.size());
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(*target.children[i], parts[i], at_top_level);
}

void Runtime::write(std::string_view text) {
  num_buffered_bytes_ += text.size();
  if (num_buffered_bytes_ > current_meter->limits.max_output_bytes) {
    throw LimitError(fmt::format("the rendered text is longer than {} bytes", current_meter->limits.max_output_bytes));
  }
  charge_bytes_copied(text.size());
  out_->append(text);
}

// What a filter or call block gives goes out as it is: jinja2 does not turn it into a text.
void Runtime::write_text_value(const Value& value) {
  if (!value.is_string()) fail("expected str instance, {} found", type_name(value));
  write(value.text());
}

}  // namespace spate::jinja
