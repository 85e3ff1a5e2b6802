// UTF-8 text as Python sees a str: lengths and positions in code points, Python's classes of characters and its
// case mapping. All functions take valid UTF-8 (utf8_valid says whether it is); none throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spate::jinja {

bool utf8_valid(std::string_view text);
size_t utf8_length(std::string_view text);  // code points
// Byte offset of the code point `index` (0 .. length).
size_t utf8_offset(std::string_view text, size_t index);
// The code point that starts at byte `pos`; advances pos past it.
char32_t utf8_next(std::string_view text, size_t& pos);
char32_t utf8_last(std::string_view text);  // of a text that is not empty
void utf8_append(std::string& out, char32_t c);
std::u32string utf8_to_u32(std::string_view text);
std::string utf8_from_u32(std::u32string_view text);

bool is_space(char32_t c);     // str.isspace, str.strip, \s of the lexer
bool is_line_end(char32_t c);  // str.splitlines
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit(char32_t c);
bool is_numeric(char32_t c);
bool is_alnum(char32_t c);
bool is_lower(char32_t c);
bool is_upper(char32_t c);
bool is_title(char32_t c);
bool is_printable(char32_t c);  // what repr() leaves as it is
bool is_word(char32_t c);       // \w
bool is_name_start(char32_t c);
bool is_name_part(char32_t c);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string to_title(std::string_view text);        // str.title
std::string to_capitalized(std::string_view text);  // str.capitalize
std::string swap_case(std::string_view text);
std::string case_fold(std::string_view text);

std::string_view strip_left(std::string_view text);  // Python's white space
std::string_view strip_right(std::string_view text);
std::string_view strip(std::string_view text);
// Strips code points that occur in `chars`.
std::string_view strip_chars(std::string_view text, std::string_view chars, bool left, bool right);
// Byte position of `part` from `from` on, or npos: linear in the text even for hostile ones (std::string::find is not).
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
std::vector<std::string_view> split_spaces(std::string_view text, int64_t max_splits);
std::vector<std::string_view> split_spaces_right(std::string_view text, int64_t max_splits);

}  // namespace spate::jinja
