// spate bench kernel: each op of the catalogue at the sizes of a model: time of a call, and bytes or operations a
// second beside what this machine can do. Operands come from memory, not from a cache: in a step they are long gone.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "backend/ops.h"
#include "base/cpu_cores.h"
#include "base/log.h"
#include "cli/bench_plot.h"
#include "cli/bench_rows.h"
#include "cli/bench_runs.h"
#include "cli/commands.h"
#include "cli/kernel_cases.h"
#include "cli/llm_arguments.h"
#include "weights/quantization_config.h"

namespace spate {
namespace {

constexpr double kMeasureSeconds = 0.3;  // of a case
constexpr double kSampleSeconds = 1e-3;
constexpr size_t kMinSamples = 5;

// Median seconds of a call; one call after the other takes the next copy of the operands.
double seconds_of(Device& device, Stream& stream, const KernelCase& one) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  int64_t copy = 0;
  const auto sample = [&](int64_t num_calls) {
    const auto start = Clock::now();
    device.run_step(stream, {}, [&] {
      for (int64_t i = 0; i < num_calls; ++i) one.call(copy++ % one.num_copies);
    });
    device.synchronize(stream);
    return seconds_since(start);
  };
  sample(1);
  int64_t num_calls = 1;  // of a sample: so many that a look at the clock does not count
  while (sample(num_calls) < kSampleSeconds && num_calls < (1 << 20)) num_calls *= 2;
  std::vector<double> samples;
  const auto begin = Clock::now();
  while (samples.size() < kMinSamples || seconds_since(begin) < kMeasureSeconds) {
    samples.push_back(sample(num_calls) / static_cast<double>(num_calls));
  }
  return median(samples);
}

// Which limit binds, and the speed in its unit.
BenchRow row_of(const KernelCase& one, double seconds, const MachineLimits& limits) {
  BenchRow row{.name = one.name, .time_us = seconds * 1e6};
  const double peak = one.is_integer ? limits.int8_ops_per_s : limits.float_flops_per_s;
  const bool has_limits = limits.memory_bytes_per_s > 0;
  const Roofline best{
      .memory_s = has_limits ? one.bytes / limits.memory_bytes_per_s : one.bytes,
      .arithmetic_s = has_limits ? one.ops / peak : one.ops / 200};  // 200 operations a byte: a GPU's balance
  if (one.bytes == 0) {
    row.value = row.time_us;
    row.unit = "us";
    row.time_us = 0;
  } else if (best.is_memory_bound()) {
    row.value = one.bytes / seconds / 1e9;
    row.unit = "GB/s";
    row.limit = limits.memory_bytes_per_s / 1e9;
  } else {
    row.value = one.ops / seconds / 1e9;
    row.unit = one.is_integer ? "GOP/s" : "GFLOP/s";
    row.limit = has_limits ? peak / 1e9 : 0;
  }
  return row;
}

}  // namespace

Result<int> run_bench_kernel(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(arguments.model.model));
  DeviceOptions device_arguments = device_options(arguments.model);
  ASSIGN_OR_RETURN(const BackEnd* back_end, choose_back_end(arguments.model.device, device_arguments));
  device_arguments.num_threads = compute_threads(arguments.model);
  if (arguments.model.cpu_pin_threads) device_arguments.core_ids = cores_of_rank(0, 1, device_arguments.num_threads);
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, back_end->make_device(device_arguments));
  KernelCaseOptions options{.act_dtype = act_dtype_of(arguments.model),
                            .kv_dtype = kv_dtype_of(arguments.model),
                            .kv_block_size = arguments.model.block_size,
                            .has_large_sizes = !back_end->shares_host_memory,
                            .filter = arguments.bench.filter};
  ASSIGN_OR_RETURN(options.quantization, quantization_of(arguments.model));
  ASSIGN_OR_RETURN(options.quantization,
                   dummy_quantization(arguments.model.model, options.quantization, options.act_dtype == DType::kF32));
  if (options.quantization.imitates_checkpoint) {
    options.quantization.linear = runnable_spec(options.quantization.linear, options.quantization.vocabulary,
                                                [&](const WeightSpec& spec) { return device->supports(spec); });
  }
  for (const WeightSpec& spec : {options.quantization.linear, options.quantization.vocabulary}) {
    if (options.quantization.enabled() && !device->supports(spec)) {
      return unimplemented("--quantization: weights of {} do not run on {}", weight_spec_name(spec), device->kind());
    }
  }
  if (!device->supports_kv({.dtype = options.kv_dtype})) {
    return unimplemented("--kv-cache-dtype: a KV cache of {} does not run on {}", dtype_name(options.kv_dtype),
                         device->kind());
  }
  log_info("bench", "{}", device->description());
  std::string command = fmt::format("spate bench kernel {}", arguments.model.model);
  const bool is_wanted = options.quantization.enabled() && !options.quantization.imitates_checkpoint;
  if (is_wanted) command += " --quantization " + arguments.model.quantization;
  if (options.kv_dtype != options.act_dtype) command += " --kv-cache-dtype " + arguments.model.kv_cache_dtype;
  if (back_end->shares_host_memory) command += fmt::format(" --threads {}", compute_threads(arguments.model));

  const MachineLimits limits = measure_limits(*back_end, arguments.model);
  std::vector<BenchRow> rows = limit_rows(*back_end, limits, command);
  for (const BenchRow& row : rows) print_row(row);
  const std::unique_ptr<Stream> stream = device->create_stream();
  int num_measured = 0;
  RETURN_IF_ERROR(for_each_kernel_case(*device, *stream, config, options, [&](const KernelCase& one) {
    BenchRow row = row_of(one, seconds_of(*device, *stream, one), limits);
    row.name = fmt::format("{}/{}", device->kind(), row.name);
    row.command = command;
    print_row(row);
    rows.push_back(std::move(row));
    ++num_measured;
  }));
  if (num_measured == 0) return invalid_argument("--filter: no op's row contains '{}'", arguments.bench.filter);
  RETURN_IF_ERROR(write_rows(arguments.bench.output_json, rows));
  RETURN_IF_ERROR(write_plot(arguments.bench.plot, "Share of the limits of this machine: " + command, rows));
  return 0;
}

}  // namespace spate
