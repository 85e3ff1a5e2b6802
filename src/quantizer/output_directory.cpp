#include "quantizer/output_directory.h"

#include <utility>

namespace spate {

namespace fs = std::filesystem;

Result<OutputDirectory> OutputDirectory::create(const fs::path& path) {
  OutputDirectory directory;
  std::error_code error;
  const fs::path normal = fs::absolute(path, error).lexically_normal();
  if (path.empty() || error) return invalid_argument("'{}' names no directory that could be made; name a new one", path.string());
  const fs::path final_path = normal.has_filename() ? normal : normal.parent_path();
  if (fs::exists(final_path, error))
    return invalid_argument("{} exists already; name a new directory", final_path.string());
  fs::path temporary = final_path;
  temporary += ".tmp";
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error) return resource_exhausted("{}: cannot be made: {}", temporary.string(), error.message());
  directory.final_ = final_path;
  directory.temporary_ = std::move(temporary);
  return directory;
}

OutputDirectory::OutputDirectory(OutputDirectory&& other) noexcept
    : final_(std::exchange(other.final_, {})), temporary_(std::exchange(other.temporary_, {})) {}

OutputDirectory::~OutputDirectory() {
  std::error_code error;
  if (!temporary_.empty()) fs::remove_all(temporary_, error);
}

Status OutputDirectory::commit() {
  std::error_code error;
  fs::rename(temporary_, final_, error);
  if (error) return resource_exhausted("{} to {}: {}", temporary_.string(), final_.string(), error.message());
  temporary_.clear();
  return ok_status();
}

}  // namespace spate
