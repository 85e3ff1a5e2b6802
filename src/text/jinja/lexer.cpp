#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "text/jinja/meter.h"
#include "text/jinja/unicode.h"

namespace spate::jinja {
namespace {

[[noreturn]] void fail_at(int line, const std::string& message) {
  Error error(message);
  error.line = line;
  throw error;
}

std::string normalize_newlines(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out.push_back(text[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
  }
  return out;
}

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_hex_char(char c) { return is_digit_char(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  std::vector<Token> run() {
    while (pos_ < source_.size()) lex_root();
    tokens_.push_back(Token{TokenKind::kEnd, line_, {}});
    return std::move(tokens_);
  }

 private:
  enum class Tag { kComment, kBlock, kVariable, kRaw };

  bool at(std::string_view text, size_t pos) const {
    return std::string_view(source_).substr(pos, text.size()) == text;
  }
  size_t skip_space(size_t pos) const {
    while (pos < source_.size()) {
      size_t after = pos;
      if (!is_space(utf8_next(source_, after))) break;
      pos = after;
    }
    return pos;
  }
  // Moves to `end`; everything in between has been read.
  void advance(size_t end) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<long>(pos_), source_.begin() + static_cast<long>(end), '\n'));
    if (end > pos_) line_starting_ = source_[end - 1] == '\n';
    pos_ = end;
  }
  void emit(TokenKind kind, std::string text) { tokens_.push_back(Token{kind, line_, std::move(text)}); }
  void emit_data(std::string_view text, int line) {
    if (!text.empty()) tokens_.push_back(Token{TokenKind::kData, line, std::string(text)});
  }

  // The text before a tag: what '-' or lstrip_blocks leaves of it.
  std::string_view text_before(std::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return strip_right(text);
    if (sign == '+' || is_variable) return text;
    const size_t line_begin = text.rfind('\n') + 1;  // npos + 1 == 0
    if (line_begin == 0 && !line_starting_) return text;
    return strip(text.substr(line_begin)).empty() ? text.substr(0, line_begin) : text;
  }

  // "{% raw %}" at pos: the position after it, or npos.
  size_t match_raw_begin(size_t pos) const {
    if (!at("{%", pos)) return std::string::npos;
    pos += 2;
    if (pos < source_.size() && (source_[pos] == '-' || source_[pos] == '+')) ++pos;
    pos = skip_space(pos);
    if (!at("raw", pos)) return std::string::npos;
    pos = skip_space(pos + 3);
    if (at("-%}", pos)) return skip_space(pos + 3);
    return at("%}", pos) ? pos + 2 : std::string::npos;
  }

  size_t match_raw_end(size_t pos) const {
    pos += 2;
    if (pos < source_.size() && (source_[pos] == '-' || source_[pos] == '+')) ++pos;
    pos = skip_space(pos);
    if (!at("endraw", pos)) return std::string::npos;
    return match_block_end(skip_space(pos + 6), "%}");
  }

  // The end of a block or comment: '-' eats white space, else one newline goes.
  size_t match_block_end(size_t pos, std::string_view end) const {
    if (pos < source_.size() && source_[pos] == '-' && at(end, pos + 1)) return skip_space(pos + 3);
    if (pos < source_.size() && source_[pos] == '+' && at(end, pos + 1)) return pos + 3;
    if (!at(end, pos)) return std::string::npos;
    return pos + 2 < source_.size() && source_[pos + 2] == '\n' ? pos + 3 : pos + 2;
  }

  size_t match_variable_end(size_t pos) const {
    if (at("-}}", pos)) return skip_space(pos + 3);
    return at("}}", pos) ? pos + 2 : std::string::npos;
  }

  void lex_root() {
    size_t begin = pos_;
    while (begin < source_.size() &&
           !(source_[begin] == '{' && (at("{%", begin) || at("{{", begin) || at("{#", begin))))
      ++begin;
    const std::string_view text = std::string_view(source_).substr(pos_, begin - pos_);
    if (begin == source_.size()) {
      emit_data(text, line_);
      return advance(begin);
    }
    const size_t raw_end = match_raw_begin(begin);
    const Tag tag = raw_end != std::string::npos ? Tag::kRaw
                    : source_[begin + 1] == '{'  ? Tag::kVariable
                    : source_[begin + 1] == '#'  ? Tag::kComment
                                                 : Tag::kBlock;
    size_t end = begin + 2;
    const char sign = end < source_.size() && (source_[end] == '-' || source_[end] == '+') ? source_[end] : ' ';
    if (sign != ' ') ++end;
    emit_data(text_before(text, sign, tag == Tag::kVariable), line_);
    advance(tag == Tag::kRaw ? raw_end : end);
    switch (tag) {
      case Tag::kRaw:
        return lex_raw();
      case Tag::kComment:
        return lex_comment();
      case Tag::kVariable:
        emit(TokenKind::kVariableBegin, "{{");
        return lex_tag(TokenKind::kVariableEnd);
      case Tag::kBlock:
        emit(TokenKind::kBlockBegin, "{%");
        return lex_tag(TokenKind::kBlockEnd);
    }
  }

