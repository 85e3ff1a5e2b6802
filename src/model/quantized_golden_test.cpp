// quantized_golden_test.cpp
//
// Goal     Checkpoints that other tools quantised are read as those tools mean them: each weight, and the logits that
//          transformers computes with the dequantised weights.
// Method   Tiny models under test/goldens/quantized (tools/goldens/make_quantized_goldens.py), one for each layout and
//          its variants, with zero points at the ends of their range. Weights are compared row by row, to the bit where
//          the format is ours. Logits twice: with the codes read as floats, which leaves the rounding of scales to a
//          half, and with integer products, which adds 8-bit activations.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_device.h"
#include "backend/reference/reference_device.h"
#include "base/tensor_compare.h"
#include "base/test_support.h"
#include "model/golden_runner.h"
#include "weights/open_weights.h"
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
  REQUIRE(folders.size() == 14);
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

bool runs_integers(const Device& device, const WeightSource& source) {
  for (const TensorEntry& entry : source.entries()) {
    if (entry.quantized && !device.supports(*entry.quantized)) return false;
  }
  return device.supports(integer_spec(Codes::kInt8, 32, true));  // of fused matrices in different formats
}

void check_goldens(DeviceFactory factory, bool integer_weights, int tensor_parallel_size,
                   ActivationDType activations = ActivationDType::kAuto) {
  for (const auto& folder : quantized_folders()) {
    CAPTURE(folder.filename().string());
    // Groups of 64 in 64 columns cannot be shared out.
    if (tensor_parallel_size > 1 && folder.filename().string().find("_g32") == std::string::npos) continue;
    if (integer_weights) {
      const auto device = factory({.num_threads = 1}).value();
      if (!runs_integers(*device, *open_weights(golden_model_path(folder)).value())) {
        skip_test(std::string(device->kind()) + " runs no integers of " + folder.filename().string());
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
      if (integer_weights && activations == ActivationDType::kAuto) CHECK(result->logits_error > 1e-4);
    }
  }
}

TEST_CASE("quantised goldens, codes as floats, reference") { check_goldens(make_reference_device, false, 1); }
TEST_CASE("quantised goldens, integers, reference") { check_goldens(make_reference_device, true, 1); }
TEST_CASE("quantised goldens, integers, reference, two ranks") { check_goldens(make_reference_device, true, 2); }
TEST_CASE("quantised goldens, codes as floats, CPU") { check_goldens(make_cpu_device, false, 1); }
TEST_CASE("quantised goldens, integers by activations as they are, reference") {
  check_goldens(make_reference_device, true, 1, ActivationDType::kModel);
}
TEST_CASE("quantised goldens, integers by activations as they are, CPU") {
  check_goldens(make_cpu_device, true, 1, ActivationDType::kModel);
}
TEST_CASE("quantised goldens, integers, CPU") { check_goldens(make_cpu_device, true, 1); }
TEST_CASE("quantised goldens, integers, CPU, two ranks") { check_goldens(make_cpu_device, true, 2); }

}  // namespace
}  // namespace spate
