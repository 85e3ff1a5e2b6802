// Counters, gauges and histograms, and the Prometheus text format. Updating is lock-free and may happen on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace spate {

class Counter {
 public:
  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);  // ascending; +Inf is added
  void observe(double value);
  const std::vector<double>& upper_bounds() const { return upper_bounds_; }
  std::vector<uint64_t> counts() const;  // of each bucket, not cumulative; the last is +Inf's
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> upper_bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

// 1 2 5 10 20 50 ... up to the first value at or above max_value, as vLLM's token histograms have them.
std::vector<double> one_two_five_bounds(double max_value);

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Prometheus' text format 0.0.4: a family's head, then its samples. A family that comes again, of another model, keeps its
// place and its first head: the format wants all samples of a family together.
class MetricsWriter {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help);
  void sample(std::string_view name, const MetricLabels& labels, double value);
  void counter(std::string_view name, std::string_view help, const MetricLabels& labels, double value);
  void gauge(std::string_view name, std::string_view help, const MetricLabels& labels, double value);
  // counts: not cumulative, one more than bounds.
  void histogram(std::string_view name, std::string_view help, const MetricLabels& labels,
                 const std::vector<double>& upper_bounds, const std::vector<uint64_t>& counts, double sum);
  void histogram(std::string_view name, std::string_view help, const MetricLabels& labels, const Histogram& histogram) {
    this->histogram(name, help, labels, histogram.upper_bounds(), histogram.counts(), histogram.sum());
  }
  std::string take();

 private:
  std::vector<std::string> families_;            // head and samples, in the order of their first coming
  std::map<std::string, size_t, std::less<>> places_;  // by name
  size_t family_ = 0;                            // that samples go to
};

}  // namespace spate
