#include "quantizer/packed_layout.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace spate {
namespace {

int64_t words(int64_t count, int num_bits) { return (count * num_bits + 31) / 32; }

uint32_t field(int8_t code, int num_bits, int64_t place) {
  const uint32_t value = static_cast<uint32_t>(int{code} + (1 << (num_bits - 1)));
  return value << (place * num_bits);
}

}  // namespace

std::vector<int32_t> pack_along_rows(const Tensor& codes, int num_bits) {
  const int64_t n = codes.dim(0), k = codes.dim(1), per_row = words(k, num_bits), per_word = 32 / num_bits;
  std::vector<int32_t> packed(static_cast<size_t>(n * per_row));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t w = 0; w < per_row; ++w) {
      uint32_t word = 0;
      for (int64_t c = w * per_word; c < std::min(k, (w + 1) * per_word); ++c) {
        word |= field(codes.data<int8_t>()[i * codes.stride(0) + c], num_bits, c - w * per_word);
      }
      packed[static_cast<size_t>(i * per_row + w)] = static_cast<int32_t>(word);
    }
  }
  return packed;
}

std::vector<int32_t> pack_along_columns(const Tensor& codes, int num_bits) {
  const int64_t n = codes.dim(0), m = codes.dim(1), per_word = 32 / num_bits;
  std::vector<int32_t> packed(static_cast<size_t>(words(n, num_bits) * m));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      auto& word = packed[static_cast<size_t>(i / per_word * m + j)];
      const int8_t code = codes.data<int8_t>()[i * codes.stride(0) + j];
      word = static_cast<int32_t>(static_cast<uint32_t>(word) | field(code, num_bits, i % per_word));
    }
  }
  return packed;
}

std::vector<PlannedTensor> plan_packed_matrix(const std::string& name, const CodeFormat& format, int64_t num_rows,
                                              int64_t in_features) {
  const int64_t num_groups = format.spec.num_groups(in_features), num_words = words(in_features, format.num_bits());
  std::vector<PlannedTensor> tensors = {
      {name + ".weight_packed", "I32", {num_rows, num_words}, num_rows * num_words * 4},
      {name + ".weight_scale",
       format.scale_dtype == DType::kBf16 ? "BF16" : "F16",
       {num_rows, num_groups},
       num_rows * num_groups * 2}};
  if (format.spec.has_offsets) {
    const int64_t word_rows = words(num_rows, format.num_bits());
    tensors.push_back({name + ".weight_zero_point", "I32", {word_rows, num_groups}, word_rows * num_groups * 4});
  }
  tensors.push_back({name + ".weight_shape", "I64", {2}, 16});
  return tensors;
}

Status write_packed_matrix(SafetensorsWriter& writer, const std::string& name, const CodedMatrix& matrix) {
  const int num_bits = matrix.format.num_bits();
  const auto write = [&](const char* suffix, const auto& values) {
    return writer.write(name + suffix, 0, values.data(), static_cast<int64_t>(values.size() * sizeof(values[0])));
  };
  RETURN_IF_ERROR(write(".weight_packed", pack_along_rows(matrix.codes, num_bits)));
  std::vector<uint16_t> scales;
  for (const float scale : matrix.scales.span<float>()) {
    scales.push_back(matrix.format.scale_dtype == DType::kBf16 ? Bf16::from_float(scale).bits
                                                               : F16::from_float(scale).bits);
  }
  RETURN_IF_ERROR(write(".weight_scale", scales));
  if (matrix.format.spec.has_offsets) {
    RETURN_IF_ERROR(write(".weight_zero_point", pack_along_columns(matrix.zero_points, num_bits)));
  }
  return write(".weight_shape", std::array<int64_t, 2>{matrix.num_rows(), matrix.in_features()});
}

Result<std::string> with_quantization_config(std::string_view config_json, const std::vector<PackedGroup>& groups,
                                             const std::vector<std::string>& ignore) {
  using Json = nlohmann::ordered_json;
  Json config = Json::parse(config_json, nullptr, false);
  if (!config.is_object()) return data_loss("config.json: not a JSON object");
  Json json_groups = Json::object();
  for (const PackedGroup& group : groups) {
    const WeightSpec& spec = group.format.spec;
    Json weights = {{"num_bits", group.format.num_bits()},
                    {"type", "int"},
                    {"symmetric", !spec.has_offsets},
                    {"strategy", spec.has_groups() ? "group" : "channel"},
                    {"group_size", spec.has_groups() ? Json(spec.tile.columns) : Json()},
                    {"block_structure", Json()},
                    {"dynamic", false},
                    {"actorder", group.act_order ? Json("weight") : Json()},
                    {"observer", "minmax"},
                    {"observer_kwargs", Json::object()}};
    json_groups["group_" + std::to_string(json_groups.size())] = {{"targets", group.targets},
                                                                  {"weights", std::move(weights)},
                                                                  {"input_activations", Json()},
                                                                  {"output_activations", Json()}};
  }
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},    {"format", "pack-quantized"}, {"quantization_status", "compressed"},
      {"config_groups", std::move(json_groups)}, {"ignore", ignore},           {"kv_cache_scheme", Json()}};
  return config.dump(2) + "\n";
}

}  // namespace spate
