#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/callable.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

__extension__ using Int128 = __int128;
constexpr size_t kIndexFrom = 9;  // below, a linear search is faster than a hash table

void set_depth(Object& object, uint32_t inner) {
  if (inner >= kMaxNesting) throw LimitError("the template's values are nested too deeply");
  object.depth = std::max(object.depth, inner + 1);
}

Value sequence(Kind kind, std::vector<Value> items) {
  auto object = std::make_shared<ListObject>();
  object->charge(sizeof(ListObject) + items.size() * sizeof(Value));
  uint32_t inner = 0;
  for (const Value& item : items) inner = std::max(inner, item.depth());
  set_depth(*object, inner);
  object->items = std::move(items);
  return Value(kind, std::move(object));
}

size_t mix(size_t a, size_t b) { return a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2)); }

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].same_object(b[i]) && !equal(a[i], b[i])) return false;
  }
  return true;
}

bool equal_dicts(const DictObject& a, const DictObject& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.find(key);
    if (other == nullptr || (!value.same_object(*other) && !equal(value, *other))) return false;
  }
  return true;
}

int compare_numbers(const Value& a, const Value& b) {  // -1, 0, 1; 2 for NaN
  if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  // long double holds every int64 and every double exactly.
  const long double x = a.is_integral() ? static_cast<long double>(a.as_int()) : static_cast<long double>(a.as_float());
  const long double y = b.is_integral() ? static_cast<long double>(b.as_int()) : static_cast<long double>(b.as_float());
  return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
}

bool equal_ranges(const RangeObject& a, const RangeObject& b) {
  const int64_t size = a.size();
  if (size != b.size()) return false;
  if (size == 0) return true;
  return a.start == b.start && (size == 1 || a.step == b.step);
}

}  // namespace

Value Value::boolean(bool value) {
  Value v;
  v.kind_ = Kind::kBool;
  v.int_ = value ? 1 : 0;
  return v;
}

Value Value::integer(int64_t value) {
  Value v;
  v.kind_ = Kind::kInt;
  v.int_ = value;
  return v;
}

Value Value::real(double value) {
  Value v;
  v.kind_ = Kind::kFloat;
  v.float_ = value;
  return v;
}

Value Value::string(std::string text, bool markup) {
  check_string_bytes(text.size());
  charge_bytes_copied(text.size());
  auto object = std::make_shared<StringObject>();
  object->charge(sizeof(StringObject) + text.size());
  object->num_chars = utf8_length(text);
  object->text = std::move(text);
  object->markup = markup;
  return Value(Kind::kString, std::move(object));
}

Value Value::list(std::vector<Value> items) { return sequence(Kind::kList, std::move(items)); }
Value Value::tuple(std::vector<Value> items) { return sequence(Kind::kTuple, std::move(items)); }

Value Value::undefined(std::string message) {
  auto object = std::make_shared<UndefinedObject>();
  object->charge(sizeof(UndefinedObject) + message.size());
  object->message = std::move(message);
  return Value(Kind::kUndefined, std::move(object));
}

const StringObject& Value::as_string() const { return object<StringObject>(); }
const std::string& Value::text() const { return as_string().text; }
bool Value::is_markup() const { return is_string() && as_string().markup; }
const std::vector<Value>& Value::items() const { return object<ListObject>().items; }
const DictObject& Value::as_dict() const { return object<DictObject>(); }
const std::string& Value::undefined_message() const { return object<UndefinedObject>().message; }

bool Value::same_object(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
    case Kind::kInt:
      return int_ == other.int_;
    case Kind::kFloat:
      return false;
    default:
      return object_ == other.object_;
  }
}

