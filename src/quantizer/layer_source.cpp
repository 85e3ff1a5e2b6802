#include "quantizer/layer_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "quant/quantize.h"

namespace spate {

LayerSource::LayerSource(const WeightSource& base, const std::string& prefix, int64_t layer_idx, int64_t hidden_size)
    : base_(base),
      base_prefix_(fmt::format("{}.layers.{}.", prefix, layer_idx)),
      own_prefix_(fmt::format("{}.layers.0.", prefix)) {
  const auto add_constant = [&](const std::string& name, int64_t rows, int64_t columns) {
    TensorEntry entry{.name = name, .dtype_name = "F32", .dtype = DType::kF32};
    if (rows > 0) entry.shape.push_back(rows);
    entry.shape.push_back(columns);
    entries_.push_back(std::move(entry));
    replaced_[name] = rows > 0 ? HostTensor(DType::kF32, {rows, columns}) : HostTensor(DType::kF32, {columns});
  };
  add_constant(prefix + ".embed_tokens.weight", 1, hidden_size);
  add_constant(prefix + ".norm.weight", 0, hidden_size);
  for (const TensorEntry& entry : base.entries()) {
    if (!entry.name.starts_with(base_prefix_)) continue;
    TensorEntry own = entry;
    own.name = own_prefix_ + entry.name.substr(base_prefix_.size());
    base_entries_[own.name] = &entry;
    entries_.push_back(std::move(own));
  }
}

void LayerSource::replace(const std::string& short_name, HostTensor values) {
  const std::string name = own_prefix_ + short_name;
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const TensorEntry& e) { return e.name == name; });
  CHECK(entry != entries_.end() && std::equal(entry->shape.begin(), entry->shape.end(), values.view().dims().begin(),
                                              values.view().dims().end()),
        "{} is not {}", name, values.view().shape_string());
  entry->dtype = DType::kF32;
  entry->dtype_name = "F32";
  entry->quantized.reset();
  replaced_[name] = std::move(values);
}

bool LayerSource::has(const std::string& short_name) const { return base_entries_.contains(own_prefix_ + short_name); }

const TensorEntry* LayerSource::base_entry(const std::string& short_name) const {
  const auto found = base_entries_.find(own_prefix_ + short_name);
  return found == base_entries_.end() ? nullptr : found->second;
}

Result<HostTensor> LayerSource::read(const std::string& short_name) const {
  const TensorEntry* entry = find(own_prefix_ + short_name);
  if (entry == nullptr) return not_found("{}{} is missing", base_prefix_, short_name);
  HostTensor scratch, values(DType::kF32, std::span<const int64_t>(entry->shape));
  ASSIGN_OR_RETURN(const Tensor rows, this->rows(*entry, 0, entry->shape[0], scratch));
  if (entry->shape.size() == 1) {
    row_to_float(rows.reshaped({1, rows.dim(0)}), 0, values.view().data<float>());
  } else {
    for (int64_t i = 0; i < rows.dim(0); ++i) row_to_float(rows, i, values.view().data<float>() + i * rows.dim(1));
  }
  release(*entry, 0, entry->shape[0]);
  return values;
}

const TensorEntry* LayerSource::find(std::string_view name) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const TensorEntry& e) { return e.name == name; });
  return found == entries_.end() ? nullptr : &*found;
}

Result<Tensor> LayerSource::rows(const TensorEntry& entry, int64_t begin, int64_t end, HostTensor& scratch) const {
  const auto replaced = replaced_.find(entry.name);
  if (replaced != replaced_.end()) return replaced->second.view().rows(begin, end);
  return base_.rows(*base_entries_.at(entry.name), begin, end, scratch);
}

void LayerSource::release(const TensorEntry& entry, int64_t begin, int64_t end) const {
  const auto found = base_entries_.find(entry.name);
  if (found != base_entries_.end()) base_.release(*found->second, begin, end);
}

}  // namespace spate
