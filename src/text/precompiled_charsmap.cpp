#include "text/precompiled_charsmap.h"

#include <utf8proc.h>

#include <cstring>

#include "text/unicode.h"

namespace spate {
namespace {

// A unit of the double array: bit 8 says that a value hangs below, bits 0-7 and 31 are the label, bits 10-30 the
// offset to the children, shifted by 8 more when bit 9 is set. A value unit holds its value in bits 0-30.
bool has_value(uint32_t unit) { return (unit >> 8) & 1; }
uint32_t label(uint32_t unit) { return unit & 0x800000FFu; }
size_t offset(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & (1u << 9)) >> 6); }
size_t value(uint32_t unit) { return unit & 0x7FFFFFFFu; }

Result<std::string> decode_base64(std::string_view text) {
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int num_bits = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    uint32_t digit;
    if (c >= 'A' && c <= 'Z')
      digit = static_cast<uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z')
      digit = static_cast<uint32_t>(c - 'a' + 26);
    else if (c >= '0' && c <= '9')
      digit = static_cast<uint32_t>(c - '0' + 52);
    else if (c == '+')
      digit = 62;
    else if (c == '/')
      digit = 63;
    else
      return data_loss("precompiled_charsmap: byte {:#x} is no base64", static_cast<unsigned char>(c));
    bits = (bits << 6 | digit) & 0xFFFFFF;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      out += static_cast<char>((bits >> num_bits) & 0xFF);
    }
  }
  return out;
}

}  // namespace

Result<PrecompiledCharsmap> PrecompiledCharsmap::parse_base64(std::string_view text) {
  ASSIGN_OR_RETURN(const std::string blob, decode_base64(text));
  return parse(blob);
}

Result<PrecompiledCharsmap> PrecompiledCharsmap::parse(std::string_view blob) {
  uint32_t trie_size_bytes = 0;
  if (blob.size() < 4) return data_loss("precompiled_charsmap: {} bytes, no header", blob.size());
  std::memcpy(&trie_size_bytes, blob.data(), 4);
  if (trie_size_bytes > blob.size() - 4 || trie_size_bytes % 4 != 0) {
    return data_loss("precompiled_charsmap: trie of {} bytes in a blob of {}", trie_size_bytes, blob.size());
  }
  PrecompiledCharsmap charsmap;
  charsmap.trie_units_.resize(trie_size_bytes / 4);
  if (trie_size_bytes > 0) std::memcpy(charsmap.trie_units_.data(), blob.data() + 4, trie_size_bytes);
  charsmap.pool_ = blob.substr(4 + trie_size_bytes);
  if (!is_valid_utf8(charsmap.pool_)) return data_loss("precompiled_charsmap: replacements are not UTF-8");
  return charsmap;
}

bool PrecompiledCharsmap::find_replacement(std::string_view chunk, std::string_view* replacement) const {
  if (trie_units_.empty()) return false;
  size_t node = offset(trie_units_[0]);
  for (const char c : chunk) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) return false;
    node ^= byte;
    if (node >= trie_units_.size() || label(trie_units_[node]) != byte) return false;
    const uint32_t unit = trie_units_[node];
    node ^= offset(unit);
    if (!has_value(unit)) continue;
    if (node >= trie_units_.size()) return false;
    const size_t start = value(trie_units_[node]);
    if (start > pool_.size() || (start < pool_.size() && (pool_[start] & 0xC0) == 0x80)) return false;
    *replacement = std::string_view(pool_).substr(start);
    *replacement = replacement->substr(0, replacement->find('\0'));
    return true;
  }
  return false;
}

std::string PrecompiledCharsmap::normalize(std::string_view text) const {
  constexpr size_t kMaxWholeGraphemeBytes = 5;
  std::string out;
  out.reserve(text.size());
  std::string_view replacement;
  const auto flush_grapheme = [&](size_t start, size_t end) {
    const std::string_view grapheme = text.substr(start, end - start);
    if (grapheme.size() <= kMaxWholeGraphemeBytes && find_replacement(grapheme, &replacement)) {
      out += replacement;
      return;
    }
    for (size_t pos = 0; pos < grapheme.size();) {
      const std::string_view one = grapheme.substr(pos, decode_utf8(grapheme, pos).size_bytes);
      out += find_replacement(one, &replacement) ? replacement : one;
      pos += one.size();
    }
  };
  utf8proc_int32_t previous = -1, state = 0;
  size_t start = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = decode_utf8(text, pos);
    const auto current = static_cast<utf8proc_int32_t>(c.value);
    if (previous >= 0 && utf8proc_grapheme_break_stateful(previous, current, &state)) {
      flush_grapheme(start, pos);
      start = pos;
    }
    previous = current;
    pos += c.size_bytes;
  }
  if (start < text.size()) flush_grapheme(start, text.size());
  return out;
}

}  // namespace spate
