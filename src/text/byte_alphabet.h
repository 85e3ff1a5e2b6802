// GPT-2's alphabet: each byte has a printable character, so that a byte-level vocabulary is a list of plain strings.
// '!'..'~', U+00A1..U+00AC and U+00AE..U+00FF stand for themselves, the other 68 bytes for U+0100 and on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace spate {

// The character of each byte, in UTF-8 (one or two bytes).
const std::array<std::string, 256>& byte_alphabet();
// The bytes that `token` stands for; nothing when one of its characters is not of the alphabet.
std::optional<std::string> bytes_of_byte_level_token(std::string_view token);
std::string to_byte_level(std::string_view bytes);
// "<0x41>" is 0x41: SentencePiece's name for a byte token.
std::optional<uint8_t> byte_of_fallback_token(std::string_view token);

}  // namespace spate
