#include "server/random_hex.h"

#include <fmt/core.h>
#include <sys/random.h>

namespace spate {

std::string random_hex(int num_digits) {
  std::string bytes(static_cast<size_t>(num_digits + 1) / 2, '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const auto got = ::getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    if (got > 0) filled += static_cast<size_t>(got);
  }
  std::string out;
  for (const char byte : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  out.resize(static_cast<size_t>(num_digits));
  return out;
}

}  // namespace spate
