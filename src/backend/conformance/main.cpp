// spate-conformance --backend NAME [--isa NAME] [--threads N] [--filter TEXT] [--shard I/N] [--kernel-dir DIR]: a
// back-end of the registry against the oracle. The oracle runs on one core, so N programs with the shards 1/N to N/N
// take a part of the time.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "backend/conformance/conformance.h"
#include "backend/registry/registry.h"

int main(int argc, char** argv) {
  if (const std::optional<int> code = spate::run_back_end_worker(argc, argv)) return *code;
  std::string backend;
  spate::DeviceOptions device_options;
  spate::ConformanceOptions options;
  int shard = 1;
  bool understood = argc % 2 == 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--backend") {
      backend = value;
    } else if (flag == "--isa") {
      device_options.isa = value;
    } else if (flag == "--threads") {
      device_options.num_threads = std::atoi(value.c_str());
    } else if (flag == "--kernel-dir") {
      device_options.kernel_dir = value;
    } else if (flag == "--filter") {
      options.filter = value;
    } else if (flag == "--shard") {
      understood &= std::sscanf(value.c_str(), "%d/%d", &shard, &options.num_shards) == 2;
    } else {
      understood = false;  // else the whole suite would pass, on other kernels than were meant
    }
  }
  const spate::BackEnd* back_end = spate::find_back_end(backend);
  if (back_end == nullptr || !understood || shard < 1 || shard > options.num_shards) {
    std::fprintf(stderr,
                 "usage: spate-conformance --backend %s [--isa NAME] [--threads N] [--filter TEXT] [--shard I/N] "
                 "[--kernel-dir DIR]\n",
                 spate::back_end_names("|").c_str());
    return 2;
  }
  options.shard_idx = shard - 1;
  auto device = back_end->make_device(device_options);
  device_options.deterministic = true;
  auto deterministic = back_end->make_device(device_options);
  if (!device.ok() || !deterministic.ok()) {
    std::fprintf(stderr, "spate-conformance: %s\n", (device.ok() ? deterministic : device).status().message().c_str());
    return 2;
  }
  for (const auto* one : {&device, &deterministic}) {
    if (const spate::Status ready = (**one)->prepare({.is_everything = options.filter.empty()}); !ready.ok()) {
      std::fprintf(stderr, "spate-conformance: %s\n", ready.message().c_str());
      return 2;
    }
  }
  std::printf("%s: %s\n", backend.c_str(), (*device)->description().c_str());
  options.print = [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  const spate::ConformanceResult result = spate::run_conformance(**device, **deterministic, options);
  std::printf("%d passed, %d failed\n", result.passed, result.failed);
  return result.failed == 0 ? 0 : 1;
}
