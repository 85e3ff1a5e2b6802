// Python's operators on values: arithmetic, comparison, membership, subscripts and slices.
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

[[noreturn]] void fail_operands(std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) fail("{}", a.undefined_message());
  if (b.is_undefined()) fail("{}", b.undefined_message());
  if (op == "+" && a.is_string()) fail("can only concatenate str (not \"{}\") to str", type_name(b));
  if (op == "+" && a.is(Kind::kList)) fail("can only concatenate list (not \"{}\") to list", type_name(b));
  fail("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b));
}

[[noreturn]] void fail_overflow() { fail("an integer does not fit into 64 bits"); }

Value repeat(const Value& sequence, int64_t count) {
  if (count < 0) count = 0;
  if (sequence.is_string()) {
    const std::string& text = sequence.text();
    if (!text.empty() && static_cast<uint64_t>(count) > max_string_bytes() / text.size()) {
      throw LimitError(fmt::format("repeating a text {} times makes it too long", count));
    }
    std::string out;
    out.reserve(text.size() * static_cast<size_t>(count));
    for (int64_t i = 0; i < count && !text.empty(); ++i) out += text;
    return Value::string(std::move(out), sequence.is_markup());
  }
  const std::vector<Value>& items = sequence.items();
  if (!items.empty() && static_cast<uint64_t>(count) > max_string_bytes() / sizeof(Value) / items.size()) {
    throw LimitError(fmt::format("repeating a list {} times makes it too long", count));
  }
  std::vector<Value> out;
  out.reserve(items.size() * static_cast<size_t>(count));
  charge_steps(static_cast<int64_t>(items.size()) * count / 8);
  for (int64_t i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
  return sequence.is(Kind::kList) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
}

Value add(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    int64_t result = 0;
    if (__builtin_add_overflow(a.as_int(), b.as_int(), &result)) fail_overflow();
    return Value::integer(result);
  }
  if (a.is_number() && b.is_number()) return Value::real(a.as_float() + b.as_float());
  if (a.is_string() && b.is_string()) {
    if (a.is_markup() != b.is_markup()) {
      // The safe side escapes the other one.
      return Value::string(escape_html(a).text() + escape_html(b).text(), true);
    }
    check_string_bytes(a.text().size() + b.text().size());
    std::string text;
    text.reserve(a.text().size() + b.text().size());
    text += a.text();
    text += b.text();
    return Value::string(std::move(text), a.is_markup());
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    charge_steps(static_cast<int64_t>((a.items().size() + b.items().size()) / 8));
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return a.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
  }
  fail_operands("+", a, b);
}

Value subtract(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    int64_t result = 0;
    if (__builtin_sub_overflow(a.as_int(), b.as_int(), &result)) fail_overflow();
    return Value::integer(result);
  }
  if (a.is_number() && b.is_number()) return Value::real(a.as_float() - b.as_float());
  fail_operands("-", a, b);
}

Value multiply(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    int64_t result = 0;
    if (__builtin_mul_overflow(a.as_int(), b.as_int(), &result)) fail_overflow();
    return Value::integer(result);
  }
  if (a.is_number() && b.is_number()) return Value::real(a.as_float() * b.as_float());
  if ((a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(a, b.as_int());
  if ((b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(b, a.as_int());
  fail_operands("*", a, b);
}

Value divide(const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) fail_operands("/", a, b);
  if (b.as_float() == 0) fail("division by zero");
  if (a.is_integral() && b.is_integral()) {
    // The quotient rounded once: long double holds both exactly and has 11 bits to spare.
    return Value::real(
        static_cast<double>(static_cast<long double>(a.as_int()) / static_cast<long double>(b.as_int())));
  }
  return Value::real(a.as_float() / b.as_float());
}

double float_mod(double a, double b) {
  double mod = std::fmod(a, b);
  if (mod != 0) {
    if ((b < 0) != (mod < 0)) mod += b;
  } else {
    mod = std::copysign(0.0, b);
  }
  return mod;
}

Value floor_divide(const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) fail_operands("//", a, b);
  if (b.as_float() == 0) fail("integer division or modulo by zero");
  if (a.is_integral() && b.is_integral()) {
    const int64_t x = a.as_int(), y = b.as_int();
    if (y == -1) return negate(Value::integer(x));
    const int64_t quotient = x / y;
    return Value::integer(x % y != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient);
  }
  const double x = a.as_float(), y = b.as_float();
  const double quotient = (x - float_mod(x, y)) / y;
  if (quotient == 0) return Value::real(std::copysign(0.0, x / y));
  const double floored = std::floor(quotient);
  return Value::real(quotient - floored > 0.5 ? floored + 1 : floored);
}

Value modulo(const Value& a, const Value& b) {
  if (a.is_string()) return format_percent(a, b);
  if (!a.is_number() || !b.is_number()) fail_operands("%", a, b);
  if (b.as_float() == 0) fail("integer modulo by zero");
  if (a.is_integral() && b.is_integral()) {
    const int64_t x = a.as_int(), y = b.as_int();
    if (y == -1) return Value::integer(0);
    const int64_t mod = x % y;
    return Value::integer(mod != 0 && (mod < 0) != (y < 0) ? mod + y : mod);
  }
  return Value::real(float_mod(a.as_float(), b.as_float()));
}

Value power(const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) fail_operands("**", a, b);
  if (a.is_integral() && b.is_integral() && b.as_int() >= 0) {
    int64_t result = 1, base = a.as_int();
    for (int64_t exponent = b.as_int(); exponent > 0; exponent >>= 1) {
      if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
      if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
    }
    return Value::integer(result);
  }
  const double base = a.as_float(), exponent = b.as_float();
  if (base == 0 && exponent < 0) fail("0.0 cannot be raised to a negative power");
  if (base < 0 && std::isfinite(base) && std::isfinite(exponent) && exponent != std::floor(exponent)) {
    fail("complex numbers are not supported");
  }
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) fail("Numerical result out of range");
  return Value::real(result);
}

