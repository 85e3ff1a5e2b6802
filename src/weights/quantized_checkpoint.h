// QuantizedCheckpoint: a safetensors checkpoint whose matrices are codes in tensors of GPTQ, AWQ or compressed-tensors,
// seen as if each matrix were one tensor.
//
// For each it shows one entry "<module>.weight" [out_features, in_features] with `quantized`, and hides the tensors it
// is made of; a matrix of 8-bit floats is shown as BF16. Everything is checked when it is opened, except for scales and
// zero points, which are looked at with their rows. Rows are converted when they are asked for; nothing is kept.
//
// Threads: as WeightSource.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weights/quantization_config.h"
#include "weights/safetensors.h"

namespace spate {

class Fp8Matrix;
class PackedMatrix;

class QuantizedCheckpoint final : public WeightSource {
 public:
  // Errors list all problems: missing components, wrong shapes and dtypes, groups that do not exist.
  static Result<std::unique_ptr<QuantizedCheckpoint>> open(Checkpoint checkpoint, const QuantizationConfig& config);
  ~QuantizedCheckpoint() override;

  const std::vector<TensorEntry>& entries() const override { return entries_; }
  const TensorEntry* find(std::string_view name) const override;
  const std::string& file_name(int file_idx) const override { return checkpoint_.file_name(file_idx); }
  std::vector<SourceFile> files() const override { return checkpoint_.files(); }
  std::string_view layout() const override { return quant_method_name(method_); }
  Result<Tensor> rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const override;
  Result<QuantizedHostRows> quantized_rows(const TensorEntry& entry, int64_t begin, int64_t end) const override;
  void release(const TensorEntry& entry, int64_t begin, int64_t end) const override;
  // Matrices whose groups are not neighbours, which are quantised again as int8 in groups of 32.
  int64_t num_requantized() const { return num_requantized_; }

 private:
  QuantizedCheckpoint(Checkpoint checkpoint, QuantMethod method);

  QuantMethod method_;
  Checkpoint checkpoint_;
  std::vector<std::unique_ptr<PackedMatrix>> matrices_;
  std::vector<std::unique_ptr<Fp8Matrix>> fp8_matrices_;
  std::map<std::string, const PackedMatrix*, std::less<>> matrix_of_;  // by the entry's name
  std::map<std::string, const Fp8Matrix*, std::less<>> fp8_matrix_of_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  // name -> entries_
  int64_t num_requantized_ = 0;
};

}  // namespace spate
