// packed_layout_test.cpp
//
// Goal     Codes, scales and zero points are in the file bit for bit where the layout says; shards and index; an output
//          directory is whole or not there.
// Method   Words written by hand; an unpacking that is the definition; files read back with Checkpoint.
#include "quantizer/packed_layout.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "quant/quantize.h"
#include "quantizer/output_directory.h"
#include "weights/open_weights.h"
#include "weights/safetensors.h"

#include "base/test.h"

namespace spate {
namespace {

TEST_CASE("words of known codes") {
  HostTensor codes(DType::kI8, {2, 9});
  for (int64_t i = 0; i < 18; ++i) codes.span<int8_t>()[static_cast<size_t>(i)] = static_cast<int8_t>(i % 16 - 8);
  const std::vector<int32_t> rows = pack_along_rows(codes, 4);
  REQUIRE(rows.size() == 4);
  CHECK(static_cast<uint32_t>(rows[0]) == 0x76543210u);
  CHECK(static_cast<uint32_t>(rows[1]) == 0x8u);
  CHECK(static_cast<uint32_t>(rows[2]) == 0x0fedcba9u);
  CHECK(static_cast<uint32_t>(rows[3]) == 0x1u);
  const std::vector<int32_t> columns = pack_along_columns(codes, 4);
  REQUIRE(columns.size() == 9);
  CHECK(static_cast<uint32_t>(columns[0]) == 0x90u);
  CHECK(static_cast<uint32_t>(columns[7]) == 0x07u);
  HostTensor bytes(DType::kI8, {1, 5});
  const int8_t values[] = {-128, -1, 0, 127, 5};
  std::copy_n(values, 5, bytes.span<int8_t>().begin());
  CHECK(pack_along_rows(bytes, 8) == std::vector<int32_t>{static_cast<int32_t>(0xff807f00u), 0x85});
}

TEST_CASE("a packed matrix comes back to the bit") {
  Rng rng(test_seed());
  const TempDir dir;
  for (const Codes codes : {Codes::kInt4, Codes::kInt8}) {
    for (const auto& [has_offsets, two_level] : {std::pair{false, false}, {true, false}, {false, true}}) {
      if (two_level && codes != Codes::kInt4) continue;
      for (const DType scale_dtype : {DType::kBf16, DType::kF16}) {
        const CodeFormat code_format{.spec = integer_spec(codes, 32, has_offsets, two_level),
                                     .scale_dtype = scale_dtype};
        const int num_bits = code_format.num_bits();
        const int64_t n = 11, k = 70;  // neither fills its words
        const CodedMatrix matrix = round_to_nearest(code_format, random_tensor(rng, DType::kF32, {n, k}, 0.05f));
        const std::filesystem::path at =
            dir.path() / (weight_spec_name(code_format.spec) + std::string(dtype_name(scale_dtype)));
        std::filesystem::create_directory(at);
        SafetensorsWriter writer = SafetensorsWriter::create(at, plan_packed_matrix("m", code_format, n, k)).value();
        REQUIRE(write_packed_matrix(writer, "m", matrix).ok());
        REQUIRE(writer.finish().ok());

        const Checkpoint file = Checkpoint::open(at).value();
        std::ifstream in(at / "model.safetensors", std::ios::binary);
        const auto bytes = [&](const char* name) {
          const TensorEntry* entry = file.find(name);
          REQUIRE(entry != nullptr);
          std::string text(entry->num_bytes, '\0');
          in.seekg(static_cast<std::streamoff>(entry->offset));
          in.read(text.data(), static_cast<std::streamsize>(text.size()));
          return text;
        };
        const auto code_in = [&](const std::string& words, int64_t word, int64_t place) {
          uint32_t value = 0;
          std::memcpy(&value, words.data() + word * 4, 4);
          return static_cast<int>((value >> (place * num_bits)) & ((1u << num_bits) - 1)) - (1 << (num_bits - 1));
        };
        const std::string packed = bytes("m.weight_packed"), scales = bytes("m.weight_scale"),
                          shape = bytes("m.weight_shape");
        const int64_t per_word = 32 / num_bits, words_per_row = (k + per_word - 1) / per_word, num_groups = 3;
        bool codes_same = true, zero_points_same = true, scales_same = true;
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < k; ++j) {
            codes_same &= code_in(packed, i * words_per_row + j / per_word, j % per_word) ==
                          matrix.codes.span<int8_t>()[static_cast<size_t>(i * k + j)];
          }
          for (int64_t g = 0; g < num_groups; ++g) {
            const GroupScale group = matrix.scale(i, g);
            uint16_t bits = 0;
            std::memcpy(&bits, scales.data() + (i * num_groups + g) * 2, 2);
            scales_same &= (scale_dtype == DType::kBf16 ? Bf16{bits}.to_float() : F16{bits}.to_float()) == group.scale;
            if (has_offsets) {
              zero_points_same &= code_in(bytes("m.weight_zero_point"), i / per_word * num_groups + g, i % per_word) ==
                                  group.zero_point;
            }
          }
        }
        CHECK(codes_same);
        CHECK(scales_same);
        CHECK(zero_points_same);
        int64_t dims[2];
        std::memcpy(dims, shape.data(), 16);
        CHECK(dims[0] == n);
        CHECK(dims[1] == k);
        CHECK((file.find("m.weight_zero_point") != nullptr) == has_offsets);

        // And what the engine's reader makes of it: equal, but for offsets, which it rounds to f16. It finds scales of two
        // levels, and only those.
        std::ofstream(at / "config.json")
            << with_quantization_config("{}", {{.format = code_format, .targets = {"Linear"}}}, {}).value();
        const auto source = open_weights(at).value();
        const TensorEntry* entry = source->find("m.weight");
        REQUIRE(entry != nullptr);
        CHECK(*entry->quantized == code_format.spec);
        const HostTensor expected = decode(matrix),
                         actual = dequantize_rows(source->quantized_rows(*entry, 0, n).value());
        CHECK(relative_l2(actual, expected) <= (has_offsets ? 0x1p-11 : 0.0));
      }
    }
  }
}

