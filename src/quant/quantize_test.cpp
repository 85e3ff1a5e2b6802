// The number formats: how far a value moves, what is exact, and that the codes mean what weight_format.h says.
#include "quant/quantize.h"

#include <cmath>
#include <vector>

#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "quant/quantization.h"

#include "base/test.h"

namespace spate {
namespace {

std::vector<WeightSpec> all_specs() {
  std::vector<WeightSpec> specs;
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    for (const int64_t group_size : {0, 32, 64, 128}) {
      for (const bool has_offsets : {false, true}) specs.push_back({format, group_size, has_offsets});
    }
  }
  return specs;
}

// Half a step, and at the ends of the range what rounding the scale and the offset to a half took away.
TEST_CASE("quantize_rows moves a weight by at most half a scale") {
  Rng rng(test_seed());
  for (const WeightSpec& spec : all_specs()) {
    for (const int64_t in_features : {1, 31, 64, 200}) {
      const HostTensor rows = random_tensor(rng, DType::kF32, {5, in_features}, 0.3f);
      const QuantizedHostRows quantized = quantize_rows(spec, rows);
      const HostTensor back = dequantize_rows(quantized);
      const int64_t width = spec.group_width(in_features);
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t k = 0; k < in_features; ++k) {
          const double scale = element_at(quantized.view().scales, i * spec.num_groups(in_features) + k / width);
          const double range = scale * (spec.format == WeightFormat::kInt8 ? 256 : 16);
          const double off = std::fabs(element_at(back, i * in_features + k) - element_at(rows, i * in_features + k));
          CHECK_MESSAGE(off <= 0.5 * scale + range * 0x1p-11, weight_spec_name(spec), " [", i, ", ", k, "] off by ",
                        off);
        }
      }
    }
  }
}

TEST_CASE("codes of a known row") {
  HostTensor row(DType::kF32, {1, 64});
  for (int64_t k = 0; k < 64; ++k)
    row.span<float>()[static_cast<size_t>(k)] = static_cast<float>(k - 32) / 16;  // -2 .. 31/16
  const QuantizedHostRows int4 = quantize_rows({WeightFormat::kInt4, 32, false}, row);
  CHECK(int4.view().scales.data<float>()[0] == doctest::Approx(2.0 / 7).epsilon(0.0005));
  CHECK(int4.view().codes.data<int8_t>()[0] == -7);
  CHECK(int4.view().codes.data<int8_t>()[63] == 7);
  const QuantizedHostRows asymmetric = quantize_rows({WeightFormat::kInt4, 32, true}, row);
  CHECK(asymmetric.view().codes.data<int8_t>()[0] == -8);   // group 0 is [-2, 0]
  CHECK(asymmetric.view().codes.data<int8_t>()[32] == -8);  // group 1 is [0, 31/16]
  CHECK(asymmetric.view().codes.data<int8_t>()[63] == 7);
}

TEST_CASE("convert_rows is exact to wider codes, smaller groups and added offsets") {
  Rng rng(test_seed());
  const HostTensor rows = random_tensor(rng, DType::kF32, {4, 256}, 0.1f);
  const QuantizedHostRows from = quantize_rows({WeightFormat::kInt4, 128, false}, rows);
  const HostTensor expected = dequantize_rows(from);
  for (const WeightSpec& to : {WeightSpec{WeightFormat::kInt8, 128, false},
                               {WeightFormat::kInt4, 32, false},
                               {WeightFormat::kInt8, 64, true}}) {
    CHECK_TENSOR(equal_bits("values", dequantize_rows(convert_rows(from, to)), expected));
  }
  // Not exact, so quantised again: within half a step of the new format.
  const HostTensor coarse = dequantize_rows(convert_rows(from, {WeightFormat::kInt8, 0, false}));
  CHECK_TENSOR(close_to("values", coarse, expected, {.rel = 0, .abs = 0.35 / 127 / 2}));
}

TEST_CASE("columns keep whole groups") {
  Rng rng(test_seed());
  const QuantizedHostRows rows =
      quantize_rows({WeightFormat::kInt8, 64, true}, random_tensor(rng, DType::kBf16, {3, 200}));
  const HostTensor all = dequantize_rows(rows), part = dequantize_rows(rows.view().columns(64, 200));
  CHECK_TENSOR(equal_bits("columns", part, copy_tensor(all.view().columns(64, 200))));
}

TEST_CASE("activations: codes, zeros, and values that are no numbers") {
  std::vector<float> x = {1, -2, 0.5f, 2, 0, 0, 0, 0, 3, NAN, 1, INFINITY, 1e-38f, 0};
  std::vector<int8_t> codes(x.size(), 99);
  std::vector<float> scales(4);
  quantize_activations(x.data(), 14, 4, codes.data(), scales.data());
  CHECK(scales[0] == 2.0f / 127);
  CHECK(codes[0] == 64);  // 63.5 to even
  CHECK(codes[1] == -127);
  CHECK(codes[2] == 32);
  CHECK(scales[1] == 0);
  CHECK(std::isnan(scales[2]));
  CHECK(scales[3] == 0);
  for (size_t i = 4; i < x.size(); ++i) CHECK(codes[i] == 0);
}

TEST_CASE("common_spec") {
  const WeightSpec int4{WeightFormat::kInt4, 64, false}, int8{WeightFormat::kInt8, 32, true}, bf16{};
  CHECK(common_spec(int4, int4) == int4);
  CHECK(common_spec(int4, int8) == WeightSpec{WeightFormat::kInt8, 32, true});
  CHECK(common_spec(int4, bf16) == bf16);
  CHECK(common_spec({WeightFormat::kInt8, 0, false}, int4) == WeightSpec{WeightFormat::kInt8, 64, false});
}

TEST_CASE("--quantization") {
  for (const char* own : {"none", "gptq", "awq", "gguf"}) CHECK_FALSE(parse_quantization(own).value().enabled());
  CHECK(weight_spec_name(parse_quantization("int8").value().linear) == "int8");
  CHECK(weight_spec_name(parse_quantization("wint4").value().linear) == "int4-g64");
  CHECK(weight_spec_name(parse_quantization("int4-g128-asym").value().linear) == "int4-g128-asym");
  CHECK(weight_spec_name(parse_quantization("int4").value().vocabulary) == "int8");
  for (const char* bad : {"int5", "int4-g", "int4-g48", "int8-", "int4asym", "fp8"}) {
    const Status status = parse_quantization(bad).status();
    CHECK(status.message().find("-g128") != std::string::npos);
  }
}

}  // namespace
}  // namespace spate
