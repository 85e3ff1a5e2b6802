#include "quant/weight_format.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

namespace spate {

namespace {

std::string_view activations_suffix(const WeightSpec& spec) {
  if (spec.activations == default_activations(spec)) return "";
  switch (spec.activations) {
    case Activations::kAsIs:
      return "-a16";
    case Activations::kInt8PerToken:
      return "-a8token";
    case Activations::kInt8PerGroup:
      return "-a8group";
  }
  return "";
}

}  // namespace

std::string weight_spec_name(const WeightSpec& spec) {
  switch (spec.codes) {
    case Codes::kF32:
      return "f32";
    case Codes::kBf16:
      return "bf16";
    case Codes::kInt8:
    case Codes::kInt4:
      break;
  }
  std::string name = spec.codes == Codes::kInt8 ? "int8" : "int4";
  if (spec.tile.rows > 1) {
    name += fmt::format("-b{}x{}", spec.tile.rows, spec.tile.columns);
  } else if (spec.has_groups()) {
    name += fmt::format("-g{}", spec.tile.columns);
  }
  if (spec.has_offsets) name += "-asym";
  if (spec.codes == Codes::kInt4 && spec.has_groups() && !spec.has_offsets && !spec.two_level) name += "-f16scales";
  return name.append(activations_suffix(spec));
}

std::string activations_text(const WeightSpec& spec) {
  switch (spec.activations) {
    case Activations::kAsIs:
      return "stay as they are";
    case Activations::kInt8PerToken:
      return "become int8 with a scale a token";
    case Activations::kInt8PerGroup:
      return fmt::format("become int8 with a scale for each {} of a token", spec.tile.columns);
  }
  return "";
}

int64_t weight_bytes(const WeightSpec& spec, int64_t out_features, int64_t in_features) {
  const int64_t elements = out_features * in_features;
  const int64_t num_groups = spec.num_groups(in_features);
  const int64_t scale_bytes = spec.has_groups() && spec.tile.rows == 1 ? 2 : 4;
  const int64_t row_scales = spec.two_level ? 4 + num_groups : num_groups * scale_bytes * (spec.has_offsets ? 2 : 1);
  const int64_t scales = (out_features + spec.tile.rows - 1) / spec.tile.rows * row_scales;
  switch (spec.codes) {
    case Codes::kF32:
      return elements * 4;
    case Codes::kBf16:
      return elements * 2;
    case Codes::kInt8:
      return elements + scales;
    case Codes::kInt4:
      return (elements + 1) / 2 + scales;
  }
  return 0;
}

namespace {

// Every value is a whole multiple of one number of its row.
bool is_whole_row_multiple(const WeightSpec& spec) {
  return spec.has_integer_codes() && !spec.has_offsets && (spec.two_level || spec.tile == ScaleTile());
}

}  // namespace

WeightSpec common_spec(const WeightSpec& a, const WeightSpec& b) {
  if (a == b) return a;
  if (!a.has_integer_codes() || !b.has_integer_codes()) {
    const bool any_f32 = a.codes == Codes::kF32 || b.codes == Codes::kF32;
    return {.codes = any_f32 ? Codes::kF32 : Codes::kBf16};
  }
  WeightSpec spec;
  spec.codes = a.codes == Codes::kInt8 || b.codes == Codes::kInt8 ? Codes::kInt8 : Codes::kInt4;
  spec.tile.columns = !a.has_groups()   ? b.tile.columns
                      : !b.has_groups() ? a.tile.columns
                                        : std::min(a.tile.columns, b.tile.columns);
  spec.has_offsets = a.has_offsets || b.has_offsets;
  if (!spec.has_offsets && spec.has_groups() && is_whole_row_multiple(a) && is_whole_row_multiple(b)) {
    if (spec.codes == Codes::kInt4) {
      spec.two_level = true;
    } else {
      spec.tile.columns = 0;  // multiplier * code is a code of 8 bits
    }
  }
  const bool stays = !a.quantizes_activations() || !b.quantizes_activations();
  spec.activations = stays ? Activations::kAsIs : default_activations(spec);
  return spec;
}

}  // namespace spate
