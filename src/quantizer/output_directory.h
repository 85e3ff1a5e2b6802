// OutputDirectory: a directory that appears whole or not at all. It is filled as "<name>.tmp" and renamed.
#pragma once

#include <filesystem>

#include "base/status.h"

namespace spate {

class OutputDirectory {
 public:
  // Removes what an earlier run left under "<path>.tmp". Error: `path` exists.
  static Result<OutputDirectory> create(const std::filesystem::path& path);
  OutputDirectory(OutputDirectory&& other) noexcept;
  OutputDirectory& operator=(OutputDirectory&&) = delete;
  ~OutputDirectory();  // without commit() nothing stays

  const std::filesystem::path& path() const { return temporary_; }  // to write to
  Status commit();

 private:
  OutputDirectory() = default;
  std::filesystem::path final_, temporary_;  // empty: committed or moved from
};

}  // namespace spate
