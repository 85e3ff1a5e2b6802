#include "server/call_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::string trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::string json_string(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The text of a JSON string's inside; as it stands when the escapes are malformed.
std::string unescape(const std::string& raw) {
  const auto value = nlohmann::json::parse('"' + raw + '"', nullptr, false);
  return value.is_string() ? value.get<std::string>() : raw;
}

// Knows where a JSON value ends: brackets and strings.
class JsonTracker {
 public:
  void append(char c) {
    if (in_string_) {
      if (is_escaped_) {
        is_escaped_ = false;
      } else if (c == '\\') {
        is_escaped_ = true;
      } else if (c == '"') {
        in_string_ = false;
      }
      has_line_break_ |= c == '\n';
      return;
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') {
      ++depth_;
      has_begun_ = true;
    }
    if (c == '}' || c == ']') --depth_;
  }
  int depth() const { return depth_; }
  bool in_string() const { return in_string_; }
  bool is_escaped() const { return is_escaped_; }
  bool is_complete() const { return has_begun_ && depth_ <= 0 && !in_string_; }
  // In a string that may be whole: one with a line break is no JSON, and where it ends nobody knows.
  bool is_in_value() const { return in_string_ && !has_line_break_; }

 private:
  int depth_ = 0;
  bool has_begun_ = false, in_string_ = false, is_escaped_ = false, has_line_break_ = false;
};

// {"name": "f", "arguments": {...}}, in either order; "parameters" is another word for arguments.
class ObjectReader final : public CallReader {
 public:
  void append(char c, CallSink& sink) override {
    if (is_done()) return;  // a second object in one call, or text after it: nobody's
    const bool was_top_level = json_.depth() == 1 && !json_.in_string();
    if (in_arguments_ && was_top_level && (c == ',' || c == '}')) in_arguments_ = false;
    if (in_arguments_ && !(was_top_level && is_space(c))) add(c, sink);
    read_member(c, was_top_level);
    json_.append(c);
    if (has_name_ && !is_told_) {
      is_told_ = true;
      sink.begin_call(name_);
      if (!waiting_.empty()) sink.add_arguments(std::exchange(waiting_, {}));
    }
  }
  void finish(CallSink& sink, bool is_cut) override {
    if (is_told_ && !has_arguments_ && !is_cut) sink.add_arguments("{}");
  }
  bool is_done() const override { return json_.is_complete(); }
  bool is_in_value() const override { return json_.is_in_value(); }

 private:
  void add(char c, CallSink& sink) {
    has_arguments_ = true;
    if (is_told_) {
      sink.add_arguments({&c, 1});
    } else {
      waiting_ += c;
    }
  }
  // The keys of the call's object, and the value of "name".
  void read_member(char c, bool was_top_level) {
    if (json_.depth() == 1 && json_.in_string() && !in_arguments_) {
      if (c != '"' || json_.is_escaped()) {
        string_ += c;
      } else if (!is_value_) {
        key_ = unescape(string_);
      } else if (key_ == "name" && !has_name_) {
        name_ = unescape(string_);
        has_name_ = !name_.empty();
      }
    }
    if (!was_top_level) return;
    if (c == '"') string_.clear();
    if (c == ',') is_value_ = false;
    if (c == ':' && !is_value_) {
      is_value_ = true;
      in_arguments_ = key_ == "arguments" || key_ == "parameters";
    }
  }

  JsonTracker json_;
  bool is_value_ = false;  // at depth 1: after the colon
  bool in_arguments_ = false, has_arguments_ = false, has_name_ = false, is_told_ = false;
  std::string key_, string_;  // at depth 1, raw with escapes
  std::string name_;
  std::string waiting_;  // arguments before the name
};

// NAME<name_end>{...}
class NamedReader final : public CallReader {
 public:
  explicit NamedReader(const ToolFormat& format) : format_(format) {}

