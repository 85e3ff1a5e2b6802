#include "quantizer/gptq.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "quantizer/cholesky.h"
#include "quantizer/parallel_rows.h"

namespace spate {
namespace {

constexpr int64_t kBlock = 128;          // columns whose error goes to the rest of the row at once
constexpr int64_t kRows = 32;            // rows that share a read of the factor
constexpr int64_t kSearchedWidth = 512;  // wider groups take their whole range: the search is quadratic in the width

// out[0 .. n) -= factor * row[0 .. n)
void subtract_row(float* out, const float* row, float factor, int64_t n) {
  for (int64_t j = 0; j < n; ++j) out[j] -= factor * row[j];
}

}  // namespace

Result<GptqFactor> GptqFactor::create(const Tensor& moments, const GptqOptions& options) {
  const int64_t k = moments.dim(0);
  const auto at = [&](int64_t i, int64_t j) { return moments.data<float>()[i * moments.stride(0) + j]; };
  GptqFactor result;
  result.options_ = options;
  result.order_.resize(static_cast<size_t>(k));
  std::iota(result.order_.begin(), result.order_.end(), 0);
  if (options.act_order) {
    std::stable_sort(result.order_.begin(), result.order_.end(),
                     [&](int64_t a, int64_t b) { return at(a, a) > at(b, b); });
  }
  double trace = 0;
  for (int64_t i = 0; i < k; ++i) trace += at(i, i);
  // An input that was always zero has no row in the sum; without any input at all this is rounding to nearest.
  const double damping = trace > 0 ? options.damping * trace / static_cast<double>(k) : 1.0;
  HostTensor h(DType::kF64, {k, k});
  result.moments_ = HostTensor(DType::kF32, {k, k});
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      const float value = at(result.order_[static_cast<size_t>(i)], result.order_[static_cast<size_t>(j)]);
      result.moments_.view().data<float>()[i * k + j] = value;
      h.view().data<double>()[i * k + j] = value + (i == j ? damping : 0.0);
    }
  }
  RETURN_IF_ERROR(invert_to_upper_factor(h, options.num_threads));
  result.upper_ = HostTensor(DType::kF32, {k, k});
  const auto from = h.span<double>();
  std::transform(from.begin(), from.end(), result.upper_.span<float>().begin(),
                 [](double v) { return static_cast<float>(v); });
  return result;
}

CodedMatrix GptqFactor::quantize(const CodeFormat& format, const Tensor& w) const {
  const int64_t num_rows = w.dim(0), k = w.dim(1);
  CHECK(k == static_cast<int64_t>(order_.size()), "{} columns, the inputs have {}", k, order_.size());
  CodedMatrix matrix(format, num_rows, k);
  parallel_rows(num_rows, options_.num_threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row += kRows) quantize_rows(w, row, std::min(last, row + kRows), matrix);
  });
  return matrix;
}

GroupScale GptqFactor::fit(const CodeFormat& format, float row_scale, const float* values, int64_t begin,
                           int64_t n) const {
  if (n > kSearchedWidth) return fit_group(format, row_scale, values, n);
  if (options_.act_order) return search_group(format, row_scale, values, n, nullptr, 0);
  const int64_t k = static_cast<int64_t>(order_.size());
  return search_group(format, row_scale, values, n, moments_.view().data<float>() + begin * k + begin, k);
}

void GptqFactor::quantize_rows(const Tensor& w, int64_t first, int64_t last, CodedMatrix& matrix) const {
  const CodeFormat& format = matrix.format;
  const int64_t k = w.dim(1), width = format.spec.group_width(k);
  // A group is reached with its columns in a row, moved by the errors of those before it, and ends inside a block. But
  // a scale of the whole row, and with act_order those of scattered groups, must be known before.
  const bool fit_on_the_way = format.spec.has_groups() && !options_.act_order;
  const int64_t block = fit_on_the_way && kBlock % width != 0 ? width : kBlock;
  const float* upper = upper_.view().data<float>();
  std::vector<float> values(static_cast<size_t>((last - first) * k)), errors(static_cast<size_t>(block));
  // Row scales of two levels are those of the rows as they were. The errors taken over make a row's largest weights a
  // little larger at times: the search for a range mostly clips more than that.
  std::vector<float> row_scales;
  for (int64_t r = first; r < last; ++r) {
    const float* source = w.data<float>() + r * w.stride(0);
    float* row = values.data() + (r - first) * k;
    for (int64_t i = 0; i < k; ++i) row[i] = source[order_[static_cast<size_t>(i)]];
    row_scales.push_back(row_scale_of(format, source, k));
    if (fit_on_the_way) continue;
    for (int64_t begin = 0, g = 0; begin < k; begin += width, ++g) {
      matrix.set_scale(r, g, fit(format, row_scales.back(), source + begin, begin, std::min(width, k - begin)));
    }
  }
  for (int64_t begin = 0; begin < k; begin += block) {
    const int64_t end = std::min(k, begin + block);
    for (int64_t r = first; r < last; ++r) {
      float* row = values.data() + (r - first) * k;
      int8_t* codes = matrix.codes.view().data<int8_t>() + r * k;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t column = order_[static_cast<size_t>(i)], g = column / width;
        if (fit_on_the_way && i % width == 0) {
          const float row_scale = row_scales[static_cast<size_t>(r - first)];
          matrix.set_scale(r, g, fit(format, row_scale, row + i, i, std::min(width, k - i)));
        }
        const GroupScale scale = matrix.scale(r, g);
        codes[column] = scale.code_of(format, row[i]);
        const float error = (row[i] - scale.value_of(codes[column])) / upper[i * k + i];
        errors[static_cast<size_t>(i - begin)] = error;
        subtract_row(row + i + 1, upper + i * k + i + 1, error, end - i - 1);
      }
      for (int64_t i = begin; i < end; ++i) {
        subtract_row(row + end, upper + i * k + end, errors[static_cast<size_t>(i - begin)], k - end);
      }
    }
  }
}

}  // namespace spate
