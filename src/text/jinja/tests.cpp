// The tests of `is`.
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

void no_arguments(const Args& args) { const Bound bound("test", args, {}, 0); }

template <bool (*predicate)(const Value&)>
bool simple(Runtime&, const Value& value, const Args& args) {
  no_arguments(args);
  return predicate(value);
}

template <char op>
bool comparison(Runtime&, const Value& value, const Args& args) {
  const Bound bound("test", args, {"/other"}, 1);
  return compare(op, value, bound[0]);
}

bool remainder_is(const Value& value, int64_t divisor, int64_t remainder) {
  return equal(binary('%', value, Value::integer(divisor)), Value::integer(remainder));
}
bool is_odd(const Value& value) { return remainder_is(value, 2, 1); }
bool is_even(const Value& value) { return remainder_is(value, 2, 0); }
bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is(Kind::kBool); }
bool is_false(const Value& value) { return value.is(Kind::kBool) && !value.as_bool(); }
bool is_true(const Value& value) { return value.is(Kind::kBool) && value.as_bool(); }
bool is_integer(const Value& value) { return value.is(Kind::kInt); }
bool is_float(const Value& value) { return value.is(Kind::kFloat); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is(Kind::kDict); }
bool is_iterable(const Value& value) { return iterable(value) || value.is(Kind::kLoop); }
bool is_sequence(const Value& value) {
  return has_length(value) && !value.is(Kind::kDictView) && !value.is(Kind::kLoop);
}
bool is_callable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kFunction:
    case Kind::kMethod:
    case Kind::kMacro:
    case Kind::kLoop:
    case Kind::kJoiner:
      return true;
    default:
      return false;
  }
}
bool is_escaped(const Value& value) { return value.is_markup(); }

bool has_case(const Value& value, bool (*wanted)(char32_t), bool (*unwanted)(char32_t)) {
  const std::string text = to_text(value);
  bool found = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = utf8_next(text, pos);
    if (unwanted(c) || is_title(c)) return false;
    found = found || wanted(c);
  }
  return found;
}
bool test_lower(const Value& value) { return has_case(value, is_lower, is_upper); }
bool test_upper(const Value& value) { return has_case(value, is_upper, is_lower); }

bool test_divisibleby(Runtime&, const Value& value, const Args& args) {
  const Bound bound("divisibleby", args, {"num"}, 1);
  return equal(binary('%', value, bound[0]), Value::integer(0));
}
bool test_sameas(Runtime&, const Value& value, const Args& args) {
  const Bound bound("sameas", args, {"other"}, 1);
  return value.same_object(bound[0]);
}
bool test_in(Runtime&, const Value& value, const Args& args) {
  const Bound bound("in", args, {"seq"}, 1);
  return contains(bound[0], value);
}
bool test_filter(Runtime&, const Value& value, const Args& args) {
  no_arguments(args);
  if (!hashable(value)) fail("unhashable type: '{}'", type_name(value));
  return value.is_string() && find_filter(value.text()) != nullptr;
}
bool test_test(Runtime&, const Value& value, const Args& args) {
  no_arguments(args);
  if (!hashable(value)) fail("unhashable type: '{}'", type_name(value));
  return value.is_string() && find_test(value.text()) != nullptr;
}

constexpr Builtin<TestBody> kTests[] = {
    {"odd", simple<is_odd>},
    {"even", simple<is_even>},
    {"divisibleby", test_divisibleby},
    {"defined", simple<is_defined>},
    {"undefined", simple<is_undefined>},
    {"filter", test_filter},
    {"test", test_test},
    {"none", simple<is_none>},
    {"boolean", simple<is_boolean>},
    {"false", simple<is_false>},
    {"true", simple<is_true>},
    {"integer", simple<is_integer>},
    {"float", simple<is_float>},
    {"lower", simple<test_lower>},
    {"upper", simple<test_upper>},
    {"string", simple<is_string>},
    {"mapping", simple<is_mapping>},
    {"number", simple<is_number>},
    {"sequence", simple<is_sequence>},
    {"iterable", simple<is_iterable>},
    {"callable", simple<is_callable>},
    {"sameas", test_sameas},
    {"escaped", simple<is_escaped>},
    {"in", test_in},
    {"==", comparison<'='>},
    {"eq", comparison<'='>},
    {"equalto", comparison<'='>},
    {"!=", comparison<'!'>},
    {"ne", comparison<'!'>},
    {">", comparison<'>'>},
    {"gt", comparison<'>'>},
    {"greaterthan", comparison<'>'>},
    {"ge", comparison<'g'>},
    {">=", comparison<'g'>},
    {"<", comparison<'<'>},
    {"lt", comparison<'<'>},
    {"lessthan", comparison<'<'>},
    {"<=", comparison<'l'>},
    {"le", comparison<'l'>},
};

}  // namespace

TestBody find_test(std::string_view name) { return find_builtin(kTests, name); }

}  // namespace spate::jinja