TEST_CASE("tensors go to shards, listed in the index; one that was not written stops the program's own mistake") {
  const TempDir dir;
  std::vector<PlannedTensor> planned;
  for (const char* name : {"a", "b", "c"}) planned.push_back({name, "I32", {4}, 16});
  SafetensorsWriter writer = SafetensorsWriter::create(dir.path(), planned, 32).value();
  const int32_t values[] = {1, 2, 3, 4};
  for (const char* name : {"c", "a", "b"}) {
    REQUIRE(writer.write(name, 8, values + 2, 8).ok());
    REQUIRE(writer.write(name, 0, values, 8).ok());
  }
  REQUIRE(writer.finish().ok());
  CHECK(std::filesystem::exists(dir.path() / "model-00001-of-00002.safetensors"));
  const Checkpoint checkpoint = Checkpoint::open(dir.path()).value();
  REQUIRE(checkpoint.entries().size() == 3);
  CHECK(checkpoint.find("c")->file_idx == 1);
}

TEST_CASE("config.json keeps its keys and says the format as vLLM reads it") {
  const CodeFormat int4{.spec = integer_spec(Codes::kInt4, 64, true)},
      int8{.spec = integer_spec(Codes::kInt8, 0, false)};
  const std::string text = with_quantization_config(R"({"model_type": "qwen3", "vocab_size": 5})",
                                                    {{.format = int4, .targets = {"Linear"}, .act_order = true},
                                                     {.format = int8, .targets = {"model.embed_tokens"}}},
                                                    {"lm_head"})
                               .value();
  const auto has = [&](const char* piece) { return text.find(piece) != std::string::npos; };
  for (const char* piece :
       {"\"model_type\": \"qwen3\"", "\"quant_method\": \"compressed-tensors\"", "\"format\": \"pack-quantized\"",
        "\"num_bits\": 4", "\"symmetric\": false", "\"strategy\": \"group\"", "\"group_size\": 64",
        "\"actorder\": \"weight\"", "\"num_bits\": 8", "\"strategy\": \"channel\"", "\"group_size\": null",
        "\"model.embed_tokens\"", "\"lm_head\""}) {
    CAPTURE(piece);
    CHECK(has(piece));
  }
  CHECK(with_quantization_config("[]", {}, {}).status().code() == StatusCode::kDataLoss);
}

TEST_CASE("an output directory is there after commit() only") {
  const TempDir dir;
  const std::filesystem::path path = dir.path() / "out", temporary = dir.path() / "out.tmp";
  {
    const OutputDirectory out = OutputDirectory::create(path).value();
    std::ofstream(out.path() / "file") << "x";
    CHECK(std::filesystem::exists(temporary / "file"));
  }
  CHECK(!std::filesystem::exists(temporary));
  CHECK(!std::filesystem::exists(path));
  std::filesystem::create_directory(temporary);  // of a run that was killed
  std::ofstream(temporary / "old") << "x";
  OutputDirectory out = OutputDirectory::create(path / "").value();
  std::ofstream(out.path() / "file") << "x";
  REQUIRE(out.commit().ok());
  CHECK(std::filesystem::exists(path / "file"));
  CHECK(!std::filesystem::exists(path / "old"));
  CHECK(!std::filesystem::exists(temporary));
  CHECK(OutputDirectory::create(path).status().message().find("exists already") != std::string::npos);
  CHECK(OutputDirectory::create("").status().message().find("names no directory") != std::string::npos);
}

}  // namespace
}  // namespace spate
