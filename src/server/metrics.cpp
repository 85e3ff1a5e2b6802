#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace spate {
namespace {

void append_label_value(std::string_view value, std::string& out) {
  for (const char c : value) {
    if (c == '\\' || c == '"') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
}

std::string number(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (std::isnan(value)) return "NaN";
  if (value == std::trunc(value) && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{}", value);
}

}  // namespace

Histogram::Histogram(std::vector<double> upper_bounds)
    : upper_bounds_(std::move(upper_bounds)), counts_(new std::atomic<uint64_t>[upper_bounds_.size() + 1]()) {}

void Histogram::observe(double value) {
  const auto bound = std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value);
  counts_[static_cast<size_t>(bound - upper_bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
  double sum = sum_.load(std::memory_order_relaxed);
  while (!sum_.compare_exchange_weak(sum, sum + value, std::memory_order_relaxed)) {
  }
}

std::vector<uint64_t> Histogram::counts() const {
  std::vector<uint64_t> counts;
  for (size_t i = 0; i <= upper_bounds_.size(); ++i) counts.push_back(counts_[i].load(std::memory_order_relaxed));
  return counts;
}

std::vector<double> one_two_five_bounds(double max_value) {
  std::vector<double> bounds;
  for (double decade = 1; decade < 1e12; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (decade * step > max_value) return bounds;
      bounds.push_back(decade * step);
    }
  }
  return bounds;
}

void MetricsWriter::family(std::string_view name, std::string_view type, std::string_view help) {
  const auto [place, is_new] = places_.try_emplace(std::string(name), families_.size());
  family_ = place->second;
  if (is_new) families_.push_back(fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type));
}

std::string MetricsWriter::take() {
  std::string out;
  for (const std::string& family : families_) out += family;
  return out;
}

void MetricsWriter::sample(std::string_view name, const MetricLabels& labels, double value) {
  std::string& out = families_[family_];
  out += name;
  if (!labels.empty()) {
    char separator = '{';
    for (const auto& [label, label_value] : labels) {
      out += separator;
      out += label;
      out += "=\"";
      append_label_value(label_value, out);
      out += '"';
      separator = ',';
    }
    out += '}';
  }
  out += ' ';
  out += number(value);
  out += '\n';
}

void MetricsWriter::counter(std::string_view name, std::string_view help, const MetricLabels& labels, double value) {
  family(name, "counter", help);
  sample(name, labels, value);
}

void MetricsWriter::gauge(std::string_view name, std::string_view help, const MetricLabels& labels, double value) {
  family(name, "gauge", help);
  sample(name, labels, value);
}

void MetricsWriter::histogram(std::string_view name, std::string_view help, const MetricLabels& labels,
                              const std::vector<double>& upper_bounds, const std::vector<uint64_t>& counts,
                              double sum) {
  family(name, "histogram", help);
  const std::string base(name);
  uint64_t cumulative = 0;
  MetricLabels bucket_labels = labels;
  bucket_labels.emplace_back("le", "");
  for (size_t i = 0; i < counts.size(); ++i) {
    cumulative += counts[i];
    // Prometheus clients write the bounds of floats with a point: "1.0".
    const double bound = i < upper_bounds.size() ? upper_bounds[i] : INFINITY;
    bucket_labels.back().second = std::isinf(bound)            ? "+Inf"
                                  : bound == std::trunc(bound) ? fmt::format("{:.1f}", bound)
                                                               : fmt::format("{}", bound);
    sample(base + "_bucket", bucket_labels, static_cast<double>(cumulative));
  }
  sample(base + "_sum", labels, sum);
  sample(base + "_count", labels, static_cast<double>(cumulative));
}

}  // namespace spate
