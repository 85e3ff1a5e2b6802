#include "weights/packed_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace spate {
namespace {

constexpr WeightSpec kRequantized = integer_spec(Codes::kInt8, 32, false);

}  // namespace

TensorBytes::TensorBytes(const Checkpoint& checkpoint, const TensorEntry& entry)
    : data_(checkpoint.bytes(entry).data()), dtype_(*entry.dtype) {}

float TensorBytes::number(int64_t i) const {
  if (dtype_ == DType::kF32) {
    float value;
    std::memcpy(&value, data_ + i * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data_ + i * 2, 2);
  return dtype_ == DType::kF16 ? F16{bits}.to_float() : Bf16{bits}.to_float();
}

int64_t TensorBytes::integer(int64_t i) const {
  if (dtype_ == DType::kI32) return static_cast<int32_t>(word(i));
  int64_t value;
  std::memcpy(&value, data_ + i * 8, 8);
  return value;
}

void PackedMatrix::take_components(const Checkpoint& checkpoint, const TensorEntry& codes, const TensorEntry& scales,
                                   const TensorEntry* zeros) {
  checkpoint_ = &checkpoint;
  components_ = {&codes, &scales};
  codes_ = TensorBytes(checkpoint, codes);
  scales_ = TensorBytes(checkpoint, scales);
  if (zeros == nullptr) return;
  components_.push_back(zeros);
  zeros_ = TensorBytes(checkpoint, *zeros);
}

void PackedMatrix::release(int64_t, int64_t) const {
  for (const TensorEntry* entry : components_) checkpoint_->release(*entry, 0, entry->shape[0]);
}

WeightSpec PackedMatrix::direct_spec() const {
  WeightSpec spec =
      integer_spec(scheme_.bits == 4 ? Codes::kInt4 : Codes::kInt8, scheme_.group_size, !scheme_.symmetric, two_level_);
  spec.tile.rows = scheme_.block_rows;
  return spec;
}

WeightSpec PackedMatrix::spec() const { return is_requantized() ? kRequantized : direct_spec(); }

void PackedMatrix::find_two_levels() {
  const WeightSpec spec = direct_spec();
  const bool is_power_of_two = std::has_single_bit(static_cast<uint64_t>(spec.tile.columns));
  if (spec.codes != Codes::kInt4 || !is_power_of_two || spec.has_offsets || is_requantized()) return;
  const int64_t groups = num_groups();
  std::vector<float> scales(static_cast<size_t>(groups));
  std::vector<uint8_t> multipliers(static_cast<size_t>(groups));
  float row_scale = 0;
  for (int64_t row = 0; row < out_features_; ++row) {
    for (int64_t g = 0; g < groups; ++g) scales[static_cast<size_t>(g)] = scale(row, g);
    if (!split_scales(scales.data(), groups, row_scale, multipliers.data())) return;
  }
  two_level_ = true;
}

Status PackedMatrix::read_group(int64_t row, int64_t group, float& group_scale, float& group_zero) const {
  group_scale = scale(row, group);
  if (!std::isfinite(group_scale)) {
    return data_loss("{}: the scale of row {}, group {} is {}", components_[1]->name, row, group, group_scale);
  }
  const int point = zero(row, group);
  if (scheme_.symmetric && point != 0) {
    return data_loss(
        "{}: the zero point of row {}, group {} is {} off the middle; the weights are said to be symmetric",
        components_[components_.size() > 2 ? 2 : 1]->name, row, group, point);
  }
  group_zero = static_cast<float>(point);
  return ok_status();
}

Result<QuantizedHostRows> PackedMatrix::quantized_rows(int64_t begin, int64_t end) const {
  const WeightSpec direct = direct_spec();
  const int64_t groups = num_groups(), num_rows = end - begin;
  // As the file has them: zero points where `out` has offsets.
  HostTensor scales(DType::kF32, {num_rows, groups}), zeros(DType::kF32, {num_rows, groups});
  for (int64_t i = 0; i < num_rows; ++i) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = i * groups + g;
      RETURN_IF_ERROR(read_group(begin + i, g, scales.view().data<float>()[at], zeros.view().data<float>()[at]));
    }
  }
  QuantizedHostRows out(spec(), num_rows, in_features_);
  const QuantizedRows& view = out.view();
  RETURN_IF_ERROR(read_codes(begin, end, view.codes.data<int8_t>()));
  if (!is_requantized()) {
    for (int64_t at = 0; at < num_rows * groups; ++at) {
      const float s = scales.view().data<float>()[at];
      view.scales.data<float>()[at] = stored_scale(direct, s);
      if (direct.has_offsets)
        view.offsets.data<float>()[at] = stored_scale(direct, -s * zeros.view().data<float>()[at]);
    }
    return out;
  }
  std::vector<float> row(static_cast<size_t>(in_features_));
  const int64_t new_groups = kRequantized.num_groups(in_features_);
  for (int64_t i = 0; i < num_rows; ++i) {
    int8_t* codes = view.codes.data<int8_t>() + i * in_features_;
    const float* s = scales.view().data<float>() + i * groups;
    const float* z = zeros.view().data<float>() + i * groups;
    for (size_t k = 0; k < row.size(); ++k) {
      row[k] = s[group_ids_[k]] * (static_cast<float>(codes[k]) - z[group_ids_[k]]);
    }
    quantize_row(kRequantized, row.data(), in_features_, codes, view.scales.data<float>() + i * new_groups, nullptr);
  }
  return out;
}

