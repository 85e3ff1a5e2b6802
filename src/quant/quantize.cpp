#include "quant/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "base/check.h"
#include "quant/two_level.h"

namespace spate {
namespace {

constexpr float kMaxF16 = 65504.0f;
constexpr float kSmallest = 0x1p-120f;  // below it the inverse of a scale would overflow

int lowest_code(const WeightSpec& spec) { return spec.codes == Codes::kInt8 ? -128 : -8; }
int highest_code(const WeightSpec& spec) { return spec.codes == Codes::kInt8 ? 127 : 7; }

// To the nearest code. NaN takes the lowest, as on vector units.
int8_t clamped_code(float code, float lowest, float highest) {
  const float rounded = std::nearbyint(code);
  return static_cast<int8_t>(!(rounded > lowest) ? lowest : rounded < highest ? rounded : highest);
}

float largest_magnitude(const float* w, int64_t n) {
  float max_abs = 0;
  for (int64_t i = 0; i < n; ++i) max_abs = std::max(max_abs, std::fabs(w[i]));
  return max_abs;
}

// The symmetric formats use as many codes below zero as above.
void quantize_group(const WeightSpec& spec, const float* w, int64_t n, int8_t* codes, float& scale) {
  const float max_abs = largest_magnitude(w, n);
  const auto limit = static_cast<float>(highest_code(spec));
  scale = stored_scale(spec, max_abs / limit);
  const float inverse = scale >= kSmallest ? 1 / scale : 0;
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = clamped_code(w[i] * inverse, -limit, limit);
  }
}

void quantize_group_asymmetric(const WeightSpec& spec, const float* w, int64_t n, int8_t* codes, float& scale,
                               float& offset) {
  float low = 0, high = 0;
  for (int64_t i = 0; i < n; ++i) {
    low = std::min(low, w[i]);
    high = std::max(high, w[i]);
  }
  const auto first = static_cast<float>(lowest_code(spec)), last = static_cast<float>(highest_code(spec));
  scale = stored_scale(spec, (high - low) / (last - first));
  offset = stored_scale(spec, low - scale * first);
  const float inverse = scale >= kSmallest ? 1 / scale : 0;
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = clamped_code((w[i] - offset) * inverse, first, last);
  }
}

// Codes -8 .. 7 of this scale and their squared error, which is summed in 16 parts as the kernels do it, so that they
// choose alike.
float code_group(const float* w, int64_t n, float scale, int8_t* codes) {
  const float inverse = 1 / scale;
  std::array<float, 16> sums{};
  for (int64_t i = 0; i < n; ++i) {
    codes[i] = clamped_code(w[i] * inverse, -8, 7);
    const float error = std::fma(-scale, static_cast<float>(codes[i]), w[i]);
    float& sum = sums[static_cast<size_t>(i % 16)];
    sum = std::fma(error, error, sum);
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0f);
}

void quantize_row_two_level(int64_t group_size, const float* row, int64_t in_features, int8_t* codes, float* scales) {
  const float row_scale = two_level_row_scale(largest_magnitude(row, in_features));
  std::vector<int8_t> tried(static_cast<size_t>(group_size));
  for (int64_t begin = 0, g = 0; begin < in_features; begin += group_size, ++g) {
    const int64_t n = std::min(group_size, in_features - begin);
    scales[g] = 0;
    std::fill_n(codes + begin, n, int8_t{0});
    if (row_scale == 0) continue;
    const int largest = largest_multiplier(largest_magnitude(row + begin, n), row_scale);
    float least = 0;
    for (int m = largest; m >= smallest_multiplier(largest); --m) {
      const float scale = row_scale * static_cast<float>(m);
      const float loss = code_group(row + begin, n, scale, tried.data());
      if (m < largest && !(loss < least)) continue;
      least = loss;
      scales[g] = scale;
      std::copy_n(tried.data(), n, codes + begin);
    }
  }
}

float* row_of(const Tensor& tensor, int64_t row) { return tensor.data<float>() + row * tensor.stride(0); }

