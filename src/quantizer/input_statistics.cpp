#include "quantizer/input_statistics.h"

#include <algorithm>
#include <cmath>

namespace spate {

Status InputStatistics::add(const Tensor& x, DeviceMath& math) {
  const int64_t n = x.dim(0), k = x.dim(1);
  if (sum_abs_.empty()) {
    sum_abs_.resize(static_cast<size_t>(k));
    if (with_moments_) moments_ = HostTensor(DType::kF32, {k, k});
  }
  CHECK(in_features() == k, "{} inputs, {} before", k, in_features());
  HostTensor transposed(DType::kF32, {k, n});
  for (int64_t i = 0; i < n; ++i) {
    const float* row = x.data<float>() + i * x.stride(0);
    for (int64_t j = 0; j < k; ++j) {
      sum_abs_[static_cast<size_t>(j)] += std::fabs(row[j]);
      transposed.view().data<float>()[j * n + i] = row[j];
    }
    if (num_tokens_++ % sample_every_ == 0) samples_.insert(samples_.end(), row, row + k);
  }
  if (!with_moments_) return ok_status();
  ASSIGN_OR_RETURN(const HostTensor product, math.product(transposed, transposed));
  const auto sum = moments_.span<float>(), add = product.span<float>();
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += add[i];
  return ok_status();
}

std::vector<float> InputStatistics::mean_abs() const {
  std::vector<float> mean(sum_abs_.size());
  for (size_t j = 0; j < mean.size(); ++j) {
    mean[j] = static_cast<float>(sum_abs_[j] / static_cast<double>(std::max<int64_t>(num_tokens_, 1)));
  }
  return mean;
}

HostTensor InputStatistics::samples() const {
  const int64_t k = in_features();
  HostTensor rows(DType::kF32, {k == 0 ? 0 : static_cast<int64_t>(samples_.size()) / k, k});
  std::copy(samples_.begin(), samples_.end(), rows.span<float>().begin());
  return rows;
}

void InputStatistics::divide(const std::vector<float>& scales) {
  const size_t k = sum_abs_.size();
  CHECK(scales.size() == k, "{} scales for {} inputs", scales.size(), k);
  for (size_t j = 0; j < k; ++j) sum_abs_[j] /= double{scales[j]};
  for (size_t i = 0; i < samples_.size(); ++i) samples_[i] /= scales[i % k];
  if (!with_moments_) return;
  const auto moments = moments_.span<float>();
  for (size_t i = 0; i < moments.size(); ++i) moments[i] /= scales[i / k] * scales[i % k];
}

}  // namespace spate
