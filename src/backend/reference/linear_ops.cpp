// Products with a weight matrix, and row look-ups.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/check_params.h"
#include "backend/reference/element.h"
#include "backend/reference/reference_ops.h"
#include "backend/reference/reference_weight.h"
#include "quant/outliers.h"

namespace spate::reference {
namespace {

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

// Element (row, k) of a table.
double table_value(const PackedWeight& table, int64_t row, int64_t k) {
  const WeightDesc& desc = table.desc();
  if (!desc.spec.has_integer_codes()) return load(table.data(), value_dtype(desc.spec), row * desc.in_features + k);
  const QuantizedRows rows = quantized_view(table, 0);
  const int64_t g = k / desc.spec.group_width(desc.in_features);
  const double offset = rows.offsets.defined() ? load(rows.offsets, row, g) : 0.0;
  return load(rows.scales, row, g) * rows.codes.data<int8_t>()[row * desc.in_features + k] + offset;
}

}  // namespace

void embedding(Stream&, const EmbeddingParams& p) {
  check_params(p);
  const WeightDesc& desc = p.table->desc();
  for (int64_t i = 0; i < p.token_ids.dim(0); ++i) {
    const int64_t row = p.token_ids.data<int32_t>()[i] - p.first_row;
    const bool here = row >= 0 && row < desc.out_features;
    for (int64_t k = 0; k < desc.in_features; ++k) {
      store(p.out, i, k, here ? table_value(*p.table, row, k) : 0.0);
    }
  }
}

void linear(Stream&, const LinearParams& p) {
  check_params(p);
  for (int64_t i = 0; i < p.x.dim(0); ++i) {
    const ProductRow row(p.x, i, *p.weight, p.matrix_idx);
    for (int64_t n = 0; n < p.weight->desc().out_features; ++n) store(p.out, i, n, row.dot(n, p.bias));
  }
}

void linear_silu_and_mul(Stream&, const LinearSiluAndMulParams& p) {
  check_params(p);
  const DType act = p.x.dtype();
  const int64_t intermediate_size = p.weight->desc().out_features / 2;
  for (int64_t i = 0; i < p.x.dim(0); ++i) {
    const ProductRow row(p.x, i, *p.weight, p.matrix_idx);
    for (int64_t n = 0; n < intermediate_size; ++n) {
      const double gate = round_to(act, row.dot(n, p.bias));
      const double up = round_to(act, row.dot(intermediate_size + n, p.bias));
      store(p.out, i, n, round_to(act, gate / (1 + std::exp(-gate))) * up);
    }
  }
}

void gather_rows(Stream&, const GatherRowsParams& p) {
  check_params(p);
  const int64_t bytes = dtype_bytes(p.x.dtype());
  for (int64_t i = 0; i < p.row_ids.dim(0); ++i) {
    const int64_t row = p.row_ids.data<int32_t>()[i];
    CHECK(row >= 0 && row < p.x.dim(0), "gather_rows: row {} of {}", row, p.x.dim(0));
    std::memcpy(static_cast<char*>(p.out.raw()) + i * p.out.stride(0) * bytes,
                static_cast<const char*>(p.x.raw()) + row * p.x.stride(0) * bytes,
                static_cast<size_t>(p.x.dim(1) * bytes));
  }
}

}  // namespace spate::reference
