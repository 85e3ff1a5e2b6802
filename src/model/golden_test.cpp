// golden_test.cpp
//
// Goal     Every family computes what transformers computes: hidden states of the embedding, the first, middle and
//          last layer, and logits; the same of a layer for multi-token prediction; whatever the schedule and the number
//          of ranks.
// Method   Tiny random models under test/goldens/model (tools/goldens/make_model_goldens.py), each chosen for a
//          special: see its MODELS table. Each runs in three schedules, in f32 and in bf16, on one rank and on two;
//          the KV cache and the outputs are filled with NaN first. Tolerances: golden_runner.h.
#include <fmt/format.h>

#include "backend/cpu/cpu_device.h"
#include "backend/reference/reference_device.h"
#include "base/test_support.h"
#include "model/golden_runner.h"

#include "base/test.h"

namespace spate {
namespace {

void check_goldens(DeviceFactory factory, DType act_dtype, int tensor_parallel_size) {
  const auto folders = golden_folders(repo_root() / "test" / "goldens" / "model");
  REQUIRE(folders.size() == 31);
  for (const auto& folder : folders) {
    for (const GoldenSchedule schedule :
         {GoldenSchedule::kOneByOne, GoldenSchedule::kBatched, GoldenSchedule::kChunked}) {
      CAPTURE(folder.filename().string());
      CAPTURE(golden_schedule_name(schedule));
      const auto result =
          run_golden(folder, factory, {.num_threads = 1},
                     {.act_dtype = act_dtype, .tensor_parallel_size = tensor_parallel_size, .schedule = schedule});
      REQUIRE_MESSAGE(result.ok(), result.status().to_string());
      for (const std::string& failure : result->failures) FAIL_CHECK(failure);
    }
  }
}

TEST_CASE("goldens on the reference back-end, f32") { check_goldens(make_reference_device, DType::kF32, 1); }
TEST_CASE("goldens on the reference back-end, f32, two ranks") { check_goldens(make_reference_device, DType::kF32, 2); }
TEST_CASE("goldens on the reference back-end, bf16") { check_goldens(make_reference_device, DType::kBf16, 1); }
TEST_CASE("goldens on the reference back-end, bf16, two ranks") {
  check_goldens(make_reference_device, DType::kBf16, 2);
}
TEST_CASE("goldens on the CPU back-end, f32") { check_goldens(make_cpu_device, DType::kF32, 1); }
TEST_CASE("goldens on the CPU back-end, f32, two ranks") { check_goldens(make_cpu_device, DType::kF32, 2); }
TEST_CASE("goldens on the CPU back-end, bf16") { check_goldens(make_cpu_device, DType::kBf16, 1); }
TEST_CASE("goldens on the CPU back-end, bf16, two ranks") { check_goldens(make_cpu_device, DType::kBf16, 2); }

}  // namespace
}  // namespace spate