  void append(char c, CallSink& sink) override {
    if (is_done()) return;
    if (!has_name_) {
      head_ += c;
      if (!head_.ends_with(format_.name_end)) return;
      head_.resize(head_.size() - format_.name_end.size());
      begin(sink);
      return;
    }
    if (!has_arguments_ && is_space(c)) return;
    has_arguments_ = true;
    json_.append(c);
    sink.add_arguments({&c, 1});
  }
  void finish(CallSink& sink, bool is_cut) override {
    if (has_name_ && !has_arguments_ && !is_cut) sink.add_arguments("{}");
  }
  bool is_done() const override { return json_.is_complete(); }
  bool is_in_value() const override { return json_.is_in_value(); }

 private:
  void begin(CallSink& sink) {
    std::string name = trimmed(head_);
    if (const size_t id = name.find("[CALL_ID]"); id != std::string::npos) name.resize(id);
    if (name.starts_with(format_.name_begin)) name.erase(0, format_.name_begin.size());
    // "functions.f:0" counts the calls.
    const size_t colon = format_.name_suffix.empty() ? std::string::npos : name.rfind(':');
    if (colon != std::string::npos) name.resize(colon);
    has_name_ = true;
    sink.begin_call(std::move(name));
  }

  const ToolFormat& format_;
  JsonTracker json_;
  std::string head_;
  bool has_name_ = false, has_arguments_ = false;
};

// NAME <key_begin>k<key_end> <value_begin>v<value_end> ... <body_end>, where a format has body_end; then another NAME
// begins another call. A value whose end the model forgot ends at a line that begins with the next key or with body_end.
class KeyValueReader final : public CallReader {
 public:
  KeyValueReader(const ToolFormat& format, const Json* tools) : format_(format), tools_(tools) {}

  void append(char c, CallSink& sink) override {
    text_ += c;
    switch (place_) {
      case Place::kName:
        if (!format_.name_begin.empty() && text_.ends_with(format_.name_begin)) text_.clear();
        if (!format_.name_end.empty() && text_.ends_with(format_.name_end)) return end_name(format_.name_end, sink);
        if (text_.ends_with(format_.key_begin)) {
          end_name(format_.key_begin, sink);
          place_ = Place::kKey;
        }
        return;
      case Place::kBetween:
        if (!is_closed_ && text_.ends_with(format_.key_begin)) return enter(Place::kKey);
        if (format_.body_end.empty()) return;
        if (text_.ends_with(format_.body_end)) close_arguments(sink);
        if (text_.ends_with(format_.name_begin)) begin_next(sink);
        return;
      case Place::kKey:
        if (!text_.ends_with(format_.key_end)) return;
        key_ = trimmed(without(format_.key_end));
        enter(format_.value_begin.empty() ? Place::kValue : Place::kBeforeValue);
        return;
      case Place::kBeforeValue:
        if (text_.ends_with(format_.value_begin)) enter(Place::kValue);
        return;
      case Place::kValue:
        if (text_.ends_with(format_.value_end)) {
          end_value(format_.value_end, Place::kBetween, sink);
        } else if (begins_line(format_.body_end)) {
          end_value(format_.body_end, Place::kBetween, sink);
          close_arguments(sink);
        } else if (begins_line(format_.key_begin)) {
          end_value(format_.key_begin, Place::kKey, sink);
        }
        return;
    }
  }
  void finish(CallSink& sink, bool is_cut) override {
    if (place_ == Place::kName) {
      if (!format_.name_begin.empty() || trimmed(text_).empty()) return;
      end_name("", sink);
    }
    if (!is_cut) {
      close_arguments(sink);
    } else if (num_values_ == 0 && !is_closed_) {
      sink.add_arguments("{");
    }
  }
  bool is_done() const override { return is_closed_; }
  bool is_in_value() const override { return place_ == Place::kValue; }

