// quantized_golden_test.cpp
//
// Goal     Checkpoints that other tools quantised are read as those tools mean them: each weight, and the logits that
//          transformers computes with the dequantised weights.
// Method   Tiny models under test/goldens/quantized (tools/goldens/make_quantized_goldens.py), one for each layout and
//          its variants, with zero points at the ends of their range. Weights are compared row by row, to the bit where
//          the format is ours. Logits twice: with the codes read as floats, which leaves the rounding of scales to a
//          half, and with integer products, which adds 8-bit activations. 8-bit floats also against a checkpoint of
//          bf16 that holds their values: the same to the bit, quantised while loading or not.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "backend/cpu/cpu_device.h"
#include "backend/reference/reference_device.h"
#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "model/golden_runner.h"
#include "weights/open_weights.h"
#include "weights/raw_tensors.h"
#include "weights/safetensors.h"

#include "base/test.h"

namespace spate {
namespace {

std::vector<std::filesystem::path> quantized_folders() {
  return golden_folders(repo_root() / "test" / "goldens" / "quantized");
}

// One row of any entry as f32.
HostTensor row_of(const WeightSource& source, const TensorEntry& entry, int64_t row) {
  if (entry.quantized) return dequantize_rows(source.quantized_rows(entry, row, row + 1).value());
  HostTensor scratch, out(DType::kF32, {1, entry.shape[1]});
  row_to_float(source.rows(entry, row, row + 1, scratch).value(), 0, out.span<float>().data());
  return out;
}

TEST_CASE("weights of quantised checkpoints are what their tools make of them") {
  const auto folders = quantized_folders();
  REQUIRE(folders.size() == 34);
  for (const auto& folder : folders) {
    CAPTURE(folder.filename().string());
    const auto source = open_weights(golden_model_path(folder));
    REQUIRE_MESSAGE(source.ok(), source.status().to_string());
    const Checkpoint goldens = Checkpoint::open(folder / "goldens.safetensors").value();
    HostTensor scratch;
    const double tolerance = goldens.rows(*goldens.find("rows_tolerance"), 0, 1, scratch)->data<float>()[0];
    int num_matrices = 0;
    for (const TensorEntry& golden : goldens.entries()) {
      if (!golden.name.starts_with("rows.")) continue;
      const std::string name = golden.name.substr(5);
      CAPTURE(name);
      const TensorEntry* entry = (*source)->find(name);
      REQUIRE(entry != nullptr);
      REQUIRE(entry->shape.size() == 2);
      REQUIRE(entry->shape[1] == golden.shape[1]);
      ++num_matrices;
      for (const int64_t i : {0, 1}) {
        const HostTensor expected = copy_tensor(goldens.rows(golden, i, i + 1, scratch).value());
        const HostTensor actual = row_of(**source, *entry, i == 0 ? 1 : entry->shape[0] - 1);
        double largest = 0;
        for (const float value : expected.span<float>()) largest = std::max(largest, std::fabs(double{value}));
        CHECK_TENSOR(close_to("row", actual, expected, {.rel = 0, .abs = tolerance * largest}));
      }
    }
    CHECK(num_matrices >= 7);
  }
}

bool has_integers(const WeightSource& source) {
  return std::any_of(source.entries().begin(), source.entries().end(),
                     [](const TensorEntry& e) { return !!e.quantized; });
}

bool runs_integers(const Device& device, const WeightSource& source) {
  for (const TensorEntry& entry : source.entries()) {
    if (entry.quantized && !device.supports(*entry.quantized)) return false;
  }
  return device.supports(integer_spec(Codes::kInt8, 32, true));  // of fused matrices in different formats
}

void check_quantized_goldens(DeviceFactory factory, bool integer_weights, int tensor_parallel_size,
                             ActivationDType activations = ActivationDType::kAuto) {
  for (const auto& folder : quantized_folders()) {
    CAPTURE(folder.filename().string());
    const std::string name = folder.filename().string();
    const auto source = open_weights(golden_model_path(folder)).value();
    const bool runs_on_codes = integer_weights && has_integers(*source);
    // Groups of 64 in 64 columns cannot be shared out.
    if (tensor_parallel_size > 1 && has_integers(*source) && name.find("_g32") == std::string::npos) continue;
    if (runs_on_codes) {
      const auto device = factory({.num_threads = 1}).value();
      if (!runs_integers(*device, *source)) {
        skip_test(std::string(device->kind()) + " runs no integers of " + name);
        continue;
      }
    }
    for (const GoldenSchedule schedule : {GoldenSchedule::kOneByOne, GoldenSchedule::kChunked}) {
      const auto result = run_golden(folder, factory, {.num_threads = 1},
                                     {.act_dtype = DType::kF32,
                                      .tensor_parallel_size = tensor_parallel_size,
                                      .schedule = schedule,
                                      .integer_weights = integer_weights,
                                      .activations = activations});
      REQUIRE_MESSAGE(result.ok(), result.status().to_string());
      for (const std::string& failure : result->failures) FAIL_CHECK(failure);
      // 8-bit activations show: else the products did not run on integers.
      if (runs_on_codes && activations == ActivationDType::kAuto) CHECK(result->logits_error > 1e-4);
    }
  }
}

// The same model with the values of its 8-bit floats as bf16.
void write_bf16_twin(const std::filesystem::path& folder, const std::filesystem::path& twin) {
  const auto source = open_weights(folder).value();
  RawTensors tensors = read_tensors(folder);
  for (const TensorEntry& entry : source->entries()) {
    if (entry.dtype_name != "F8_E4M3") continue;
    HostTensor scratch;
    tensors[entry.name] = {"BF16", entry.shape, bytes_of(source->rows(entry, 0, entry.num_rows(), scratch).value())};
  }
  std::erase_if(tensors, [&](const auto& tensor) { return source->find(tensor.first) == nullptr; });
  write_tensors(tensors, twin / "model.safetensors");
  std::ifstream in(folder / "config.json");
  std::string config((std::istreambuf_iterator<char>(in)), {});
  config.replace(config.find("\"quantization_config\""), 21, "\"not_quantized\"");
  std::ofstream(twin / "config.json") << config;
  std::filesystem::copy(folder / "goldens.safetensors", twin / "goldens.safetensors");
}

TEST_CASE("a checkpoint of 8-bit floats gives the bits of one of bf16 with its values, also when it becomes integers") {
  for (const auto& folder : quantized_folders()) {
    const std::string name = folder.filename().string();
    if (name.find("fp8") == std::string::npos) continue;
    CAPTURE(name);
    const TempDir dir;
    const std::filesystem::path& twin = dir.path();
    write_bf16_twin(folder, twin);
    for (const char* quantization : {"none", "int8", "int4-g32"}) {
      CAPTURE(quantization);
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        const GoldenRun run{.act_dtype = dtype, .quantization = parse_quantization(quantization).value()};
        const GoldenResult of_fp8 = run_golden(folder, make_cpu_device, {.num_threads = 1}, run).value();
        const GoldenResult of_bf16 = run_golden(twin, make_cpu_device, {.num_threads = 1}, run).value();
        CHECK(of_fp8.hidden_error == of_bf16.hidden_error);
        CHECK(of_fp8.logits_error == of_bf16.logits_error);
        if (quantization != std::string("none")) CHECK(of_fp8.logits_error > 1e-4);
      }
    }
  }
}

void copy_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
}

