// Attributes and methods of the values a template meets, other than those of texts (string_methods.cpp).
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"

namespace spate::jinja {
namespace {

struct Method {
  std::string_view name;
  MethodBody body;
};

template <size_t N>
MethodBody find_in(const Method (&table)[N], std::string_view name) {
  for (const Method& method : table) {
    if (method.name == name) return method.body;
  }
  return nullptr;
}

template <size_t N>
bool is_one_of(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Value unsafe(const Value& object, std::string_view name) {
  return Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)));
}

// --- dict

Value make_view(const Value& dict, DictPart part) {
  auto view = std::make_shared<DictViewObject>();
  view->depth = dict.depth() + 1;
  view->dict = dict;
  view->part = part;
  return Value(Kind::kDictView, std::move(view));
}
Value dict_keys(Runtime&, const Value& self, const Args& args) {
  const Bound bound("keys", args, {}, 0);
  return make_view(self, DictPart::kKeys);
}
Value dict_values(Runtime&, const Value& self, const Args& args) {
  const Bound bound("values", args, {}, 0);
  return make_view(self, DictPart::kValues);
}
Value dict_items(Runtime&, const Value& self, const Args& args) {
  const Bound bound("items", args, {}, 0);
  return make_view(self, DictPart::kItems);
}
Value dict_get(Runtime&, const Value& self, const Args& args) {
  const Bound bound("get", args, {"/key", "/default"}, 1);
  const Value* value = self.as_dict().find(bound[0]);
  if (value != nullptr) return *value;
  return bound.has(1) ? bound[1] : Value::none();
}
Value dict_copy(Runtime&, const Value& self, const Args& args) {
  const Bound bound("copy", args, {}, 0);
  return self;  // neither can change
}
Value dict_fromkeys(Runtime&, const Value&, const Args& args) {
  const Bound bound("fromkeys", args, {"/iterable", "/value"}, 1);
  DictBuilder dict;
  for (const Value& key : collect(bound[0])) dict.set(key, bound.has(1) ? bound[1] : Value::none());
  return dict.finish();
}

constexpr Method kDictMethods[] = {{"items", dict_items}, {"keys", dict_keys}, {"values", dict_values},
                                   {"get", dict_get},     {"copy", dict_copy}, {"fromkeys", dict_fromkeys}};
constexpr std::string_view kDictChangers[] = {"clear", "pop", "popitem", "setdefault", "update"};

// --- list and tuple

Value list_index(Runtime&, const Value& self, const Args& args) {
  const Bound bound("index", args, {"/value", "/start", "/stop"}, 1);
  const std::vector<Value>& items = self.items();
  const auto size = static_cast<int64_t>(items.size());
  const auto clamp = [size](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  for (int64_t i = clamp(bound.integer(1, 0)); i < clamp(bound.integer(2, size)); ++i) {
    if (equal(items[static_cast<size_t>(i)], bound[0])) return Value::integer(i);
  }
  fail("{} is not in list", repr(bound[0]));
}
Value list_count(Runtime&, const Value& self, const Args& args) {
  const Bound bound("count", args, {"/value"}, 1);
  return Value::integer(
      std::count_if(self.items().begin(), self.items().end(), [&](const Value& v) { return equal(v, bound[0]); }));
}
Value list_copy(Runtime&, const Value& self, const Args& args) {
  const Bound bound("copy", args, {}, 0);
  return self;
}

constexpr Method kListMethods[] = {{"index", list_index}, {"count", list_count}};
constexpr std::string_view kListChangers[] = {"append", "clear", "pop",    "reverse",
                                              "insert", "sort",  "extend", "remove"};

// --- numbers

Value number_conjugate(Runtime&, const Value& self, const Args& args) {
  const Bound bound("conjugate", args, {}, 0);
  return plus(self);
}
Value int_bit_length(Runtime&, const Value& self, const Args& args) {
  const Bound bound("bit_length", args, {}, 0);
  const auto value = static_cast<uint64_t>(self.as_int());
  return Value::integer(64 - std::countl_zero(self.as_int() < 0 ? 0 - value : value));
}
Value int_bit_count(Runtime&, const Value& self, const Args& args) {
  const Bound bound("bit_count", args, {}, 0);
  const auto value = static_cast<uint64_t>(self.as_int());
  return Value::integer(std::popcount(self.as_int() < 0 ? 0 - value : value));
}
Value float_is_integer(Runtime&, const Value& self, const Args& args) {
  const Bound bound("is_integer", args, {}, 0);
  return Value::boolean(std::isfinite(self.as_float()) && self.as_float() == std::floor(self.as_float()));
}

Value number_attribute(const Value& object, std::string_view name) {
  if (name == "real") return plus(object);
  if (name == "imag") return object.is(Kind::kFloat) ? Value::real(0) : Value::integer(0);
  if (name == "conjugate") return make_method(object, number_conjugate);
  if (object.is(Kind::kFloat)) return name == "is_integer" ? make_method(object, float_is_integer) : Value();
  if (name == "numerator") return plus(object);
  if (name == "denominator") return Value::integer(1);
  if (name == "bit_length") return make_method(object, int_bit_length);
  if (name == "bit_count") return make_method(object, int_bit_count);
  return Value();
}

// --- loop

Value loop_cycle(Runtime&, const Value& self, const Args& args) {
  if (!args.named.empty()) fail("cycle() takes no keyword arguments");
  if (args.positional.empty()) fail("no items for cycling given");
  const int64_t index = std::max<int64_t>(0, self.object<LoopObject>().index0);
  return args.positional[static_cast<size_t>(index) % args.positional.size()];
}
Value loop_changed(Runtime& runtime, const Value& self, const Args& args) {
  if (!args.named.empty()) fail("changed() takes no keyword arguments");
  auto& loop = self.object<LoopObject>();
  if (loop.last_changed.is_missing()) runtime.keep(self.shared());
  const Value now = Value::tuple(args.positional);
  if (!loop.last_changed.is_missing() && equal(loop.last_changed, now)) return Value::boolean(false);
  loop.last_changed = now;
  return Value::boolean(true);
}

Value loop_attribute(const Value& object, std::string_view name) {
  auto& loop = object.object<LoopObject>();
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(loop.peek().is_missing());
  if (name == "length") return Value::integer(loop.length());
  if (name == "revindex") return Value::integer(loop.length() - loop.index0);
  if (name == "revindex0") return Value::integer(loop.length() - loop.index0 - 1);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "previtem") {
    return loop.index0 <= 0 || loop.before.is_missing() ? Value::undefined("there is no previous item") : loop.before;
  }
  if (name == "nextitem") {
    const Value& next = loop.peek();
    return next.is_missing() ? Value::undefined("there is no next item") : next;
  }
  if (name == "cycle") return make_method(object, loop_cycle);
  if (name == "changed") return make_method(object, loop_changed);
  return Value();
}