 private:
  enum class Place { kName, kBetween, kKey, kBeforeValue, kValue };
  void enter(Place place) {
    place_ = place;
    text_.clear();
  }
  std::string without(std::string_view end) const { return text_.substr(0, text_.size() - end.size()); }
  // The last line is `marker`. Only formats with body_end tell forgotten ends of values from text.
  bool begins_line(std::string_view marker) const {
    return !format_.body_end.empty() && text_.ends_with(marker) && text_.size() > marker.size() &&
           text_[text_.size() - marker.size() - 1] == '\n';
  }
  void end_name(std::string_view end, CallSink& sink) {
    name_ = trimmed(without(end));
    enter(Place::kBetween);
    sink.begin_call(name_);
  }
  void end_value(std::string_view end, Place next, CallSink& sink) {
    add_value(without(end), sink);
    enter(next);
  }
  void close_arguments(CallSink& sink) {
    if (!is_closed_) sink.add_arguments(num_values_ == 0 ? "{}" : "}");
    is_closed_ = true;
  }
  void begin_next(CallSink& sink) {
    close_arguments(sink);
    is_closed_ = false;
    num_values_ = 0;
    enter(Place::kName);
  }
  // Of a value of the call, as the request's tools have it; null: they do not.
  const Json* schema_of(const std::string& key) const {
    if (tools_ == nullptr) return nullptr;
    for (const Json& tool : *tools_) {
      const Json* const function = member(tool, "function");
      const Json* const name = function ? member(*function, "name") : nullptr;
      if (name == nullptr || *name != name_) continue;
      const Json* const parameters = member(*function, "parameters");
      const Json* const properties = parameters ? member(*parameters, "properties") : nullptr;
      return properties ? member(*properties, key) : nullptr;
    }
    return nullptr;
  }
  static bool may_be(const Json* schema, std::string_view type) {
    if (schema == nullptr) return false;
    if (const Json* types = member(*schema, "type")) {
      if (*types == type || (types->is_array() && std::ranges::find(*types, type) != types->end())) return true;
    }
    for (const char* name : {"anyOf", "oneOf"}) {
      const Json* const choices = member(*schema, name);
      if (choices == nullptr || !choices->is_array()) continue;
      if (std::ranges::any_of(*choices, [&](const Json& choice) { return may_be(&choice, type); })) return true;
    }
    return false;
  }
  static const Json* member(const Json& object, const std::string& key) {
    if (!object.is_object()) return nullptr;
    const auto found = object.find(key);
    return found == object.end() ? nullptr : &*found;
  }
  void add_value(std::string value, CallSink& sink) {
    if (value.starts_with('\n')) value.erase(0, 1);
    if (value.ends_with('\n')) value.pop_back();
    sink.add_arguments((num_values_++ == 0 ? "{" : ", ") + json_string(key_) + ": " + json_of(value));
  }
  // A text unless it reads as something else that may stand there. Templates show earlier calls with Python's True,
  // None and dictionaries, and models write what they saw.
  std::string json_of(const std::string& value) const {
    const Json* const schema = schema_of(key_);
    const bool is_null = trimmed(value) == "null" && may_be(schema, "null");
    if (may_be(schema, "string") && !is_null) return json_string(value);
    if (Json::accept(value)) return trimmed(value);
    const bool may_be_python = std::ranges::any_of(std::initializer_list<const char*>{"boolean", "null", "object", "array"},
                                                   [&](const char* type) { return may_be(schema, type); });
    const std::string json = may_be_python ? json_of_python(value) : std::string();
    return json.empty() ? json_string(value) : json;
  }

  const ToolFormat& format_;
  const Json* tools_;
  Place place_ = Place::kName;
  std::string text_, name_, key_;
  int num_values_ = 0;
  bool is_closed_ = false;  // the arguments are whole
};

// Knows which bytes of Python text stand in a string: 'x', "x", '''x''', """x""".
class QuoteTracker {
 public:
  // Whether `c` belongs to a string, its quotes included.
  bool append(char c) {
    if (num_open_ == 2 && c != quote_) num_open_ = 0;  // two quotes and no third: an empty string
    if (num_open_ == 0) {
      if (c != '"' && c != '\'') return false;
      quote_ = c;
      num_open_ = 1;
      num_close_ = 0;
      is_empty_ = true;
    } else if (num_open_ == 1 && is_empty_ && c == quote_) {
      num_open_ = 2;
    } else if (num_open_ == 2) {
      num_open_ = 3;
    } else {
      append_inside(c);
    }
    return true;
  }

