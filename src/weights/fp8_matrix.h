// A tensor of 8-bit floats with the scales of its blocks, read as BF16: DeepSeek's and Qwen's block-wise FP8
// checkpoints, vLLM's with a scale a tensor, and float-quantized ones of compressed-tensors.
//
//   X            F8_E4M3 [rows, columns], or [matrices, rows, columns]
//   X_scale_inv  [ceil(rows / block rows), ceil(columns / block columns)]; X_scale in other writers' files. Both are
//   factors:
//                weight[n, k] = bf16(code[n, k] * scale[n / block rows, k / block columns])
//
// The product is taken in f32 and rounded once, as torch does it. The last block of a row or column may be shorter.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weights/packed_matrix.h"
#include "weights/quantization_config.h"
#include "weights/safetensors.h"

namespace spate {

class Fp8Matrix {
 public:
  // Null, and a problem, where `scales` do not fit any of the schemes. The checkpoint must outlive the result.
  static std::unique_ptr<Fp8Matrix> read(const Checkpoint& checkpoint, const TensorEntry& codes,
                                         const TensorEntry& scales, const std::vector<Fp8Scheme>& schemes,
                                         std::vector<std::string>& problems);

  const std::string& name() const { return codes_.name; }
  const std::string& scale_name() const { return scales_.name; }
  // Under the name and shape of the codes, as BF16.
  TensorEntry entry() const;
  // BF16, in `scratch`. Errors name the tensor and the place: a code that is NaN, a scale that is no number or takes
  // codes beyond the range of BF16.
  Result<Tensor> rows(int64_t begin, int64_t end, HostTensor& scratch) const;
  void release(int64_t begin, int64_t end) const { checkpoint_.release(codes_, begin, end); }

 private:
  Fp8Matrix(const Checkpoint& checkpoint, const TensorEntry& codes, const TensorEntry& scales)
      : checkpoint_(checkpoint), codes_(codes), scales_(scales), scale_values_(checkpoint, scales) {}
  int64_t num_matrices() const { return codes_.shape.size() == 3 ? codes_.shape[0] : 1; }
  int64_t rows_of_matrix() const { return codes_.shape[codes_.shape.size() - 2]; }
  int64_t columns() const { return codes_.shape.back(); }
  // Takes the block size of `scheme` when the scales have the shape that it asks for.
  bool takes(const Fp8Scheme& scheme);
  Status read_row(int64_t row, Bf16* out) const;

  const Checkpoint& checkpoint_;
  const TensorEntry &codes_, &scales_;
  const TensorBytes scale_values_;
  int64_t block_rows_ = 0, block_columns_ = 0;
};

// Those of a checkpoint. `found` gets the problems and, as hidden, the names of scales that are not used (of
// activations).
std::vector<std::unique_ptr<Fp8Matrix>> find_fp8_matrices(const Checkpoint& checkpoint,
                                                          const QuantizationConfig& config, PackedMatrices& found);

}  // namespace spate
