// fp8_matrix_test.cpp
//
// Goal     Every code means what torch says, to the bit; every element gets the scale of its own block, whatever part
// of the
//          rows is read; shapes of scales that mean the same are the same.
// Method   torch's values of all 256 codes (tools/goldens/make_quantized_goldens.py); matrices of all codes in blocks
// that do
//          not divide them, against a loop in this file. What is refused: quantized_checkpoint_test.cpp.
#include "weights/fp8_matrix.h"

#include <cmath>

#include "base/rng.h"
#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "quant/fp8.h"
#include "weights/open_weights.h"
#include "weights/raw_tensors.h"

#include "base/test.h"

namespace spate {
namespace {

std::vector<float> torch_values() {
  const Checkpoint file = Checkpoint::open(repo_root() / "test" / "goldens" / "fp8").value();
  HostTensor scratch;
  const Tensor values = file.rows(*file.find("values"), 0, 256, scratch).value();
  return {values.data<float>(), values.data<float>() + 256};
}

void write_config(const TempDir& dir, const std::string& quantization_config) {
  std::ofstream(dir.path() / "config.json") << R"({"quantization_config":)" << quantization_config << "}";
}

TEST_CASE("all codes mean what torch says") {
  const std::vector<float> expected = torch_values();
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    const auto bits = static_cast<uint8_t>(code);
    CHECK(is_nan_e4m3(bits) == std::isnan(expected[static_cast<size_t>(code)]));
    if (is_nan_e4m3(bits)) continue;
    CHECK(std::bit_cast<uint32_t>(e4m3_to_float(bits)) == std::bit_cast<uint32_t>(expected[static_cast<size_t>(code)]));
  }
}

// Matrices of all codes but NaN, and scales of blocks that are random.
struct Blocks {
  Blocks(int64_t num_matrices, int64_t num_rows, int64_t num_columns, int64_t rows_of_block, int64_t columns_of_block)
      : matrices(num_matrices),
        rows(num_rows),
        columns(num_columns),
        block_rows(rows_of_block),
        block_columns(columns_of_block) {
    Rng rng(test_seed());
    for (int64_t i = 0; i < matrices * rows * columns; ++i) {
      uint8_t code = static_cast<uint8_t>(rng.below(254));
      code += code >= 0x7f ? 1 : 0;
      codes += static_cast<char>(code);
    }
    scales = random_tensor(rng, DType::kF32, {matrices, scale_rows(), scale_columns()}, 0.01f);
  }
  int64_t scale_rows() const { return (rows + block_rows - 1) / block_rows; }
  int64_t scale_columns() const { return (columns + block_columns - 1) / block_columns; }
  uint16_t expected(const std::vector<float>& values, int64_t row, int64_t column) const {
    const int64_t matrix = row / rows, block_row = row % rows / block_rows;
    const float scale =
        scales.view().data<float>()[(matrix * scale_rows() + block_row) * scale_columns() + column / block_columns];
    const auto code = static_cast<uint8_t>(codes[static_cast<size_t>(row * columns + column)]);
    return Bf16::from_float(values[code] * scale).bits;
  }

  int64_t matrices, rows, columns, block_rows, block_columns;
  std::string codes;
  HostTensor scales;
};

TEST_CASE("each element gets the scale of its block, from any part of the rows") {
  const std::vector<float> values = torch_values();
  for (const Blocks& b : {Blocks(1, 200, 320, 128, 128), Blocks(1, 128, 128, 128, 128), Blocks(1, 1, 129, 128, 128),
                          Blocks(1, 65, 7, 64, 3), Blocks(3, 130, 40, 128, 32)}) {
    CAPTURE(b.rows);
    const TempDir dir;
    write_config(dir,
                 fmt::format(R"({{"quant_method":"fp8","weight_block_size":[{},{}]}})", b.block_rows, b.block_columns));
    RawTensors tensors;
    std::vector<int64_t> shape = {b.matrices, b.rows, b.columns},
                         scale_shape = {b.matrices, b.scale_rows(), b.scale_columns()};
    if (b.matrices == 1) {
      shape.erase(shape.begin());
      scale_shape.erase(scale_shape.begin());
    }
    tensors["m.weight"] = {"F8_E4M3", shape, b.codes};
    tensors["m.weight_scale_inv"] = {"F32", scale_shape, bytes_of(b.scales)};
    write_tensors(tensors, dir.path() / "model.safetensors");
    const auto source = open_weights(dir.path()).value();
    CHECK(source->layout() == "fp8");
    CHECK(source->entries().size() == 1);
    const TensorEntry& entry = *source->find("m.weight");
    CHECK(entry.dtype == DType::kBf16);
    CHECK(!entry.quantized);
    const int64_t num_rows = entry.num_rows();
    REQUIRE(num_rows == b.matrices * b.rows);
    HostTensor scratch;
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, num_rows}, {num_rows / 2, num_rows}, {num_rows / 3, num_rows / 3 + 1}}) {
      const Tensor rows = source->rows(entry, begin, end, scratch).value();
      int64_t num_wrong = 0;
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t k = 0; k < b.columns; ++k) {
          num_wrong += rows.data<Bf16>()[(i - begin) * b.columns + k].bits != b.expected(values, i, k);
        }
      }
      CHECK(num_wrong == 0);
      source->release(entry, begin, end);
    }
  }
}

TEST_CASE("scales of a tensor and of rows, in the shapes that writers give them") {
  const std::vector<float> values = torch_values();
  const auto opens = [&](const char* config, const Blocks& b, const std::string& suffix,
                         const std::vector<int64_t>& shape) {
    const TempDir dir;
    write_config(dir, config);
    RawTensors tensors;
    tensors["m.weight"] = {"F8_E4M3", {b.rows, b.columns}, b.codes};
    tensors["m.weight" + suffix] = {"F32", shape, bytes_of(b.scales)};
    tensors["m.input_scale"] = {"F32", {1}, std::string(4, '\0')};
    write_tensors(tensors, dir.path() / "model.safetensors");
    const auto source = open_weights(dir.path()).value();
    CHECK(source->entries().size() == 1);
    HostTensor scratch;
    const Tensor rows = source->rows(*source->find("m.weight"), 0, b.rows, scratch).value();
    for (int64_t i = 0; i < b.rows * b.columns; ++i) {
      if (rows.data<Bf16>()[i].bits != b.expected(values, i / b.columns, i % b.columns)) return false;
    }
    return true;
  };
  const Blocks by_tensor(1, 9, 40, 9, 40), by_row(1, 9, 40, 1, 40);
  for (const auto& shape : {std::vector<int64_t>{}, {1}, {1, 1}}) {
    CHECK(opens(R"({"quant_method":"fp8","activation_scheme":"static"})", by_tensor, "_scale", shape));
  }
  CHECK(opens(R"({"quant_method":"fp8"})", by_row, "_scale", {9, 1}));
  CHECK(opens(R"({"quant_method":"fp8"})", by_row, "_scale_inv", {9}));
  const char* rows =
      R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"a":{"weights":{
      "num_bits":8,"type":"float","strategy":"channel"}}}})";
  CHECK(opens(rows, by_row, "_scale", {9, 1}));
  const char* blocks =
      R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"a":{"weights":{
      "num_bits":8,"type":"float","strategy":"block","block_structure":[4,16]}}}})";
  CHECK(opens(blocks, Blocks(1, 9, 40, 4, 16), "_scale", {3, 3}));
}

}  // namespace
}  // namespace spate
