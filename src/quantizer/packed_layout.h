// The "pack-quantized" layout of compressed-tensors checkpoints, as vLLM reads it. A matrix "X.weight" [n, k] becomes
//
//   X.weight_packed      I32 [n, ceil(k / p)]           p = 32 / num_bits codes in a word, the first in the lowest
//   bits,
//                                                       each plus 2^(num_bits - 1)
//   X.weight_scale       BF16 or F16 [n, num_groups]
//   X.weight_zero_point  I32 [ceil(n / p), num_groups]  asymmetric only: packed along n, in the same way
//   X.weight_shape       I64 [2]                        n, k
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "quantizer/coded_matrix.h"
#include "quantizer/safetensors_writer.h"

namespace spate {

// The tensors of one matrix; `name` is that of its module: "model.layers.0.mlp.up_proj".
std::vector<PlannedTensor> plan_packed_matrix(const std::string& name, const CodeFormat& format, int64_t num_rows,
                                              int64_t in_features);
Status write_packed_matrix(SafetensorsWriter& writer, const std::string& name, const CodedMatrix& matrix);

// Codes [n, k] i8 to words [n, ceil(k / p)]; the unused bits of a last word are zero.
std::vector<int32_t> pack_along_rows(const Tensor& codes, int num_bits);
// Codes [n, m] i8 to words [ceil(n / p), m].
std::vector<int32_t> pack_along_columns(const Tensor& codes, int num_bits);

// Matrices of one format in config.json: module names, or "Linear" for all linear layers that are not named elsewhere.
struct PackedGroup {
  CodeFormat format;
  std::vector<std::string> targets;
  bool act_order = false;
};
// config.json with its quantization_config. `ignore`: linear modules that stayed floats. Error: not JSON.
Result<std::string> with_quantization_config(std::string_view config_json, const std::vector<PackedGroup>& groups,
                                             const std::vector<std::string>& ignore);

}  // namespace spate
