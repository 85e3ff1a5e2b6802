#include "quantizer/awq.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "quantizer/parallel_rows.h"

namespace spate {
namespace {

constexpr int kNumAlphas = 20;
constexpr float kSmallestMean = 1e-4f;  // inputs below it are not told apart
constexpr int64_t kSearchedWidth = 512;

float rounded(DType dtype, float value) {
  if (dtype == DType::kBf16) return Bf16::from_float(value).to_float();
  return dtype == DType::kF16 ? F16::from_float(value).to_float() : value;
}

void scale_columns(const Tensor& w, const std::vector<float>& scales) {
  const int64_t k = w.dim(1);
  for (int64_t i = 0; i < w.dim(0); ++i) {
    for (int64_t j = 0; j < k; ++j) w.data<float>()[i * k + j] *= scales[static_cast<size_t>(j)];
  }
}

// What rounding W with scaled columns takes from the outputs, as weights: rounded(W s) / s - W.
HostTensor rounding_error(const CodeFormat& format, const Tensor& w, const std::vector<float>& scales) {
  const int64_t k = w.dim(1);
  HostTensor scaled(DType::kF32, {w.dim(0), k});
  std::copy_n(w.data<float>(), w.num_elements(), scaled.span<float>().begin());
  scale_columns(scaled, scales);
  HostTensor error = decode(round_to_nearest(format, scaled));
  const auto values = error.span<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = values[i] / scales[i % static_cast<size_t>(k)] - w.data<float>()[i];
  }
  return error;
}

// Of each producer channel; column j is fed by channel producers[j].
std::vector<float> channel_means(const std::vector<float>& mean_abs, const std::vector<int64_t>& producers) {
  const int64_t num_channels = *std::max_element(producers.begin(), producers.end()) + 1;
  std::vector<float> sums(static_cast<size_t>(num_channels)), counts(sums.size());
  for (size_t j = 0; j < producers.size(); ++j) {
    sums[static_cast<size_t>(producers[j])] += mean_abs[j];
    ++counts[static_cast<size_t>(producers[j])];
  }
  for (size_t c = 0; c < sums.size(); ++c) sums[c] = std::max(sums[c] / std::max(counts[c], 1.0f), kSmallestMean);
  return sums;
}

// means^alpha, with the smallest and the largest as far from 1.
std::vector<float> scales_of(const std::vector<float>& means, float alpha) {
  std::vector<float> scales(means.size());
  std::transform(means.begin(), means.end(), scales.begin(), [&](float mean) { return std::pow(mean, alpha); });
  const auto [low, high] = std::minmax_element(scales.begin(), scales.end());
  const float middle = std::sqrt(*low * *high);
  for (float& scale : scales) scale /= middle;
  return scales;
}

std::vector<float> spread(const std::vector<float>& channels, const std::vector<int64_t>& producers) {
  std::vector<float> columns(producers.size());
  for (size_t j = 0; j < columns.size(); ++j) columns[j] = channels[static_cast<size_t>(producers[j])];
  return columns;
}

// The scales of the producer channels that lose least over all `matrices`.
Result<std::vector<float>> search_scales(const CodeFormat& format, const std::vector<const Tensor*>& matrices,
                                         const InputStatistics& statistics, const std::vector<int64_t>& producers,
                                         DeviceMath& math) {
  const std::vector<float> means = channel_means(statistics.mean_abs(), producers);
  const HostTensor samples = statistics.samples();
  std::vector<float> best;
  double best_loss = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kNumAlphas; ++i) {
    std::vector<float> scales = scales_of(means, static_cast<float>(i) / kNumAlphas);
    const std::vector<float> columns = spread(scales, producers);
    double loss = 0;
    for (const Tensor* w : matrices) {
      ASSIGN_OR_RETURN(const double one, math.squared_output(samples, rounding_error(format, *w, columns)));
      loss += one;
    }
    if (!(loss < best_loss)) continue;
    best_loss = loss;
    best = std::move(scales);
  }
  if (best.empty()) best.assign(means.size(), 1.0f);
  return best;
}