// --- macro, cycler

Value macro_attribute(const Value& object, std::string_view name) {
  const Stmt& stmt = *object.object<MacroObject>().stmt;
  if (name == "name") return stmt.kind == StmtKind::kMacro ? Value::string(stmt.name) : Value::none();
  if (name == "arguments") {
    std::vector<Value> names;
    for (const ExprPtr& parameter : stmt.targets) names.push_back(Value::string(parameter->text));
    return Value::tuple(std::move(names));
  }
  if (name == "catch_kwargs") return Value::boolean(stmt.catches_kwargs);
  if (name == "catch_varargs") return Value::boolean(stmt.catches_varargs);
  if (name == "caller") return Value::boolean(stmt.catches_caller);
  return Value();
}

Value cycler_next(Runtime&, const Value& self, const Args& args) {
  const Bound bound("next", args, {}, 0);
  auto& cycler = self.object<CyclerObject>();
  const Value item = cycler.items[cycler.pos];
  cycler.pos = (cycler.pos + 1) % cycler.items.size();
  return item;
}
Value cycler_reset(Runtime&, const Value& self, const Args& args) {
  const Bound bound("reset", args, {}, 0);
  self.object<CyclerObject>().pos = 0;
  return Value::none();
}

Value cycler_attribute(const Value& object, std::string_view name) {
  const auto& cycler = object.object<CyclerObject>();
  if (name == "current") return cycler.items[cycler.pos];
  if (name == "pos") return Value::integer(static_cast<int64_t>(cycler.pos));
  if (name == "items") return Value::tuple(cycler.items);
  if (name == "next") return make_method(object, cycler_next);
  if (name == "reset") return make_method(object, cycler_reset);
  return Value();
}

Value method_or_missing(const Value& object, MethodBody body) {
  return body == nullptr ? Value() : make_method(object, body);
}

}  // namespace

Value find_attribute(const Value& object, std::string_view name) {
  static constexpr std::string_view kInternal[] = {"__class__", "__init__", "__len__",  "__getitem__", "__doc__",
                                                   "__eq__",    "__hash__", "__repr__", "__str__",     "__dict__"};
  if (name.starts_with("__") && object.kind() != Kind::kNamespace && is_one_of(kInternal, name))
    return unsafe(object, name);
  switch (object.kind()) {
    case Kind::kDict:
      if (is_one_of(kDictChangers, name)) return unsafe(object, name);
      return method_or_missing(object, find_in(kDictMethods, name));
    case Kind::kList:
      if (is_one_of(kListChangers, name)) return unsafe(object, name);
      if (name == "copy") return make_method(object, list_copy);
      return method_or_missing(object, find_in(kListMethods, name));
    case Kind::kTuple:
      if (object.object<ListObject>().group && name == "grouper") return object.items()[0];
      if (object.object<ListObject>().group && name == "list") return object.items()[1];
      return method_or_missing(object, find_in(kListMethods, name));
    case Kind::kString:
      return method_or_missing(object, find_string_method(name));
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return number_attribute(object, name);
    case Kind::kRange: {
      const auto& range = object.object<RangeObject>();
      if (name == "start") return Value::integer(range.start);
      if (name == "stop") return Value::integer(range.stop);
      if (name == "step") return Value::integer(range.step);
      return Value();
    }
    case Kind::kNamespace: {
      const Value* value = object.object<NamespaceObject>().attributes.find(name);
      if (value == nullptr) return Value();
      return name.starts_with("_") ? unsafe(object, name) : *value;
    }
    case Kind::kLoop:
      return loop_attribute(object, name);
    case Kind::kMacro:
      return macro_attribute(object, name);
    case Kind::kCycler:
      return cycler_attribute(object, name);
    case Kind::kJoiner: {
      const auto& joiner = object.object<JoinerObject>();
      if (name == "sep") return Value::string(joiner.separator);
      if (name == "used") return Value::boolean(joiner.used);
      return Value();
    }
    case Kind::kFunction:
      // `dict` is an object that can be called and has one method.
      if (name == "fromkeys" && std::string_view(object.object<FunctionObject>().name) == "dict") {
        return make_method(object, dict_fromkeys);
      }
      return Value();
    default:
      return Value();
  }
}

}  // namespace spate::jinja
