// str() and repr() of values.
#include <charconv>
#include <cmath>

#include "text/jinja/callable.h"
#include "text/jinja/unicode.h"
#include "text/jinja/value.h"

namespace spate::jinja {
namespace {

void append_sequence(TextBuilder& out, const std::vector<Value>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(out, items[i]);
  }
}

void append_dict(TextBuilder& out, const DictObject& dict) {
  out.append("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries) {
    if (!first) out.append(", ");
    first = false;
    append_repr(out, key);
    out.append(": ");
    append_repr(out, value);
  }
  out.append("}");
}

}  // namespace

std::string repr_string(std::string_view text) {
  const char quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = utf8_next(text, pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(text.substr(begin, pos - begin));
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  out.push_back(quote);
  return out;
}

std::string repr_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto [end, unused] = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  // d.ddde[+-]xx, the shortest digits that read back as this value.
  const std::string_view shortest(buffer, static_cast<size_t>(end - buffer));
  const size_t e = shortest.find('e');
  const int exponent = std::stoi(std::string(shortest.substr(e + 1)));
  std::string digits;
  const bool negative = shortest[0] == '-';
  for (const char c : shortest.substr(0, e)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  std::string out = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

void append_repr(TextBuilder& out, const Value& value) {
  charge_steps(1);
  check_stack();
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return out.append("Undefined");
    case Kind::kNone:
      return out.append("None");
    case Kind::kBool:
      return out.append(value.as_bool() ? "True" : "False");
    case Kind::kInt:
      return out.append(fmt::format("{}", value.as_int()));
    case Kind::kFloat:
      return out.append(repr_float(value.as_float()));
    case Kind::kString:
      charge_bytes_copied(value.text().size());
      if (value.is_markup()) return out.append("Markup(" + repr_string(value.text()) + ")");
      return out.append(repr_string(value.text()));
    case Kind::kList:
      out.append("[");
      append_sequence(out, value.items());
      return out.append("]");
    case Kind::kTuple:
      out.append("(");
      append_sequence(out, value.items());
      return out.append(value.items().size() == 1 ? ",)" : ")");
    case Kind::kDict:
      return append_dict(out, value.as_dict());
    case Kind::kDictView:
      out.append(type_name(value));
      out.append("([");
      append_sequence(out, collect(value));
      return out.append("])");
    case Kind::kRange: {
      const auto& range = value.object<RangeObject>();
      out.append(fmt::format("range({}, {}", range.start, range.stop));
      return out.append(range.step == 1 ? std::string(")") : fmt::format(", {})", range.step));
    }
    case Kind::kNamespace:
      out.append("<Namespace ");
      append_dict(out, value.object<NamespaceObject>().attributes);
      return out.append(">");
    case Kind::kMacro:
      return out.append(fmt::format("<Macro {}>", macro_repr_name(value)));
    case Kind::kLoop: {
      auto& loop = value.object<LoopObject>();
      return out.append(fmt::format("<LoopContext {}/{}>", loop.index0 + 1, loop.length()));
    }
    default:
      return out.append(fmt::format("<{}>", type_name(value)));
  }
}

void append_text(TextBuilder& out, const Value& value) {
  if (value.is_string()) return out.append(value.text());
  if (value.is_undefined() || value.is_missing()) return;
  append_repr(out, value);
}

std::string to_text(const Value& value) {
  TextBuilder out;
  append_text(out, value);
  return out.take();
}

std::string repr(const Value& value) {
  TextBuilder out;
  append_repr(out, value);
  return out.take();
}

}  // namespace spate::jinja
