// spate kernels tune: times the ways to share out a model's products on the GPU at hand, and keeps the fastest for
// later starts.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "backend/product_tuning.h"
#include "cli/bench_runs.h"
#include "cli/commands.h"
#include "cli/kernel_cases.h"
#include "cli/llm_arguments.h"

namespace spate {
namespace {

// Of a step. A choice serves the counts above the one before it, up to its own.
constexpr int64_t kTokenCounts[] = {16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192};
constexpr int64_t kMinTokens = 9;        // fewer run on kernels without choices
constexpr double kMinGain = 0.02;        // less is kept by rule: the next start times otherwise
constexpr double kTuneSeconds = 1e-3;    // about
constexpr int kNumSamples = 7, kNumConfirmations = 15;

class Tuner {
 public:
  Tuner(Device& device, Stream& stream, ProductTuningDevice& products)
      : device_(device), stream_(stream), products_(products) {}

  void tune(const KernelCase& one) {
    products_.take_last_product();
    sample(one, 1);
    const std::optional<ProductShape> shape = products_.take_last_product();
    // No product with choices, or one of other tokens: of many a product runs in parts.
    if (!shape || shape->num_tokens != one.num_tokens) return;
    const std::vector<std::string> choices = products_.choices(*shape);
    int64_t num_calls = 1;
    while (sample(one, num_calls) < kTuneSeconds && num_calls < 1 << 12) num_calls *= 2;

    std::vector<int> all(choices.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    const std::vector<double> seconds = time(one, *shape, all, num_calls, kNumSamples);
    const auto fastest = static_cast<int>(std::ranges::min_element(seconds) - seconds.begin());
    int chosen = 0;
    double rule = seconds[0], best = seconds[0];
    if (fastest > 0) {
      const std::vector<double> again = time(one, *shape, {0, fastest}, num_calls, kNumConfirmations);
      rule = again[0];
      if (again[1] < (1 - kMinGain) * again[0]) {
        chosen = fastest;
        best = again[1];
      }
    }
    products_.end_trials();
    products_.keep_choice(*shape, min_tokens(shape->num_tokens), chosen);
    std::printf("%-58s %9.1f us", one.name.c_str(), rule * 1e6);
    if (chosen > 0) std::printf("  -> %9.1f us  %s", best * 1e6, choices[static_cast<size_t>(chosen)].c_str());
    std::printf("\n");
    std::fflush(stdout);
    ++num_products_;
    num_changed_ += chosen > 0;
  }

  int num_products() const { return num_products_; }
  int num_changed() const { return num_changed_; }

 private:
  static int64_t min_tokens(int64_t num_tokens) {
    int64_t min = kMinTokens;
    for (const int64_t count : kTokenCounts) {
      if (count < num_tokens) min = count + 1;
    }
    return min;
  }

  double sample(const KernelCase& one, int64_t num_calls) {
    const auto start = std::chrono::steady_clock::now();
    device_.run_step(stream_, {}, [&] {
      for (int64_t i = 0; i < num_calls; ++i) one.call(copy_++ % one.num_copies);
    });
    device_.synchronize(stream_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // Median seconds of a call by each choice, their samples by turns.
  std::vector<double> time(const KernelCase& one, const ProductShape& shape, const std::vector<int>& choices,
                           int64_t num_calls, int num_samples) {
    std::vector<std::vector<double>> samples(choices.size());
    for (int round = -1; round < num_samples; ++round) {  // the first warms up
      for (size_t i = 0; i < choices.size(); ++i) {
        products_.try_choice(shape, choices[i]);
        const double seconds = sample(one, num_calls) / static_cast<double>(num_calls);
        if (round >= 0) samples[i].push_back(seconds);
      }
    }
    std::vector<double> medians;
    for (const std::vector<double>& of_choice : samples) medians.push_back(median(of_choice));
    return medians;
  }

  Device& device_;
  Stream& stream_;
  ProductTuningDevice& products_;
  int64_t copy_ = 0;
  int num_products_ = 0, num_changed_ = 0;
};

}  // namespace

Result<int> run_kernels_tune(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(arguments.model.model));
  const DeviceOptions options = device_options(arguments.model);
  if (options.deterministic)
    return invalid_argument("--deterministic: there is no choice to tune, sums have one order");
  ASSIGN_OR_RETURN(const BackEnd* back_end, choose_back_end(arguments.model.device, options));
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, back_end->make_device(options));
  ProductTuningDevice* products = product_tuning_device(*device);
  if (products == nullptr) return unimplemented("--device {}: its products have no choices to tune", device->kind());
  KernelCaseOptions cases{.act_dtype = act_dtype_of(arguments.model),
                          .token_counts = {std::begin(kTokenCounts), std::end(kTokenCounts)},
                          .has_products_only = true};
  ASSIGN_OR_RETURN(cases.quantization, quantization_of(arguments.model));
  for (const WeightSpec& spec : {cases.quantization.linear, cases.quantization.vocabulary}) {
    if (cases.quantization.enabled() && !device->supports(spec)) {
      return unimplemented("--quantization: weights of {} do not run on {}", weight_spec_name(spec), device->kind());
    }
  }
  std::printf("%s\n", device->description().c_str());
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<Stream> stream = device->create_stream();
  Tuner tuner(*device, *stream, *products);
  RETURN_IF_ERROR(
      for_each_kernel_case(*device, *stream, config, cases, [&](const KernelCase& one) { tuner.tune(one); }));
  ASSIGN_OR_RETURN(const std::string path, products->save_choices());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%d of %d products have a faster choice than the rule's (by %.0f %% at least); %.1f s; %s\n",
              tuner.num_changed(), tuner.num_products(), 100 * kMinGain, seconds.count(), path.c_str());
  return 0;
}

}  // namespace spate
