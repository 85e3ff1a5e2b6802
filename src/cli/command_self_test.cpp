// spate self-test: what this machine has, how fast it is, and whether its devices compute what the oracle computes.
#include <chrono>
#include <cstdio>

#include "base/cpu_cores.h"
#include "base/log.h"
#include "base/version.h"
#include "cli/bench_rows.h"
#include "cli/commands.h"
#include "cli/self_test.h"

namespace spate {
namespace {

struct Count {
  int passed = 0, failed = 0;
};

// One line a device: "  dense int8  ok, 0.0021 nats from the oracle (at most 0.1)".
void test_device(SelfTest& test, const BackEnd& back_end, const DeviceOptions& device, const std::string& description,
                 Count& count) {
  std::printf("%s: %s\n", std::string(back_end.name).c_str(), description.c_str());
  for (const SelfTestCase& one : self_test_cases()) {
    const Result<SelfTestResult> result = test.run(one, back_end, device);
    const bool ok = result.ok() && result->ok();
    ++(ok ? count.passed : count.failed);
    const std::string what = fmt::format("{}, {}", one.model, one.quantization == "none" ? "bf16" : one.quantization);
    const std::string how =
        !result.ok() ? result.status().message()
                     : fmt::format("{:.4f} nats from the oracle, {} allowed", result->distance, result->max_distance);
    std::printf("  %-24s %-6s %s\n", what.c_str(), ok ? "ok" : "FAILED", how.c_str());
    std::fflush(stdout);
  }
}

void print_limits(const BackEnd& back_end, const ModelArguments& arguments) {
  if (back_end.measure_limits == nullptr) return;
  std::printf("%s limits", std::string(back_end.name).c_str());
  const int num_threads = compute_threads(arguments);
  if (back_end.shares_host_memory) std::printf(", %d thread%s", num_threads, num_threads == 1 ? "" : "s");
  std::printf(":");
  for (const MachineLimits::Rate& rate : measure_limits(back_end, arguments).rates) {
    if (rate.per_s > 0) std::printf(" %s %.0f %s;", rate.name.c_str(), rate.per_s / 1e9, rate.giga_unit.c_str());
  }
  std::printf("\n");
}

}  // namespace

Result<int> run_self_test(const Arguments& arguments) {
  const ModelArguments& m = arguments.model;
  const auto start = std::chrono::steady_clock::now();
  if (arguments.log_level == "info") set_log_level(LogLevel::kWarning);
  std::printf("spate %s, %zu cores usable\n", kVersion, usable_cores().size());
  Count count;
  SelfTest test;
  for (const BackEnd& back_end : back_ends()) {
    if (m.device == "auto" ? &back_end == &oracle_back_end() : m.device != back_end.name) continue;
    const DeviceOptions device{.num_threads = m.threads};
    if (const Status status = back_end.probe(device); !status.ok()) {
      std::printf("%s: no, %s\n", std::string(back_end.name).c_str(), status.message().c_str());
      if (m.device != "auto") ++count.failed;
      continue;
    }
    print_limits(back_end, m);
    std::vector<std::string> isas(back_end.instruction_sets.begin(), back_end.instruction_sets.end());
    if (isas.empty()) isas.emplace_back();
    for (const std::string& isa : isas) {
      if (!m.isa.empty() && isa != m.isa) continue;
      DeviceOptions capped = device;
      capped.isa = isa;
      const Result<std::unique_ptr<Device>> made = back_end.make_device(capped);
      if (!made.ok()) {
        std::printf("%s: no, %s\n", std::string(back_end.name).c_str(), made.status().message().c_str());
        if (!m.isa.empty()) ++count.failed;
        continue;
      }
      test_device(test, back_end, capped, (*made)->description(), count);
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%d passed, %d failed, %.1f s\n", count.passed, count.failed, seconds.count());
  return count.failed == 0 && count.passed > 0 ? 0 : 1;  // a machine on which nothing could be checked does not pass
}

}  // namespace spate