TEST_CASE("a missing expert is named") {
  const auto root = repo_root() / "test" / "goldens" / "quantized";
  const auto message = [](const std::filesystem::path& folder) {
    return run_golden(folder, make_cpu_device, {.num_threads = 1}, {}).status().message();
  };
  const TempDir dir;
  copy_folder(root / "fp8_block_qwen3_moe", dir.path() / "fp8");
  RawTensors tensors = read_tensors(dir.path() / "fp8");
  REQUIRE(tensors.erase("model.layers.0.mlp.experts.2.up_proj.weight") == 1);
  REQUIRE(tensors.erase("model.layers.0.mlp.experts.2.up_proj.weight_scale_inv") == 1);
  write_tensors(tensors, dir.path() / "fp8" / "model.safetensors");
  const std::string of_fp8 = message(dir.path() / "fp8");
  CHECK_MESSAGE(of_fp8.find("model.layers.0.mlp.experts.2.up_proj.weight [40, 144] is missing") != std::string::npos,
                of_fp8);
  // A GGUF file whose metadata promises one more than its tensors hold.
  copy_folder(root / "gguf_qwen3moe_g32", dir.path() / "gguf");
  std::string bytes = read_file_or_die(dir.path() / "gguf" / "model.gguf");
  const std::string key = "qwen3moe.expert_count";
  const size_t at = bytes.find(key);
  REQUIRE(at != std::string::npos);
  bytes[at + key.size() + 4] = 7;
  std::ofstream(dir.path() / "gguf" / "model.gguf", std::ios::binary) << bytes;
  const std::string of_gguf = message(dir.path() / "gguf");
  for (const char* matrix : {"gate_proj", "up_proj", "down_proj"}) {
    const std::string needed = std::string("model.layers.0.mlp.experts.6.") + matrix + ".weight [64, 64] is missing";
    CHECK_MESSAGE(of_gguf.find(needed) != std::string::npos, of_gguf);
  }
}

TEST_CASE("quantised goldens, codes as floats, reference") { check_quantized_goldens(make_reference_device, false, 1); }
TEST_CASE("quantised goldens, integers, reference") { check_quantized_goldens(make_reference_device, true, 1); }
TEST_CASE("quantised goldens, integers, reference, two ranks") {
  check_quantized_goldens(make_reference_device, true, 2);
}
TEST_CASE("quantised goldens, codes as floats, CPU, two ranks") { check_quantized_goldens(make_cpu_device, false, 2); }
TEST_CASE("quantised goldens, codes as floats, CPU") { check_quantized_goldens(make_cpu_device, false, 1); }
TEST_CASE("quantised goldens, integers by activations as they are, reference") {
  check_quantized_goldens(make_reference_device, true, 1, ActivationDType::kModel);
}
TEST_CASE("quantised goldens, integers by activations as they are, CPU") {
  check_quantized_goldens(make_cpu_device, true, 1, ActivationDType::kModel);
}
TEST_CASE("quantised goldens, integers, CPU") { check_quantized_goldens(make_cpu_device, true, 1); }
TEST_CASE("quantised goldens, integers, CPU, two ranks") { check_quantized_goldens(make_cpu_device, true, 2); }

}  // namespace
}  // namespace spate
