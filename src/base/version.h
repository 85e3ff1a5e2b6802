#pragma once

namespace spate {
inline constexpr char kVersion[] = "0.1.0";
}  // namespace spate
