// quantized_checkpoint_test.cpp
//
// Goal     A damaged quantised checkpoint is refused with the name of the tensor, a format that is not read with the
// key
//          and value that say so; tensors of zeros that a model has no use for are no problem.
// Method   The small checkpoints of test/goldens/quantized (whose right reading model/quantized_golden_test.cpp
// proves),
//          written again with one thing wrong; then with several random ones, which must end in a Status.
#include "weights/quantized_checkpoint.h"

#include <fmt/format.h>

#include <functional>
#include <limits>

#include "backend/ops.h"
#include "backend/reference/reference_device.h"
#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "weights/open_weights.h"
#include "weights/raw_tensors.h"
#include "weights/weight_loader.h"

#include "base/test.h"

namespace spate {
namespace {

// The golden with its tensors changed; then every row of every matrix is read. What went wrong.
Status open_changed(const std::string& name, const std::function<void(RawTensors&)>& change) {
  TempDir dir;
  std::filesystem::copy(quantized_golden(name) / "config.json", dir.path() / "config.json");
  RawTensors tensors = read_tensors(quantized_golden(name));
  change(tensors);
  write_tensors(tensors, dir.path() / "model.safetensors");
  ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source, open_weights(dir.path()));
  for (const TensorEntry& entry : source->entries()) {
    HostTensor scratch;
    if (entry.quantized) RETURN_IF_ERROR(source->quantized_rows(entry, 0, entry.shape[0]).status());
    if (entry.dtype_name == "F8_E4M3" && entry.dtype) {
      RETURN_IF_ERROR(source->rows(entry, 0, entry.num_rows(), scratch).status());
    }
  }
  return ok_status();
}

template <typename T>
void set(RawTensor& tensor, size_t i, T value) {
  std::memcpy(tensor.bytes.data() + i * sizeof(T), &value, sizeof(T));
}

const std::string kModule = "model.layers.0.mlp.up_proj";

TEST_CASE("the entries of a quantised checkpoint") {
  const auto source = open_weights(quantized_golden("gptq_int4_act_order")).value();
  CHECK(source->find(kModule + ".qweight") == nullptr);
  CHECK(source->find(kModule + ".g_idx") == nullptr);
  const TensorEntry* entry = source->find(kModule + ".weight");
  REQUIRE(entry != nullptr);
  CHECK(entry->shape == std::vector<int64_t>{64, 64});
  CHECK(*entry->quantized == integer_spec(Codes::kInt8, 32, false));  // columns out of order
  CHECK(source->find("lm_head.weight")->dtype == DType::kF16);
  const auto asymmetric = open_weights(quantized_golden("awq_int4_g64")).value();
  CHECK(*asymmetric->find(kModule + ".weight")->quantized == integer_spec(Codes::kInt4, 64, true));
  CHECK(asymmetric->find(kModule + ".weight")->dtype_name == "int4-g64-asym");
  for (size_t i = 1; i < source->entries().size(); ++i) {
    CHECK(source->entries()[i - 1].offset < source->entries()[i].offset);
  }
}

TEST_CASE("a bias of zeros beside a GPTQ matrix is optional, another is not") {
  const auto source = open_weights(quantized_golden("gptq_int4_g32")).value();
  CHECK(source->find(kModule + ".bias")->is_optional);
  const auto with_biases = open_weights(quantized_golden("gptq_int4_g64_asym")).value();
  CHECK_FALSE(with_biases->find("model.layers.0.self_attn.q_proj.bias")->is_optional);
}

TEST_CASE("any part of the rows gives the same rows") {
  for (const char* name : {"gptq_int8_rows", "gptq_int4_act_order", "awq_int4_g64", "compressed_int4_g64_asym"}) {
    CAPTURE(name);
    const auto source = open_weights(quantized_golden(name)).value();
    const TensorEntry& entry = *source->find("model.layers.0.self_attn.v_proj.weight");
    const HostTensor all = dequantize_rows(source->quantized_rows(entry, 0, entry.shape[0]).value());
    for (const int64_t begin : {0, 5, 16}) {
      const HostTensor part = dequantize_rows(source->quantized_rows(entry, begin, begin + 9).value());
      CHECK(std::memcmp(part.view().raw(), all.view().rows(begin, begin + 9).raw(), 9 * 64 * 4) == 0);
      source->release(entry, begin, begin + 9);
    }
  }
}

// [8 * rows, n] codes of 4 bits in words become the same numbers in 8 bits: a code c + 8 is c + 128 there.
RawTensor widened(const RawTensor& words) {
  const int64_t n = words.shape[1];
  RawTensor wide = {"I32", {words.shape[0] * 2, n}, std::string(words.bytes.size() * 2, '\0')};
  for (int64_t i = 0; i < words.shape[0] * n; ++i) {
    uint32_t word;
    std::memcpy(&word, words.bytes.data() + i * 4, 4);
    for (int64_t k = 0; k < 8; ++k) {
      const int64_t row = i / n * 8 + k;
      const uint32_t code = (word >> (4 * k) & 15) + 120;
      wide.bytes[static_cast<size_t>((row / 4 * n + i % n) * 4 + row % 4)] = static_cast<char>(code);
    }
  }
  return wide;
}

TEST_CASE("GPTQ: modules of other bits than the rest, as GPTQModel and AutoRound name them") {
  const std::string golden = "gptq_int4_g32";
  const HostTensor expected = [&] {
    const auto source = open_weights(quantized_golden(golden)).value();
    return dequantize_rows(source->quantized_rows(*source->find(kModule + ".weight"), 0, 64).value());
  }();
  RawTensors tensors = read_tensors(quantized_golden(golden));
  tensors[kModule + ".qweight"] = widened(tensors[kModule + ".qweight"]);
  tensors[kModule + ".qzeros"] = {"I32", {2, 16}, std::string(2 * 16 * 4, '\x7f')};  // 128, less one
  const auto opened = [&](const std::string& more) {
    TempDir dir;
    write_file_or_die(dir.path() / "config.json", fmt::format(R"({{"quantization_config":{{{}}}}})", more));
    write_tensors(tensors, dir.path() / "model.safetensors");
    return open_weights(dir.path());
  };
  const std::string same = R"("bits":4,"group_size":32,"sym":true)";
  for (const char* which : {R"("quant_method":"gptq","dynamic":{"-:.*lm_head":{},"+:.*up_proj":{"bits":8}})",
                            R"("quant_method":"auto-round","packing_format":"auto_round:auto_gptq",
           "extra_config":{"lm_head":{"bits":16,"data_type":"fp"},"model.layers.0.mlp.up_proj":{"bits":8}})"}) {
    CAPTURE(which);
    const auto source = opened(fmt::format("{},{}", same, which));
    REQUIRE_MESSAGE(source.ok(), source.status().message());
    const TensorEntry& entry = *(*source)->find(kModule + ".weight");
    CHECK(entry.quantized->codes == Codes::kInt8);
    CHECK((*source)->find("model.layers.0.mlp.down_proj.weight")->quantized->codes == Codes::kInt4);
    CHECK(bytes_of(dequantize_rows((*source)->quantized_rows(entry, 0, 64).value()).view()) ==
          bytes_of(expected.view()));
  }
  const auto without = opened(same + R"(,"quant_method":"gptq")");
  CHECK(without.status().message().find("up_proj.scales is [2, 64], needs [4, 64]") != std::string::npos);
}

TEST_CASE("compressed-tensors: column groups in another order, or numbered and not used") {
  const auto with_ids = [](const std::function<int32_t(int32_t)>& id_of) {
    return [id_of](RawTensors& tensors) {
      RawTensor& ids = tensors[kModule + ".weight_g_idx"];
      ids = {"I32", {64}, std::string(256, '\0')};
      for (int32_t k = 0; k < 64; ++k) set(ids, static_cast<size_t>(k), id_of(k));
    };
  };
  const auto up_proj = [](const std::function<void(RawTensors&)>& change) {
    TempDir dir;
    std::filesystem::copy(quantized_golden("compressed_int4_g32") / "config.json", dir.path() / "config.json");
    RawTensors tensors = read_tensors(quantized_golden("compressed_int4_g32"));
    change(tensors);
    write_tensors(tensors, dir.path() / "model.safetensors");
    const auto source = open_weights(dir.path()).value();
    CHECK(source->find(kModule + ".weight_g_idx") == nullptr);
    return source->quantized_rows(*source->find(kModule + ".weight"), 0, 64).value();
  };
  const QuantizedHostRows plain = up_proj([](RawTensors&) {});
  for (const auto& same : {with_ids([](int32_t) { return -1; }), with_ids([](int32_t k) { return k / 32; })}) {
    const QuantizedHostRows rows = up_proj(same);
    CHECK(rows.view().spec == integer_spec(Codes::kInt4, 32, false));
    CHECK_TENSOR(equal_bits("values", dequantize_rows(rows), dequantize_rows(plain)));
  }
  const QuantizedHostRows swapped = up_proj(with_ids([](int32_t k) { return 1 - k / 32; }));
  CHECK(swapped.view().spec == integer_spec(Codes::kInt8, 32, false));
  // A code's value under the scale of the other group.
  const HostTensor values = dequantize_rows(swapped);
  const float* scales = plain.view().scales.data<float>();
  for (int64_t k : {0, 31, 32, 63}) {
    const double expected = scales[1 - k / 32] * plain.view().codes.data<int8_t>()[k];
    CHECK(std::abs(element_at(values, k) - expected) <= 0.51 / 127 * 8 * scales[1 - k / 32]);
  }
}

TEST_CASE("scales that are multiples of one number of their row are two levels, in all rows or none") {
  const auto with_scales = [](const std::function<float(size_t)>& scale_of) {
    TempDir dir;
    std::filesystem::copy(quantized_golden("compressed_int4_g32") / "config.json", dir.path() / "config.json");
    RawTensors tensors = read_tensors(quantized_golden("compressed_int4_g32"));
    for (size_t i = 0; i < 128; ++i) {
      set(tensors[kModule + ".weight_scale"], i, Bf16::from_float(scale_of(i)).bits);
    }
    write_tensors(tensors, dir.path() / "model.safetensors");
    const auto source = open_weights(dir.path()).value();
    return source->quantized_rows(*source->find(kModule + ".weight"), 0, 64).value();
  };
  const auto multiple = [](size_t i) { return static_cast<float>(i % 2 == 0 ? 11 : i / 2 % 17) * 0x1.2p-9f; };
  const QuantizedHostRows rows = with_scales(multiple);
  CHECK(rows.view().spec == integer_spec(Codes::kInt4, 32, false, true));
  for (size_t i = 0; i < 128; ++i) CHECK(rows.view().scales.data<float>()[i] == multiple(i));
  const auto one_is_not = [&](size_t i) { return i == 127 ? 0x1.0ap-6f : multiple(i); };
  const QuantizedHostRows grouped = with_scales(one_is_not);
  CHECK(grouped.view().spec == integer_spec(Codes::kInt4, 32, false));
  for (size_t i = 0; i < 128; ++i) CHECK(grouped.view().scales.data<float>()[i] == one_is_not(i));
}

// Blocks of 128 x 128, shorter at the ends: read, loaded, and multiplied by activations in groups of 128.
TEST_CASE("compressed-tensors: scales of blocks of rows and columns") {
  constexpr int64_t kRows = 200, kColumns = 320, kBlock = 128, kScaleColumns = 3;
  const TempDir dir;
  write_file_or_die(dir.path() / "config.json",
                    R"({"quantization_config":{"quant_method":"compressed-tensors","format":"int-quantized",
      "config_groups":{"a":{"weights":{"num_bits":8,"strategy":"block","block_structure":[128,128]}}}}})");
  Rng rng(test_seed());
  HostTensor codes(DType::kI8, {kRows, kColumns});
  for (int8_t& code : codes.span<int8_t>()) code = static_cast<int8_t>(static_cast<int>(rng.below(256)) - 128);
  const HostTensor scales = random_tensor(rng, DType::kF32, {2, kScaleColumns}, 0.01f);
  RawTensors tensors;
  tensors["m.weight"] = {"I8", {kRows, kColumns}, bytes_of(codes)};
  tensors["m.weight_scale"] = {"F32", {2, kScaleColumns}, bytes_of(scales)};
  write_tensors(tensors, dir.path() / "model.safetensors");
  const auto source = open_weights(dir.path()).value();
  const TensorEntry& entry = *source->find("m.weight");
  CHECK(weight_spec_name(*entry.quantized) == "int8-b128x128");
  const auto scale_of = [&](int64_t n, int64_t k) {
    return scales.view().data<float>()[n / kBlock * kScaleColumns + k / kBlock];
  };
  const HostTensor values = dequantize_rows(source->quantized_rows(entry, 0, kRows).value());
  for (const auto& [n, k] : {std::pair{0, 0}, std::pair{127, 128}, std::pair{128, 127}, std::pair{199, 319}}) {
    const int64_t at = n * kColumns + k;
    CHECK(element_at(values, at) == scale_of(n, k) * static_cast<float>(codes.view().data<int8_t>()[at]));
  }

  const auto device = make_reference_device({}).value();
  REQUIRE(device->supports(*entry.quantized));
  PackedWeight weight =
      device->create_weight({.out_features = kRows, .in_features = kColumns, .spec = *entry.quantized}).value();
  WeightLoader loader(device.get());
  loader.add(WeightLoader::MatrixSlice{.name = "m.weight",
                                       .full_rows = kRows,
                                       .full_columns = kColumns,
                                       .rows = {0, kRows},
                                       .columns = {0, kColumns},
                                       .weight = &weight});
  const Status loaded = loader.load(*source);
  REQUIRE_MESSAGE(loaded.ok(), loaded.to_string());
  const HostTensor x = random_tensor(rng, DType::kF32, {1, kColumns});
  HostTensor out(DType::kF32, {1, kRows});
  const auto stream = device->create_stream();
  device->ops().linear(*stream, {.x = x, .weight = &weight, .bias = Tensor(), .out = out});
  std::vector<int8_t> x_codes(kColumns);
  std::vector<float> x_scales(kScaleColumns);
  quantize_activations(x.view().data<float>(), kColumns, kBlock, x_codes.data(), x_scales.data());
  for (int64_t n = 0; n < kRows; ++n) {
    double expected = 0;
    for (int64_t k = 0; k < kColumns; ++k) {
      expected += static_cast<double>(x_scales[static_cast<size_t>(k / kBlock)]) * scale_of(n, k) *
                  (x_codes[static_cast<size_t>(k)] * codes.view().data<int8_t>()[n * kColumns + k]);
    }
    CHECK(element_at(out, n) == doctest::Approx(expected).epsilon(1e-6));
  }
}

