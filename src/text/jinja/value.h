// A value of a template at run time, with Python's meaning: what `==`, `<`, truth, str() and repr() give.
//
// A Value is 32 bytes; everything bigger than a number is a shared object. Lists, tuples, dicts and strings never
// change after they are made (jinja2's immutable sandbox), so they may be shared by threads. Namespaces, iterators,
// loops, cyclers and joiners change and belong to one render.
//
// Object graphs are at most kMaxNesting deep (checked when an object is made), so destruction, comparison and
// printing may recurse.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/meter.h"

namespace spate::jinja {

enum class Kind : uint8_t {
  kMissing,  // no value at all: an unset variable, an absent argument; never seen by a template
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kDictView,
  kRange,
  kIterator,
  kNamespace,
  kFunction,
  kMethod,
  kMacro,
  kLoop,
  kCycler,
  kJoiner,
};

constexpr uint32_t kMaxNesting = 400;

struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() {
    if (charged_bytes != 0) release_live_bytes(charged_bytes);
  }

  void charge(size_t num_bytes) {
    if (current_meter == nullptr) return;
    charged_bytes += num_bytes;
    charge_live_bytes(num_bytes);
  }

  uint32_t depth = 1;  // 1 + the deepest object inside
  size_t charged_bytes = 0;
};

struct StringObject;
struct ListObject;
struct DictObject;
struct DictViewObject;
struct RangeObject;
struct IteratorObject;
struct NamespaceObject;
struct UndefinedObject;

class Value {
 public:
  Value() = default;  // kMissing
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  static Value none() { return Value(Kind::kNone, nullptr); }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  static Value string(std::string text, bool markup = false);  // valid UTF-8
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  // A variable that is not there: "'name' is undefined"; or any other message that use of it shall give.
  static Value undefined(std::string message);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  bool as_bool() const { return int_ != 0; }
  int64_t as_int() const { return int_; }  // of a bool too
  double as_float() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  const StringObject& as_string() const;
  const std::string& text() const;  // of a string
  bool is_markup() const;
  const std::vector<Value>& items() const;  // of a list or tuple
  const DictObject& as_dict() const;
  const std::string& undefined_message() const;

  template <typename T>
  T& object() const {
    return static_cast<T&>(*object_);
  }
  const std::shared_ptr<Object>& shared() const { return object_; }
  uint32_t depth() const { return object_ == nullptr ? 0 : object_->depth; }
  bool same_object(const Value& other) const;  // Python's `is`

 private:
  Kind kind_ = Kind::kMissing;
  union {
    int64_t int_ = 0;
    double float_;
  };
  std::shared_ptr<Object> object_;
};

struct StringObject : Object {
  std::string text;
  size_t num_chars = 0;  // code points
  bool markup = false;   // markupsafe.Markup: `+` and a few others escape the other side
  bool is_ascii() const { return num_chars == text.size(); }
};

struct ListObject : Object {
  std::vector<Value> items;
  bool group = false;  // a tuple that groupby made: .grouper and .list
};

// In insertion order. Keys are hashed as in Python: 1, 1.0 and true are one key.
struct DictObject : Object {
  std::vector<std::pair<Value, Value>> entries;

  const Value* find(const Value& key) const;  // throws on a key that cannot be hashed
  const Value* find(std::string_view key) const;
  void set(const Value& key, const Value& value);  // while it is being made, and for namespaces
  void clear();

 private:
  void add(const Value& key, const Value& value, size_t hash);
  std::unordered_multimap<size_t, size_t> index_;  // used from kIndexFrom entries on
};

enum class DictPart : uint8_t { kKeys, kValues, kItems };
struct DictViewObject : Object {
  Value dict;
  DictPart part = DictPart::kKeys;
};

struct RangeObject : Object {
  int64_t start = 0, stop = 0, step = 1;
  int64_t size() const;
  int64_t at(int64_t index) const { return start + index * step; }
};

// One pass, as a Python generator: next() puts the next item into its argument or returns false.
struct IteratorObject : Object {
  std::function<bool(Value*)> next;
};

struct NamespaceObject : Object {
  DictObject attributes;
};

struct UndefinedObject : Object {
  std::string message;
};

// Makes a dict; entries are added by builder().set().
class DictBuilder {
 public:
  DictBuilder() : dict_(std::make_shared<DictObject>()) {}
  void set(const Value& key, const Value& value) { dict_->set(key, value); }
  void set(std::string key, const Value& value) { dict_->set(Value::string(std::move(key)), value); }
  Value finish() { return Value(Kind::kDict, dict_); }

 private:
  std::shared_ptr<DictObject> dict_;
};

// A string that grows under the length limit.
class TextBuilder {
 public:
  void append(std::string_view text) {
    check_string_bytes(text_.size() + text.size());
    charge_bytes_copied(text.size());
    text_.append(text);
  }
  void append(size_t count, char c) {
    check_string_bytes(text_.size() + count);
    charge_bytes_copied(count);
    text_.append(count, c);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

bool truthy(const Value& value);
bool equal(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);  // throws where Python's `<` does
size_t hash(const Value& value);            // throws on lists, dicts
bool hashable(const Value& value);
std::string_view type_name(const Value& value);  // Python's: "str", "NoneType"
int64_t length(const Value& value);              // len()
bool has_length(const Value& value);

std::string to_text(const Value& value);  // str()
std::string repr(const Value& value);
void append_text(TextBuilder& out, const Value& value);
void append_repr(TextBuilder& out, const Value& value);
std::string repr_string(std::string_view text);
std::string repr_float(double value);

// iter(): throws on what cannot be iterated. An iterator gives itself.
std::shared_ptr<IteratorObject> iterate(const Value& value);
bool iterable(const Value& value);
// list(value): all items. Charges a step an item.
std::vector<Value> collect(const Value& value);
Value make_iterator(std::function<bool(Value*)> next, uint32_t source_depth);

}  // namespace spate::jinja
