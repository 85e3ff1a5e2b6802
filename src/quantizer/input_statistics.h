// InputStatistics: what calibration keeps of the input of a matrix.
#pragma once

#include <algorithm>
#include <vector>

#include "quantizer/device_math.h"

namespace spate {

class InputStatistics {
 public:
  // Of `num_tokens` tokens that will come; of them about max_samples are kept as they are. The second moments
  // [in_features, in_features] are kept when `with_moments`.
  InputStatistics(int64_t num_tokens, int64_t max_samples, bool with_moments)
      : sample_every_(std::max<int64_t>(1, (num_tokens + max_samples - 1) / max_samples)),
        with_moments_(with_moments) {}

  Status add(const Tensor& x, DeviceMath& math);  // [n, in_features] f32

  int64_t in_features() const { return static_cast<int64_t>(sum_abs_.size()); }
  std::vector<float> mean_abs() const;                // of each input
  HostTensor samples() const;                         // [num_samples, in_features] f32
  const Tensor& moments() const { return moments_; }  // sum of x x^T; undefined without
  // From now on inputs are divided by `scales` [in_features]: what has been kept is too.
  void divide(const std::vector<float>& scales);

 private:
  int64_t sample_every_;
  bool with_moments_;
  int64_t num_tokens_ = 0;
  std::vector<double> sum_abs_;
  std::vector<float> samples_;  // rows one after the other
  HostTensor moments_;
};

}  // namespace spate
