// The number formats: how far a value moves, what is exact, and that the codes mean what weight_format.h says.
#include "quant/quantize.h"

#include <cmath>
#include <vector>

#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "quant/outliers.h"
#include "quant/quantization.h"
#include "quant/two_level.h"

#include "base/test.h"

namespace spate {
namespace {

std::vector<WeightSpec> all_specs() {
  std::vector<WeightSpec> specs;
  for (const Codes codes : {Codes::kInt8, Codes::kInt4}) {
    for (const int64_t group_size : {0, 32, 64, 128}) {
      for (const bool has_offsets : {false, true}) specs.push_back(integer_spec(codes, group_size, has_offsets));
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
          const double range = scale * (spec.codes == Codes::kInt8 ? 256 : 16);
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
  const QuantizedHostRows int4 = quantize_rows(integer_spec(Codes::kInt4, 32, false), row);
  CHECK(int4.view().scales.data<float>()[0] == doctest::Approx(2.0 / 7).epsilon(0.0005));
  CHECK(int4.view().codes.data<int8_t>()[0] == -7);
  CHECK(int4.view().codes.data<int8_t>()[63] == 7);
  const QuantizedHostRows asymmetric = quantize_rows(integer_spec(Codes::kInt4, 32, true), row);
  CHECK(asymmetric.view().codes.data<int8_t>()[0] == -8);   // group 0 is [-2, 0]
  CHECK(asymmetric.view().codes.data<int8_t>()[32] == -8);  // group 1 is [0, 31/16]
  CHECK(asymmetric.view().codes.data<int8_t>()[63] == 7);
}

TEST_CASE("convert_rows is exact to wider codes, smaller groups and added offsets") {
  Rng rng(test_seed());
  const HostTensor rows = random_tensor(rng, DType::kF32, {4, 256}, 0.1f);
  const QuantizedHostRows from = quantize_rows(integer_spec(Codes::kInt4, 128, false), rows);
  const HostTensor expected = dequantize_rows(from);
  for (const WeightSpec& to : {integer_spec(Codes::kInt8, 128, false), integer_spec(Codes::kInt4, 32, false),
                               integer_spec(Codes::kInt8, 64, true)}) {
    CHECK_TENSOR(equal_bits("values", dequantize_rows(convert_rows(from, to)), expected));
  }
  // Not exact, so quantised again: within half a step of the new format.
  const HostTensor coarse = dequantize_rows(convert_rows(from, integer_spec(Codes::kInt8, 0, false)));
  CHECK_TENSOR(close_to("values", coarse, expected, {.rel = 0, .abs = 0.35 / 127 / 2}));
}

constexpr WeightSpec two_level(int64_t group_size) { return integer_spec(Codes::kInt4, group_size, false, true); }

// A row whose groups have very different sizes, some of them zeros.
HostTensor uneven_row(Rng& rng, int64_t in_features, float size) {
  HostTensor row = random_tensor(rng, DType::kF32, {1, in_features}, size);
  for (int64_t k = 0; k < in_features; ++k) {
    row.span<float>()[static_cast<size_t>(k)] *= static_cast<float>(k / 32 % 5) / 4;
  }
  return row;
}

// With the largest multiplier that is tried nothing is clipped, so that each element is off by half a scale at most;
// what is chosen instead has no larger squared error. One more row scale: the multiplier was rounded up.
TEST_CASE("two-level scales: the squared error of a group, and scales that bf16 and f16 hold") {
  Rng rng(test_seed());
  for (const int64_t group_size : {32, 64, 128, 256}) {
    for (const int64_t in_features : {1, 31, 64, 200, 1030}) {
      for (const float size : {1e-6f, 1e-4f, 0.02f, 1.0f, 3e4f}) {
        const HostTensor row = uneven_row(rng, in_features, size);
        const QuantizedHostRows quantized = quantize_rows(two_level(group_size), row);
        const HostTensor back = dequantize_rows(quantized);
        float row_scale = 0;
        const int64_t num_groups = quantized.view().scales.dim(1);
        std::vector<uint8_t> multipliers(static_cast<size_t>(num_groups));
        REQUIRE(split_scales(quantized.view().scales.data<float>(), num_groups, row_scale, multipliers.data()));
        for (int64_t g = 0; g < num_groups; ++g) {
          const float scale = quantized.view().scales.data<float>()[g];
          CHECK(Bf16::from_float(scale).to_float() == scale);
          CHECK(F16::from_float(scale).to_float() == scale);
          CHECK(scale == row_scale * static_cast<float>(multipliers[static_cast<size_t>(g)]));
          const int64_t begin = g * group_size, end = std::min(in_features, begin + group_size);
          double squared = 0, max_abs = 0, row_max = 0;
          for (int64_t k = 0; k < in_features; ++k) row_max = std::max(row_max, std::fabs(element_at(row, k)));
          for (int64_t k = begin; k < end; ++k) {
            const double error = element_at(back, k) - element_at(row, k);
            squared += error * error;
            max_abs = std::max(max_abs, std::fabs(element_at(row, k)));
          }
          const double widest = max_abs / 7 + two_level_row_scale(static_cast<float>(row_max));
          CHECK_MESSAGE(squared <= static_cast<double>(end - begin) * 0.25 * widest * widest, "groups of ", group_size,
                        ", ", in_features, " of ", size, ": group ", g, " has ", squared);
        }
      }
    }
  }
}

TEST_CASE("two-level scales: a known row, zeros, NaN, values beyond the range") {
  HostTensor row(DType::kF32, {1, 96});
  const auto values = row.span<float>();
  values[0] = 7 * 16 * 0.5f;  // the row scale is 0.5 then
  values[1] = 3 * 16 * 0.5f;
  values[32] = -7 * 5 * 0.5f;
  values[33] = 5 * 0.5f;
  const QuantizedHostRows known = quantize_rows(two_level(32), row);
  CHECK(known.view().scales.data<float>()[0] == 8.0f);
  CHECK(known.view().scales.data<float>()[1] == 2.5f);
  CHECK(known.view().scales.data<float>()[2] == 0.5f);  // a group of zeros
  const int8_t* codes = known.view().codes.data<int8_t>();
  CHECK(codes[0] == 7);
  CHECK(codes[1] == 3);
  CHECK(codes[32] == -7);
  CHECK(codes[33] == 1);
  CHECK_TENSOR(equal_bits("values", dequantize_rows(known), row));

  values[40] = NAN;
  const QuantizedHostRows with_nan = quantize_rows(two_level(32), row);
  CHECK(with_nan.view().scales.data<float>()[1] == 2.5f);
  CHECK(with_nan.view().codes.data<int8_t>()[40] == -8);

  values[40] = INFINITY;
  const QuantizedHostRows with_infinity = quantize_rows(two_level(32), row);
  CHECK(with_infinity.view().scales.data<float>()[1] == 61440.0f);
  CHECK(with_infinity.view().codes.data<int8_t>()[40] == 7);

  const QuantizedHostRows zeros = quantize_rows(two_level(64), HostTensor(DType::kF32, {2, 100}));
  CHECK_TENSOR(equal_bits("zeros", dequantize_rows(zeros), HostTensor(DType::kF32, {2, 100})));
  CHECK(two_level_row_scale(1e-30f) == 0x1p-24f);
  CHECK(two_level_row_scale(7 * 16 * 0x1.1p-20f) == 0x1.2p-20f);
}

TEST_CASE("split_scales finds the row scale, or says that there is none") {
  float row_scale = 0;
  uint8_t multipliers[3];
  const auto splits = [&](std::vector<float> scales) {
    return split_scales(scales.data(), static_cast<int64_t>(scales.size()), row_scale, multipliers);
  };
  CHECK(splits({0.6f, 0.6f, 0.6f}));  // no short number, and need be none
  CHECK(row_scale == 0.6f);
  CHECK(multipliers[2] == 1);
  CHECK(splits({1.5f, 0, 2.5f}));
  CHECK(row_scale == 0.5f);
  CHECK(multipliers[0] == 3);
  CHECK(multipliers[1] == 0);
  CHECK(multipliers[2] == 5);
  CHECK(splits({16, 15, 1}));
  CHECK(multipliers[1] == 15);
  CHECK(splits({0, 0}));
  CHECK(row_scale == 0);
  CHECK_FALSE(splits({17, 1}));
  CHECK_FALSE(splits({1, 1.0000001f}));
  CHECK_FALSE(splits({16, 1.5f}));
  CHECK_FALSE(splits({1, -1}));
  CHECK_FALSE(splits({1, NAN}));
  CHECK_FALSE(splits({1, INFINITY}));
}

TEST_CASE("convert_rows takes two-level scales to other formats, and whole rows to two levels, exactly") {
  Rng rng(test_seed());
  const HostTensor rows = random_tensor(rng, DType::kF32, {4, 300}, 0.1f);
  const QuantizedHostRows from = quantize_rows(two_level(128), rows);
  const HostTensor expected = dequantize_rows(from);
  for (const WeightSpec& to :
       {two_level(32), integer_spec(Codes::kInt4, 64, false), integer_spec(Codes::kInt4, 128, true),
        integer_spec(Codes::kInt8, 0, false), integer_spec(Codes::kInt8, 64, false)}) {
    const QuantizedHostRows converted = convert_rows(from, to);
    CHECK_TENSOR(equal_bits(weight_spec_name(to).c_str(), dequantize_rows(converted), expected));
    for (int64_t i = 0; i < converted.view().scales.num_elements(); ++i) {
      const float scale = converted.view().scales.data<float>()[i];
      CHECK(stored_scale(to, scale) == scale);
    }
  }
  const QuantizedHostRows whole = quantize_rows(integer_spec(Codes::kInt4, 0, false), rows);
  CHECK_TENSOR(equal_bits("values", dequantize_rows(convert_rows(whole, two_level(64))), dequantize_rows(whole)));
}

TEST_CASE("columns keep whole groups") {
  Rng rng(test_seed());
  const QuantizedHostRows rows =
      quantize_rows(integer_spec(Codes::kInt8, 64, true), random_tensor(rng, DType::kBf16, {3, 200}));
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

TEST_CASE("outliers: which values of a row are set aside") {
  Rng rng(test_seed());
  std::vector<float> x(320);
  for (float& value : x) value = rng.gaussian();
  const std::vector<float> ordinary = x;
  CHECK(take_outliers(x.data(), 320).empty());
  CHECK(x == ordinary);
  // Of two sizes, one of them only to be seen when the other is gone.
  x[3] = 900;
  x[319] = -40;
  x[100] = 0.25f * 900;
  const std::vector<Outlier> outliers = take_outliers(x.data(), 320);
  REQUIRE(outliers.size() == 3);
  const Outlier expected[] = {{3, 900}, {100, 225}, {319, -40}};
  for (size_t i = 0; i < 3; ++i) {
    CHECK(outliers[i].k == expected[i].k);
    CHECK(outliers[i].x == expected[i].x);
    CHECK(x[static_cast<size_t>(outliers[i].k)] == 0);
  }
  // Too many are not outliers, whatever their size.
  x = ordinary;
  for (size_t i = 0; i < kMaxOutliers; ++i) x[i * 9] = 500;
  std::vector<float> one_more = x;
  CHECK(take_outliers(x.data(), 320).size() == kMaxOutliers);
  one_more[1] = 500;
  CHECK(take_outliers(one_more.data(), 320).empty());
  // Of rows that are mostly zeros all that is left; of numbers too small to scale, and of no numbers, nothing.
  x.assign(320, 0.0f);
  x[7] = 1;
  x[8] = 0x1p-60f;
  CHECK(take_outliers(x.data(), 320).size() == 2);
  x[7] = x[8] = 0x1p-121f;
  CHECK(take_outliers(x.data(), 320).empty());
  for (const float bad : {NAN, INFINITY}) {
    x[7] = 500;
    x[9] = bad;
    CHECK(take_outliers(x.data(), 320).empty());
  }
  x.assign(4, 0.0f);
  x[0] = 5;
  CHECK(take_outliers(x.data(), 4).empty());  // one in eight at most
}

TEST_CASE("common_spec") {
  const WeightSpec int4 = integer_spec(Codes::kInt4, 64, false), int8 = integer_spec(Codes::kInt8, 32, true), bf16{};
  CHECK(common_spec(int4, int4) == int4);
  CHECK(common_spec(int4, int8) == integer_spec(Codes::kInt8, 32, true));
  CHECK(common_spec(int4, bf16) == bf16);
  CHECK(common_spec(integer_spec(Codes::kInt8, 0, false), int4) == integer_spec(Codes::kInt8, 64, false));
  CHECK(common_spec(two_level(64), two_level(128)) == two_level(64));
  CHECK(common_spec(two_level(64), int4) == int4);
  CHECK(common_spec(integer_spec(Codes::kInt4, 0, false), two_level(64)) == two_level(64));
  CHECK(common_spec(integer_spec(Codes::kInt8, 0, false), two_level(64)) == integer_spec(Codes::kInt8, 0, false));
  CHECK(common_spec(two_level(64), int8) == integer_spec(Codes::kInt8, 32, true));
  CHECK(common_spec(two_level(64), bf16) == bf16);
}

TEST_CASE("--quantization") {
  for (const char* own : {"none", "gptq", "awq", "fp8", "gguf"}) CHECK_FALSE(parse_quantization(own).value().enabled());
  CHECK(weight_spec_name(parse_quantization("int8").value().linear) == "int8");
  CHECK(weight_spec_name(parse_quantization("wint4").value().linear) == "int4-g64");
  CHECK(parse_quantization("int4-g32").value().linear == two_level(32));
  CHECK(weight_spec_name(parse_quantization("int4-g128-asym").value().linear) == "int4-g128-asym");
  CHECK(weight_spec_name(parse_quantization("int4-f16scales").value().linear) == "int4-g64-f16scales");
  CHECK_FALSE(parse_quantization("int4-f16scales").value().linear.two_level);
  CHECK(weight_spec_name(parse_quantization("int4").value().vocabulary) == "int8");
  for (const char* bad :
       {"int5", "int4-g", "int4-g48", "int8-", "int4asym", "fp4", "int8-f16scales", "int4-asym-f16scales"}) {
    const Status status = parse_quantization(bad).status();
    CHECK(status.message().find("-g128") != std::string::npos);
  }
}

TEST_CASE("activations stay as they are where it is said: -a16, --activation-dtype") {
  const Quantization suffix = parse_quantization("int4-g64-f16scales-a16").value();
  CHECK(weight_spec_name(suffix.linear) == "int4-g64-f16scales-a16");
  CHECK(weight_spec_name(suffix.vocabulary) == "int8-a16");
  CHECK_FALSE(suffix.linear.quantizes_activations());
  CHECK(parse_quantization("int4", ActivationDType::kModel).value().linear ==
        parse_quantization("int4-a16").value().linear);
  const Quantization of_checkpoint = parse_quantization("none", ActivationDType::kModel).value();
  CHECK(weight_spec_name(of_checkpoint.with_activations(integer_spec(Codes::kInt4, 128, true))) ==
        "int4-g128-asym-a16");
  CHECK(of_checkpoint.with_activations({}) == WeightSpec{});
  CHECK(common_spec(suffix.linear, suffix.vocabulary).activations == Activations::kAsIs);
  CHECK(parse_activation_dtype("model").value() == ActivationDType::kModel);
  CHECK_FALSE(parse_activation_dtype("bf16").ok());
}

TEST_CASE("a layout that the checkpoint does not have is refused by name") {
  CHECK(check_layout(parse_quantization("gptq").value(), "gptq").ok());
  CHECK(check_layout(parse_quantization("int8").value(), "gptq").ok());
  CHECK(check_layout(parse_quantization("gptq_marlin").value(), "gptq").ok());
  CHECK(check_layout(parse_quantization("auto-round").value(), "awq").ok());
  CHECK_FALSE(check_layout(parse_quantization("auto-round").value(), "fp8").ok());
  CHECK(check_layout(parse_quantization("none").value(), "").ok());
  const Status floats = check_layout(parse_quantization("awq").value(), "");
  CHECK(floats.message().find("--quantization awq: the weights of this checkpoint are floats") != std::string::npos);
  const Status other = check_layout(parse_quantization("awq").value(), "gptq");
  CHECK(other.message().find("this checkpoint is gptq") != std::string::npos);
}

TEST_CASE("a format that a device does not compute with becomes one that it does") {
  WeightSpec block = integer_spec(Codes::kInt8, 128);
  block.tile.rows = 128;
  CHECK(weight_spec_name(block) == "int8-b128x128");
  const WeightSpec bf16{};
  CHECK(runnable_spec(block, bf16, {}) == block);
  const auto groups_only = [](const WeightSpec& spec) { return spec.tile.rows == 1; };
  CHECK(weight_spec_name(runnable_spec(block, bf16, groups_only)) == "int8-g128");
  const auto floats_only = [](const WeightSpec& spec) { return !spec.has_integer_codes(); };
  CHECK(runnable_spec(block, bf16, floats_only) == bf16);
  const auto as_is_only = [](const WeightSpec& spec) { return !spec.quantizes_activations() && spec.tile.rows == 1; };
  const WeightSpec groups = integer_spec(Codes::kInt4, 128, true);
  CHECK(weight_spec_name(runnable_spec(groups, bf16, as_is_only)) == "int4-g128-asym-a16");
  CHECK(runnable_spec(groups, bf16, floats_only) == bf16);
  // A scale a block: 4 bytes for 128 x 128 codes, also of the last, shorter ones.
  CHECK(weight_bytes(block, 256, 256) == 256 * 256 + 4 * 4);
  CHECK(weight_bytes(block, 130, 200) == 130 * 200 + 4 * 4);
}

}  // namespace
}  // namespace spate
