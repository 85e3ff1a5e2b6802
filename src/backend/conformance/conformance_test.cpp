// The back-ends of this machine against the reference: the reference itself (its fused ops against the decompositions),
// and the CPU at every instruction set that the machine has, with one thread and with several.
#include "backend/conformance/conformance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <thread>

#include "backend/cpu/cpu_device.h"
#include "backend/reference/reference_device.h"
#include "base/test.h"
#include "base/test_support.h"

namespace spate {
namespace {

void check_device(Device& device, const std::string& filter) {
  ConformanceOptions options{.filter = filter};
  options.print = [](const std::string& line) {
    if (!line.starts_with("ok")) std::printf("%s\n", line.c_str());
  };
  const ConformanceResult result = run_conformance(device, device, options);
  CHECK(result.passed > 0);
  CHECK(result.failed == 0);
}

TEST_CASE("the reference: fused ops equal their decompositions, the forms of latent attention each other") {
  const auto device = make_reference_device({}).value();
  for (const char* filter : {"linear_silu_and_mul", "add_rms_norm", "qk_norm_rope_kv_write", "qk_norm_rope_attention",
                             "kv_copy_blocks", "attention_latent_expanded"}) {
    check_device(*device, filter);
  }
}

// Half of the families on a thread each: the reference runs on the thread that asks.
TEST_CASE("the CPU at every instruction set of this machine") {
  constexpr int kNumShards = 2;
  std::mutex mutex;  // of stdout
  ConformanceResult results[kNumShards];
  const auto run_shard = [&](int shard_idx) {
    std::vector<std::unique_ptr<Device>> devices;
    for (const std::string_view isa : kCpuInstructionSets) {
      auto device = make_cpu_device({.num_threads = 3, .isa = std::string(isa)});
      if (device.ok()) devices.push_back(std::move(*device));
    }
    ConformanceOptions options{.shard_idx = shard_idx, .num_shards = kNumShards};
    for (size_t i = 1; i < devices.size(); ++i) options.siblings.push_back(devices[i].get());
    options.print = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      if (!line.starts_with("ok")) std::printf("%s\n", line.c_str());
    };
    results[shard_idx] = run_conformance(*devices.front(), *devices.front(), options);
  };
  for (const std::string_view isa : kCpuInstructionSets) {
    const auto device = make_cpu_device({.num_threads = 1, .isa = std::string(isa)});
    if (!device.ok()) skip_test(fmt::format("conformance of the CPU at {}: {}", isa, device.status().message()));
  }
  std::thread other(run_shard, 1);
  run_shard(0);
  other.join();
  for (const ConformanceResult& result : results) {
    CHECK(result.passed > 0);
    CHECK(result.failed == 0);
  }
}

TEST_CASE("shards share the families, each has its own") {
  const auto device = make_reference_device({}).value();
  const auto lines_of = [&](int shard_idx, int num_shards) {
    std::vector<std::string> lines;
    ConformanceOptions options{.filter = "rms_norm f32", .shard_idx = shard_idx, .num_shards = num_shards};
    options.print = [&](const std::string& line) { lines.push_back(line); };
    CHECK(run_conformance(*device, *device, options).failed == 0);
    return lines;
  };
  std::vector<std::string> all = lines_of(0, 1), of_shards;
  CHECK(all.size() >= 3);
  for (const int shard_idx : {0, 1, 2}) {
    for (std::string& line : lines_of(shard_idx, 3)) of_shards.push_back(std::move(line));
  }
  std::ranges::sort(all);
  std::ranges::sort(of_shards);
  CHECK(of_shards == all);
}

// The number of threads must not show in any bit: families that compare bits run with another number.
TEST_CASE("the CPU on one thread") {
  const auto one = make_cpu_device({.num_threads = 1}).value();
  check_device(*one, "batch invariance of linear bf16");
  check_device(*one, "batch invariance of expert_mlp");
  check_device(*one, "attention_paged chunks");
}

}  // namespace
}  // namespace spate
