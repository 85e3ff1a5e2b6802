// The names every template finds: filters, tests, global functions, methods of built-in types.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "text/jinja/ast.h"

namespace spate::jinja {

FilterBody find_filter(std::string_view name);  // null when there is none
TestBody find_test(std::string_view name);

// A global function (range, namespace, dict, raise_exception ...), or missing.
Value find_global(const std::string& name);

// A bound method or a plain attribute of a value of a built-in type; missing when the type has none of that name.
// Methods that would change the value give an undefined value that says so.
Value find_attribute(const Value& object, std::string_view name);

// A line of such a table, and the body of a name, null when there is none.
template <typename Body>
struct Builtin {
  std::string_view name;
  Body body;
};
template <typename Body, size_t kSize>
Body find_builtin(const Builtin<Body> (&table)[kSize], std::string_view name) {
  for (const Builtin<Body>& builtin : table) {
    if (builtin.name == name) return builtin.body;
  }
  return nullptr;
}

// Parts of the tables above, each in its own file.
FilterBody find_text_filter(std::string_view name);
FilterBody find_sequence_filter(std::string_view name);
FilterBody find_number_filter(std::string_view name);
FilterBody find_html_filter(std::string_view name);
MethodBody find_string_method(std::string_view name);

// %-formatting and str.format (format.cpp).
Value format_percent(const Value& format, const Value& args);
Value format_braces(Runtime& runtime, const Value& format, const Args& args);
std::string format_field(const Value& value, std::string_view spec);  // format(value, spec)

// tojson as transformers defines it: json.dumps without ASCII escapes.
std::string dump_json(const Value& value, bool ensure_ascii, const Value& indent, const Value& separators,
                      bool sort_keys);

// markupsafe.escape: a Markup. And its inverse on texts, for the entities that occur.
Value escape_html(const Value& value);
std::string unescape_html(std::string_view text);

// str.replace; every occurrence when max_count is negative.
std::string replace_text(std::string_view text, std::string_view old, std::string_view replacement, int64_t max_count);

// Python's int(text, base) and float(text); false when the text is no number.
bool parse_int(std::string_view text, int base, int64_t* value);
bool parse_float(std::string_view text, double* value);

}  // namespace spate::jinja
