// Expressions of a render.
#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"

namespace spate::jinja {

Value Runtime::eval(const Expr& expr) {
  charge_steps(1);
  check_stack();
  try {
    return eval_node(expr);
  } catch (Error& error) {
    if (error.line == 0) error.line = expr.line;
    throw;
  }
}

Value Runtime::eval_node(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.value;
    case ExprKind::kNsRef:
    case ExprKind::kName:
      return eval_name(expr);
    case ExprKind::kTuple:
    case ExprKind::kList: {
      std::vector<Value> items;
      items.reserve(expr.children.size());
      for (const ExprPtr& child : expr.children) items.push_back(eval(*child));
      return expr.kind == ExprKind::kTuple ? Value::tuple(std::move(items)) : Value::list(std::move(items));
    }
    case ExprKind::kDict: {
      DictBuilder dict;
      for (size_t i = 0; i < expr.children.size(); i += 2) {
        const Value key = eval(*expr.children[i]);
        dict.set(key, eval(*expr.children[i + 1]));
      }
      return dict.finish();
    }
    case ExprKind::kSum:
    case ExprKind::kProduct:
    case ExprKind::kPower:
      return eval_chain(expr);
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value value;
      for (const ExprPtr& child : expr.children) {
        value = eval(*child);
        if (truthy(value) == (expr.kind == ExprKind::kOr)) break;
      }
      return value;
    }
    case ExprKind::kNot:
      return Value::boolean(!truthy(eval(*expr.children[0])));
    case ExprKind::kNegate:
      return negate(eval(*expr.children[0]));
    case ExprKind::kPlus:
      return plus(eval(*expr.children[0]));
    case ExprKind::kConcat: {
      TextBuilder text;
      for (const ExprPtr& child : expr.children) append_text(text, eval(*child));
      return Value::string(text.take());
    }
    case ExprKind::kCompare:
      return eval_compare(expr);
    case ExprKind::kCondition:
      if (truthy(eval(*expr.children[1]))) return eval(*expr.children[0]);
      if (expr.children[2] != nullptr) return eval(*expr.children[2]);
      return Value::undefined(fmt::format(
          "the inline if-expression on line {} evaluated to false and no else section was defined.", expr.line));
    case ExprKind::kGetattr:
      return get_attribute(eval(*expr.children[0]), expr.text);
    case ExprKind::kGetitem: {
      const Value object = eval(*expr.children[0]);
      return get_item(object, eval(*expr.children[1]));
    }
    case ExprKind::kSlice: {
      Value parts[4];
      for (size_t i = 0; i < 4; ++i) {
        if (expr.children[i] != nullptr) parts[i] = eval(*expr.children[i]);
      }
      return slice(parts[0], parts[1], parts[2], parts[3]);
    }
    case ExprKind::kCall:
      return eval_call(expr, nullptr);
    case ExprKind::kFilter:
      return eval_filter(expr, nullptr);
    case ExprKind::kTest:
      return Value::boolean(eval_test(expr));
  }
  return Value();
}

Value Runtime::eval_name(const Expr& expr) {
  const Value& value = slot(expr.slot);
  if (!value.is_missing()) return value;
  return Value::undefined(fmt::format("'{}' is undefined", expr.text));
}

Value Runtime::eval_chain(const Expr& expr) {
  Value value = eval(*expr.children[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) value = binary(expr.ops[i], value, eval(*expr.children[i + 1]));
  return value;
}

Value Runtime::eval_compare(const Expr& expr) {
  Value left = eval(*expr.children[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.children[i + 1]);
    if (!compare(expr.ops[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Args Runtime::eval_args(const CallArgs& call) {
  Args args;
  args.positional.reserve(call.positional.size());
  for (const ExprPtr& arg : call.positional) args.positional.push_back(eval(*arg));
  if (call.star != nullptr) {
    const Value more = eval(*call.star);
    if (!iterable(more)) fail("argument after * must be an iterable, not {}", type_name(more));
    for (Value& value : collect(more)) args.positional.push_back(std::move(value));
  }
  for (const auto& [name, arg] : call.named) args.named.emplace_back(name, eval(*arg));
  if (call.star_star != nullptr) {
    const Value more = eval(*call.star_star);
    if (!more.is(Kind::kDict)) fail("argument after ** must be a mapping, not {}", type_name(more));
    charge_steps(length(more) * static_cast<int64_t>(1 + args.named.size()));
    for (const auto& [key, value] : more.as_dict().entries) {
      if (!key.is_string()) fail("keywords must be strings");
      for (const auto& [given, unused] : args.named) {
        if (given == key.text()) fail("got multiple values for keyword argument '{}'", given);
      }
    }
    for (const auto& [key, value] : more.as_dict().entries) args.named.emplace_back(key.text(), value);
  }
  return args;
}

Value Runtime::eval_call(const Expr& expr, const Value* caller) {
  const Value callee = eval(*expr.children[0]);
  Args args = eval_args(*expr.call);
  if (caller != nullptr) {
    for (const auto& [name, unused] : args.named) {
      if (name == "caller") fail("got multiple values for keyword argument 'caller'");
    }
    args.named.emplace_back("caller", *caller);
  }
  return call(callee, args);
}

Value Runtime::eval_filter(const Expr& expr, const Value* block_text) {
  // The chain ends in an expression, or in nothing when the text of a block is meant.
  Value input;
  if (expr.children[0] == nullptr) {
    input = *block_text;
  } else if (block_text != nullptr && expr.children[0]->kind == ExprKind::kFilter) {
    input = eval_filter(*expr.children[0], block_text);
  } else {
    input = eval(*expr.children[0]);
  }
  if (expr.filter == nullptr) fail("No filter named '{}'.", expr.text);
  return expr.filter(*this, input, eval_args(*expr.call));
}

bool Runtime::eval_test(const Expr& expr) {
  const Value input = eval(*expr.children[0]);
  if (expr.test == nullptr) fail("No test named '{}'.", expr.text);
  return expr.test(*this, input, eval_args(*expr.call));
}

}  // namespace spate::jinja
