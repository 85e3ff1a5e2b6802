// UTF-8 and the character classes that tokenizers speak of. All functions are pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace spate {

// Bits of char_class(). Letter, number, punctuation, symbol and mark are the Unicode general categories L, N, P, S
// and M; space is the property White_Space; word is what \w means (letters, marks, digits, connectors).
enum CharClass : uint8_t {
  kCharLetter = 1,
  kCharNumber = 2,
  kCharSpace = 4,
  kCharPunctuation = 8,
  kCharSymbol = 16,
  kCharMark = 32,
  kCharWord = 64,
  // A text of only such characters is its own NFC. Conservative: a character without the bit may be stable too.
  kCharNfcInert = 128,
};

// Everything from here up to the end of Unicode is unassigned, private or a variation selector.
constexpr uint32_t kCharClassTableSize = 0x32400;
// Built on first use (about 1 ms); callers in inner loops fetch the pointer once.
const uint8_t* char_class_table();
// The class of a code point that lies beyond the table.
inline uint8_t char_class_beyond_table(char32_t c) { return c >= 0xE0100 && c <= 0xE01EF ? kCharMark | kCharWord : 0; }
inline uint8_t char_class(const uint8_t* table, char32_t c) {
  return c < kCharClassTableSize ? table[c] : char_class_beyond_table(c);
}

struct Utf8Char {
  char32_t value;
  uint32_t size_bytes;  // 1 to 4
};

// The character that starts at text[pos]. `text` must be valid UTF-8 and pos a boundary before its end.
inline Utf8Char decode_utf8(std::string_view text, size_t pos) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + pos;
  if (p[0] < 0x80) return {p[0], 1};
  if (p[0] < 0xE0) return {static_cast<char32_t>((p[0] & 0x1F) << 6 | (p[1] & 0x3F)), 2};
  if (p[0] < 0xF0) return {static_cast<char32_t>((p[0] & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F)), 3};
  return {static_cast<char32_t>((p[0] & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F)), 4};
}
// The start of the character that ends right before text[pos]; pos > 0.
inline size_t previous_utf8(std::string_view text, size_t pos) {
  do --pos;
  while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80);
  return pos;
}
void append_utf8(char32_t c, std::string& out);

bool is_valid_utf8(std::string_view text);
// `text` with every maximal invalid part replaced by U+FFFD (the Unicode standard's recommendation, section 3.9).
std::string to_valid_utf8(std::string_view text);
// The same for a stream: appends what is certain to `out` and returns how many bytes that took. The rest, at most
// three bytes, is the beginning of a character; it stays unless `is_end`.
size_t append_valid_utf8(std::string_view bytes, bool is_end, std::string& out);

}  // namespace spate
