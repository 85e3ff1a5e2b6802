// Hugging Face checkpoints: *.safetensors files, mapped into memory, with a header that is not trusted.
//
//   u64 little-endian header size | JSON header: name -> {dtype, shape, data_offsets: [begin, end)} | bytes
//
// Checked before any byte is used: sizes against the file, shape x dtype against the offsets, offsets in range,
// no overlap and no gap, no name twice. Errors are kDataLoss and name the file and the tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/weight_source.h"

namespace spate {

constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own limit

// The entries of a header. `file_bytes` is the size of the whole file, `file_start` its beginning: at least the header.
// Offsets of the result count from the start of the file. Does not touch the tensor bytes.
Result<std::vector<TensorEntry>> parse_safetensors_header(std::string_view file_start, uint64_t file_bytes);

// A read-only mapping of a file. Moves, does not copy. The size is taken once: somebody who shortens the file while it is
// mapped ends the program with SIGBUS, as with every mapping.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::string_view bytes() const { return {data_, size_}; }
  const FileStamp& stamp() const { return stamp_; }  // when it was opened
  void prefetch(uint64_t begin, uint64_t end) const;    // starts reading, does not wait
  void drop_pages(uint64_t begin, uint64_t end) const;  // whole pages inside [begin, end)

 private:
  MappedFile() = default;
  const char* data_ = nullptr;
  size_t size_ = 0;
  FileStamp stamp_;
};

// All safetensors files of a directory: those that model.safetensors.index.json lists, else model.safetensors, else
// every
// *.safetensors. `path` may also be one file. The tensors of a bare decoder ("layers.0.", "embed_tokens.", "norm.") get
// the prefix "model." that layers ask for.
class Checkpoint final : public WeightSource {
 public:
  static Result<Checkpoint> open(const std::filesystem::path& path);

  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override;
  const std::string& file_name(int file_idx) const override { return file_names_[static_cast<size_t>(file_idx)]; }
  Result<Tensor> rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const override;
  void release(const TensorEntry& entry, int64_t begin, int64_t end) const override;
  std::vector<SourceFile> files() const override { return source_files_; }
  // Of any dtype, as the file has them; perhaps unaligned.
  std::string_view bytes(const TensorEntry& entry) const {
    return files_[static_cast<size_t>(entry.file_idx)].bytes().substr(entry.offset, entry.num_bytes);
  }

 private:
  Checkpoint() = default;
  std::vector<std::string> file_names_;
  std::vector<MappedFile> files_;
  std::vector<SourceFile> source_files_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  // name -> entries_
};

}  // namespace spate
