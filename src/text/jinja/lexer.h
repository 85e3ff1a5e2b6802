// Template text to tokens, with jinja2's rules for white space around tags: trim_blocks and lstrip_blocks are on,
// one newline at the end of the template is dropped, and '-' or '+' in a tag overrule both.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spate::jinja {

enum class TokenKind : unsigned char {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // data, name, string value, operator as written ("//", "=="...)
  int64_t integer = 0;
  double real = 0;
};

// Throws Error with a line.
std::vector<Token> tokenize(std::string_view source);

// How jinja2 names a token in a message.
std::string describe(const Token& token);

}  // namespace spate::jinja