  void lex_comment() {
    if (pos_ == source_.size()) return;
    for (size_t p = pos_; p < source_.size(); ++p) {
      const size_t end = match_block_end(p, "#}");
      if (end != std::string::npos) return advance(end);
    }
    fail_at(line_, "Missing end of comment tag");
  }

  void lex_raw() {
    if (pos_ == source_.size()) return;
    for (size_t p = source_.find("{%", pos_); p != std::string::npos; p = source_.find("{%", p + 1)) {
      const size_t end = match_raw_end(p);
      if (end == std::string::npos) continue;
      const char sign = source_[p + 2] == '-' || source_[p + 2] == '+' ? source_[p + 2] : ' ';
      emit_data(text_before(std::string_view(source_).substr(pos_, p - pos_), sign, false), line_);
      return advance(end);
    }
    fail_at(line_, "Missing end of raw directive");
  }

  void lex_tag(TokenKind end_kind) {
    std::string open;  // brackets that wait for their end
    while (pos_ < source_.size()) {
      if (open.empty()) {
        const size_t end = end_kind == TokenKind::kVariableEnd ? match_variable_end(pos_) : match_block_end(pos_, "%}");
        if (end != std::string::npos) {
          emit(end_kind, end_kind == TokenKind::kVariableEnd ? "}}" : "%}");
          return advance(end);
        }
      }
      const size_t space_end = skip_space(pos_);
      if (space_end > pos_) {
        advance(space_end);
        continue;
      }
      if (lex_number() || lex_name() || lex_string()) continue;
      lex_operator(open);
    }
  }

  // Digits with single underscores between them; the end, or `pos` when there is none.
  template <typename IsDigit>
  size_t digits_end(size_t pos, IsDigit is_digit_of) const {
    if (pos >= source_.size() || !is_digit_of(source_[pos])) return pos;
    while (pos < source_.size() && (is_digit_of(source_[pos]) ||
                                    (source_[pos] == '_' && pos + 1 < source_.size() && is_digit_of(source_[pos + 1]))))
      ++pos;
    return pos;
  }

  bool lex_number() {
    if (!is_digit_char(source_[pos_])) return false;
    if (lex_float()) return true;
    size_t end = pos_;
    int base = 10;
    const char letter = pos_ + 1 < source_.size() ? static_cast<char>(source_[pos_ + 1] | 0x20) : ' ';
    if (source_[pos_] == '0' && (letter == 'x' || letter == 'o' || letter == 'b')) {
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
      const auto is_digit_of = [base](char c) { return base == 16 ? is_hex_char(c) : c >= '0' && c < '0' + base; };
      const size_t first = pos_ + 2 < source_.size() && source_[pos_ + 2] == '_' ? pos_ + 3 : pos_ + 2;
      end = digits_end(first, is_digit_of);
      if (end == first) end = pos_;
    }
    if (end == pos_) {
      base = 10;
      end = source_[pos_] == '0' ? digits_end(pos_, [](char c) { return c == '0'; }) : digits_end(pos_, is_digit_char);
    }
    std::string digits = source_.substr(pos_, end - pos_);
    std::erase(digits, '_');
    Token token{TokenKind::kInteger, line_, digits};
    const char* first = digits.data() + (base == 10 ? 0 : 2);
    const auto [unused, error] = std::from_chars(first, digits.data() + digits.size(), token.integer, base);
    if (error != std::errc()) fail_at(line_, "the integer " + digits + " does not fit into 64 bits");
    tokens_.push_back(std::move(token));
    advance(end);
    return true;
  }

  bool lex_float() {
    if (pos_ > 0 && source_[pos_ - 1] == '.') return false;
    size_t end = digits_end(pos_, is_digit_char);
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit_char(source_[end + 1])) {
      end = digits_end(end + 1, is_digit_char);
      is_float = true;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      const size_t exponent_end = digits_end(exponent, is_digit_char);
      if (exponent_end > exponent) {
        end = exponent_end;
        is_float = true;
      }
    }
    if (!is_float) return false;
    std::string digits = source_.substr(pos_, end - pos_);
    std::erase(digits, '_');
    Token token{TokenKind::kFloat, line_, digits};
    token.real = std::strtod(digits.c_str(), nullptr);
    tokens_.push_back(std::move(token));
    advance(end);
    return true;
  }

