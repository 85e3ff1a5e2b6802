// CodedMatrix: an integer weight as compressed-tensors files hold it: codes, scales and whole-numbered zero points.
//
//   w[n, k] = scale[n, g] * (code[n, k] - zero_point[n, g]),  g = k / group_size
//
// The same as quant/weight_format.h but for the zero point, which stands there multiplied out as an offset. Two-level
// scales are written as what they are for readers who do not know of them: scales of groups.
//
// Threads: all functions are pure.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/tensor.h"
#include "quant/weight_format.h"

namespace spate {

// How a matrix is to be coded.
struct CodeFormat {
  WeightSpec spec;  // kInt8 or kInt4
  // What the file stores a scale as, kBf16 or kF16: codes are chosen for the rounded scale. A bf16 scale above 2^-17 is
  // an f16 too, so that a reader of either kind computes with the same value.
  DType scale_dtype = DType::kBf16;

  int lowest() const { return spec.codes == Codes::kInt8 ? -128 : -8; }
  int highest() const { return spec.codes == Codes::kInt8 ? 127 : 7; }
  int num_bits() const { return spec.codes == Codes::kInt8 ? 8 : 4; }
};

// Scale and zero point of one group.
struct GroupScale {
  float scale = 0;
  int zero_point = 0;  // 0 in symmetric formats

  int8_t code_of(const CodeFormat& format, float w) const {
    if (scale == 0) return static_cast<int8_t>(zero_point);
    const float code = std::nearbyint(w / scale) + static_cast<float>(zero_point);
    const float lowest = static_cast<float>(format.lowest()), highest = static_cast<float>(format.highest());
    return static_cast<int8_t>(code < lowest ? lowest : code > highest ? highest : code);
  }
  float value_of(int8_t code) const { return scale * static_cast<float>(code - zero_point); }
};

// What the scales of a row of n weights are multiples of (quant/two_level.h); 0 where the format has no two levels.
float row_scale_of(const CodeFormat& format, const float* row, int64_t n);

// The codes span `share` of the range of w[0 .. n): what lies outside is clipped. Symmetric: [-max|w|, max|w|] on codes
// -7 .. 7 or -127 .. 127; asymmetric: [min(w, 0), max(w, 0)] on all codes. Two levels: the next multiple of row_scale
// above that.
GroupScale fit_group(const CodeFormat& format, float row_scale, const float* w, int64_t n, float share = 1.0f);

// The share of the range that loses least, of 1, 0.95, ... 0.5: the smallest e^T M e, e = w - its value. Two levels: of
// the multiples of row_scale from the whole range down to its half. M is the n x n second moments of the inputs (row
// stride `stride`, symmetric), or null: |e|^2.
GroupScale search_group(const CodeFormat& format, float row_scale, const float* w, int64_t n, const float* moments,
                        int64_t stride);

struct CodedMatrix {
  CodeFormat format;
  HostTensor codes;        // [n, in_features] i8
  HostTensor scales;       // [n, num_groups] f32, each a value of format.scale_dtype
  HostTensor zero_points;  // [n, num_groups] i8; undefined in symmetric formats

  CodedMatrix() = default;
  CodedMatrix(const CodeFormat& format, int64_t num_rows, int64_t in_features);  // all zero
  int64_t num_rows() const { return codes.view().dim(0); }
  int64_t in_features() const { return codes.view().dim(1); }

  void set_scale(int64_t row, int64_t group, const GroupScale& value);
  GroupScale scale(int64_t row, int64_t group) const;
};

// Round to nearest: each group is fitted to its whole range; of two levels as quantize_row() does it. w [n, in_features]
// f32.
CodedMatrix round_to_nearest(const CodeFormat& format, const Tensor& w);
// [n, in_features] f32
HostTensor decode(const CodedMatrix& matrix);

}  // namespace spate
