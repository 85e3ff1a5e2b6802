#include "quantizer/coded_matrix.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "quant/quantize.h"
#include "quant/two_level.h"

namespace spate {
namespace {

constexpr float kMaxF16 = 65504.0f;
constexpr int kNumShares = 11;  // 1, 0.95, ... 0.5

float stored(DType dtype, float scale) {
  if (dtype == DType::kBf16) return Bf16::from_float(scale).to_float();
  CHECK(dtype == DType::kF16, "scales of {}", dtype_name(dtype));
  return F16::from_float(std::min(scale, kMaxF16)).to_float();
}

float largest_magnitude(const float* w, int64_t n) {
  float max_abs = 0;
  for (int64_t i = 0; i < n; ++i) max_abs = std::max(max_abs, std::fabs(w[i]));
  return max_abs;
}

GroupScale multiple_of(float row_scale, int multiplier) { return {.scale = row_scale * static_cast<float>(multiplier)}; }

// e^T M e; M by rows into a vector, so that the inner loop has no sum to wait for. `scratch`: 2 n
// values.
double loss_of(const CodeFormat& format, const GroupScale& group, const float* w, int64_t n, const float* moments,
               int64_t stride, std::vector<float>& scratch) {
  float* error = scratch.data();
  float* product = error + n;
  for (int64_t i = 0; i < n; ++i) error[i] = w[i] - group.value_of(group.code_of(format, w[i]));
  if (moments == nullptr) {
    std::copy_n(error, n, product);
  } else {
    std::fill_n(product, n, 0.0f);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) product[j] += error[i] * moments[i * stride + j];
    }
  }
  double loss = 0;
  for (int64_t i = 0; i < n; ++i) loss += double{error[i]} * product[i];
  return loss;
}

}  // namespace

float row_scale_of(const CodeFormat& format, const float* row, int64_t n) {
  return format.spec.two_level ? two_level_row_scale(largest_magnitude(row, n)) : 0.0f;
}

GroupScale fit_group(const CodeFormat& format, float row_scale, const float* w, int64_t n, float share) {
  if (format.spec.two_level) {
    if (row_scale == 0) return {};
    return multiple_of(row_scale, largest_multiplier(share * largest_magnitude(w, n), row_scale));
  }
  float low = 0, high = 0;
  for (int64_t i = 0; i < n; ++i) {
    low = std::min(low, w[i]);
    high = std::max(high, w[i]);
  }
  low *= share;
  high *= share;
  const int lowest = format.lowest(), highest = format.highest();
  if (!format.spec.has_offsets) {
    return {.scale = stored(format.scale_dtype, std::max(-low, high) / static_cast<float>(highest))};
  }
  const float scale = stored(format.scale_dtype, (high - low) / static_cast<float>(highest - lowest));
  if (scale == 0) return {};
  const float zero_point = static_cast<float>(lowest) - std::nearbyint(low / scale);
  return {
      .scale = scale,
      .zero_point = static_cast<int>(std::clamp(zero_point, static_cast<float>(lowest), static_cast<float>(highest)))};
}

GroupScale search_group(const CodeFormat& format, float row_scale, const float* w, int64_t n, const float* moments,
                        int64_t stride) {
  std::vector<float> scratch(static_cast<size_t>(2 * n));
  GroupScale best;
  double best_loss = 0;
  bool is_first = true;
  const auto try_group = [&](const GroupScale& group) {
    const double loss = loss_of(format, group, w, n, moments, stride, scratch);
    if (!is_first && !(loss < best_loss)) return;
    is_first = false;
    best = group;
    best_loss = loss;
  };
  if (format.spec.two_level) {
    if (row_scale == 0) return {};
    const int largest = largest_multiplier(largest_magnitude(w, n), row_scale);
    for (int m = largest; m >= std::max(1, largest / 2); --m) try_group(multiple_of(row_scale, m));
  } else {
    for (int i = 0; i < kNumShares; ++i) {
      try_group(fit_group(format, row_scale, w, n, 1.0f - 0.05f * static_cast<float>(i)));
    }
  }
  return best;
}

CodedMatrix::CodedMatrix(const CodeFormat& of_format, int64_t num_rows, int64_t in_features)
    : format(of_format), codes(DType::kI8, {num_rows, in_features}) {
  CHECK(format.spec.has_integer_codes(), "codes of {}", weight_spec_name(format.spec));
  const int64_t num_groups = format.spec.num_groups(in_features);
  scales = HostTensor(DType::kF32, {num_rows, num_groups});
  if (format.spec.has_offsets) zero_points = HostTensor(DType::kI8, {num_rows, num_groups});
}

void CodedMatrix::set_scale(int64_t row, int64_t group, const GroupScale& value) {
  const int64_t at = row * scales.view().dim(1) + group;
  scales.view().data<float>()[at] = value.scale;
  if (format.spec.has_offsets) zero_points.view().data<int8_t>()[at] = static_cast<int8_t>(value.zero_point);
}

GroupScale CodedMatrix::scale(int64_t row, int64_t group) const {
  const int64_t at = row * scales.view().dim(1) + group;
  return {.scale = scales.view().data<float>()[at],
          .zero_point = format.spec.has_offsets ? zero_points.view().data<int8_t>()[at] : 0};
}

CodedMatrix round_to_nearest(const CodeFormat& format, const Tensor& w) {
  const int64_t num_rows = w.dim(0), in_features = w.dim(1), width = format.spec.group_width(in_features);
  CodedMatrix matrix(format, num_rows, in_features);
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* values = w.data<float>() + row * w.stride(0);
    int8_t* codes = matrix.codes.view().data<int8_t>() + row * in_features;
    if (format.spec.two_level) {
      quantize_row(format.spec, values, in_features, codes,
                   matrix.scales.view().data<float>() + row * matrix.scales.view().dim(1), nullptr);
      continue;
    }
    for (int64_t begin = 0, g = 0; begin < in_features; begin += width, ++g) {
      const int64_t end = std::min(begin + width, in_features);
      const GroupScale group = fit_group(format, 0, values + begin, end - begin);
      matrix.set_scale(row, g, group);
      for (int64_t k = begin; k < end; ++k) codes[k] = group.code_of(format, values[k]);
    }
  }
  return matrix;
}

HostTensor decode(const CodedMatrix& matrix) {
  const int64_t num_rows = matrix.num_rows(), in_features = matrix.in_features();
  const int64_t width = matrix.format.spec.group_width(in_features);
  HostTensor values(DType::kF32, {num_rows, in_features});
  for (int64_t row = 0; row < num_rows; ++row) {
    const int8_t* codes = matrix.codes.view().data<int8_t>() + row * in_features;
    float* out = values.view().data<float>() + row * in_features;
    for (int64_t k = 0; k < in_features; ++k) out[k] = matrix.scale(row, k / width).value_of(codes[k]);
  }
  return values;
}

}  // namespace spate
