// Global functions: jinja2's range, dict, namespace, cycler, joiner, and the two that transformers adds.
#include <map>

#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"

namespace spate::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox

Value global_range(Runtime&, const Args& args) {
  const Bound bound("range", args, {"/start", "/stop", "/step"}, 1);
  auto range = std::make_shared<RangeObject>();
  range->start = bound.has(1) ? bound.integer(0, 0) : 0;
  range->stop = bound.has(1) ? bound.integer(1, 0) : bound.integer(0, 0);
  range->step = bound.integer(2, 1);
  if (range->step == 0) fail("range() arg 3 must not be zero");
  // Compared in floating point first: the number of items may not fit into 64 bits.
  const double span =
      (static_cast<double>(range->stop) - static_cast<double>(range->start)) / static_cast<double>(range->step);
  if (span > 1e15 || range->size() > kMaxRange) {
    fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange);
  }
  return Value(Kind::kRange, std::move(range));
}

// dict(mapping or pairs, **entries): the arguments of dict() and namespace().
void fill_dict(std::string_view function, const Args& args, DictObject& dict) {
  if (args.positional.size() > 1) fail("{}() takes at most 1 positional argument", function);
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is(Kind::kDict)) {
      for (const auto& [key, value] : source.as_dict().entries) dict.set(key, value);
    } else {
      for (const Value& pair : collect(source)) {
        const std::vector<Value> parts = collect(pair);
        if (parts.size() != 2) fail("dictionary update sequence element has length {}; 2 is required", parts.size());
        dict.set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) dict.set(Value::string(name), value);
}

Value global_dict(Runtime&, const Args& args) {
  auto dict = std::make_shared<DictObject>();
  fill_dict("dict", args, *dict);
  return Value(Kind::kDict, std::move(dict));
}

Value global_namespace(Runtime& runtime, const Args& args) {
  auto ns = std::make_shared<NamespaceObject>();
  ns->charge(sizeof(NamespaceObject));
  fill_dict("namespace", args, ns->attributes);
  for (const auto& [key, value] : ns->attributes.entries) {
    if (key.is_string() && key.text().starts_with("_")) {
      fail("Chat templates cannot store underscore-prefixed attributes on a namespace, but got {}.", repr(key));
    }
  }
  runtime.keep(ns);
  return Value(Kind::kNamespace, std::move(ns));
}

Value global_cycler(Runtime&, const Args& args) {
  if (args.positional.empty() || !args.named.empty()) fail("at least one item has to be provided");
  const Value items = Value::tuple(args.positional);
  auto cycler = std::make_shared<CyclerObject>();
  cycler->charge(sizeof(CyclerObject) + args.positional.size() * sizeof(Value));
  cycler->depth = items.depth();
  cycler->items = args.positional;
  return Value(Kind::kCycler, std::move(cycler));
}

Value global_joiner(Runtime&, const Args& args) {
  const Bound bound("joiner", args, {"sep"}, 0);
  auto joiner = std::make_shared<JoinerObject>();
  joiner->separator = bound.has(0) ? to_text(bound[0]) : ", ";
  joiner->charge(sizeof(JoinerObject) + joiner->separator.size());
  return Value(Kind::kJoiner, std::move(joiner));
}

Value global_raise_exception(Runtime&, const Args& args) {
  const Bound bound("raise_exception", args, {"message"}, 1);
  throw Error(to_text(bound[0]), true);
}

Value global_strftime_now(Runtime& runtime, const Args& args) {
  const Bound bound("strftime_now", args, {"format"}, 1);
  return Value::string(runtime.clock()(bound.text(0)));
}

Value make_function(const char* name, FunctionBody body) {
  auto function = std::make_shared<FunctionObject>();
  function->name = name;
  function->body = body;
  return Value(Kind::kFunction, std::move(function));
}

}  // namespace

Value find_global(const std::string& name) {
  static const std::map<std::string, Value, std::less<>> globals = [] {
    std::map<std::string, Value, std::less<>> made;
    const auto add = [&made](const char* n, FunctionBody body) { made.emplace(n, make_function(n, body)); };
    add("range", global_range);
    add("dict", global_dict);
    add("namespace", global_namespace);
    add("cycler", global_cycler);
    add("joiner", global_joiner);
    add("raise_exception", global_raise_exception);
    add("strftime_now", global_strftime_now);
    return made;
  }();
  const auto it = globals.find(name);
  return it == globals.end() ? Value() : it->second;
}

}  // namespace spate::jinja
