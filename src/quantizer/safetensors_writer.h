// SafetensorsWriter: a checkpoint that is written tensor by tensor. All names and shapes are known before; bytes come
// in any order and go to their place at once, so that nothing is held in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace spate {

struct PlannedTensor {
  std::string name;
  std::string dtype_name;  // "BF16", "I32"
  std::vector<int64_t> shape;
  int64_t num_bytes = 0;
};

class SafetensorsWriter {
 public:
  static constexpr int64_t kMaxShardBytes = 5'000'000'000;

  // Makes model.safetensors, or shards of at most max_shard_bytes (a larger tensor has its own), in the order given.
  static Result<SafetensorsWriter> create(const std::filesystem::path& dir, std::vector<PlannedTensor> tensors,
                                          int64_t max_shard_bytes = kMaxShardBytes);
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();

  // The bytes of a tensor from `offset` on. Error: the file system's.
  Status write(const std::string& name, int64_t offset, const void* bytes, int64_t num_bytes);
  // Once, when everything is written (CHECKed): the index of several shards, and all of it on the disk.
  Status finish();

 private:
  struct Place {
    size_t file_idx = 0;
    int64_t offset = 0, num_bytes = 0, num_written = 0;
  };
  SafetensorsWriter() = default;
  Status create_file(const std::filesystem::path& path, const std::vector<const PlannedTensor*>& tensors);

  std::filesystem::path dir_;
  std::vector<std::string> file_names_;
  std::vector<int> files_;
  std::map<std::string, Place> places_;
};

}  // namespace spate
