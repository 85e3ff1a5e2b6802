// What a checkpoint says about its weights of integers and 8-bit floats: quantization_config of config.json, or the
// files that AutoGPTQ and AutoAWQ wrote beside it before that (quantize_config.json, quant_config.json).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "quant/quantization.h"
#include "quant/weight_format.h"

namespace spate {

enum class QuantMethod : uint8_t { kGptq, kAwq, kCompressedTensors, kFp8 };
std::string_view quant_method_name(QuantMethod method);  // as config.json spells it

// How the matrices of a checkpoint, or some of them, were quantised.
struct QuantScheme {
  int64_t bits = 4;
  int64_t group_size = 0;  // columns that share a scale; 0: a whole row
  int64_t block_rows = 1;  // rows that share it too
  bool symmetric = false;  // every zero point is the middle of the range
  bool operator==(const QuantScheme&) const = default;
};

// The same of matrices of 8-bit floats: the elements that share a scale.
struct Fp8Scheme {
  int64_t block_rows = 0;     // 0: all, one scale a tensor
  int64_t block_columns = 0;  // 0: all
};

struct QuantizationConfig {
  QuantMethod method = QuantMethod::kGptq;
  // One, or several where a file has groups (compressed-tensors) or modules that differ (GPTQModel, AutoRound): the
  // shapes of a matrix's tensors say which is its own.
  std::vector<QuantScheme> schemes;
  std::vector<Fp8Scheme> fp8_schemes;  // the same, of those that are 8-bit floats
  bool zeros_minus_one = true;         // GPTQ: zero points are stored less one (checkpoint_format gptq, not gptq_v2)
  std::vector<std::string> notes;      // what the file has and Spate does without
};

// Errors name the key, its value, and what can be read.
Result<QuantizationConfig> parse_quantization_config(std::string_view json, std::optional<QuantMethod> method = {});
// The format of matrices with the first scheme of integers; nothing where the config has none.
std::optional<WeightSpec> weight_spec_of(const QuantizationConfig& config);
// Nothing where the model's weights are floats. `model_dir` holds config.json.
Result<std::optional<QuantizationConfig>> load_quantization_config(const std::filesystem::path& model_dir);
// What dummy weights of this model are kept in: `wanted`, or where it names no format the config's own.
Result<Quantization> dummy_quantization(const std::filesystem::path& model_dir, const Quantization& wanted,
                                        bool is_f32);

}  // namespace spate
