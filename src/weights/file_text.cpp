#include "weights/file_text.h"

#include <fstream>

namespace spate {

Result<std::string> read_text_file(const std::filesystem::path& path, int64_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return not_found("{}: no such file", path.string());
  if (!std::filesystem::is_regular_file(status)) return data_loss("{}: not a regular file", path.string());
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const int64_t size = in.good() ? static_cast<int64_t>(in.tellg()) : -1;
  if (size < 0) return data_loss("{}: cannot be read", path.string());
  if (size > max_bytes) return invalid_argument("{}: {} bytes, at most {} are read", path.string(), size, max_bytes);
  std::string text(static_cast<size_t>(size), '\0');
  in.seekg(0);
  in.read(text.data(), size);
  if (in.gcount() != size) return data_loss("{}: read {} of {} bytes", path.string(), in.gcount(), size);
  return text;
}

}  // namespace spate