// Codes of `from` fit `to` as they are, given a scale and offset for each of the smaller groups.
bool converts_exactly(const WeightSpec& from, const WeightSpec& to) {
  if (from.codes == Codes::kInt8 && to.codes == Codes::kInt4) return false;
  if (from.has_offsets && !to.has_offsets) return false;
  if (!from.has_groups()) return true;
  if (to.two_level && !from.two_level) return false;
  return to.has_groups() && from.tile.columns % to.tile.columns == 0;
}

// From two-level scales to whole rows of int8: multiplier * code is a code of the row scale.
bool multiplies_out(const WeightSpec& from, const WeightSpec& to) {
  return from.two_level && to.codes == Codes::kInt8 && to.tile == ScaleTile();
}

QuantizedHostRows multiplied_out(const QuantizedRows& rows, const WeightSpec& spec) {
  const int64_t in_features = rows.in_features(), num_groups = rows.scales.dim(1);
  QuantizedHostRows out(spec, rows.num_rows(), in_features);
  std::vector<uint8_t> multipliers(static_cast<size_t>(num_groups));
  for (int64_t i = 0; i < rows.num_rows(); ++i) {
    const bool split =
        split_scales(row_of(rows.scales, i), num_groups, *row_of(out.view().scales, i), multipliers.data());
    CHECK(split, "row {} of {} has scales of other kinds", i, weight_spec_name(rows.spec));
    const int8_t* codes = rows.codes.data<int8_t>() + i * rows.codes.stride(0);
    int8_t* to = out.view().codes.data<int8_t>() + i * in_features;
    for (int64_t k = 0; k < in_features; ++k) {
      to[k] = static_cast<int8_t>(codes[k] * multipliers[static_cast<size_t>(k / rows.spec.tile.columns)]);
    }
  }
  return out;
}

struct MatrixPlace {
  int64_t row = 0, column = 0;
};

// Of the first element all of whose exponent bits are set.
template <typename Bits>
std::optional<MatrixPlace> find_exponent(const Tensor& rows, Bits exponent) {
  const auto is_set = [exponent](Bits bits) { return (bits & exponent) == exponent; };
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    const Bits* row = static_cast<const Bits*>(rows.raw()) + i * rows.stride(0);
    bool has_any = false;  // no branch for each element: of a matrix without such values it is the whole cost
    for (int64_t k = 0; k < rows.dim(1); ++k) has_any |= is_set(row[k]);
    if (has_any) return MatrixPlace{.row = i, .column = std::find_if(row, row + rows.dim(1), is_set) - row};
  }
  return std::nullopt;
}

std::optional<MatrixPlace> find_nonfinite(const Tensor& rows) {
  switch (rows.dtype()) {
    case DType::kF32:
      return find_exponent<uint32_t>(rows, 0x7f800000u);
    case DType::kF16:
      return find_exponent<uint16_t>(rows, 0x7c00u);
    case DType::kBf16:
      return find_exponent<uint16_t>(rows, 0x7f80u);
    default:
      CHECK(false, "rows of {}", dtype_name(rows.dtype()));
  }
}

}  // namespace

QuantizedRows QuantizedRows::rows(int64_t begin, int64_t end) const {
  return {.spec = spec,
          .codes = codes.rows(begin, end),
          .scales = scales.rows(begin, end),
          .offsets = offsets.defined() ? offsets.rows(begin, end) : Tensor()};
}

QuantizedRows QuantizedRows::columns(int64_t begin, int64_t end) const {
  QuantizedRows part = *this;
  part.codes = codes.columns(begin, end);
  if (!spec.has_groups()) return part;
  CHECK(begin % spec.tile.columns == 0 && (end % spec.tile.columns == 0 || end == in_features()),
        "columns [{}, {}) cut a group of {}", begin, end, spec.tile.columns);
  const int64_t first = begin / spec.tile.columns, last = (end + spec.tile.columns - 1) / spec.tile.columns;
  part.scales = scales.columns(first, last);
  if (offsets.defined()) part.offsets = offsets.columns(first, last);
  return part;
}

