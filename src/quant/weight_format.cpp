#include "quant/weight_format.h"

#include <fmt/core.h>

#include <algorithm>

namespace spate {

std::string weight_spec_name(const WeightSpec& spec) {
  switch (spec.format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kInt8:
    case WeightFormat::kInt4:
      break;
  }
  std::string name = spec.format == WeightFormat::kInt8 ? "int8" : "int4";
  if (spec.group_size > 0) name += fmt::format("-g{}", spec.group_size);
  if (spec.has_offsets) name += "-asym";
  if (spec.format == WeightFormat::kInt4 && spec.group_size > 0 && !spec.has_offsets && !spec.two_level) {
    name += "-f16scales";
  }
  return name;
}

int64_t weight_bytes(const WeightSpec& spec, int64_t out_features, int64_t in_features) {
  const int64_t elements = out_features * in_features;
  const int64_t num_groups = spec.num_groups(in_features);
  const int64_t row_scales =
      spec.two_level ? 4 + num_groups : num_groups * (spec.group_size > 0 ? 2 : 4) * (spec.has_offsets ? 2 : 1);
  const int64_t scales = out_features * row_scales;
  switch (spec.format) {
    case WeightFormat::kF32:
      return elements * 4;
    case WeightFormat::kBf16:
      return elements * 2;
    case WeightFormat::kInt8:
      return elements + scales;
    case WeightFormat::kInt4:
      return (elements + 1) / 2 + scales;
  }
  return 0;
}

namespace {

// Every value is a whole multiple of one number of its row.
bool is_whole_row_multiple(const WeightSpec& spec) {
  return spec.is_integer() && !spec.has_offsets && (spec.two_level || spec.group_size == 0);
}

}  // namespace

WeightSpec common_spec(const WeightSpec& a, const WeightSpec& b) {
  if (!a.is_integer() || !b.is_integer()) {
    const bool any_f32 = a.format == WeightFormat::kF32 || b.format == WeightFormat::kF32;
    return {.format = any_f32 ? WeightFormat::kF32 : WeightFormat::kBf16};
  }
  WeightSpec spec;
  spec.format =
      a.format == WeightFormat::kInt8 || b.format == WeightFormat::kInt8 ? WeightFormat::kInt8 : WeightFormat::kInt4;
  spec.group_size = a.group_size == 0   ? b.group_size
                    : b.group_size == 0 ? a.group_size
                                        : std::min(a.group_size, b.group_size);
  spec.has_offsets = a.has_offsets || b.has_offsets;
  if (!spec.has_offsets && spec.group_size > 0 && is_whole_row_multiple(a) && is_whole_row_multiple(b)) {
    if (spec.format == WeightFormat::kInt4) {
      spec.two_level = true;
    } else {
      spec.group_size = 0;  // multiplier * code is a code of 8 bits
    }
  }
  return spec;
}

}  // namespace spate