void PackedMatrix::read_group_ids(const Checkpoint& checkpoint, const TensorEntry& entry,
                                  std::vector<std::string>& problems) {
  const TensorBytes ids(checkpoint, entry);
  const int64_t groups = num_groups(), width = direct_spec().group_width(in_features_);
  bool in_order = true;
  std::vector<int32_t> group_ids(static_cast<size_t>(in_features_));
  for (int64_t k = 0; k < in_features_; ++k) {
    const int64_t group = ids.integer(k);
    if (group < 0 || group >= groups) {
      problems.push_back(fmt::format("{}[{}] is {}; there are {} groups", entry.name, k, group, groups));
      return;
    }
    in_order = in_order && group == k / width;
    group_ids[static_cast<size_t>(k)] = static_cast<int32_t>(group);
  }
  if (!in_order) group_ids_ = std::move(group_ids);
}

const TensorEntry* Components::optional(std::string_view suffix, std::initializer_list<DType> dtypes) {
  const TensorEntry* entry = checkpoint_.find(fmt::format("{}.{}", prefix_, suffix));
  if (entry == nullptr) return nullptr;
  if (entry->dtype && std::find(dtypes.begin(), dtypes.end(), *entry->dtype) != dtypes.end()) return entry;
  std::string names;
  for (const DType dtype : dtypes) names += fmt::format("{}{}", names.empty() ? "" : " or ", dtype_name(dtype));
  problem(fmt::format("{} is {}, needs {}", entry->name, entry->dtype_name, names));
  return nullptr;
}

const TensorEntry* Components::required(std::string_view suffix, std::initializer_list<DType> dtypes) {
  if (checkpoint_.find(fmt::format("{}.{}", prefix_, suffix)) == nullptr) {
    problem(fmt::format("{}.{} is missing", prefix_, suffix));
    return nullptr;
  }
  return optional(suffix, dtypes);
}

bool Components::has_shape(const TensorEntry& entry, const std::vector<int64_t>& shape) {
  if (entry.shape == shape) return true;
  problem(fmt::format("{} is {}, needs [{}]", entry.name, entry.shape_string(), fmt::join(shape, ", ")));
  return false;
}

bool Components::has_rank(const TensorEntry& entry, size_t rank) {
  const bool has_zero = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  if (entry.shape.size() == rank && !has_zero) return true;
  problem(fmt::format("{} is {}, needs {} dimensions of at least 1", entry.name, entry.shape_string(), rank));
  return false;
}

std::optional<QTensors> find_q_tensors(Components& components) {
  const size_t num_problems = components.problems().size();
  const QTensors tensors{.qweight = components.required("qweight", {DType::kI32}),
                         .qzeros = components.required("qzeros", {DType::kI32}),
                         .scales = components.required("scales", kScaleDTypes)};
  if (components.problems().size() > num_problems || !components.has_rank(*tensors.qweight, 2)) return std::nullopt;
  return tensors;
}

std::vector<std::string> prefixes_with(const Checkpoint& checkpoint, std::span<const std::string_view> suffixes) {
  std::vector<std::string> prefixes;
  for (const TensorEntry& entry : checkpoint.entries()) {
    for (const std::string_view suffix : suffixes) {
      if (const std::string_view prefix = prefix_of(entry.name, suffix); !prefix.empty()) prefixes.emplace_back(prefix);
    }
  }
  std::sort(prefixes.begin(), prefixes.end());
  prefixes.erase(std::unique(prefixes.begin(), prefixes.end()), prefixes.end());
  return prefixes;
}

std::string_view prefix_of(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix) || name.size() < suffix.size() + 2) return {};
  name.remove_suffix(suffix.size());
  if (!name.ends_with('.')) return {};
  return name.substr(0, name.size() - 1);
}

}  // namespace spate