// start, stop, step of a slice as Python's slice.indices() gives them.
struct SliceRange {
  int64_t start, stop, step;
  int64_t size() const {
    if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
    return start > stop ? (start - stop - 1) / -step + 1 : 0;
  }
};

int64_t slice_index(const Value& value) {
  if (value.is_integral()) return value.as_int();
  fail("slice indices must be integers or None or have an __index__ method");
}

SliceRange slice_range(const Value& start, const Value& stop, const Value& step, int64_t size) {
  const auto given = [](const Value& v) { return !v.is_missing() && !v.is_none(); };
  SliceRange range{};
  range.step = given(step) ? slice_index(step) : 1;
  if (range.step == 0) fail("slice step cannot be zero");
  if (range.step < -INT64_MAX) range.step = -INT64_MAX;
  const bool backward = range.step < 0;
  const auto clamp = [&](int64_t index) {
    if (index < 0) {
      index += size;
      return index < 0 ? (backward ? int64_t{-1} : int64_t{0}) : index;
    }
    return index >= size ? (backward ? size - 1 : size) : index;
  };
  range.start = given(start) ? clamp(slice_index(start)) : (backward ? size - 1 : 0);
  range.stop = given(stop) ? clamp(slice_index(stop)) : (backward ? -1 : size);
  return range;
}

Value slice_string(const Value& object, const SliceRange& range) {
  const StringObject& string = object.as_string();
  const auto count = static_cast<size_t>(range.size());
  std::string out;
  if (count == 0) return Value::string("", string.markup);
  if (range.step == 1) {
    const size_t begin = string.is_ascii() ? static_cast<size_t>(range.start)
                                           : utf8_offset(string.text, static_cast<size_t>(range.start));
    const std::string_view rest = std::string_view(string.text).substr(begin);
    const size_t size = string.is_ascii() ? count : utf8_offset(rest, count);
    charge_bytes_copied(begin + size);
    return Value::string(std::string(rest.substr(0, size)), string.markup);
  }
  charge_bytes_copied(string.text.size());
  if (string.is_ascii()) {
    for (size_t i = 0; i < count; ++i)
      out.push_back(string.text[static_cast<size_t>(range.start + static_cast<int64_t>(i) * range.step)]);
  } else {
    const std::u32string wide = utf8_to_u32(string.text);
    for (size_t i = 0; i < count; ++i)
      utf8_append(out, wide[static_cast<size_t>(range.start + static_cast<int64_t>(i) * range.step)]);
  }
  return Value::string(std::move(out), string.markup);
}

// object[index] where Python finds an item; missing where it raises TypeError or LookupError.
Value find_item(const Value& object, const Value& index) {
  if (object.is(Kind::kDict)) {
    if (!hashable(index)) return Value();
    const Value* value = object.as_dict().find(index);
    return value != nullptr ? *value : Value();
  }
  if (!index.is_integral()) return Value();
  int64_t i = index.as_int();
  const auto in_range = [&i](int64_t size) {
    if (i < 0) i += size;
    return i >= 0 && i < size;
  };
  switch (object.kind()) {
    case Kind::kList:
    case Kind::kTuple:
      return in_range(length(object)) ? object.items()[static_cast<size_t>(i)] : Value();
    case Kind::kString: {
      if (!in_range(length(object))) return Value();
      return slice_string(object, SliceRange{i, i + 1, 1});
    }
    case Kind::kRange: {
      const auto& range = object.object<RangeObject>();
      return in_range(range.size()) ? Value::integer(range.at(i)) : Value();
    }
    default:
      return Value();
  }
}

std::string owner_name(const Value& object) {
  return object.is_none() ? "None" : fmt::format("{} object", type_name(object));
}

}  // namespace

Value binary(char op, const Value& a, const Value& b) {
  switch (op) {
    case '+':
      return add(a, b);
    case '-':
      return subtract(a, b);
    case '*':
      return multiply(a, b);
    case '/':
      return divide(a, b);
    case 'f':
      return floor_divide(a, b);
    case '%':
      return modulo(a, b);
    default:
      return power(a, b);
  }
}

