#include "text/byte_alphabet.h"

#include "text/unicode.h"

namespace spate {
namespace {

constexpr char32_t kAlphabetEnd = 0x144;  // one past the last of 68 stand-ins

struct Alphabet {
  Alphabet() {
    bytes_of.fill(-1);
    char32_t stand_in = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t c = prints ? static_cast<char32_t>(byte) : stand_in++;
      append_utf8(c, characters[static_cast<size_t>(byte)]);
      bytes_of[c] = static_cast<int16_t>(byte);
    }
  }
  std::array<std::string, 256> characters;
  std::array<int16_t, kAlphabetEnd> bytes_of;
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

const std::array<std::string, 256>& byte_alphabet() { return alphabet().characters; }

std::optional<std::string> bytes_of_byte_level_token(std::string_view token) {
  const Alphabet& table = alphabet();
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t pos = 0; pos < token.size();) {
    const Utf8Char c = decode_utf8(token, pos);
    if (c.value >= kAlphabetEnd || table.bytes_of[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(table.bytes_of[c.value]);
    pos += c.size_bytes;
  }
  return bytes;
}

std::string to_byte_level(std::string_view bytes) {
  const auto& characters = byte_alphabet();
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) out += characters[static_cast<unsigned char>(c)];
  return out;
}

std::optional<uint8_t> byte_of_fallback_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<uint8_t>(high * 16 + low);
}

}  // namespace spate
