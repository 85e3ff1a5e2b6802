// From numbers to integer codes and back, scalar and exact: what every back-end's kernels and every checkpoint reader
// agree on.
//
// Threads: all functions are pure.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "base/tensor.h"
#include "quant/weight_format.h"

namespace spate {

// Rows of an integer weight on the host, in the one form that all readers give and all back-ends pack. A view.
struct QuantizedRows {
  WeightSpec spec;
  Tensor codes;    // [n, in_features] i8, one code a byte, also of kInt4; row stride free
  // [n, num_groups] f32; row stride free. Two-level: the products, which split_scales() takes apart. Rows of a block
  // have the same.
  Tensor scales;
  Tensor offsets;  // the same, or undefined

  int64_t num_rows() const { return codes.dim(0); }
  int64_t in_features() const { return codes.dim(1); }
  QuantizedRows rows(int64_t begin, int64_t end) const;
  // Columns [begin, end): both multiples of the group, or the end of the row. With whole-row scales any.
  QuantizedRows columns(int64_t begin, int64_t end) const;
};

// Owns the bytes of QuantizedRows.
class QuantizedHostRows {
 public:
  QuantizedHostRows() = default;
  // Codes and scales are zero.
  QuantizedHostRows(const WeightSpec& spec, int64_t num_rows, int64_t in_features);
  const QuantizedRows& view() const { return view_; }
  operator const QuantizedRows&() const { return view_; }  // NOLINT: used as its view

 private:
  HostTensor codes_, scales_, offsets_;
  QuantizedRows view_;
};

// A scale or offset as the format stores it: f16 for groups, f32 for whole rows and two-level scales. Never infinite as
// f16: beyond it is its largest value.
float stored_scale(const WeightSpec& spec, float value);

// Scales of a row as row_scale * multiplier, all of them exactly: the row scale is the largest one divided by the
// smallest number of 1 .. 16 for which that is so. False where there is none, or where a scale is negative or no number.
// multipliers: [num_groups], 0 .. 16; 0 where the scale is 0.
bool split_scales(const float* scales, int64_t num_groups, float& row_scale, uint8_t* multipliers);

// Round to nearest, ties to even. Symmetric: scale = max|w| / 127 or / 7 as stored; asymmetric (spec.has_offsets): the
// codes span [min(w, 0), max(w, 0)]; an element is off by at most half a scale, and by what a stored scale was rounded
// down at the ends. Two-level: as two_level.h says, which may clip the largest of a group to codes -8 .. 7.
// NaN takes the lowest code. row: in_features values; codes, scales [num_groups], offsets [num_groups] (null without).
void quantize_row(const WeightSpec& spec, const float* row, int64_t in_features, int8_t* codes, float* scales,
                  float* offsets);

// Rows [n, in_features] of f32, f16 or bf16, any row stride; to a format without blocks of rows.
QuantizedHostRows quantize_rows(const WeightSpec& spec, const Tensor& rows);
// What a code means, in every back-end: one rounding to f32.
inline float dequantized(float scale, int code, float offset) {
  return std::fma(scale, static_cast<float>(code), offset);
}
// out: in_features values.
void dequantize_row(const QuantizedRows& rows, int64_t row, float* out);
HostTensor dequantize_rows(const QuantizedRows& rows);  // [n, in_features] f32
// In another integer format: exact when `spec` has the codes' range, the same or smaller groups that divide (also from
// two-level scales to those of groups, and from whole rows to two levels), and offsets when they are needed; from two
// levels to whole rows of int8 too. Else dequantised and quantised again.
QuantizedHostRows convert_rows(const QuantizedRows& rows, const WeightSpec& spec);

// Codes hold no NaN or infinity: quantised, they would become some number, where floats show them in the logits. An
// error names the first such element of rows [n, width] of f32, f16 or bf16 as "name [row, column]", counted from
// (first_row, first_column).
Status check_finite(const Tensor& rows, std::string_view name, int64_t first_row = 0, int64_t first_column = 0);

// The rows [n, width] of f32, f16 or bf16 as f32.
void row_to_float(const Tensor& rows, int64_t row, float* out);

// Activations: in each group of group_width elements scale = max|x| / 127 (f32 division), code = x * (127 / max|x|)
// rounded to nearest even. A maximum below 2^-120 gives zeros; a NaN or infinity gives the scale NaN and codes of zero,
// so that it shows in the result. Every back-end does just this, so that codes agree to the bit.
void quantize_activations(const float* x, int64_t width, int64_t group_width, int8_t* codes, float* scales);

}  // namespace spate