TEST_CASE("damaged checkpoints are refused with the tensor's name") {
  const auto drop = [](const std::string& suffix) { return [suffix](RawTensors& t) { t.erase(kModule + suffix); }; };
  const auto reshape = [](const std::string& suffix, std::vector<int64_t> shape) {
    return [suffix, shape](RawTensors& t) { t[kModule + suffix].shape = shape; };
  };
  const auto cut_rows = [](const std::string& suffix) {
    return [suffix](RawTensors& t) {
      RawTensor& tensor = t[kModule + suffix];
      tensor.bytes.resize(tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]));
      tensor.shape[0] = 1;
    };
  };
  const auto retype = [](const std::string& suffix, const char* dtype_name) {
    return [suffix, dtype_name](RawTensors& t) { t[kModule + suffix].dtype_name = dtype_name; };
  };
  const auto poke = [](const std::string& suffix, size_t i, auto value) {
    return [=](RawTensors& t) { set(t[kModule + suffix], i, value); };
  };
  struct Case {
    const char* golden;
    std::function<void(RawTensors&)> change;
    std::string says;
  };
  const Case cases[] = {
      {"gptq_int4_g32", drop(".scales"), "up_proj.scales is missing"},
      {"gptq_int4_g32", drop(".qzeros"), "up_proj.qzeros is missing"},
      {"gptq_int4_g32", drop(".qweight"), "up_proj.qweight is missing"},
      {"gptq_int4_g32", cut_rows(".qweight"), "up_proj.scales is [2, 64], needs [1, 64]"},
      {"gptq_int4_g32", reshape(".qweight", {64, 8}), "up_proj.scales is [2, 64], needs [16, 8]"},
      {"gptq_int4_g32", reshape(".qzeros", {8, 2}), "up_proj.qzeros is [8, 2], needs [2, 8]"},
      {"gptq_int4_g32", cut_rows(".g_idx"), "up_proj.g_idx is [1], needs [64]"},
      {"gptq_int4_g32", retype(".scales", "I16"), "up_proj.scales is I16, needs f16 or bf16 or f32"},
      {"gptq_int4_g32", retype(".qweight", "F32"), "up_proj.qweight is F32, needs i32"},
      {"gptq_int4_g32", poke(".g_idx", 7, int32_t{2}), "up_proj.g_idx[7] is 2; there are 2 groups"},
      {"gptq_int4_g32", poke(".g_idx", 0, int32_t{-1}), "up_proj.g_idx[0] is -1"},
      {"gptq_int4_g32", poke(".qzeros", 1, int32_t{0x77757777}),
       "up_proj.qzeros: the zero point of row 12, group 0 is -2 off the middle"},
      {"gptq_int4_g32", poke(".scales", 65, uint16_t{0x7e00}), "up_proj.scales: the scale of row 1, group 1 is nan"},
      {"gptq_int8_rows", poke(".scales", 3, uint16_t{0xfc00}), "up_proj.scales: the scale of row 3, group 0 is -inf"},
      {"gptq_int4_g32",
       [](RawTensors& t) {
         t[kModule + ".weight"] = {"F16", {64, 64}, std::string(8192, '\0')};
       },
       "up_proj.weight is there both as codes and as F16"},
      {"awq_int4_g64", drop(".scales"), "up_proj.scales is missing"},
      {"awq_int4_g64", reshape(".scales", {64, 1}), "up_proj.scales is [64, 1], needs [1, 64]"},
      {"awq_int4_g64", reshape(".qweight", {8, 64}), "up_proj.scales is [1, 64], needs [1, 512]"},
      {"awq_int4_g64", poke(".scales", 9, uint16_t{0x7c00}), "up_proj.scales: the scale of row 9, group 0 is inf"},
      {"compressed_int4_g32", drop(".weight_packed"), "up_proj.weight_packed is missing"},
      {"compressed_int4_g32", drop(".weight_scale"), "up_proj.weight_scale is missing"},
      {"compressed_int4_g32", drop(".weight_shape"), "up_proj.weight_shape is missing"},
      {"compressed_int4_g32", poke(".weight_shape", 0, int64_t{65}), "up_proj.weight_shape says [65, 64]"},
      {"compressed_int4_g32", poke(".weight_shape", 1, int64_t{-1}), "up_proj.weight_shape says [64, -1]"},
      {"compressed_int4_g32", poke(".weight_shape", 1, int64_t{128}), "needs [64, 16] for 128 columns of 4 bits"},
      {"compressed_int4_g32", reshape(".weight_scale", {128, 1}), "up_proj.weight_scale is [128, 1], needs [64, 2]"},
      {"compressed_int4_g64_asym", drop(".weight_zero_point"), "up_proj.weight_zero_point is missing"},
      {"compressed_int4_g64_asym", reshape(".weight_zero_point", {1, 8}), "weight_zero_point is [1, 8], needs [8, 1]"},
      {"compressed_w8a8", drop(".weight_scale"), "up_proj.weight_scale is missing"},
      {"compressed_w8a8", reshape(".weight_scale", {1, 64}), "up_proj.weight_scale is [1, 64], needs [64, 1]"},
      {"compressed_w8a8", poke(".weight_scale", 5, uint16_t{0x7f80}),
       "up_proj.weight_scale: the scale of row 5, group"},
      {"fp8_block_deepseek_v3", drop(".weight_scale_inv"), "up_proj.weight_scale_inv is missing"},
      {"fp8_block_deepseek_v3", drop(".weight"), "up_proj.weight is missing"},
      {"fp8_block_deepseek_v3", reshape(".weight_scale_inv", {2, 1}),
       "up_proj.weight_scale_inv is [2, 1], needs [1, 2], one for each block of 128 x 128; "},
      {"fp8_block_deepseek_v3", reshape(".weight", {32, 2, 144}), "weight_scale_inv is [1, 2], needs [32, 1, 2]"},
      {"fp8_block_deepseek_v3", reshape(".weight", {64 * 144}), "up_proj.weight is F8_E4M3 [9216], needs 2 or 3"},
      {"fp8_block_deepseek_v3", retype(".weight", "F8_E5M2"), "up_proj.weight is F8_E5M2, needs F8_E4M3"},
      {"fp8_block_deepseek_v3", retype(".weight_scale_inv", "I32"), "weight_scale_inv is I32, needs F32, BF16 or F16"},
      {"fp8_block_deepseek_v3", poke(".weight", 144 * 3 + 7, uint8_t{0x7f}), "[3, 7] is the code 0x7f, which is NaN"},
      {"fp8_block_deepseek_v3", poke(".weight", 144 * 63 + 143, uint8_t{0xff}), "[63, 143] is the code 0xff"},
      {"fp8_block_deepseek_v3", poke(".weight_scale_inv", 1, std::numeric_limits<float>::quiet_NaN()),
       "up_proj.weight_scale_inv: the scale of row 0, columns from 128 on, is nan"},
      {"fp8_block_deepseek_v3", poke(".weight_scale_inv", 0, 1e36f), "columns from 0 on, is 1e+36; needs a number of"},
      {"fp8_tensor", drop(".weight_scale"), "up_proj.weight_scale is missing"},
      {"compressed_fp8_rows", reshape(".weight_scale", {32, 2}), "is [32, 2], needs [64, 1], one for each row"},
      {"compressed_mixed_g32", drop(".weight_scale"), "up_proj.weight_scale is missing"},
  };
  for (const Case& one : cases) {
    const Status status = open_changed(one.golden, one.change);
    CHECK_MESSAGE(says(status, one.says), one.golden, ": ", status.to_string(), "\n  should say ", one.says);
    CHECK_MESSAGE(says(status, kModule), status.to_string());
    CHECK(status.code() == StatusCode::kDataLoss);
  }
  CHECK(open_changed("gptq_int4_g32", [](RawTensors&) {}).ok());
}

