// Compiled kernels on disk, so that only the first start on a machine compiles. A folder of files named by the hash of
// what decides their bytes; nothing in it is ever needed, and it may be deleted at any time.
//
// Threads and processes may use one folder at once: files appear whole, by rename. A file that is cut off or changed is
// not found. A folder that cannot be written is no error: the next start compiles again.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace spate::cuda {

class CubinCache {
 public:
  // An empty folder: nothing is found, nothing is kept.
  explicit CubinCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // $SPATE_KERNEL_CACHE, else $XDG_CACHE_HOME/spate/kernels, else ~/.cache/spate/kernels, else empty.
  static std::filesystem::path default_folder();

  std::optional<std::string> find(std::string_view key) const;
  void store(std::string_view key, std::string_view cubin) const;
  std::filesystem::path path_of(std::string_view key) const;
  // Whether it keeps what is stored: a file of a few bytes was written, and is gone again.
  bool is_writable() const;

 private:
  std::filesystem::path folder_;
};

}  // namespace spate::cuda
