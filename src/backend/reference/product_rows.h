// Rows of activations in a product with a weight; for the scalar reference only.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "backend/reference/element.h"
#include "backend/reference/interleaved_rows.h"
#include "backend/reference/reference_weight.h"
#include "quant/outliers.h"

namespace spate::reference {

// The rows [first, first + num_rows) of x as a product with this weight sees them: the values, or for an integer weight
// outliers, and codes and scales of the groups that it wants. Several rows share the work of reading a row of the
// weight, and nothing else.
class ProductRows {
 public:
  static constexpr int64_t kMaxRows = 8;
  using Sums = std::array<double, kMaxRows>;  // of each row

  ProductRows(const Tensor& x, int64_t first, int64_t num_rows, const PackedWeight& weight, int64_t matrix_idx)
      : weight_(weight),
        matrix_idx_(matrix_idx),
        act_(x.dtype()),
        values_(num_rows, in_features()),
        num_rows_(num_rows) {
    CHECK(num_rows <= kMaxRows && in_features() <= kMaxInFeatures);
    for (int64_t i = 0; i < num_rows; ++i) {
      for (int64_t k = 0; k < in_features(); ++k) values_.at(i, k) = load(x, first + i, k);
      if (weight.desc().spec.quantizes_activations()) quantize(i);
    }
  }
  ProductRows(const Tensor& x, int64_t row, const PackedWeight& weight, int64_t matrix_idx)
      : ProductRows(x, row, 1, weight, matrix_idx) {}

  int64_t num_rows() const { return num_rows_; }

  // Their products with each row n of the weight, plus bias[n].
  std::vector<Sums> products(const Tensor& bias) const {
    const int64_t num_products = weight_.desc().out_features;
    std::vector<Sums> products(static_cast<size_t>(num_products), Sums{});
    if (weight_.desc().spec.quantizes_activations()) {
      const QuantizedRows weight_rows = quantized_view(weight_, matrix_idx_);
      for (int64_t n = 0; n < num_products; ++n) {
        for (size_t i = 0; i < quantized_.size(); ++i) {
          products[static_cast<size_t>(n)][i] = dot_codes(quantized_[i], weight_rows, n);
        }
      }
    } else {
      int64_t n = 0;
      for (; n + 4 <= num_products; n += 4) {
        const std::vector<double> rows[] = {weight_row(n), weight_row(n + 1), weight_row(n + 2), weight_row(n + 3)};
        Sums* sums = &products[static_cast<size_t>(n)];
        values_.dots<4>({rows[0].data(), rows[1].data(), rows[2].data(), rows[3].data()}, 0, num_rows_,
                        {sums[0].data(), sums[1].data(), sums[2].data(), sums[3].data()});
      }
      for (; n < num_products; ++n) {
        values_.dots<1>({weight_row(n).data()}, 0, num_rows_, {products[static_cast<size_t>(n)].data()});
      }
    }
    for (int64_t n = 0; bias.defined() && n < num_products; ++n) {
      for (double& sum : products[static_cast<size_t>(n)]) sum += load(bias.raw(), bias.dtype(), n);
    }
    return products;
  }

 private:
  // Sums of so many products of codes fit in an int32_t: 127 * 128 * 2^17 < 2^31.
  static constexpr int64_t kMaxInFeatures = int64_t{1} << 17;

  struct Quantized {
    std::vector<Outlier> outliers;
    std::vector<int8_t> codes;
    std::vector<float> scales;
  };

  int64_t in_features() const { return weight_.desc().in_features; }

  void quantize(int64_t i) {
    std::vector<float> values(static_cast<size_t>(in_features()));
    for (size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(values_.at(i, static_cast<int64_t>(k)));
    Quantized row;
    const int64_t width = weight_.desc().spec.activation_group_width(in_features());
    row.outliers = take_outliers(values.data(), in_features());
    row.codes.resize(values.size());
    row.scales.resize(static_cast<size_t>((in_features() + width - 1) / width));
    quantize_activations(values.data(), in_features(), width, row.codes.data(), row.scales.data());
    quantized_.push_back(std::move(row));
  }

  // The numbers that row n of the weight stands for, as products of activations as they are take them.
  std::vector<double> weight_row(int64_t n) const {
    std::vector<double> row(static_cast<size_t>(in_features()));
    if (weight_.desc().spec.has_integer_codes()) {
      std::vector<float> numbers(row.size());
      dequantize_row(quantized_view(weight_, matrix_idx_), n, numbers.data());
      const bool rounds = act_ == DType::kBf16;
      for (size_t k = 0; k < row.size(); ++k) row[k] = rounds ? Bf16::from_float(numbers[k]).to_float() : numbers[k];
    } else {
      const void* matrix = weight_.matrix(matrix_idx_);
      const auto first = static_cast<size_t>(n * in_features());
      if (value_dtype(weight_.desc().spec) == DType::kF32) {
        for (size_t k = 0; k < row.size(); ++k) row[k] = static_cast<const float*>(matrix)[first + k];
      } else {
        for (size_t k = 0; k < row.size(); ++k) row[k] = static_cast<const Bf16*>(matrix)[first + k].to_float();
      }
    }
    return row;
  }

  double dot_codes(const Quantized& x, const QuantizedRows& rows, int64_t n) const {
    const int64_t width = rows.spec.group_width(rows.in_features());
    const int64_t x_width = weight_.desc().spec.activation_group_width(rows.in_features());
    const int8_t* codes = rows.codes.data<int8_t>() + n * rows.codes.stride(0);
    double sum = 0;
    for (int64_t g = 0; g < rows.scales.dim(1); ++g) {
      int32_t products = 0, x_sum = 0;
      const int64_t end = std::min((g + 1) * width, rows.in_features());
      for (int64_t k = g * width; k < end; ++k) {
        const int32_t code = x.codes[static_cast<size_t>(k)];
        products += code * codes[k];
        x_sum += code;
      }
      const double scale = load(rows.scales, n, g), offset = rows.offsets.defined() ? load(rows.offsets, n, g) : 0.0;
      // With two-level scales each term is a whole multiple of the row scale: their sum is exact.
      sum +=
          static_cast<double>(x.scales[static_cast<size_t>(g * width / x_width)]) * (scale * products + offset * x_sum);
    }
    for (const Outlier& outlier : x.outliers) {
      const int64_t g = outlier.k / width;
      const double offset = rows.offsets.defined() ? load(rows.offsets, n, g) : 0.0;
      sum += double{outlier.x} * (load(rows.scales, n, g) * codes[outlier.k] + offset);
    }
    return sum;
  }

  const PackedWeight& weight_;
  const int64_t matrix_idx_;
  const DType act_;
  InterleavedRows values_;
  const int64_t num_rows_;
  std::vector<Quantized> quantized_;  // of each row, for a weight that quantises activations
};

}  // namespace spate::reference