TEST_CASE("a truncated file is refused with the tensor's name") {
  TempDir dir;
  std::filesystem::copy(quantized_golden("gptq_int4_g32"), dir.path());
  std::filesystem::resize_file(dir.path() / "model.safetensors",
                               std::filesystem::file_size(dir.path() / "model.safetensors") - 100);
  const Status status = open_weights(dir.path()).status();
  CHECK_MESSAGE(says(status, "tensor "), status.to_string());
  CHECK(says(status, "is the file complete?"));
}

TEST_CASE("random damage ends in a Status, never in a read outside of a tensor") {
  const uint64_t seed = test_seed();
  INFO("seed ", seed);
  Rng rng(seed);
  int num_refused = 0, num_rounds = 0;
  for (const char* name : {"gptq_int4_act_order", "awq_int4_g64", "compressed_int4_g64_asym", "compressed_w8a8",
                           "compressed_mixed_g32", "fp8_block_deepseek_v3", "fp8_tensor"}) {
    for (int round = 0; round < 60; ++round, ++num_rounds) {
      const Status status = open_changed(name, [&](RawTensors& tensors) {
        for (uint64_t i = 0; i <= rng.below(3); ++i) {
          auto at = tensors.begin();
          std::advance(at, static_cast<std::ptrdiff_t>(rng.below(tensors.size())));
          RawTensor& tensor = at->second;
          switch (tensor.shape.empty() ? 3 : rng.below(4)) {
            case 0:
              tensors.erase(at);
              break;
            case 1:
              std::swap(tensor.shape.front(), tensor.shape.back());
              break;
            case 2:
              tensor.shape = {tensor.shape.front(), 1};
              tensor.bytes.resize(tensor.bytes.size() / static_cast<size_t>(tensor.shape.back()));
              tensor.shape = {static_cast<int64_t>(tensor.bytes.size())};
              tensor.dtype_name = "I8";
              break;
            default:
              tensor.bytes[rng.below(tensor.bytes.size())] = static_cast<char>(rng.next_u32());
          }
        }
      });
      num_refused += status.ok() ? 0 : 1;
      if (!status.ok()) CHECK(!status.message().empty());
    }
  }
  CHECK(num_refused > num_rounds / 4);
  CHECK(num_refused < num_rounds);
}

