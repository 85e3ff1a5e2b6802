// WeightSource: named tensors on the host, wherever they come from (safetensors, GGUF). A matrix that a checkpoint keeps
// as codes in several tensors of its own making (GPTQ's qweight, qzeros, scales) is one entry under the name that layers
// ask for.
//
// Threads: all const functions may be called by several rank threads at once; the tensors stay valid while the source
// lives.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/tensor.h"
#include "quant/quantize.h"

namespace spate {

struct TensorEntry {
  std::string name;
  std::string dtype_name;      // as the file says: "BF16"
  std::optional<DType> dtype;  // empty: codes, or a format that Spate cannot compute with
  std::optional<WeightSpec> quantized;  // a matrix [out_features, in_features] of codes, read with quantized_rows()
  bool is_optional = false;  // no problem when no layer asks for it
  std::vector<int64_t> shape;
  int file_idx = 0;
  uint64_t offset = 0;  // of the first byte in its file
  uint64_t num_bytes = 0;

  int64_t num_elements() const {
    int64_t n = 1;
    for (const int64_t dim : shape) n *= dim;
    return n;
  }
  // Rows of a tensor of three dimensions are those of its matrices, one below the other.
  int64_t num_rows() const { return shape.size() == 3 ? shape[0] * shape[1] : shape.empty() ? 0 : shape[0]; }
  std::string shape_string() const;
};

// What tells that a file has changed: its place, size and times.
struct FileStamp {
  uint64_t inode = 0, size = 0;
  int64_t modified_ns = 0, changed_ns = 0;  // mtime and ctime, since 1970
  bool operator==(const FileStamp&) const = default;

  static FileStamp of(const std::filesystem::path& path);  // zeros: there is no such file
};

// A file that the tensors come from, or that says how they are read, as it was when the source was opened.
struct SourceFile {
  std::filesystem::path path;
  FileStamp stamp;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Sorted by (file_idx, offset), so that reading in this order is sequential.
  virtual const std::vector<TensorEntry>& entries() const = 0;
  // nullptr when there is none.
  virtual const TensorEntry* find(std::string_view name) const = 0;
  virtual const std::string& file_name(int file_idx) const = 0;
  // How matrices of codes are laid out, as --quantization spells it: "gptq", "gguf"; empty: all are floats.
  virtual std::string_view layout() const { return {}; }

  // All files that decide what rows() and quantized_rows() give. Empty: not known, so that nothing may be kept of it.
  virtual std::vector<SourceFile> files() const { return {}; }

  // Rows [begin, end) of a tensor of rank 1 (elements), 2 or 3, in one of kF32, kF16, kBf16. Reads in place when the
  // file's layout allows, else through `scratch`, which must live as long as the result is used.
  virtual Result<Tensor> rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const = 0;
  // Rows [begin, end) of an entry with `quantized`, in that spec. Sources without such entries need not implement it.
  virtual Result<QuantizedHostRows> quantized_rows(const TensorEntry& entry, int64_t begin, int64_t end) const;
  // These rows are not needed any more: their memory may go. A hint; reading them again is legal.
  virtual void release(const TensorEntry& entry, int64_t begin, int64_t end) const = 0;
};

}  // namespace spate
