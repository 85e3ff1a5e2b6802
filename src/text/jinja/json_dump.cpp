// tojson: json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(bool ensure_ascii, const Value& indent, const Value& separators, bool sort_keys)
      : ensure_ascii_(ensure_ascii), sort_keys_(sort_keys) {
    if (indent.is_string()) {
      indent_ = indent.text();
      has_indent_ = true;
    } else if (indent.is_integral()) {
      check_string_bytes(static_cast<size_t>(std::max<int64_t>(0, indent.as_int())));
      indent_ = std::string(static_cast<size_t>(std::max<int64_t>(0, indent.as_int())), ' ');
      has_indent_ = true;
    } else if (!indent.is_missing() && !indent.is_none()) {
      fail("tojson: indent must be a number or a text, not {}", type_name(indent));
    }
    if (has_indent_) item_separator_ = std::string(1, ',');
    if (!separators.is_missing() && !separators.is_none()) set_separators(separators);
  }

  std::string dump(const Value& value) {
    write(value, 0);
    return out_.take();
  }

 private:
  void set_separators(const Value& separators) {
    const std::vector<Value> parts = collect(separators);
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string())
      fail("tojson: separators must be two texts");
    item_separator_ = parts[0].text();
    key_separator_ = parts[1].text();
  }

  void newline(size_t level) {
    if (!has_indent_) return;
    out_.append("\n");
    for (size_t i = 0; i < level; ++i) out_.append(indent_);
  }

  void write(const Value& value, size_t level) {
    charge_steps(1);
    check_stack();
    switch (value.kind()) {
      case Kind::kNone:
        return out_.append("null");
      case Kind::kBool:
        return out_.append(value.as_bool() ? "true" : "false");
      case Kind::kInt:
        return out_.append(fmt::format("{}", value.as_int()));
      case Kind::kFloat:
        return out_.append(number(value.as_float()));
      case Kind::kString:
        return write_string(value.text());
      case Kind::kList:
      case Kind::kTuple:
        return write_list(value.items(), level);
      case Kind::kDict:
        return write_dict(value.as_dict(), level);
      default:
        fail("Object of type {} is not JSON serializable", type_name(value));
    }
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return repr_float(value);
  }

  void write_list(const std::vector<Value>& items, size_t level) {
    if (items.empty()) return out_.append("[]");
    out_.append("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.append(item_separator_);
      newline(level + 1);
      write(items[i], level + 1);
    }
    newline(level);
    out_.append("]");
  }

  void write_dict(const DictObject& dict, size_t level) {
    if (dict.entries.empty()) return out_.append("{}");
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (sort_keys_) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    }
    out_.append("{");
    bool first = true;
    for (const auto* entry : entries) {
      if (!first) out_.append(item_separator_);
      first = false;
      newline(level + 1);
      write_string(key_text(entry->first));
      out_.append(key_separator_);
      write(entry->second, level + 1);
    }
    newline(level);
    out_.append("}");
  }

  static std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return key.text();
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return key.as_bool() ? "true" : "false";
      case Kind::kInt:
        return fmt::format("{}", key.as_int());
      case Kind::kFloat:
        return number(key.as_float());
      default:
        fail("keys must be str, int, float, bool or None, not {}", type_name(key));
    }
  }

  void write_string(std::string_view text) {
    std::string quoted(1, '"');
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      const char32_t c = utf8_next(text, pos);
      switch (c) {
        case '"':
          quoted += "\\\"";
          break;
        case '\\':
          quoted += "\\\\";
          break;
        case '\n':
          quoted += "\\n";
          break;
        case '\r':
          quoted += "\\r";
          break;
        case '\t':
          quoted += "\\t";
          break;
        case '\f':
          quoted += "\\f";
          break;
        case '\b':
          quoted += "\\b";
          break;
        default:
          if (c < 0x20 || (ensure_ascii_ && c >= 0x7f)) {
            append_escape(quoted, c);
          } else {
            quoted.append(text.substr(begin, pos - begin));
          }
      }
    }
    quoted.push_back('"');
    out_.append(quoted);
  }

  static void append_escape(std::string& out, char32_t c) {
    if (c >= 0x10000) {
      c -= 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + static_cast<uint32_t>(c >> 10),
                         0xdc00 + static_cast<uint32_t>(c & 0x3ff));
    } else {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    }
  }

  bool ensure_ascii_, sort_keys_;
  bool has_indent_ = false;
  std::string indent_;
  std::string item_separator_ = ", ", key_separator_ = ": ";
  TextBuilder out_;
};

}  // namespace

std::string dump_json(const Value& value, bool ensure_ascii, const Value& indent, const Value& separators,
                      bool sort_keys) {
  return JsonWriter(ensure_ascii, indent, separators, sort_keys).dump(value);
}

}  // namespace spate::jinja