TEST_CASE("what a quantization_config may say") {
  const auto message = [](const std::string& json) { return parse_quantization_config(json).status().message(); };
  struct Case {
    std::string json;
    const char* says;
  };
  const std::string group =
      R"({"quant_method":"compressed-tensors","format":"FORMAT","config_groups":{"group_0":{"weights":WEIGHTS}}})";
  const auto compressed = [&](const char* format, const char* weights) {
    std::string json = group;
    json.replace(json.find("FORMAT"), 6, format);
    json.replace(json.find("WEIGHTS"), 7, weights);
    return json;
  };
  const Case cases[] = {
      {R"({"quant_method":"bitsandbytes"})", "quant_method \"bitsandbytes\" cannot be read; gptq, awq"},
      {R"({"quant_method":"fp8","fmt":"e5m2"})", "fmt \"e5m2\" cannot be read; e4m3"},
      {R"({"quant_method":"fp8","weight_block_size":[128]})", "weight_block_size is [128], needs rows and columns"},
      {R"({"quant_method":"fp8","weight_block_size":[0,128]})", "weight_block_size is"},
      {R"({})", "quant_method \"\""},
      {R"([])", "not a JSON object"},
      {R"({"quant_method":"gptq","bits":3})", "3 bits; 4 and 8 are read"},
      {R"({"quant_method":"gptq","bits":"four"})", "quantization_config.bits is \"four\""},
      {R"({"quant_method":"gptq","bits":4,"group_size":16})", "group_size 16"},
      {R"({"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"})",
       "checkpoint_format \"marlin\" cannot be read"},
      {R"({"quant_method":"gptq","bits":4,"format":"marlin"})", "format \"marlin\" cannot be read"},
      {R"({"quant_method":"gptq","bits":4,"is_marlin_format":true})", "is_marlin_format"},
      {R"({"quant_method":"gptq","bits":4,"dynamic":{"+:.*k_proj":{"bits":2}}})", "2 bits; 4 and 8 are read"},
      {R"({"quant_method":"auto-round","bits":4,"packing_format":"auto_round"})",
       "packing_format \"auto_round\" cannot be read; auto_round:auto_gptq"},
      {R"({"quant_method":"auto-round","bits":4,"data_type":"mx_fp"})", "data_type \"mx_fp\" cannot be read; int"},
      {R"({"quant_method":"awq","bits":4,"version":"gemv"})", "version \"gemv\" cannot be read; gemm can"},
      {R"({"quant_method":"awq","bits":4,"format":"gemv"})", "format \"gemv\" cannot be read; gemm can"},
      {R"({"quant_method":"awq","bits":4,"backend":"llm-awq"})", "backend \"llm-awq\""},
      {R"({"quant_method":"awq","bits":8})", "awq with 8 bits"},
      {R"({"quant_method":"compressed-tensors"})", "config_groups is missing"},
      {compressed("nvfp4-pack-quantized", R"({"num_bits":4,"type":"float"})"), "float of 4 bits; 8 are read"},
      {compressed("float-quantized", R"({"num_bits":8,"type":"float","strategy":"block"})"), "block_structure is []"},
      {compressed("float-quantized", R"({"num_bits":8,"type":"float","strategy":"token"})"), "strategy \"token\""},
      {compressed("pack-quantized", R"({"num_bits":8,"strategy":"block"})"), "strategy \"block\""},
      {compressed("int-quantized", R"({"num_bits":4,"strategy":"block","block_structure":[128,128]})"),
       "128 x 128 by 4 bits"},
      {compressed("marlin-24", R"({"num_bits":4})"), "format \"marlin-24\""},
      {R"({"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24-bitmask"}})",
       "sparse-24-bitmask"},
      {R"({"quant_method":"compressed-tensors","transform_config":{"config_groups":{"u":{"type":"hadamard"}}}})",
       "transform_config"},
  };
  for (const Case& one : cases) {
    CHECK_MESSAGE(message(one.json).find(one.says) != std::string::npos, one.json, " -> ", message(one.json));
  }
  const auto two = parse_quantization_config(
      R"({"quant_method":"compressed-tensors","kv_cache_scheme":{"num_bits":8},"config_groups":{
          "a":{"weights":{"num_bits":4,"group_size":128,"strategy":"group","symmetric":false}},
          "b":{"weights":{"num_bits":8,"strategy":"channel"},"input_activations":{"dynamic":false}}}})");
  REQUIRE(two.ok());
  REQUIRE(two->schemes.size() == 2);
  CHECK(two->schemes[0].group_size == 128);
  CHECK_FALSE(two->schemes[0].symmetric);
  CHECK(two->schemes[1].bits == 8);
  CHECK(two->schemes[1].symmetric);
  CHECK(two->notes.size() == 2);
}