  bool lex_name() {
    size_t end = pos_;
    while (end < source_.size()) {
      size_t after = end;
      const char32_t c = utf8_next(source_, after);
      if (!(end == pos_ ? is_name_start(c) : is_name_part(c))) break;
      end = after;
    }
    if (end == pos_) return false;
    emit(TokenKind::kName, source_.substr(pos_, end - pos_));
    advance(end);
    return true;
  }

  bool lex_string() {
    const char quote = source_[pos_];
    if (quote != '\'' && quote != '"') return false;
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return false;  // the operator rule reports it
    emit(TokenKind::kString, unescape(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1)));
    advance(end + 1);
    return true;
  }

  // Python's unicode-escape rules; an unknown escape stays as it is.
  std::string unescape(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        out.push_back(text[i++]);
        continue;
      }
      if (++i >= text.size()) fail_at(line_, "\\ at end of string");
      const char c = text[i];
      if (c >= '0' && c <= '7') {
        char32_t code = 0;
        for (int n = 0; n < 3 && i < text.size() && text[i] >= '0' && text[i] <= '7'; ++n)
          code = code * 8 + static_cast<char32_t>(text[i++] - '0');
        utf8_append(out, code);
        continue;
      }
      ++i;
      switch (c) {
        case '\n':
          break;
        case '\\':
        case '\'':
        case '"':
          out.push_back(c);
          break;
        case 'a':
          out.push_back('\a');
          break;
        case 'b':
          out.push_back('\b');
          break;
        case 'f':
          out.push_back('\f');
          break;
        case 'n':
          out.push_back('\n');
          break;
        case 'r':
          out.push_back('\r');
          break;
        case 't':
          out.push_back('\t');
          break;
        case 'v':
          out.push_back('\v');
          break;
        case 'x':
          append_code(out, text, i, 2);
          break;
        case 'u':
          append_code(out, text, i, 4);
          break;
        case 'U':
          append_code(out, text, i, 8);
          break;
        case 'N':
          fail_at(line_, "named characters (\\N{...}) are not supported");
        default:
          out.push_back('\\');
          if (static_cast<unsigned char>(c) < 0x80) {
            out.push_back(c);
          } else {
            // jinja2 writes other characters as escapes before it reads escapes: the backslash ends up before
            // the letters of that escape.
            size_t after = i - 1;
            const auto code = static_cast<uint32_t>(utf8_next(text, after));
            out += code < 0x100     ? fmt::format("x{:02x}", code)
                   : code < 0x10000 ? fmt::format("u{:04x}", code)
                                    : fmt::format("U{:08x}", code);
            i = after;
          }
      }
    }
    return out;
  }

  void append_code(std::string& out, std::string_view text, size_t& i, size_t num_digits) const {
    uint32_t code = 0;
    if (i + num_digits > text.size() || !std::all_of(text.begin() + static_cast<long>(i),
                                                     text.begin() + static_cast<long>(i + num_digits), is_hex_char)) {
      fail_at(line_, "truncated escape sequence in a string");
    }
    std::from_chars(text.data() + i, text.data() + i + num_digits, code, 16);
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      fail_at(line_, "an escape sequence in a string is no Unicode character");
    utf8_append(out, code);
    i += num_digits;
  }

  void lex_operator(std::string& open) {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    std::string text;
    for (const std::string_view op : kTwo) {
      if (at(op, pos_)) text = op;
    }
    if (text.empty()) {
      if (kOne.find(source_[pos_]) == std::string_view::npos) {
        size_t after = pos_;
        utf8_next(source_, after);
        fail_at(line_, fmt::format("unexpected char '{}' at {}", source_.substr(pos_, after - pos_),
                                   utf8_length(std::string_view(source_).substr(0, pos_))));
      }
      text = source_[pos_];
    }
    if (text == "(" || text == "[" || text == "{") {
      open.push_back(text == "(" ? ')' : text == "[" ? ']' : '}');
    } else if (text == ")" || text == "]" || text == "}") {
      if (open.empty()) fail_at(line_, "unexpected '" + text + "'");
      if (open.back() != text[0]) fail_at(line_, fmt::format("unexpected '{}', expected '{}'", text, open.back()));
      open.pop_back();
    }
    emit(TokenKind::kOperator, text);
    advance(pos_ + text.size());
  }

  std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "template data / text";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kString:
      return "string";
    case TokenKind::kInteger:
      return "integer";
    case TokenKind::kFloat:
      return "float";
    case TokenKind::kEnd:
      return "end of template";
    default:
      return token.text;
  }
}

}  // namespace spate::jinja