QuantizedHostRows::QuantizedHostRows(const WeightSpec& spec, int64_t num_rows, int64_t in_features) {
  CHECK(spec.has_integer_codes(), "codes of {}", weight_spec_name(spec));
  const int64_t num_groups = spec.num_groups(in_features);
  codes_ = HostTensor(DType::kI8, {num_rows, in_features});
  scales_ = HostTensor(DType::kF32, {num_rows, num_groups});
  if (spec.has_offsets) offsets_ = HostTensor(DType::kF32, {num_rows, num_groups});
  view_ = {.spec = spec, .codes = codes_, .scales = scales_, .offsets = spec.has_offsets ? offsets_.view() : Tensor()};
}

float stored_scale(const WeightSpec& spec, float value) {
  const bool is_half = spec.has_groups() && spec.tile.rows == 1 && !spec.two_level;
  return !is_half ? value : F16::from_float(std::clamp(value, -kMaxF16, kMaxF16)).to_float();
}

bool split_scales(const float* scales, int64_t num_groups, float& row_scale, uint8_t* multipliers) {
  float largest = 0;
  for (int64_t g = 0; g < num_groups; ++g) {
    if (!(scales[g] >= 0) || !std::isfinite(scales[g])) return false;
    largest = std::max(largest, scales[g]);
  }
  row_scale = largest;
  std::fill_n(multipliers, num_groups, uint8_t{0});
  if (largest == 0) return true;
  for (int divisor = 1; divisor <= kMaxMultiplier; ++divisor) {
    row_scale = largest / static_cast<float>(divisor);
    const float inverse = 1 / row_scale;
    int64_t g = 0;
    for (; g < num_groups; ++g) {
      const float multiplier = std::nearbyint(scales[g] * inverse);
      // The product of 24 and 5 bits is exact in double.
      if (!(double{row_scale} * multiplier == scales[g]) || !(multiplier <= kMaxMultiplier)) break;
      multipliers[g] = static_cast<uint8_t>(multiplier);
    }
    if (g == num_groups) return true;
  }
  return false;
}

void quantize_row(const WeightSpec& spec, const float* row, int64_t in_features, int8_t* codes, float* scales,
                  float* offsets) {
  if (spec.two_level) return quantize_row_two_level(spec.tile.columns, row, in_features, codes, scales);
  const int64_t width = spec.group_width(in_features);
  for (int64_t begin = 0, g = 0; begin < in_features; begin += width, ++g) {
    const int64_t n = std::min(width, in_features - begin);
    if (spec.has_offsets) {
      quantize_group_asymmetric(spec, row + begin, n, codes + begin, scales[g], offsets[g]);
    } else {
      quantize_group(spec, row + begin, n, codes + begin, scales[g]);
    }
  }
}

QuantizedHostRows quantize_rows(const WeightSpec& spec, const Tensor& rows) {
  CHECK(spec.tile.rows == 1, "numbers do not become {}: blocks are read, not made", weight_spec_name(spec));
  QuantizedHostRows out(spec, rows.dim(0), rows.dim(1));
  const QuantizedRows& view = out.view();
  std::vector<float> row(static_cast<size_t>(rows.dim(1)));
  for (int64_t i = 0; i < rows.dim(0); ++i) {
    row_to_float(rows, i, row.data());
    quantize_row(spec, row.data(), rows.dim(1), view.codes.data<int8_t>() + i * view.codes.stride(0),
                 row_of(view.scales, i), view.offsets.defined() ? row_of(view.offsets, i) : nullptr);
  }
  return out;
}

