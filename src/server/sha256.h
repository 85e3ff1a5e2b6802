// SHA-256 (FIPS 180-4), for keys that are kept as hashes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace spate {

using Sha256 = std::array<uint8_t, 32>;
Sha256 sha256(std::string_view text);

}  // namespace spate