Value negate(const Value& value) {
  if (value.is(Kind::kFloat)) return Value::real(-value.as_float());
  if (value.is_undefined()) fail("{}", value.undefined_message());
  if (!value.is_integral()) fail("bad operand type for unary -: '{}'", type_name(value));
  if (value.as_int() == INT64_MIN) fail_overflow();
  return Value::integer(-value.as_int());
}

Value plus(const Value& value) {
  if (value.is(Kind::kFloat)) return value;
  if (value.is_undefined()) fail("{}", value.undefined_message());
  if (!value.is_integral()) fail("bad operand type for unary +: '{}'", type_name(value));
  return Value::integer(value.as_int());
}

bool compare(char op, const Value& a, const Value& b) {
  const auto any_nan = [&] {
    return (a.is(Kind::kFloat) && std::isnan(a.as_float())) || (b.is(Kind::kFloat) && std::isnan(b.as_float()));
  };
  switch (op) {
    case '=':
      return equal(a, b);
    case '!':
      return !equal(a, b);
    case '<':
      return less(a, b);
    case '>':
      return less(b, a);
    case 'l':
      return !less(b, a) && !any_nan();
    case 'g':
      return !less(a, b) && !any_nan();
    case 'i':
      return contains(b, a);
    default:
      return !contains(b, a);
  }
}

bool contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (item.is_undefined() || !item.is_string()) {
        fail("'in <string>' requires string as left operand, not {}", type_name(item));
      }
      charge_bytes_copied(container.text().size());
      return find_text(container.text(), item.text()) != std::string::npos;
    case Kind::kDict:
      return container.as_dict().find(item) != nullptr;
    case Kind::kDictView: {
      const auto& view = container.object<DictViewObject>();
      if (view.part == DictPart::kKeys) return view.dict.as_dict().find(item) != nullptr;
      break;
    }
    case Kind::kRange: {
      if (!item.is_number()) return false;
      const auto& range = container.object<RangeObject>();
      if (item.is(Kind::kFloat) && item.as_float() != std::floor(item.as_float())) return false;
      if (item.is(Kind::kFloat) && std::abs(item.as_float()) > 9e18) return false;
      const int64_t i = item.is(Kind::kFloat) ? static_cast<int64_t>(item.as_float()) : item.as_int();
      if (range.size() == 0) return false;
      const int64_t low = std::min(range.start, range.at(range.size() - 1));
      const int64_t high = std::max(range.start, range.at(range.size() - 1));
      return i >= low && i <= high && (i - range.start) % range.step == 0;
    }
    default:
      break;
  }
  if (!iterable(container)) fail("argument of type '{}' is not iterable", type_name(container));
  const std::shared_ptr<IteratorObject> items = iterate(container);
  Value candidate;
  while (items->next(&candidate)) {
    if (candidate.same_object(item) || equal(candidate, item)) return true;
  }
  return false;
}

Value get_item(const Value& object, const Value& index) {
  if (object.is_undefined()) fail("{}", object.undefined_message());
  Value value = find_item(object, index);
  if (!value.is_missing()) return value;
  if (index.is_string()) {
    value = find_attribute(object, index.text());
    if (!value.is_missing()) return value;
    return Value::undefined(fmt::format("'{}' has no attribute {}", owner_name(object), repr(index)));
  }
  return Value::undefined(fmt::format("{} has no element {}", owner_name(object), repr(index)));
}

Value get_attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) fail("{}", object.undefined_message());
  Value value = find_attribute(object, name);
  if (!value.is_missing()) return value;
  if (object.is(Kind::kDict)) {
    const Value* entry = object.as_dict().find(name);
    if (entry != nullptr) return *entry;
  }
  return Value::undefined(fmt::format("'{}' has no attribute {}", owner_name(object), repr_string(name)));
}

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  switch (object.kind()) {
    case Kind::kString:
      return slice_string(object, slice_range(start, stop, step, length(object)));
    case Kind::kList:
    case Kind::kTuple: {
      const SliceRange range = slice_range(start, stop, step, length(object));
      std::vector<Value> items;
      const int64_t count = range.size();
      items.reserve(static_cast<size_t>(count));
      charge_steps(count / 8);
      for (int64_t i = 0; i < count; ++i)
        items.push_back(object.items()[static_cast<size_t>(range.start + i * range.step)]);
      return object.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
    }
    case Kind::kRange: {
      const auto& source = object.object<RangeObject>();
      const SliceRange range = slice_range(start, stop, step, source.size());
      auto result = std::make_shared<RangeObject>();
      int64_t scaled_start = 0, scaled_stop = 0;
      if (__builtin_mul_overflow(range.start, source.step, &scaled_start) ||
          __builtin_mul_overflow(range.stop, source.step, &scaled_stop) ||
          __builtin_mul_overflow(range.step, source.step, &result->step)) {
        fail_overflow();
      }
      result->start = source.start + scaled_start;
      result->stop = source.start + scaled_stop;
      return Value(Kind::kRange, std::move(result));
    }
    case Kind::kUndefined:
      fail("{}", object.undefined_message());
    case Kind::kDict:
      fail("unhashable type: 'slice'");
    default:
      fail("'{}' object is not subscriptable", type_name(object));
  }
}

}  // namespace spate::jinja
