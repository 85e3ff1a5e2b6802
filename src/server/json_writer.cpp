#include "server/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace spate {
namespace {

// Stands in a JSON string as it is.
bool is_plain(char c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; }

bool is_continuation(unsigned char c) { return (c & 0xC0) == 0x80; }

// The length of the well-formed UTF-8 sequence at text[pos], or 0.
size_t utf8_sequence_length(std::string_view text, size_t pos) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned b0 = at(pos), b1 = at(pos + 1), b2 = at(pos + 2), b3 = at(pos + 3);
  if (b0 < 0x80) return 1;
  if (b0 < 0xC2) return 0;
  if (b0 < 0xE0) return is_continuation(static_cast<unsigned char>(b1)) ? 2 : 0;
  if (!is_continuation(static_cast<unsigned char>(b1)) || !is_continuation(static_cast<unsigned char>(b2))) return 0;
  if (b0 < 0xF0) {
    const bool overlong = b0 == 0xE0 && b1 < 0xA0;
    const bool surrogate = b0 == 0xED && b1 >= 0xA0;
    return overlong || surrogate ? 0 : 3;
  }
  if (!is_continuation(static_cast<unsigned char>(b3))) return 0;
  const bool overlong = b0 == 0xF0 && b1 < 0x90;
  const bool too_large = b0 > 0xF4 || (b0 == 0xF4 && b1 >= 0x90);
  return overlong || too_large ? 0 : 4;
}

template <typename T>
void append_number(T value, std::string& out) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  fmt::format_to(std::back_inserter(out), "{}", value);
}

}  // namespace

void append_json_string(std::string_view text, std::string& out) {
  out += '"';
  size_t pos = 0;
  while (pos < text.size()) {
    const auto c = static_cast<unsigned char>(text[pos]);
    if (c >= 0x80) {
      const size_t length = utf8_sequence_length(text, pos);
      if (length == 0) {
        out += "\xEF\xBF\xBD";
        ++pos;
      } else {
        out.append(text, pos, length);
        pos += length;
      }
      continue;
    }
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (c < 0x20 || c == 0x7F) {
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
          break;
        }
        size_t end = pos + 1;
        while (end < text.size() && is_plain(text[end])) ++end;
        out.append(text, pos, end - pos);
        pos = end - 1;
    }
    ++pos;
  }
  out += '"';
}

void append_json_number(double value, std::string& out) { append_number(value, out); }
void append_json_number(float value, std::string& out) { append_number(value, out); }

void JsonWriter::before_value() {
  if (needs_comma_) out_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  before_value();
  out_ += bracket;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  before_value();
  append_json_string(name, out_);
  out_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  before_value();
  append_json_string(text, out_);
  return *this;
}

JsonWriter& JsonWriter::value(int64_t number) {
  before_value();
  const fmt::format_int text(number);
  out_.append(text.data(), text.size());
  return *this;
}

JsonWriter& JsonWriter::value(uint64_t number) {
  before_value();
  const fmt::format_int text(number);
  out_.append(text.data(), text.size());
  return *this;
}

JsonWriter& JsonWriter::value(double number) {
  before_value();
  append_json_number(number, out_);
  return *this;
}

JsonWriter& JsonWriter::value(float number) {
  before_value();
  append_json_number(number, out_);
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  before_value();
  out_ += json;
  return *this;
}

}  // namespace spate
