// spate-conformance --backend reference|cpu|cuda [--isa avx2|avx512|amx] [--threads N] [--filter TEXT]
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "backend/conformance/conformance.h"
#include "backend/cpu/cpu_device.h"
#ifdef SPATE_CONFORMANCE_CUDA
#include "backend/cuda/cuda_device.h"
#endif
#include "backend/reference/reference_device.h"

namespace {

constexpr const char* kUsage =
    "usage: spate-conformance --backend reference|cpu|cuda [--isa avx2|avx512|amx] [--threads N] [--filter TEXT]\n";

spate::DeviceFactory factory_of(std::string_view backend) {
  if (backend == "reference") return spate::make_reference_device;
  if (backend == "cpu") return spate::make_cpu_device;
#ifdef SPATE_CONFORMANCE_CUDA
  if (backend == "cuda") return spate::make_cuda_device;
#endif
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  std::string backend;
  spate::DeviceOptions device_options;
  spate::ConformanceOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--backend") backend = value;
    if (flag == "--isa") device_options.isa = value;
    if (flag == "--threads") device_options.num_threads = std::atoi(value.c_str());
    if (flag == "--filter") options.filter = value;
  }
  const spate::DeviceFactory make_device = factory_of(backend);
  if (make_device == nullptr || argc % 2 == 0) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  auto device = make_device(device_options);
  device_options.deterministic = true;
  auto deterministic = make_device(device_options);
  if (!device.ok() || !deterministic.ok()) {
    std::fprintf(stderr, "spate-conformance: %s\n", (device.ok() ? deterministic : device).status().message().c_str());
    return 2;
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