// transformers 5 and GPTQModel write "format", those before them "checkpoint_format" and "version". Where both are
// there, transformers takes the older one.
TEST_CASE("both spellings of a quantization_config's format") {
  const auto zeros_minus_one = [](const std::string& keys) {
    return parse_quantization_config(R"({"quant_method":"gptq","bits":4,)" + keys + "}").value().zeros_minus_one;
  };
  CHECK(zeros_minus_one(R"("format":"gptq")"));
  CHECK_FALSE(zeros_minus_one(R"("format":"gptq_v2")"));
  CHECK_FALSE(zeros_minus_one(R"("checkpoint_format":"GPTQ_V2")"));
  CHECK_FALSE(zeros_minus_one(R"("checkpoint_format":"gptq_v2","format":"gptq")"));
  CHECK(zeros_minus_one(R"("checkpoint_format":"gptq","format":"gptq_v2")"));
  for (const char* keys : {R"("format":"gemm","backend":"auto")", R"("version":"GEMM","backend":"autoawq")",
                           R"("version":"gemm","format":"gemv","backend":"marlin")"}) {
    CHECK(parse_quantization_config(fmt::format(R"({{"quant_method":"awq","bits":4,{}}})", keys)).ok());
  }
  const auto auto_round = [](const std::string& keys) {
    return parse_quantization_config(R"({"quant_method":"intel/auto-round","bits":4,"group_size":128,)" + keys + "}")
        .value();
  };
  CHECK(auto_round(R"("packing_format":"auto_round:auto_awq")").method == QuantMethod::kAwq);
  CHECK(auto_round(R"("packing_format":"auto_round:auto_gptq")").method == QuantMethod::kGptq);
  CHECK(auto_round(R"("backend":"auto_round:gptq:exllamav2")").zeros_minus_one);
  CHECK(parse_quantization_config(
            R"({"quant_method":"compressed-tensors","format":"pack-quantized","transform_config":{},
                "config_groups":{"a":{"weights":{"num_bits":4,"group_size":128}}}})")
            .ok());
}

TEST_CASE("the files that old AutoGPTQ and AutoAWQ wrote instead") {
  TempDir dir;
  write_file_or_die(dir.path() / "config.json", R"({"model_type":"llama"})");
  CHECK_FALSE(load_quantization_config(dir.path()).value().has_value());
  write_file_or_die(dir.path() / "quant_config.json",
                    R"({"zero_point":true,"q_group_size":64,"w_bit":4,"version":"GEMM"})");
  CHECK(load_quantization_config(dir.path()).value()->method == QuantMethod::kAwq);
  CHECK(load_quantization_config(dir.path()).value()->schemes[0].group_size == 64);
  write_file_or_die(dir.path() / "quantize_config.json", R"({"bits":4,"group_size":-1,"desc_act":false,"sym":true})");
  const QuantizationConfig config = *load_quantization_config(dir.path()).value();
  CHECK(config.method == QuantMethod::kGptq);
  CHECK(config.schemes[0].group_size == 0);
  CHECK(config.schemes[0].symmetric);
  CHECK(config.zeros_minus_one);
}

}  // namespace
}  // namespace spate
