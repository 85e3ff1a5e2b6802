#include "backend/cuda/launch.h"

#include <algorithm>
#include <cstdio>

namespace spate::cuda {
namespace {

constexpr int kRecordLength = 8;
constexpr size_t kMaxNamedSizes = 6;

struct LaunchRecord {
  const char* function = nullptr;
  LaunchGrid grid;
  std::array<NamedSize, kMaxNamedSizes> sizes{};
  size_t num_sizes = 0;
};

// The kernels run later than their launch: the one that failed is among those since the last synchronize.
thread_local std::array<LaunchRecord, kRecordLength> records;
thread_local uint64_t num_launches = 0;

void record_launch(const char* function, const LaunchGrid& grid, std::initializer_list<NamedSize> sizes) {
  LaunchRecord& record = records[num_launches++ % kRecordLength];
  record.function = function;
  record.grid = grid;
  record.num_sizes = std::min(sizes.size(), kMaxNamedSizes);
  std::copy_n(sizes.begin(), record.num_sizes, record.sizes.begin());
}

void print_last_launches() {
  if (num_launches == 0) return;
  std::fprintf(
      stderr,
      "CUDA ops this thread launched last, newest first (kernels run after their launch; with the environment variable "
      "CUDA_LAUNCH_BLOCKING=1 the newest is the one that failed):\n%s",
      last_launches().c_str());
}

}  // namespace

void launch_kernel(Stream& stream, KernelId kernel, const LaunchGrid& grid, const void* params,
                   std::initializer_list<NamedSize> sizes) {
  CudaStream& cuda_stream = static_cast<CudaStream&>(stream);
  CudaDevice& device = cuda_stream.cuda_device();
  const char* function = kKernels[kernel.idx].function;
  if (grid.x == 0 || grid.y == 0) return;  // a step without tokens
  record_launch(function, grid, sizes);
  cuda_stream.set_launches_late(grid.launches_late);
  CHECK(grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 && grid.y <= 65535 && grid.z > 0 && grid.z <= 65535,
        "{}: a grid of {} x {} x {}", function, grid.x, grid.y, grid.z);
  device.make_current();
  void* kernel_params[] = {const_cast<void*>(params)};
  if (!device.load(kernel)) return;  // the capture is given up
  const CUfunction handle = device.function(kernel);
  const auto x = static_cast<unsigned>(grid.x), y = static_cast<unsigned>(grid.y), z = static_cast<unsigned>(grid.z);
  const auto num_threads = static_cast<unsigned>(grid.num_threads);
  const auto shared_bytes =
      static_cast<unsigned>(grid.shared_bytes < 0 ? kKernels[kernel.idx].shared_bytes : grid.shared_bytes);
  CUresult result = CUDA_SUCCESS;
  std::array<CUlaunchAttribute, 2> attributes{};
  unsigned num_attributes = 0;
  const bool is_early = device.launches_early() && grid.is_early;
  const std::string_view program = kKernels[kernel.idx].program;
  const bool writes_step = program.starts_with("step/") || program.starts_with("kv/");
  cuda_stream.note_launch(is_early, writes_step);
  if (grid.launches_late && !writes_step) cuda_stream.note_late_launch();
  if (is_early) {
    CUlaunchAttribute& early = attributes[num_attributes++];
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster > 1) {
    CUlaunchAttribute& cluster = attributes[num_attributes++];
    cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster.value.clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
  }
  if (num_attributes > 0) {
    const CUlaunchConfig config{.gridDimX = x,
                                .gridDimY = y,
                                .gridDimZ = z,
                                .blockDimX = num_threads,
                                .blockDimY = 1,
                                .blockDimZ = 1,
                                .sharedMemBytes = shared_bytes,
                                .hStream = cuda_stream.handle(),
                                .attrs = attributes.data(),
                                .numAttrs = num_attributes};
    result = device.api().cuLaunchKernelEx(&config, handle, kernel_params, nullptr);
  } else {
    result = device.api().cuLaunchKernel(handle, x, y, z, num_threads, 1, 1, shared_bytes, cuda_stream.handle(),
                                         kernel_params, nullptr);
  }
  check_driver(device.api(), result, function);
}

void check_driver(const DriverApi& api, CUresult result, const char* what) {
  CHECK(result == CUDA_SUCCESS, "CUDA: {} failed with {}", what, driver_error(api, result));
}

std::string last_launches() {
  std::string text;
  for (uint64_t age = 1; age <= std::min<uint64_t>(num_launches, kRecordLength); ++age) {
    const LaunchRecord& record = records[(num_launches - age) % kRecordLength];
    text += fmt::format("  {} grid {} x {} x {}, {} threads", record.function, record.grid.x, record.grid.y,
                        record.grid.z, record.grid.num_threads);
    for (size_t i = 0; i < record.num_sizes; ++i) {
      text += fmt::format("{} {} {}", i == 0 ? ":" : ",", record.sizes[i].name, record.sizes[i].value);
    }
    text += "\n";
  }
  return text;
}

void install_failure_hook() { set_check_failure_hook(print_last_launches); }

}  // namespace spate::cuda