// Divides what produces the channels; `scales` becomes what it was really divided by.
void divide_norm(const Tensor& norm, DType dtype, std::vector<float>& scales) {
  for (size_t c = 0; c < scales.size(); ++c) {
    float& weight = norm.data<float>()[c];
    const float divided = rounded(dtype, weight / scales[c]);
    scales[c] = divided == 0 || weight == 0 ? 1.0f : weight / divided;
    if (divided != 0) weight = divided;
  }
}

void divide_rows(LayerTensors& layer, const std::string& name, DType dtype, const std::vector<float>& scales) {
  const Tensor w = layer.at(name + ".weight");
  const int64_t k = w.dim(1);
  for (size_t c = 0; c < scales.size(); ++c) {
    float* row = w.data<float>() + static_cast<int64_t>(c) * k;
    for (int64_t j = 0; j < k; ++j) row[j] /= scales[c];
  }
  const auto bias = layer.find(name + ".bias");
  if (bias == layer.end()) return;
  for (size_t c = 0; c < scales.size(); ++c) {
    float& value = bias->second.view().data<float>()[c];
    value = rounded(dtype, value / scales[c]);
  }
}

std::vector<int64_t> producers_of(const Product& product, int64_t in_features) {
  if (!product.source_channels.empty()) return product.source_channels;
  std::vector<int64_t> producers(static_cast<size_t>(in_features));
  std::iota(producers.begin(), producers.end(), 0);
  return producers;
}

}  // namespace

Status fold_awq_scales(const CodeFormat& format, const std::vector<Product>& products, DType norm_dtype,
                       LayerTensors& layer, std::vector<InputStatistics>& statistics, DeviceMath& math) {
  CHECK(statistics.size() == products.size(), "{} statistics of {} products", statistics.size(), products.size());
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    InputStatistics& input = statistics[i];
    if (product.source.empty() || input.in_features() == 0) continue;
    std::vector<const Tensor*> matrices;
    for (const Product::Matrix& matrix : product.matrices)
      matrices.push_back(&layer.at(matrix.name + ".weight").view());
    const std::vector<int64_t> producers = producers_of(product, input.in_features());
    ASSIGN_OR_RETURN(std::vector<float> scales, search_scales(format, matrices, input, producers, math));
    if (product.source_is_norm) {
      divide_norm(layer.at(product.source + ".weight"), norm_dtype, scales);
    } else {
      divide_rows(layer, product.source, norm_dtype, scales);
    }
    const std::vector<float> columns = spread(scales, producers);
    for (const Tensor* w : matrices) scale_columns(*w, columns);
    input.divide(columns);
  }
  return ok_status();
}

CodedMatrix round_clipped(const CodeFormat& format, const Tensor& w, const Tensor& samples, int num_threads) {
  const int64_t num_rows = w.dim(0), k = w.dim(1), width = format.spec.group_width(k);
  CHECK(samples.dim(1) == k, "samples {} for {}", samples.shape_string(), w.shape_string());
  if (width > kSearchedWidth || samples.dim(0) == 0) return round_to_nearest(format, w);
  // Second moments inside each group: [num_groups, width, width].
  const int64_t num_groups = format.spec.num_groups(k);
  std::vector<float> moments(static_cast<size_t>(num_groups * width * width));
  for (int64_t g = 0; g < num_groups; ++g) {
    const int64_t begin = g * width, n = std::min(width, k - begin);
    float* sum = moments.data() + g * width * width;
    for (int64_t t = 0; t < samples.dim(0); ++t) {
      const float* x = samples.data<float>() + t * k + begin;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) sum[i * width + j] += x[i] * x[j];
      }
    }
  }
  CodedMatrix matrix(format, num_rows, k);
  parallel_rows(num_rows, num_threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* values = w.data<float>() + row * w.stride(0);
      int8_t* codes = matrix.codes.view().data<int8_t>() + row * k;
      const float row_scale = row_scale_of(format, values, k);
      for (int64_t g = 0; g < num_groups; ++g) {
        const int64_t begin = g * width, n = std::min(width, k - begin);
        const GroupScale group =
            search_group(format, row_scale, values + begin, n, moments.data() + g * width * width, width);
        matrix.set_scale(row, g, group);
        for (int64_t j = begin; j < begin + n; ++j) codes[j] = group.code_of(format, values[j]);
      }
    }
  });
  return matrix;
}

}  // namespace spate
