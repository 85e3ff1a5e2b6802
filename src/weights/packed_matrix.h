// One integer matrix of a checkpoint, kept in several tensors of its own layout. Included by the layouts
// (gptq_layout.cpp, awq_layout.cpp, compressed_tensors_layout.cpp) and by quantized_checkpoint.cpp.
//
// All layouts mean   w[n, k] = scale[n, g] * (code[n, k] - zero[n, g])   with g = group_ids[k], or k / group_size;
// blocks of several rows have one scale for all of these.
// Codes and zero points are given here less 2^(bits - 1), so that they are signed as WeightSpec has them.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weights/quantization_config.h"
#include "weights/safetensors.h"

namespace spate {

// Elements of a tensor in a mapped file, which may lie at any byte.
class TensorBytes {
 public:
  TensorBytes() = default;
  TensorBytes(const Checkpoint& checkpoint, const TensorEntry& entry);
  bool defined() const { return data_ != nullptr; }
  uint32_t word(int64_t i) const {
    uint32_t word;
    std::memcpy(&word, data_ + i * 4, 4);
    return word;
  }
  int8_t byte(int64_t i) const { return static_cast<int8_t>(data_[i]); }
  float number(int64_t i) const;     // of f32, f16, bf16
  int64_t integer(int64_t i) const;  // of i32, i64

 private:
  const char* data_ = nullptr;
  DType dtype_ = DType::kI32;
};

// The 32 / bits codes of a word, the lowest bits first, less 2^(bits - 1). bits: 4 or 8.
inline void unpack_codes(uint32_t word, int64_t bits, int8_t* codes) {
  if (bits == 8) {
    word ^= 0x80808080u;
    std::memcpy(codes, &word, 4);
    return;
  }
  // Eight nibbles to eight bytes; then 8 less in each, a bit above it stopping the borrow.
  uint64_t bytes = word;
  bytes = (bytes | bytes << 16) & 0x0000ffff0000ffffu;
  bytes = (bytes | bytes << 8) & 0x00ff00ff00ff00ffu;
  bytes = (bytes | bytes << 4) & 0x0f0f0f0f0f0f0f0fu;
  bytes = ((bytes | 0x8080808080808080u) - 0x0808080808080808u) ^ 0x8080808080808080u;
  std::memcpy(codes, &bytes, 8);
}

class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;

  const std::string& name() const { return name_; }  // "model.layers.0.mlp.up_proj.weight"
  // Of quantized_rows(): the codes as they are, or int8 in groups of 32 where columns of one group are not neighbours.
  WeightSpec spec() const;
  bool is_requantized() const { return !group_ids_.empty(); }
  // Reads all scales: where those of each row are multiples of one number (WeightSpec::two_level), spec() says so from
  // now on. `spate quantize` writes such scales; others do not, by and large, and then a few rows are read.
  void find_two_levels();
  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  // The file's tensors; the first holds the codes.
  const std::vector<const TensorEntry*>& components() const { return components_; }
  // Errors name the component: a scale that is no number, a zero point where the scheme has none.
  Result<QuantizedHostRows> quantized_rows(int64_t begin, int64_t end) const;
  // What was read of rows [begin, end) may go, and comes back from the page cache: here whole tensors, for layouts in
  // which a row lies all over them.
  virtual void release(int64_t begin, int64_t end) const;

 protected:
  PackedMatrix(std::string name, const QuantScheme& scheme) : name_(std::move(name)), scheme_(scheme) {}
  // Codes of rows [begin, end) to rows of `codes` with in_features() columns.
  virtual Status read_codes(int64_t begin, int64_t end, int8_t* codes) const = 0;
  virtual float scale(int64_t row, int64_t group) const = 0;
  virtual int zero(int64_t row, int64_t group) const = 0;

  // Takes the tensors of codes, scales and, where not null, zero points as components and for reading.
  void take_components(const Checkpoint& checkpoint, const TensorEntry& codes, const TensorEntry& scales,
                       const TensorEntry* zeros);
  int64_t num_groups() const { return direct_spec().num_groups(in_features_); }
  // Keeps g_idx where it is not k / group_size. Problems: a group that does not exist.
  void read_group_ids(const Checkpoint& checkpoint, const TensorEntry& entry, std::vector<std::string>& problems);

  std::string name_;
  QuantScheme scheme_;
  int64_t out_features_ = 0, in_features_ = 0;
  std::vector<const TensorEntry*> components_;  // codes, scales, then the others
  const Checkpoint* checkpoint_ = nullptr;
  TensorBytes codes_, scales_, zeros_;

 private:
  WeightSpec direct_spec() const;
  Status read_group(int64_t row, int64_t group, float& group_scale, float& group_zero) const;

  std::vector<int32_t> group_ids_;  // [in_features]; empty: k / group_size
  bool two_level_ = false;
};

// The tensors "<prefix>.<suffix>" of one matrix, with every problem collected.
class Components {
 public:
  Components(const Checkpoint& checkpoint, std::string prefix, std::vector<std::string>& problems)
      : checkpoint_(checkpoint), prefix_(std::move(prefix)), problems_(problems) {}

  // Null where there is none, or one of another dtype; both are problems, unless it is optional and not there.
  const TensorEntry* required(std::string_view suffix, std::initializer_list<DType> dtypes);
  const TensorEntry* optional(std::string_view suffix, std::initializer_list<DType> dtypes);
  bool has_shape(const TensorEntry& entry, const std::vector<int64_t>& shape);
  bool has_rank(const TensorEntry& entry, size_t rank);
  void problem(std::string text) { problems_.push_back(std::move(text)); }
  const std::string& prefix() const { return prefix_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  std::vector<std::string>& problems() { return problems_; }

 private:
  const Checkpoint& checkpoint_;
  std::string prefix_;
  std::vector<std::string>& problems_;
};

constexpr std::initializer_list<DType> kScaleDTypes = {DType::kF16, DType::kBf16, DType::kF32};

// The tensors that AWQ and GPTQ matrices share by name. Empty, and problems, where one is missing or of another dtype,
// or qweight is no matrix.
struct QTensors {
  const TensorEntry* qweight;
  const TensorEntry* qzeros;
  const TensorEntry* scales;
};
std::optional<QTensors> find_q_tensors(Components& components);

// What a layout finds in a checkpoint.
struct PackedMatrices {
  std::vector<std::unique_ptr<PackedMatrix>> matrices;
  std::vector<std::string> hidden;    // tensors that no layer asks for, beside the components
  std::vector<std::string> unneeded;  // tensors of zeros, which the model may have no use for
  std::vector<std::string> problems;
};
void find_gptq_matrices(const Checkpoint& checkpoint, const QuantizationConfig& config, PackedMatrices& found);
void find_awq_matrices(const Checkpoint& checkpoint, const QuantizationConfig& config, PackedMatrices& found);
void find_compressed_tensors_matrices(const Checkpoint& checkpoint, const QuantizationConfig& config,
                                      PackedMatrices& found);

// The prefixes of tensors "<prefix>.<suffix>" with one of these suffixes: a matrix that lacks a component is found by
// the others. Sorted, each once.
std::vector<std::string> prefixes_with(const Checkpoint& checkpoint, std::span<const std::string_view> suffixes);
// "a.b.qweight" and "qweight": "a.b". Empty where the name does not end in ".<suffix>".
std::string_view prefix_of(std::string_view name, std::string_view suffix);

}  // namespace spate
