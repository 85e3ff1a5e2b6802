// The number formats of weights, and what activations become in a product with one. Three things, each of its own:
//
// 1. The codes.
//   kF32, kBf16   the value
//   kInt8         w[n, k] = scale * code[n, k] + offset,  code in [-128, 127]
//   kInt4         the same with code in [-8, 7]
//
// 2. The scale tile: the elements of the matrix that share a scale, and an offset in asymmetric formats.
//   1 x 0         a whole row (per channel)
//   1 x g         a group: g neighbours along k in one row; the last group of a row may be shorter
//   r x c         a block of r rows by c columns
// Scales and offsets of groups are f16 values, those of whole rows and blocks f32: a half costs 0.25 bit a weight in
// groups of 64, and rounding a scale to it moves a weight by at most 2^-11 of itself.
//
// 3. The activations, x in y = x W^T.
//   kAsIs          in their own dtype. The weight becomes numbers: scale * code + offset in f32 (one rounding), then
//                  rounded to the activations' dtype. The product is that of a float weight with these values.
//   kInt8PerToken  8-bit codes with one scale for each row of x (quant/quantize.h)
//   kInt8PerGroup  8-bit codes with a scale for each of the weight's groups along k
// With 8-bit codes a product runs on integer units:
//   y[m, n] = sum over groups g of  x_scale[m, g] * (scale[n, g] * sum of x_code * code  +  offset[n, g] * sum of
//   x_code)
// The inner sums are exact; the outer one is f32 in the order of g.
//
// Two-level scales (kInt4 in groups, symmetric) are what "int4" means unless it is said otherwise: the scales of a row
// are whole multiples of one number,
//   scale[n, g] = row_scale[n] * multiplier[n, g],  multiplier in 0 .. 16
// so that multiplier * code is an 8-bit code of the row scale. With one scale for each row of x
//   y[m, n] = x_scale[m] * row_scale[n] * sum over all k of x_code * (multiplier * code)
// is exact up to its end: nothing is rounded, scaled or added between groups, which is what makes groups slow otherwise
// (docs/design/0002-integer-weights.md). Row scales are f32, multipliers are bytes. Those that we choose ourselves have
// few significant bits, so that every scale is a bf16 and an f16 value too (quant/two_level.h).
#pragma once

#include <cstdint>
#include <string>

namespace spate {

enum class Codes : uint8_t { kF32, kBf16, kInt8, kInt4 };

enum class Activations : uint8_t { kAsIs, kInt8PerToken, kInt8PerGroup };

// Neighbours that share a scale.
struct ScaleTile {
  int64_t rows = 1;
  int64_t columns = 0;  // 0: the whole row; else 32 or a multiple of 64
  bool operator==(const ScaleTile&) const = default;
};

struct WeightSpec {
  Codes codes = Codes::kBf16;
  // Of integer codes only:
  ScaleTile tile;
  bool has_offsets = false;  // asymmetric
  bool two_level = false;    // kInt4 in groups of a power of two and without offsets only
  Activations activations = Activations::kAsIs;

  bool has_integer_codes() const { return codes == Codes::kInt8 || codes == Codes::kInt4; }
  bool quantizes_activations() const { return activations != Activations::kAsIs; }
  // Scales are of parts of a row, blocks of several rows included.
  bool has_groups() const { return tile.columns > 0; }
  int64_t num_groups(int64_t in_features) const {
    return has_groups() ? (in_features + tile.columns - 1) / tile.columns : 1;
  }
  // Elements of a group; all of K with whole rows.
  int64_t group_width(int64_t in_features) const { return has_groups() ? tile.columns : in_features; }
  // Elements of a row of x that share a scale; needs quantizes_activations().
  int64_t activation_group_width(int64_t in_features) const {
    return activations == Activations::kInt8PerGroup ? group_width(in_features) : in_features;
  }
  // The same numbers in the same codes: rows of one are rows of the other.
  bool stores_as(const WeightSpec& other) const {
    return codes == other.codes && tile == other.tile && has_offsets == other.has_offsets &&
           two_level == other.two_level;
  }
  WeightSpec with_activations(Activations chosen) const {
    WeightSpec spec = *this;
    spec.activations = chosen;
    return spec;
  }
  bool operator==(const WeightSpec&) const = default;
};

// What activations become unless it is said otherwise: 8-bit codes for integer weights, with one scale a token where no
// scale changes along k, or two levels keep such scales out of the sum.
constexpr Activations default_activations(const WeightSpec& spec) {
  if (spec.codes != Codes::kInt8 && spec.codes != Codes::kInt4) return Activations::kAsIs;
  return spec.tile.columns > 0 && !spec.two_level ? Activations::kInt8PerGroup : Activations::kInt8PerToken;
}

// Integer codes with the default activations. group_size 0: whole rows.
constexpr WeightSpec integer_spec(Codes codes, int64_t group_size = 0, bool has_offsets = false,
                                  bool two_level = false) {
  WeightSpec spec{
      .codes = codes, .tile = {.rows = 1, .columns = group_size}, .has_offsets = has_offsets, .two_level = two_level};
  spec.activations = default_activations(spec);
  return spec;
}

// "f32", "bf16", "int8", "int8-g64", "int4-g64" (two-level), "int4-g64-f16scales", "int4-g128-asym", "int8-b128x128".
// Where activations are not the default: "int4-g64-a16" (as they are), "-a8token", "-a8group".
std::string weight_spec_name(const WeightSpec& spec);
// "stay as they are", "become int8 with a scale a token", ...: the end of a sentence about activations.
std::string activations_text(const WeightSpec& spec);

// Bytes of a [out_features, in_features] matrix without padding, scales and offsets included.
int64_t weight_bytes(const WeightSpec& spec, int64_t out_features, int64_t in_features);

// The narrowest format that holds both exactly, where there is one; else the one that loses least: two integer formats
// of the same grouping give int8 when either is, groups of different sizes the smaller one, two-level scales and those
// of whole rows what the other one is, blocks of several rows groups of one, an integer and a float format the float.
// Activations stay as they are when either says so, else they become what is the default.
WeightSpec common_spec(const WeightSpec& a, const WeightSpec& b);

}  // namespace spate