const Value* DictObject::find(const Value& key) const {
  if (entries.size() < kIndexFrom) {
    if (!hashable(key)) fail("unhashable type: '{}'", type_name(key));
    for (const auto& [k, v] : entries) {
      if (equal(k, key)) return &v;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(hash(key));
  for (auto it = begin; it != end; ++it) {
    if (equal(entries[it->second].first, key)) return &entries[it->second].second;
  }
  return nullptr;
}

const Value* DictObject::find(std::string_view key) const {
  if (entries.size() < kIndexFrom) {
    for (const auto& [k, v] : entries) {
      if (k.is_string() && k.text() == key) return &v;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(std::hash<std::string_view>()(key));
  for (auto it = begin; it != end; ++it) {
    const Value& k = entries[it->second].first;
    if (k.is_string() && k.text() == key) return &entries[it->second].second;
  }
  return nullptr;
}

void DictObject::set(const Value& key, const Value& value) {
  const size_t key_hash = hash(key);
  set_depth(*this, std::max(key.depth(), value.depth()));
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = value;
    return;
  }
  add(key, value, key_hash);
}

void DictObject::clear() {
  entries.clear();
  index_.clear();
}

void DictObject::add(const Value& key, const Value& value, size_t key_hash) {
  charge(2 * sizeof(Value) + 32);
  entries.emplace_back(key, value);
  if (entries.size() == kIndexFrom) {
    for (size_t i = 0; i < entries.size(); ++i) index_.emplace(hash(entries[i].first), i);
  } else if (entries.size() > kIndexFrom) {
    index_.emplace(key_hash, entries.size() - 1);
  }
}

int64_t RangeObject::size() const {
  // 128 bits: the distance of two int64 may not fit into one. range() allows at most 100000 items.
  const Int128 from = start, to = stop, by = step;
  if (by > 0) return static_cast<int64_t>(from < to ? (to - from - 1) / by + 1 : 0);
  return static_cast<int64_t>(from > to ? (from - to - 1) / -by + 1 : 0);
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    case Kind::kString:
      return !value.text().empty();
    default:
      return !has_length(value) || length(value) != 0;
  }
}

bool equal(const Value& a, const Value& b) {
  charge_steps(1);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  check_stack();
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
      return equal_items(a.items(), b.items());
    case Kind::kDict:
      return equal_dicts(a.as_dict(), b.as_dict());
    case Kind::kRange:
      return equal_ranges(a.object<RangeObject>(), b.object<RangeObject>());
    case Kind::kDictView: {
      const auto& x = a.object<DictViewObject>();
      const auto& y = b.object<DictViewObject>();
      if (x.part == DictPart::kValues || y.part != x.part) return a.same_object(b);
      if (x.part == DictPart::kItems) return equal_dicts(x.dict.as_dict(), y.dict.as_dict());
      if (x.dict.as_dict().entries.size() != y.dict.as_dict().entries.size()) return false;
      for (const auto& [key, unused] : x.dict.as_dict().entries) {
        if (y.dict.as_dict().find(key) == nullptr) return false;
      }
      return true;
    }
    case Kind::kMethod:
      return same_method(a, b);
    default:
      return a.same_object(b);
  }
}

bool less(const Value& a, const Value& b) {
  charge_steps(1);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_string() && b.is_string()) return a.text() < b.text();  // UTF-8 sorts as code points do
  if (a.is_undefined()) fail("{}", a.undefined_message());
  if (b.is_undefined()) fail("{}", b.undefined_message());
  if (a.kind() == b.kind() && a.is_sequence()) {
    check_stack();
    const std::vector<Value>& x = a.items();
    const std::vector<Value>& y = b.items();
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!x[i].same_object(y[i]) && !equal(x[i], y[i])) return less(x[i], y[i]);
    }
    return x.size() < y.size();
  }
  fail("'<' not supported between instances of '{}' and '{}'", type_name(a), type_name(b));
}

bool hashable(const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
    case Kind::kDict:
    case Kind::kDictView:
      return false;
    case Kind::kTuple:
      return std::all_of(value.items().begin(), value.items().end(), [](const Value& v) { return hashable(v); });
    default:
      return true;
  }
}

size_t hash(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return 7 + static_cast<size_t>(value.kind());
    case Kind::kBool:
    case Kind::kInt:
      return std::hash<int64_t>()(value.as_int());
    case Kind::kFloat: {
      const double number = value.as_float();
      if (number == std::floor(number) && std::abs(number) < 9e18) {
        return std::hash<int64_t>()(static_cast<int64_t>(number));
      }
      return std::hash<double>()(number);
    }
    case Kind::kString:
      return std::hash<std::string_view>()(value.text());
    case Kind::kTuple: {
      size_t result = value.items().size();
      for (const Value& item : value.items()) result = mix(result, hash(item));
      charge_steps(static_cast<int64_t>(value.items().size()));
      return result;
    }
    case Kind::kRange:
      return static_cast<size_t>(value.object<RangeObject>().size());
    case Kind::kList:
    case Kind::kDict:
    case Kind::kDictView:
      fail("unhashable type: '{}'", type_name(value));
    case Kind::kMethod:
      return 11;
    default:
      return std::hash<const void*>()(value.shared().get());
  }
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
      return "missing";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.is_markup() ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kDictView:
      switch (value.object<DictViewObject>().part) {
        case DictPart::kKeys:
          return "dict_keys";
        case DictPart::kValues:
          return "dict_values";
        case DictPart::kItems:
          return "dict_items";
      }
      return "dict_items";
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kFunction:
      return "function";
    case Kind::kMethod:
      return "method";
    case Kind::kMacro:
      return "Macro";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCycler:
      return "Cycler";
    case Kind::kJoiner:
      return "Joiner";
  }
  return "object";
}

