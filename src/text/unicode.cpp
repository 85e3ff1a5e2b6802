#include "text/unicode.h"

#include <utf8proc.h>

#include <cstring>
#include <memory>

namespace spate {
namespace {

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Symbols with the property Alphabetic (circled and squared letters), and the two joiners: \w without being
// letter, mark, digit or connector.
bool is_word_by_exception(char32_t c) {
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool is_nfc_inert(char32_t c, const utf8proc_property_t& property) {
  if (c < 0x300 || (c >= 0x1E00 && c <= 0x1EFF) || (c >= 0xAC00 && c <= 0xD7A3)) return true;
  if (c >= 0x1160 && c <= 0x11FF) return false;  // jamo that join a syllable before them
  const bool joins_the_one_before = property.comb_index != UINT16_MAX && property.comb_index >= 0x8000;
  return property.decomp_seqindex == UINT16_MAX && property.combining_class == 0 && !joins_the_one_before;
}

uint8_t compute_class(char32_t c) {
  const utf8proc_property_t& property = *utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  uint8_t bits = 0;
  switch (property.category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      bits = kCharLetter | kCharWord;
      break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      bits = kCharMark | kCharWord;
      break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      bits = kCharNumber | kCharWord;
      break;
    case UTF8PROC_CATEGORY_NO:
      bits = kCharNumber;
      break;
    case UTF8PROC_CATEGORY_PC:
      bits = kCharPunctuation | kCharWord;
      break;
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      bits = kCharPunctuation;
      break;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      bits = kCharSymbol;
      break;
    default:
      break;
  }
  if (is_white_space(c)) bits |= kCharSpace;
  if (is_word_by_exception(c)) bits |= kCharWord;
  if (is_nfc_inert(c, property)) bits |= kCharNfcInert;
  return bits;
}

// One step through bytes that may be anything.
struct Utf8Step {
  enum Kind { kValid, kInvalid, kIncomplete } kind;
  size_t size_bytes;  // of the character, of the maximal invalid part, or of what is there
};

Utf8Step step_utf8(std::string_view bytes, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(pos);
  if (lead < 0x80) return {Utf8Step::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Step::kInvalid, 1};
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte is narrower after four lead bytes: no overlong forms, no surrogates, nothing past U+10FFFF.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < size; ++i) {
    if (pos + i == bytes.size()) return {Utf8Step::kIncomplete, i};
    if (byte(pos + i) < low || byte(pos + i) > high) return {Utf8Step::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::kValid, size};
}

}  // namespace

const uint8_t* char_class_table() {
  static const std::unique_ptr<const uint8_t[]> table = [] {
    auto classes = std::make_unique<uint8_t[]>(kCharClassTableSize);
    for (char32_t c = 0; c < kCharClassTableSize; ++c) classes[c] = compute_class(c);
    return classes;
  }();
  return table.get();
}

void append_utf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    if (pos + 8 <= text.size()) {  // eight ASCII bytes at once
      uint64_t word;
      std::memcpy(&word, text.data() + pos, 8);
      if ((word & 0x8080808080808080u) == 0) {
        pos += 8;
        continue;
      }
    }
    const Utf8Step step = step_utf8(text, pos);
    if (step.kind != Utf8Step::kValid) return false;
    pos += step.size_bytes;
  }
  return true;
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  append_valid_utf8(text, true, out);
  return out;
}

size_t append_valid_utf8(std::string_view bytes, bool is_end, std::string& out) {
  size_t pos = 0;
  while (pos < bytes.size()) {
    const Utf8Step step = step_utf8(bytes, pos);
    if (step.kind == Utf8Step::kIncomplete && !is_end) return pos;
    if (step.kind == Utf8Step::kValid) {
      out.append(bytes.substr(pos, step.size_bytes));
    } else {
      out += "\xEF\xBF\xBD";
    }
    pos += step.size_bytes;
  }
  return pos;
}

}  // namespace spate
