// PackedFile: packed weights in a file, mapped to be read where they lie.
//
//   "spatepk1" | u64 file bytes, key bytes, number of regions | key, zeros to 8 bytes
//   | for each region u64 offset, bytes, checksum | u64 checksum of all before | regions, each at a multiple of 64 KiB
//
// Words are in the order of the CPU. A region is what one weight holds. The reader knows the key and the sizes: all of
// the header but the checksums must be what it would write itself, so there is nothing to parse. A file whose header or
// regions differ in one bit is not opened.
//
// Who shortens a file while it is mapped ends the process, as with every mapping; a handler of SIGBUS names the file
// first. A copy of the weights would not depend on the file, but a start would clear and fill as much memory as packing
// does.
//
// Threads: open() and write() use up to 8 threads of their own; the result may be read by all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace spate {

using Region = std::span<const char>;

class PackedFile {
 public:
  // Reads every byte once, to compare the checksums; afterwards the pages are in memory, shared with other processes
  // that map the file. kNotFound: there is none. kDataLoss: damaged, or of another key.
  static Result<std::shared_ptr<const PackedFile>> open(const std::filesystem::path& path, const std::string& key,
                                                        const std::vector<size_t>& region_bytes);
  // Under a name of its own first, then renamed: readers see all of a file or none of it.
  static Status write(const std::filesystem::path& path, const std::string& key, const std::vector<Region>& regions);
  // Whether a file under such a name has lost its writer. False where the file system does not tell.
  static bool is_abandoned(const std::filesystem::path& unfinished);
  // Of the file that write() makes.
  static uint64_t file_bytes(const std::string& key, const std::vector<size_t>& region_bytes);

  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;
  ~PackedFile();

  size_t num_regions() const { return regions_.size(); }
  Region region(size_t i) const { return regions_[i]; }

 private:
  PackedFile() = default;
  Status map(int fd, uint64_t bytes, const std::string& path);

  char* reserved_ = nullptr;  // address space around the mapping
  uint64_t reserved_bytes_ = 0;
  char* begin_ = nullptr;  // of the mapping
  std::vector<Region> regions_;
};

}  // namespace spate