bool has_length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

int64_t length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(value.as_string().num_chars);
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as_dict().entries.size());
    case Kind::kDictView:
      return static_cast<int64_t>(value.object<DictViewObject>().dict.as_dict().entries.size());
    case Kind::kRange:
      return value.object<RangeObject>().size();
    case Kind::kLoop:
      return value.object<LoopObject>().length();
    default:
      fail("object of type '{}' has no len()", type_name(value));
  }
}

Value make_iterator(std::function<bool(Value*)> next, uint32_t source_depth) {
  auto iterator = std::make_shared<IteratorObject>();
  iterator->charge(sizeof(IteratorObject) + 128);
  set_depth(*iterator, source_depth);
  iterator->next = std::move(next);
  return Value(Kind::kIterator, std::move(iterator));
}

bool iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
    case Kind::kIterator:
      return true;
    default:
      return false;
  }
}

std::shared_ptr<IteratorObject> iterate(const Value& value) {
  std::function<bool(Value*)> next;
  switch (value.kind()) {
    case Kind::kUndefined:
      next = [](Value*) { return false; };
      break;
    case Kind::kString:
      next = [value, pos = size_t{0}](Value* item) mutable {
        const std::string& text = value.text();
        if (pos >= text.size()) return false;
        const size_t begin = pos;
        utf8_next(text, pos);
        *item = Value::string(text.substr(begin, pos - begin));
        return true;
      };
      break;
    case Kind::kList:
    case Kind::kTuple:
      next = [value, i = size_t{0}](Value* item) mutable {
        if (i >= value.items().size()) return false;
        *item = value.items()[i++];
        return true;
      };
      break;
    case Kind::kDict:
      next = [value, i = size_t{0}](Value* item) mutable {
        if (i >= value.as_dict().entries.size()) return false;
        *item = value.as_dict().entries[i++].first;
        return true;
      };
      break;
    case Kind::kDictView:
      next = [value, i = size_t{0}](Value* item) mutable {
        const auto& view = value.object<DictViewObject>();
        if (i >= view.dict.as_dict().entries.size()) return false;
        const auto& [key, entry] = view.dict.as_dict().entries[i++];
        *item = view.part == DictPart::kKeys     ? key
                : view.part == DictPart::kValues ? entry
                                                 : Value::tuple({key, entry});
        return true;
      };
      break;
    case Kind::kRange:
      next = [value, i = int64_t{0}](Value* item) mutable {
        const auto& range = value.object<RangeObject>();
        if (i >= range.size()) return false;
        *item = Value::integer(range.at(i++));
        return true;
      };
      break;
    case Kind::kIterator:
      return std::static_pointer_cast<IteratorObject>(value.shared());
    default:
      fail("'{}' object is not iterable", type_name(value));
  }
  return std::static_pointer_cast<IteratorObject>(make_iterator(std::move(next), value.depth()).shared());
}

std::vector<Value> collect(const Value& value) {
  std::vector<Value> items;
  if (value.is_sequence()) {
    charge_steps(static_cast<int64_t>(value.items().size() / 8));
    return value.items();
  }
  const std::shared_ptr<IteratorObject> iterator = iterate(value);
  Value item;
  size_t charged = 0;
  while (iterator->next(&item)) {
    charge_steps(1);
    items.push_back(std::move(item));
    item = Value();
    // A generator can be long and its items small: the growing vector counts as well.
    if (items.size() - charged >= 4096) {
      charge_live_bytes((items.size() - charged) * sizeof(Value));
      charged = items.size();
    }
  }
  release_live_bytes(charged * sizeof(Value));
  return items;
}

}  // namespace spate::jinja
