// Python literals to JSON, for models that write tool calls as Python.
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>

#include "server/call_reader.h"

namespace spate {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;

class LiteralParser {
 public:
  explicit LiteralParser(std::string_view text) : text_(text) {}

  std::optional<Json> parse() {
    std::optional<Json> value = parse_value(0);
    skip_space();
    return value && pos_ == text_.size() ? value : std::nullopt;
  }

 private:
  void skip_space() {
    while (pos_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[pos_]))) ++pos_;
  }
  bool take(char c) {
    skip_space();
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }
  std::optional<Json> parse_value(int depth) {
    skip_space();
    if (pos_ >= text_.size() || depth > kMaxDepth) return std::nullopt;
    const char c = text_[pos_];
    if (c == '"' || c == '\'') return parse_string();
    if (c == '[') return parse_list(']', depth);
    if (c == '(') return parse_list(')', depth);
    if (c == '{') return parse_dict(depth);
    const size_t begin = pos_;
    while (pos_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[pos_])) || text_[pos_] == '.' ||
                                   text_[pos_] == '-' || text_[pos_] == '+' || text_[pos_] == '_')) {
      ++pos_;
    }
    const std::string word(text_.substr(begin, pos_ - begin));
    if (word == "True" || word == "true") return Json(true);
    if (word == "False" || word == "false") return Json(false);
    if (word == "None" || word == "null") return Json(nullptr);
    Json number = Json::parse(word, nullptr, false);
    return number.is_number() ? std::optional<Json>(std::move(number)) : std::nullopt;
  }
  std::optional<Json> parse_list(char end, int depth) {
    ++pos_;
    Json list = Json::array();
    while (!take(end)) {
      std::optional<Json> item = parse_value(depth + 1);
      if (!item) return std::nullopt;
      list.push_back(std::move(*item));
      if (!take(',') && !(skip_space(), pos_ < text_.size() && text_[pos_] == end)) return std::nullopt;
    }
    return list;
  }
  std::optional<Json> parse_dict(int depth) {
    ++pos_;
    Json dict = Json::object();
    while (!take('}')) {
      std::optional<Json> key = parse_value(depth + 1);
      if (!key || !take(':')) return std::nullopt;
      std::optional<Json> value = parse_value(depth + 1);
      if (!value) return std::nullopt;
      dict[key->is_string() ? key->get<std::string>() : key->dump()] = std::move(*value);
      if (!take(',') && !(skip_space(), pos_ < text_.size() && text_[pos_] == '}')) return std::nullopt;
    }
    return dict;
  }
  std::optional<Json> parse_string() {
    const char quote = text_[pos_++];
    std::string json = "\"";  // with JSON's escapes
    while (pos_ < text_.size() && text_[pos_] != quote) {
      const char c = text_[pos_++];
      if (c == '\\' && pos_ < text_.size()) {
        const char escaped = text_[pos_++];
        if (escaped == '\'') {
          json += '\'';
        } else if (std::string_view("\"\\/bfnrtu").find(escaped) != std::string_view::npos) {
          json += {'\\', escaped};
        } else {
          json += {'\\', '\\', escaped};
        }
      } else if (c == '"') {
        json += "\\\"";
      } else if (static_cast<unsigned char>(c) < 0x20) {
        json += Json(std::string(1, c)).dump().substr(1);
        json.pop_back();
      } else {
        json += c;
      }
    }
    if (pos_ >= text_.size()) return std::nullopt;
    ++pos_;
    Json value = Json::parse(json + '"', nullptr, false);
    return value.is_string() ? std::optional<Json>(std::move(value)) : std::nullopt;
  }

  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace

std::string json_of_python(std::string_view literal) {
  const std::optional<Json> value = LiteralParser(literal).parse();
  return value ? value->dump(-1, ' ', false, Json::error_handler_t::replace) : std::string();
}

}  // namespace spate
