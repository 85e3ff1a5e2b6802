// Small text files of a model directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace spate {

inline constexpr int64_t kMaxConfigBytes = 16 << 20;

// The whole file. kNotFound, kDataLoss when it cannot be read, kInvalidArgument above max_bytes.
Result<std::string> read_text_file(const std::filesystem::path& path, int64_t max_bytes);

}  // namespace spate
