// The number formats of weights.
//
//   kF32, kBf16   the value
//   kInt8         w[n, k] = scale[n, g] * code[n, k] + offset[n, g],  code in [-128, 127]
//   kInt4         the same with code in [-8, 7]
//
// g = k / group_size: a group is group_size neighbours along k in one row; group_size 0 makes the whole row one group
// (per channel). The last group of a row may be shorter. Offsets are there in asymmetric formats only. Scales and
// offsets of groups are f16 values, those of whole rows f32: a half costs 0.25 bit a weight at group size 64, and
// rounding a scale to it moves a weight by at most 2^-11 of itself.
//
// A product with such a weight quantises its activations to 8 bits too, in the groups of the weight (quant/quantize.h),
// so that it runs on integer units:
//   y[m, n] = sum over g of  x_scale[m, g] * (scale[n, g] * sum of x_code * code  +  offset[n, g] * sum of x_code)
// The inner sums are exact; the outer one is f32 in the order of g.
//
// Two-level scales (kInt4 in groups, symmetric) are what "int4" means unless it is said otherwise: the scales of a row
// are whole multiples of one number,
//   scale[n, g] = row_scale[n] * multiplier[n, g],  multiplier in 0 .. 16
// so that multiplier * code is an 8-bit code of the row scale. Activations then have one scale for the whole row, and
//   y[m, n] = x_scale[m] * row_scale[n] * sum over all k of x_code * (multiplier * code)
// is exact up to its end: nothing is rounded, scaled or added between groups, which is what makes groups slow otherwise
// (docs/design/0002-integer-weights.md). Row scales are f32, multipliers are bytes. Those that we choose ourselves have
// few significant bits, so that every scale is a bf16 and an f16 value too (quant/two_level.h).
#pragma once

#include <cstdint>
#include <string>

namespace spate {

enum class WeightFormat : uint8_t { kF32, kBf16, kInt8, kInt4 };

struct WeightSpec {
  WeightFormat format = WeightFormat::kBf16;
  int64_t group_size = 0;    // integers: 0, 32 or a multiple of 64
  bool has_offsets = false;  // integers: asymmetric
  bool two_level = false;    // kInt4 in groups of a power of two and without offsets only

  bool is_integer() const { return format == WeightFormat::kInt8 || format == WeightFormat::kInt4; }
  int64_t num_groups(int64_t in_features) const {
    return group_size == 0 ? 1 : (in_features + group_size - 1) / group_size;
  }
  // Elements of a group; group_size, or all of K.
  int64_t group_width(int64_t in_features) const { return group_size == 0 ? in_features : group_size; }
  // The same of the activations that such a weight is multiplied with.
  int64_t activation_group_width(int64_t in_features) const {
    return two_level ? in_features : group_width(in_features);
  }
  bool operator==(const WeightSpec&) const = default;
};

// "f32", "bf16", "int8", "int8-g64", "int4-g64" (two-level), "int4-g64-f16scales", "int4-g128-asym"
std::string weight_spec_name(const WeightSpec& spec);

// Bytes of a [out_features, in_features] matrix without padding, scales and offsets included.
int64_t weight_bytes(const WeightSpec& spec, int64_t out_features, int64_t in_features);

// The narrowest format that holds both exactly, where there is one; else the one that loses least: two integer formats
// of the same grouping give int8 when either is, groups of different sizes the smaller one, two-level scales and those
// of whole rows what the other one is, an integer and a float format the float.
WeightSpec common_spec(const WeightSpec& a, const WeightSpec& b);

}  // namespace spate
