#include "text/split_scanners.h"

#include "text/unicode.h"

namespace spate {
namespace {

struct Scanned {
  uint8_t classes;
  uint32_t size_bytes;
};

inline Scanned peek(const uint8_t* classes, std::string_view text, size_t pos) {
  const auto byte = static_cast<unsigned char>(text[pos]);
  if (byte < 0x80) return {classes[byte], 1};
  const Utf8Char c = decode_utf8(text, pos);
  return {char_class(classes, c.value), c.size_bytes};
}

// The end of the longest run from `pos` of characters with (class & mask) != 0, or == 0 if `want_none`.
template <bool want_none = false>
inline size_t run_end(const uint8_t* classes, std::string_view text, size_t pos, uint8_t mask) {
  while (pos < text.size()) {
    const Scanned c = peek(classes, text, pos);
    if (((c.classes & mask) != 0) == want_none) break;
    pos += c.size_bytes;
  }
  return pos;
}

inline bool is_newline(char c) { return c == '\r' || c == '\n'; }
inline bool is_ascii_letter(char c) { return static_cast<unsigned char>((c | 0x20) - 'a') < 26; }

inline size_t newlines_end(std::string_view text, size_t pos) {
  while (pos < text.size() && is_newline(text[pos])) ++pos;
  return pos;
}

// '(s|t|re|ve|m|ll|d) with the apostrophe at pos; 0 when it is none of them.
size_t contraction_size(std::string_view text, size_t pos, bool ignore_case) {
  const auto at = [&](size_t i) -> char {
    if (pos + i >= text.size()) return '\0';
    const char c = text[pos + i];
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? 3 : 0;
    case 'l':
      return at(2) == 'l' ? 3 : 0;
    // U+017F, the long s, is an s when case is ignored.
    case '\xC5':
      return ignore_case && at(2) == '\xBF' ? 3 : 0;
    default:
      return 0;
  }
}

// \s+(?!\S)|\s+ from the white space at pos: the whole run at the end of the text, else all but its last
// character (which then joins the word behind it), else that one character.
size_t scan_space(const uint8_t* classes, std::string_view text, size_t pos) {
  const size_t end = run_end(classes, text, pos, kCharSpace);
  if (end == text.size()) return end;
  const size_t last = previous_utf8(text, end);
  return last > pos ? last : end;
}

// \s*[\r\n]+|\s+(?!\S)|\s+: greedy \s* gives back only up to the last line break of the run.
size_t scan_space_or_lines(const uint8_t* classes, std::string_view text, size_t pos) {
  const size_t end = run_end(classes, text, pos, kCharSpace);
  for (size_t i = end; i > pos; --i) {
    if (is_newline(text[i - 1])) return i;
  }
  if (end == text.size()) return end;
  const size_t last = previous_utf8(text, end);
  return last > pos ? last : end;
}

}  // namespace

size_t scan_gpt2(const uint8_t* classes, std::string_view text, size_t pos) {
  if (text[pos] == '\'') {
    if (const size_t size = contraction_size(text, pos, false)) return pos + size;
  }
  // ` ?` may take one space; the class of what follows decides which of the three runs it is.
  size_t body = pos;
  Scanned c = peek(classes, text, pos);
  if (text[pos] == ' ' && pos + 1 < text.size()) {
    body = pos + 1;
    c = peek(classes, text, body);
  }
  const size_t behind = body + c.size_bytes;
  if (c.classes & kCharLetter) return run_end(classes, text, behind, kCharLetter);
  if (c.classes & kCharNumber) return run_end(classes, text, behind, kCharNumber);
  if (!(c.classes & kCharSpace)) return run_end<true>(classes, text, behind, kCharSpace | kCharLetter | kCharNumber);
  return scan_space(classes, text, pos);
}

size_t scan_llama3(const uint8_t* classes, std::string_view text, size_t pos, size_t max_digits) {
  if (text[pos] == '\'') {
    if (const size_t size = contraction_size(text, pos, true)) return pos + size;
  }
  const Scanned c = peek(classes, text, pos);
  const size_t behind = pos + c.size_bytes;
  if (c.classes & kCharLetter) return run_end(classes, text, behind, kCharLetter);
  if (c.classes & kCharNumber) {
    size_t end = behind;
    for (size_t i = 1; i < max_digits && end < text.size(); ++i) {
      const Scanned digit = peek(classes, text, end);
      if (!(digit.classes & kCharNumber)) break;
      end += digit.size_bytes;
    }
    return end;
  }
  // [^\r\n\p{L}\p{N}]?\p{L}+ : any one character that is no line break leads a word.
  const bool has_next = behind < text.size();
  const Scanned next = has_next ? peek(classes, text, behind) : Scanned{kCharSpace, 0};
  if (!is_newline(text[pos]) && (next.classes & kCharLetter)) {
    return run_end(classes, text, behind + next.size_bytes, kCharLetter);
  }
  constexpr uint8_t kNotOther = kCharSpace | kCharLetter | kCharNumber;
  if (!(c.classes & kNotOther)) return newlines_end(text, run_end<true>(classes, text, behind, kNotOther));
  if (text[pos] == ' ' && !(next.classes & kNotOther)) {
    return newlines_end(text, run_end<true>(classes, text, behind + next.size_bytes, kNotOther));
  }
  return scan_space_or_lines(classes, text, pos);
}

size_t scan_deepseek_v3(const uint8_t* classes, std::string_view text, size_t pos) {
  const Scanned c = peek(classes, text, pos);
  const size_t behind = pos + c.size_bytes;
  const auto byte = static_cast<unsigned char>(text[pos]);
  // [!-/:-~ punctuation][A-Za-z]+ ; in ASCII the classes P and S are exactly the pattern's list.
  constexpr uint8_t kPunctuationOrSymbol = kCharPunctuation | kCharSymbol;
  constexpr uint8_t kLetterOrMark = kCharLetter | kCharMark;
  if (byte < 0x80 && (c.classes & kPunctuationOrSymbol) && behind < text.size() && is_ascii_letter(text[behind])) {
    size_t end = behind + 1;
    while (end < text.size() && is_ascii_letter(text[end])) ++end;
    return end;
  }
  if (c.classes & kLetterOrMark) return run_end(classes, text, behind, kLetterOrMark);
  const bool has_next = behind < text.size();
  const Scanned next = has_next ? peek(classes, text, behind) : Scanned{kCharSpace, 0};
  if (!is_newline(text[pos]) && !(c.classes & kPunctuationOrSymbol) && (next.classes & kLetterOrMark)) {
    return run_end(classes, text, behind + next.size_bytes, kLetterOrMark);
  }
  if (c.classes & kPunctuationOrSymbol) {
    return newlines_end(text, run_end(classes, text, behind, kPunctuationOrSymbol));
  }
  if (byte == ' ' && (next.classes & kPunctuationOrSymbol)) {
    return newlines_end(text, run_end(classes, text, behind + next.size_bytes, kPunctuationOrSymbol));
  }
  if (c.classes & kCharSpace) return scan_space_or_lines(classes, text, pos);
  return pos;  // a digit, a control or format character: in no alternative
}

}  // namespace spate
