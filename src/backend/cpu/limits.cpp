#include "backend/cpu/limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "backend/cpu/cpu_device.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/thread_pool.h"
#include "base/log.h"

namespace spate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSamples = 9;
constexpr int64_t kBufferBytes = int64_t{1} << 30;
constexpr double kSampleSeconds = 0.03;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Units per second of work(iterations), which returns its units, on all threads at once.
class RateMeter {
 public:
  using Work = double (*)(int64_t iterations);
  RateMeter(cpu::ThreadPool& pool, Work work) : pool_(pool), work_(work) {
    for (iterations_ = 1 << 12; work_ != nullptr; iterations_ *= 2) {  // long enough to time
      const auto start = Clock::now();
      work_(iterations_);
      if (seconds_since(start) > kSampleSeconds / 2) break;
    }
  }
  void sample() {
    if (work_ == nullptr) return;
    std::vector<double> units(static_cast<size_t>(pool_.num_threads()));
    const auto start = Clock::now();
    pool_.parallel_for(pool_.num_threads(), [&](int, int64_t item) { units[static_cast<size_t>(item)] = work_(iterations_); });
    const double seconds = seconds_since(start);
    double total = 0;
    for (const double u : units) total += u;
    samples_.push_back(total / seconds);
  }
  double rate() const { return samples_.empty() ? 0 : median(samples_); }

 private:
  cpu::ThreadPool& pool_;
  Work work_;
  int64_t iterations_ = 0;
  std::vector<double> samples_;
};

}  // namespace

CpuLimits measure_cpu_limits(int num_threads, const std::string& isa) {
  CpuLimits limits;
  limits.num_threads = num_threads > 0 ? num_threads : default_num_threads();
  const Result<const cpu::Isa*> chosen = cpu::choose_isa(isa);
  const cpu::KernelTable& kernels = (chosen.ok() ? *chosen.value() : cpu::best_isa()).kernels();
  // A set that this machine has and does not prefer may have the loop for bf16.
  RateMeter::Work vector_bf16_flops = kernels.vector_bf16_flops;
  for (const cpu::Isa& other : cpu::all_isas()) {
    if (isa.empty() && vector_bf16_flops == nullptr && other.is_present()) {
      vector_bf16_flops = other.kernels().vector_bf16_flops;
    }
  }
  limits.isa = kernels.name;
  limits.vector_int8_name = kernels.vector_int8_name;

  cpu::ThreadPool pool(limits.num_threads, homes_on_nodes(usable_topology(), limits.num_threads));
  const auto device = make_cpu_device({.num_threads = 1}).value();
  const MemoryInfo memory = device->memory_info().value();
  const int64_t step = int64_t{4096} * limits.num_threads;
  int64_t bytes = std::clamp(memory.free_bytes / 4, step, kBufferBytes) / step * step;
  Result<Buffer> allocated = device->allocate(static_cast<size_t>(bytes), MemoryKind::kDevice);
  while (!allocated.ok() && bytes > step) {  // ulimit -v: less address space than memory
    bytes = std::max(step, bytes / 2 / step * step);
    allocated = device->allocate(static_cast<size_t>(bytes), MemoryKind::kDevice);
  }
  const Buffer buffer = std::move(allocated).value();
  const int64_t part = bytes / limits.num_threads;
  char* data = static_cast<char*>(buffer.data());
  pool.on_each_thread([&](int t) { std::memset(data + t * part, 1, static_cast<size_t>(part)); });

  std::atomic<uint64_t> checksum{0};  // keeps the reads alive
  std::vector<double> memory_samples, plain_samples, write_samples;
  RateMeter fma(pool, kernels.fma_flops), vector_bf16(pool, vector_bf16_flops),
      vector_int8(pool, kernels.vector_int8_ops), amx_bf16(pool, kernels.amx_bf16_flops),
      amx_int8(pool, kernels.amx_int8_ops), bf16_registers(pool, kernels.amx_bf16_register_flops),
      int8_registers(pool, kernels.amx_int8_register_ops);
  for (int i = 0; i < kSamples; ++i) {
    for (auto& [read, samples] : {std::pair{kernels.read_memory, &memory_samples}, {kernels.read_memory_plain, &plain_samples}}) {
      const auto start = Clock::now();
      pool.on_each_thread([&](int t) { checksum += read(data + t * part, part); });
      samples->push_back(static_cast<double>(bytes) / seconds_since(start));
    }
    const auto write_start = Clock::now();
    pool.on_each_thread([&](int t) { kernels.write_memory(data + t * part, part); });
    write_samples.push_back(static_cast<double>(bytes) / seconds_since(write_start));
    fma.sample();
    vector_bf16.sample();
    vector_int8.sample();
    amx_bf16.sample();
    amx_int8.sample();
    bf16_registers.sample();
    int8_registers.sample();
  }
  log_debug("cpu", "memory checksum {:x}", checksum.load());
  limits.memory_bytes_per_s = std::max(median(memory_samples), median(plain_samples));
  limits.memory_write_bytes_per_s = median(write_samples);
  limits.fp32_flops_per_s = fma.rate();
  limits.vector_bf16_flops_per_s = vector_bf16.rate();
  limits.vector_int8_ops_per_s = vector_int8.rate();
  limits.amx_bf16_flops_per_s = amx_bf16.rate();
  limits.amx_int8_ops_per_s = amx_int8.rate();
  limits.amx_bf16_register_flops_per_s = bf16_registers.rate();
  limits.amx_int8_register_ops_per_s = int8_registers.rate();
  return limits;
}

MachineLimits measure_cpu_machine_limits(const DeviceOptions& options) {
  const CpuLimits limits = measure_cpu_limits(options.num_threads, options.isa);
  MachineLimits machine{.memory_bytes_per_s = limits.memory_bytes_per_s,
                        .float_flops_per_s = std::max({limits.amx_bf16_flops_per_s, limits.vector_bf16_flops_per_s,
                                                       limits.fp32_flops_per_s})};
  machine.int8_ops_per_s = std::max({limits.amx_int8_ops_per_s, limits.vector_int8_ops_per_s, machine.float_flops_per_s});
  if (limits.amx_bf16_flops_per_s > 0) {
    machine.units = ProductUnits::kTiles;
  } else if (limits.isa.starts_with("avx512")) {
    machine.units = ProductUnits::kVectors;
  }
  machine.rates = {{"memory-read", limits.memory_bytes_per_s, "GB/s"},
                   {"memory-write", limits.memory_write_bytes_per_s, "GB/s"},
                   {"fma-f32", limits.fp32_flops_per_s, "GFLOP/s"},
                   {"vector-bf16", limits.vector_bf16_flops_per_s, "GFLOP/s"},
                   {limits.vector_int8_name, limits.vector_int8_ops_per_s, "GOP/s"},
                   {"amx-bf16", limits.amx_bf16_flops_per_s, "GFLOP/s"},
                   {"amx-int8", limits.amx_int8_ops_per_s, "GOP/s"},
                   {"amx-bf16-registers", limits.amx_bf16_register_flops_per_s, "GFLOP/s"},
                   {"amx-int8-registers", limits.amx_int8_register_ops_per_s, "GOP/s"}};
  return machine;
}

}  // namespace spate
