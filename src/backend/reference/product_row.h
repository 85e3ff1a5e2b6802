// A row of activations in a product with a weight; for the scalar reference only.
#pragma once

#include <algorithm>
#include <vector>

#include "backend/reference/element.h"
#include "backend/reference/reference_weight.h"
#include "quant/outliers.h"

namespace spate::reference {

// Row i of x as a product with this weight sees it: the values, or for an integer weight outliers, and codes and scales
// of the groups that it wants.
class ProductRow {
 public:
  ProductRow(const Tensor& x, int64_t i, const PackedWeight& weight, int64_t matrix_idx)
      : weight_(weight), matrix_idx_(matrix_idx), act_(x.dtype()) {
    const WeightDesc& desc = weight.desc();
    values_.resize(static_cast<size_t>(desc.in_features));
    for (int64_t k = 0; k < desc.in_features; ++k) values_[static_cast<size_t>(k)] = static_cast<float>(load(x, i, k));
    if (!desc.spec.quantizes_activations()) return;
    codes_.resize(values_.size());
    const int64_t width = desc.spec.activation_group_width(desc.in_features);
    scales_.resize(static_cast<size_t>((desc.in_features + width - 1) / width));
    outliers_ = take_outliers(values_.data(), desc.in_features);
    quantize_activations(values_.data(), desc.in_features, width, codes_.data(), scales_.data());
  }

  // Its product with row n of the weight, plus bias[n].
  double dot(int64_t n, const Tensor& bias) const {
    const WeightSpec& spec = weight_.desc().spec;
    const double sum = spec.quantizes_activations() ? dot_codes(n)
                       : spec.has_integer_codes()   ? dot_dequantized(n)
                                                    : dot_values(n);
    return bias.defined() ? sum + load(bias.raw(), bias.dtype(), n) : sum;
  }

 private:
  double dot_values(int64_t n) const {
    const int64_t in_features = weight_.desc().in_features;
    double sum = 0;
    for (int64_t k = 0; k < in_features; ++k) {
      sum += static_cast<double>(values_[static_cast<size_t>(k)]) *
             load(weight_.matrix(matrix_idx_), value_dtype(weight_.desc().spec), n * in_features + k);
    }
    return sum;
  }

  double dot_dequantized(int64_t n) const {
    const int64_t in_features = weight_.desc().in_features;
    std::vector<float> row(static_cast<size_t>(in_features));
    dequantize_row(quantized_view(weight_, matrix_idx_), n, row.data());
    double sum = 0;
    for (size_t k = 0; k < row.size(); ++k) sum += static_cast<double>(values_[k]) * round_to(act_, row[k]);
    return sum;
  }

  double dot_codes(int64_t n) const {
    const QuantizedRows rows = quantized_view(weight_, matrix_idx_);
    const int64_t width = rows.spec.group_width(rows.in_features());
    const int64_t x_width = weight_.desc().spec.activation_group_width(rows.in_features());
    const int8_t* codes = rows.codes.data<int8_t>() + n * rows.codes.stride(0);
    double sum = 0;
    for (int64_t g = 0; g < rows.scales.dim(1); ++g) {
      int64_t products = 0, x_sum = 0;
      for (int64_t k = g * width; k < std::min((g + 1) * width, rows.in_features()); ++k) {
        const int64_t x = codes_[static_cast<size_t>(k)];
        products += x * codes[k];
        x_sum += x;
      }
      const double scale = load(rows.scales, n, g), offset = rows.offsets.defined() ? load(rows.offsets, n, g) : 0.0;
      // With two-level scales each term is a whole multiple of the row scale: their sum is exact.
      sum += static_cast<double>(scales_[static_cast<size_t>(g * width / x_width)]) *
             (scale * static_cast<double>(products) + offset * static_cast<double>(x_sum));
    }
    for (const Outlier& outlier : outliers_) {
      const int64_t g = outlier.k / width;
      const double offset = rows.offsets.defined() ? load(rows.offsets, n, g) : 0.0;
      sum += double{outlier.x} * (load(rows.scales, n, g) * codes[outlier.k] + offset);
    }
    return sum;
  }

  const PackedWeight& weight_;
  const int64_t matrix_idx_;
  const DType act_;
  std::vector<float> values_, scales_;
  std::vector<Outlier> outliers_;
  std::vector<int8_t> codes_;
};

}  // namespace spate::reference
