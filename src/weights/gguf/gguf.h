// Reads the header of a GGUF file (versions 2 and 3): typed key-values and where the tensors lie.
//
// The file is mapped, not copied; strings and arrays are views into the mapping and live as long as the GgufFile.
// Everything is bounds-checked: a truncated or hostile file gives a Status that names the place. Immutable after
// open, thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace spate {

enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// An array of numbers keeps its little-endian bytes; one of strings is read into views. Arrays of arrays are
// checked and skipped: no published key has them.
struct GgufArray {
  GgufType element_type = GgufType::kUint8;
  uint64_t count = 0;
  std::string_view bytes;                 // numbers and booleans: count elements, maybe unaligned
  std::vector<std::string_view> strings;  // kString: count of them
};

// Unsigned, signed and floating types are widened to 64 bits.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

struct GgufTensorInfo {
  std::string_view name;
  std::vector<uint64_t> dims;  // innermost first, as the file has them
  uint32_t ggml_type = 0;      // 0 is F32, 1 is F16, 30 is BF16, the others are quantised
  uint64_t offset = 0;         // bytes from data_start(), a multiple of alignment()
};

class GgufFile {
 public:
  static Result<GgufFile> open(const std::filesystem::path& path);
  // `bytes` must outlive the result.
  static Result<GgufFile> parse(std::string_view bytes);

  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  uint64_t data_start() const { return data_start_; }  // byte in the file; at most its size
  const std::vector<GgufTensorInfo>& tensors() const { return tensors_; }
  size_t num_keys() const { return values_.size(); }

  const GgufValue* find(std::string_view key) const;  // null when absent
  // Another type than asked for, or none at all, is an error that names the key.
  Result<std::string_view> get_string(std::string_view key) const;
  Result<int64_t> get_int(std::string_view key) const;  // any whole-number type
  Result<bool> get_bool(std::string_view key) const;
  Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<int64_t>> get_ints(std::string_view key) const;
  Result<std::vector<float>> get_floats(std::string_view key) const;

 private:
  struct Entry {
    std::string_view key;
    GgufValue value;
  };
  class Mapping;
  Status read(std::string_view bytes);
  Result<const GgufArray*> get_array(std::string_view key) const;

  std::shared_ptr<const Mapping> mapping_;
  std::vector<Entry> values_;  // sorted by key
  std::vector<GgufTensorInfo> tensors_;
  uint32_t version_ = 0;
  uint64_t alignment_ = 32, data_start_ = 0;
};

}  // namespace spate
