#include "server/tool_call_scanner.h"

#include <nlohmann/json.hpp>

namespace spate {
namespace {

// The text of a JSON string's inside; as it stands when the escapes are malformed.
std::string unescape(const std::string& raw) {
  const auto value = nlohmann::json::parse('"' + raw + '"', nullptr, false);
  return value.is_string() ? value.get<std::string>() : raw;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

void ToolCallScanner::append(std::string_view text, std::string& arguments) {
  for (const char c : text) append_char(c, arguments);
  if (has_name_ && !waiting_.empty()) arguments += std::exchange(waiting_, {});
}

void ToolCallScanner::finish(std::string& arguments) {
  if (has_name_) arguments += std::exchange(waiting_, {});
}

void ToolCallScanner::append_char(char c, std::string& arguments) {
  if (is_complete()) return;  // a second object in one call, or text after it: nobody's
  const bool was_top_level = depth_ == 1 && !in_string_;
  if (in_arguments_ && was_top_level && (c == ',' || c == '}')) end_value();
  if (in_arguments_) {
    std::string& out = has_name_ && waiting_.empty() ? arguments : waiting_;
    if (!(was_top_level && is_space(c))) out += c;
  }
  if (in_string_) {
    if (depth_ == 1 && !in_arguments_ && (c != '"' || is_escaped_)) string_ += c;
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (c == '\\') {
      is_escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      if (depth_ == 1 && !in_arguments_) {
        if (!is_value_) {
          key_ = unescape(string_);
        } else if (key_ == "name" && !has_name_) {
          name_ = unescape(string_);
          has_name_ = !name_.empty();
        }
      }
    }
    return;
  }
  switch (c) {
    case '"':
      in_string_ = true;
      string_.clear();
      break;
    case '{':
    case '[':
      ++depth_;
      has_begun_ = true;
      break;
    case '}':
    case ']':
      --depth_;
      break;
    case ':':
      if (depth_ == 1 && !is_value_) begin_value();
      break;
    case ',':
      if (depth_ == 1) is_value_ = false;
      break;
    default:
      break;
  }
}

void ToolCallScanner::begin_value() {
  is_value_ = true;
  in_arguments_ = key_ == "arguments" || key_ == "parameters";
}

void ToolCallScanner::end_value() { in_arguments_ = false; }

}  // namespace spate
