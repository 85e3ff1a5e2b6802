// Python literals to JSON, for models that write tool calls as Python.
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "grammar/code_points.h"
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
  // 'x' "x" '''x''' """x""", and several behind each other, which are one text.
  std::optional<Json> parse_string() {
    std::string value;
    do {
      if (!append_string(value)) return std::nullopt;
      skip_space();
    } while (pos_ < text_.size() && (text_[pos_] == '"' || text_[pos_] == '\''));
    return Json(std::move(value));
  }
  bool append_string(std::string& value) {
    const std::string triple(3, text_[pos_]);
    const std::string_view quotes = std::string_view(triple).substr(0, text_.substr(pos_).starts_with(triple) ? 3 : 1);
    pos_ += quotes.size();
    while (pos_ < text_.size()) {
      if (text_.substr(pos_).starts_with(quotes)) {
        pos_ += quotes.size();
        return true;
      }
      const char c = text_[pos_++];
      if (c == '\\' && pos_ < text_.size()) {
        append_escape(value);
      } else {
        value += c;
      }
    }
    return false;
  }
  // Python's escapes, and JSON's \/, of which models are fond. An unknown one stands for itself, as in Python.
  void append_escape(std::string& value) {
    constexpr std::string_view kLetters = "\\'\"/abfnrtv\n", kMeanings = "\\'\"/\a\b\f\n\r\t\v";
    const char escaped = text_[pos_++];
    if (const size_t i = kLetters.find(escaped); i != std::string_view::npos) {
      if (escaped != '\n') value += kMeanings[i];
      return;
    }
    if (escaped >= '0' && escaped <= '7') {
      --pos_;
      return append_code_point(read_digits(1, 3, 8), value);
    }
    const size_t num_digits = escaped == 'x' ? 2 : escaped == 'u' ? 4 : escaped == 'U' ? 8 : 0;
    const std::optional<char32_t> code_point = num_digits > 0 ? read_digits(num_digits, num_digits, 16) : std::nullopt;
    if (code_point) return append_code_point(code_point, value);
    value += {'\\', escaped};
  }
  std::optional<char32_t> read_digits(size_t min_digits, size_t max_digits, int base) {
    uint32_t number = 0;
    const std::string_view digits = text_.substr(pos_, max_digits);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
    const auto num_read = static_cast<size_t>(end - digits.data());
    if (error != std::errc() || num_read < min_digits) return std::nullopt;
    pos_ += num_read;
    return number;
  }
  // A pair of surrogates, as JSON writes what lies above U+FFFF, is one character.
  void append_code_point(std::optional<char32_t> code_point, std::string& value) {
    char32_t c = code_point.value_or(0xFFFD);
    if (c >= 0xD800 && c < 0xDC00 && text_.substr(pos_).starts_with("\\u")) {
      const size_t before = pos_;
      pos_ += 2;
      const std::optional<char32_t> low = read_digits(4, 4, 16);
      if (low && *low >= 0xDC00 && *low < 0xE000) {
        c = 0x10000 + ((c - 0xD800) << 10) + (*low - 0xDC00);
      } else {
        pos_ = before;
      }
    }
    const bool is_character = c <= 0x10FFFF && (c < 0xD800 || c >= 0xE000);
    append_utf8_char(is_character ? c : 0xFFFD, value);
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
