// WeightCache: a folder of packed weights (weights/packed_file.h), one file for each model, rank and format, so that
// the second start of a model maps what the first one packed.
//
// The key of a file is text: what decides the bytes. It names the program, the layout of the device, each file of the
// model by inode, size and times, and every slice that goes into a weight. Equal keys mean equal bytes. Nothing here
// fails a load: where a file cannot be read or written, one line of the log says so and the weights are packed.
//
// Several processes may share a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "weights/packed_file.h"
#include "weights/weight_source.h"

namespace spate {

struct WeightCacheOptions {
  std::string dir;                        // empty: nothing is kept
  int64_t max_bytes = int64_t{64} << 30;  // of all files of the folder; the least recently used go first
};

class WeightCache {
 public:
  explicit WeightCache(WeightCacheOptions options) : options_(std::move(options)) {}

  // Null: pack. Then the folder is brought within its limit, as after a write; what is found stays mapped even if its
  // file goes.
  std::shared_ptr<const PackedFile> find(const std::string& key, const std::vector<size_t>& region_bytes) const;
  // Makes room, then writes. Not when the weights alone exceed max_bytes.
  void store(const std::string& key, const std::vector<Region>& regions) const;

  // The part of a key that stands for the program and the source's files. Empty: nothing of it may be kept, for its
  // files are not known or changed so short ago that a further change might show in no time stamp.
  static std::string source_key(const WeightSource& source);
  // Whether the files are still those that were opened.
  static bool is_unchanged(const WeightSource& source);

 private:
  std::filesystem::path path_of(const std::string& key) const;
  // Removes the least recently used of the other files until they and `bytes` of this one fit.
  void make_room(const std::filesystem::path& for_file, uint64_t bytes) const;

  WeightCacheOptions options_;
};

}  // namespace spate
