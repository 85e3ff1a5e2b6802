#include "terminal/visible_text.h"

#include <fmt/core.h>

#include <cstdint>
#include <utility>

namespace spate {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

unsigned char byte_at(std::string_view text, size_t i) { return static_cast<unsigned char>(text[i]); }

// Bytes of the character that `lead` begins; 0: none begins with it.
size_t length_of(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

// Whether the second byte fits the first: no overlong forms, no surrogates, nothing above U+10FFFF.
bool fits(unsigned char lead, unsigned char second) {
  if (second < 0x80 || second > 0xbf) return false;
  if (lead == 0xe0) return second >= 0xa0;
  if (lead == 0xed) return second <= 0x9f;
  if (lead == 0xf0) return second >= 0x90;
  if (lead == 0xf4) return second <= 0x8f;
  return true;
}

void add_control(unsigned char c, std::string& out) {
  if (c == '\n' || c == '\t') {
    out += static_cast<char>(c);
  } else if (c < 0x20) {
    out += {'^', static_cast<char>(c + '@')};
  } else {
    out += c == 0x7f ? "^?" : fmt::format("<{:02x}>", c);
  }
}

// Appends the character at the front of `text` and gives its bytes; 0: the text ends inside it.
size_t take_character(std::string_view text, std::string& out) {
  const unsigned char lead = byte_at(text, 0);
  if (lead == '\r') {
    if (text.size() == 1) return 0;
    if (text[1] != '\n') add_control(lead, out);
    return 1;
  }
  const size_t length = length_of(lead);
  if (length == 1) {
    if (lead < 0x20 || lead == 0x7f) {
      add_control(lead, out);
    } else {
      out += text[0];
    }
    return 1;
  }
  size_t num_good = length == 0 ? 0 : 1;
  while (num_good > 0 && num_good < length) {
    if (num_good == text.size()) return 0;
    const unsigned char next = byte_at(text, num_good);
    if (num_good == 1 ? !fits(lead, next) : next < 0x80 || next > 0xbf) break;
    ++num_good;
  }
  if (num_good == 0 || num_good < length) {
    out += kReplacement;
    return num_good == 0 ? 1 : num_good;
  }
  if (lead == 0xc2 && byte_at(text, 1) < 0xa0) {
    add_control(byte_at(text, 1), out);
  } else {
    out += text.substr(0, length);
  }
  return length;
}

}  // namespace

std::string VisibleText::append(std::string_view text) {
  pending_ += text;
  std::string out;
  size_t at = 0;
  while (at < pending_.size()) {
    const size_t taken = take_character(std::string_view(pending_).substr(at), out);
    if (taken == 0) break;
    at += taken;
  }
  pending_.erase(0, at);
  return out;
}

std::string VisibleText::finish() {
  const std::string rest = std::exchange(pending_, {});
  if (rest.empty()) return {};
  return rest == "\r" ? "^M" : std::string(kReplacement);
}

std::string visible_text(std::string_view text) {
  VisibleText filter;
  std::string out = filter.append(text);
  return out + filter.finish();
}

}  // namespace spate
