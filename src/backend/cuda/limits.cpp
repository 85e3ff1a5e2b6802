#include "backend/cuda/limits.h"

#include <algorithm>
#include <array>
#include <functional>

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/kernel/limits/limits.h"
#include "backend/cuda/launch.h"
#include "base/log.h"

namespace spate {
namespace cuda {
namespace {

constexpr int kNumSamples = 9;  // of each figure, in turn with the others
constexpr int64_t kCtaReadBytes = int64_t{16} * kReadPieces * kLimitThreads;
constexpr int kCtasAnSm = 8;  // that read: all threads that an SM has
constexpr int kNumPasses = 4;
constexpr int kNumRounds = 10000;  // of 16 products: about ten milliseconds

// The largest power of two that is free, from a GiB down to what no cache holds.
Result<Buffer> allocate_operand(CudaDevice& device) {
  constexpr size_t kLargest = size_t{1} << 30, kSmallest = size_t{1} << 27;
  for (size_t bytes = kLargest; bytes > kSmallest; bytes /= 2) {
    if (Result<Buffer> buffer = device.allocate(bytes, MemoryKind::kDevice); buffer.ok()) return buffer;
  }
  return device.allocate(kSmallest, MemoryKind::kDevice);
}

class Limits {
 public:
  Limits(CudaDevice& device, Buffer data, Buffer out)
      : device_(device),
        data_(std::move(data)),
        out_(std::move(out)),
        stream_(device.create_stream()),
        begin_(device.create_event()),
        end_(device.create_event()) {
    device.fill_bytes(*stream_, data_.data(), 0x5a, data_.bytes());
  }

  MachineLimits measure() {
    struct Figure {
      const char* name;
      KernelId kernel;
      double ops_a_round;  // of a CTA
      int ctas_an_sm;
      bool is_integer;
      std::vector<double> rates;
    };
    std::array<Figure, 4> figures = {{{"mma-bf16", kernel_id("limit_mma_bf16"), kMmaOpsBf16, 2, false, {}},
                                      {"mma-int8", kernel_id("limit_mma_int8"), kMmaOpsInt8, 2, true, {}},
                                      {"wgmma-bf16", kernel_id("limit_wgmma_bf16"), kWgmmaOpsBf16, 1, false, {}},
                                      {"wgmma-int8", kernel_id("limit_wgmma_int8"), kWgmmaOpsInt8, 1, true, {}}}};
    std::vector<double> read_rates;
    read_seconds();  // the first touch of each kernel and page
    for (int sample = 0; sample < kNumSamples; ++sample) {
      read_rates.push_back(static_cast<double>(data_.bytes()) * kNumPasses / read_seconds());
      for (Figure& figure : figures) {
        if (!device_.has(figure.kernel)) continue;
        const int64_t num_ctas = int64_t{figure.ctas_an_sm} * device_.num_sms();
        const double seconds = product_seconds(figure.kernel, num_ctas);
        figure.rates.push_back(figure.ops_a_round * kNumRounds * static_cast<double>(num_ctas) / seconds);
      }
    }
    MachineLimits limits{.memory_bytes_per_s = median(read_rates)};
    limits.rates.push_back({"memory-read", limits.memory_bytes_per_s, "GB/s"});
    for (Figure& figure : figures) {
      if (figure.rates.empty()) continue;
      const double rate = median(figure.rates);
      limits.rates.push_back({figure.name, rate, figure.is_integer ? "GOP/s" : "GFLOP/s"});
      double& best = figure.is_integer ? limits.int8_ops_per_s : limits.float_flops_per_s;
      best = std::max(best, rate);
    }
    limits.int8_ops_per_s = std::max(limits.int8_ops_per_s, limits.float_flops_per_s);
    return limits;
  }

 private:
  static double median(std::vector<double> values) {
    std::ranges::nth_element(values, values.begin() + kNumSamples / 2);
    return values[kNumSamples / 2];
  }
  double seconds_of(const std::function<void()>& work) {
    begin_->record(*stream_);
    work();
    end_->record(*stream_);
    device_.synchronize(*stream_);
    return end_->seconds_since(*begin_);
  }
  double read_seconds() {
    const MemoryReadParams params{.data = data_.data(),
                                  .out = static_cast<uint32_t*>(out_.data()),
                                  .num_pieces = static_cast<int64_t>(data_.bytes() / 16),
                                  .num_passes = kNumPasses};
    const int64_t num_ctas =
        std::min<int64_t>(static_cast<int64_t>(data_.bytes()) / kCtaReadBytes, int64_t{kCtasAnSm} * device_.num_sms());
    return seconds_of([&] {
      launch(*stream_, kernel_id("limit_memory_read"), {.x = num_ctas, .num_threads = kLimitThreads}, params,
             {{"num_pieces", params.num_pieces}});
    });
  }
  double product_seconds(KernelId kernel, int64_t num_ctas) {
    const ProductLimitParams params{.out = static_cast<uint32_t*>(out_.data()), .num_rounds = kNumRounds};
    return seconds_of([&] {
      launch(*stream_, kernel, {.x = num_ctas, .num_threads = kLimitThreads}, params, {{"num_rounds", kNumRounds}});
    });
  }

  CudaDevice& device_;
  Buffer data_, out_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> begin_, end_;
};

Result<MachineLimits> measure(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, CudaDevice::make(options));
  auto& cuda_device = static_cast<CudaDevice&>(*device);
  ASSIGN_OR_RETURN(Buffer data, allocate_operand(cuda_device));
  ASSIGN_OR_RETURN(Buffer out, cuda_device.allocate(sizeof(uint32_t), MemoryKind::kDevice));
  return Limits(cuda_device, std::move(data), std::move(out)).measure();
}

}  // namespace
}  // namespace cuda

MachineLimits measure_cuda_machine_limits(const DeviceOptions& options) {
  Result<MachineLimits> limits = cuda::measure(options);
  if (limits.ok()) return *limits;
  log_warning("cuda", "the limits of the GPU were not measured: {}", limits.status().message());
  return {};
}

}  // namespace spate