 private:
  void append_inside(char c) {
    is_empty_ = false;
    const bool was_escaped = std::exchange(is_escaped_, !is_escaped_ && c == '\\');
    num_close_ = c == quote_ && !was_escaped ? num_close_ + 1 : 0;
    if (num_close_ == num_open_) num_open_ = 0;
  }

  char quote_ = 0;
  int num_open_ = 0;   // quotes that opened the string: 0 outside, 1, 3; 2 where it may become either
  int num_close_ = 0;  // quotes at its end so far
  bool is_empty_ = false, is_escaped_ = false;
};

// [f(a=1, b="x"), g()]
class PythonReader final : public CallReader {
 public:
  void append(char c, CallSink& sink) override {
    switch (place_) {
      case Place::kList:
        if (c == '[') {
          place_ = Place::kName;
        } else if (!is_space(c)) {
          has_failed_ = true;
        }
        return;
      case Place::kName:
        if (c == '(' && !text_.empty()) {
          sink.begin_call(std::exchange(text_, {}));
          num_values_ = 0;
          place_ = Place::kKey;
        } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.') {
          text_ += c;
        } else if (!is_space(c) || !text_.empty()) {
          has_failed_ = true;
        }
        return;
      case Place::kKey:
        if (c == '=') {
          key_ = trimmed(std::exchange(text_, {}));
          place_ = Place::kValue;
        } else if (c == ')') {
          end_call(sink);
        } else if (c != ',') {
          text_ += c;
        }
        return;
      case Place::kValue:
        append_value(c, sink);
        return;
      case Place::kNext:
        if (c == ',') place_ = Place::kName;
        if (c == ']') place_ = Place::kEnd;
        return;
      case Place::kEnd:
        return;
    }
  }
  void finish(CallSink& sink, bool is_cut) override {
    if (is_cut && (place_ == Place::kValue || place_ == Place::kKey)) {
      if (num_values_ == 0) sink.add_arguments("{");
    } else if (place_ == Place::kValue || place_ == Place::kKey) {
      if (place_ == Place::kValue && !trimmed(text_).empty()) add_value(sink);
      end_call(sink);
    }
  }
  bool is_done() const override { return place_ == Place::kEnd; }
  bool has_failed() const override { return has_failed_; }

 private:
  enum class Place { kList, kName, kKey, kValue, kNext, kEnd };
  void append_value(char c, CallSink& sink) {
    if (quotes_.append(c)) {
      text_ += c;
      return;
    }
    if (depth_ == 0 && (c == ',' || c == ')')) {
      add_value(sink);
      place_ = Place::kKey;
      if (c == ')') end_call(sink);
      return;
    }
    text_ += c;
    if (c == '(' || c == '[' || c == '{') ++depth_;
    if (c == ')' || c == ']' || c == '}') --depth_;
  }
  void add_value(CallSink& sink) {
    const std::string literal = trimmed(std::exchange(text_, {}));
    std::string json = json_of_python(literal);
    if (json.empty()) json = json_string(literal);
    sink.add_arguments((num_values_++ == 0 ? "{" : ", ") + json_string(key_) + ": " + json);
    depth_ = 0;
    quotes_ = {};
  }
  void end_call(CallSink& sink) {
    sink.add_arguments(num_values_ == 0 ? "{}" : "}");
    text_.clear();
    place_ = Place::kNext;
  }

  Place place_ = Place::kList;
  std::string text_, key_;
  int num_values_ = 0, depth_ = 0;
  QuoteTracker quotes_;
  bool has_failed_ = false;
};

}  // namespace

std::unique_ptr<CallReader> make_call_reader(const ToolFormat& format, const Json* tools) {
  switch (format.body) {
    case CallBody::kJsonObject:
      return std::make_unique<ObjectReader>();
    case CallBody::kNamedJson:
      return std::make_unique<NamedReader>(format);
    case CallBody::kKeyValues:
      return std::make_unique<KeyValueReader>(format, tools);
    case CallBody::kPython:
      return std::make_unique<PythonReader>();
  }
  return nullptr;
}

}  // namespace spate