void dequantize_row(const QuantizedRows& rows, int64_t row, float* out) {
  const int8_t* codes = rows.codes.data<int8_t>() + row * rows.codes.stride(0);
  const int64_t width = rows.spec.group_width(rows.in_features());
  for (int64_t begin = 0, g = 0; begin < rows.in_features(); begin += width, ++g) {
    const float scale = row_of(rows.scales, row)[g],
                offset = rows.offsets.defined() ? row_of(rows.offsets, row)[g] : 0.0f;
    const int64_t end = std::min(begin + width, rows.in_features());
    for (int64_t k = begin; k < end; ++k) out[k] = dequantized(scale, codes[k], offset);
  }
}

HostTensor dequantize_rows(const QuantizedRows& rows) {
  HostTensor out(DType::kF32, {rows.num_rows(), rows.in_features()});
  for (int64_t i = 0; i < rows.num_rows(); ++i) dequantize_row(rows, i, row_of(out, i));
  return out;
}

QuantizedHostRows convert_rows(const QuantizedRows& rows, const WeightSpec& spec) {
  if (multiplies_out(rows.spec, spec)) return multiplied_out(rows, spec);
  if (!converts_exactly(rows.spec, spec)) return quantize_rows(spec, dequantize_rows(rows));
  const int64_t in_features = rows.in_features(), width = spec.group_width(in_features);
  const int64_t source_width = rows.spec.group_width(in_features);
  QuantizedHostRows out(spec, rows.num_rows(), in_features);
  const QuantizedRows& view = out.view();
  for (int64_t i = 0; i < rows.num_rows(); ++i) {
    const int8_t* codes = rows.codes.data<int8_t>() + i * rows.codes.stride(0);
    std::copy(codes, codes + in_features, view.codes.data<int8_t>() + i * view.codes.stride(0));
    for (int64_t g = 0; g < spec.num_groups(in_features); ++g) {
      const int64_t from = g * width / source_width;
      row_of(view.scales, i)[g] = row_of(rows.scales, i)[from];
      if (rows.offsets.defined()) row_of(view.offsets, i)[g] = row_of(rows.offsets, i)[from];
    }
  }
  return out;
}

void row_to_float(const Tensor& rows, int64_t row, float* out) {
  const int64_t begin = row * rows.stride(0), width = rows.dim(1);
  switch (rows.dtype()) {
    case DType::kF32:
      std::copy(rows.data<float>() + begin, rows.data<float>() + begin + width, out);
      return;
    case DType::kF16:
      for (int64_t k = 0; k < width; ++k) out[k] = rows.data<F16>()[begin + k].to_float();
      return;
    case DType::kBf16:
      for (int64_t k = 0; k < width; ++k) out[k] = rows.data<Bf16>()[begin + k].to_float();
      return;
    default:
      CHECK(false, "rows of {}", dtype_name(rows.dtype()));
  }
}

Status check_finite(const Tensor& rows, std::string_view name, int64_t first_row, int64_t first_column) {
  const std::optional<MatrixPlace> place = find_nonfinite(rows);
  if (!place) return ok_status();
  return data_loss(
      "{} [{}, {}] is NaN or infinite, which no integer format holds: the file is damaged, or the model is", name,
      first_row + place->row, first_column + place->column);
}

void quantize_activations(const float* x, int64_t width, int64_t group_width, int8_t* codes, float* scales) {
  for (int64_t begin = 0, g = 0; begin < width; begin += group_width, ++g) {
    const int64_t end = std::min(width, begin + group_width);
    float max_abs = 0;
    bool finite = true;
    for (int64_t k = begin; k < end; ++k) {
      max_abs = std::max(max_abs, std::fabs(x[k]));
      finite &= std::isfinite(x[k]);
    }
    if (!finite || max_abs < kSmallest) {
      scales[g] = finite ? 0.0f : NAN;
      std::fill(codes + begin, codes + end, int8_t{0});
      continue;
    }
    scales[g] = max_abs / 127.0f;
    const float inverse = 127.0f / max_abs;
    for (int64_t k = begin; k < end; ++k) codes[k] = static_cast<int8_t>(std::nearbyint(x[k] * inverse));
  }
}

}  // namespace spate
