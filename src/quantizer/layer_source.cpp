#include "quantizer/layer_source.h"

#include <algorithm>

#include "quant/quantize.h"

namespace spate {

LayerSource::LayerSource(const WeightSource& base, const ModelOutline& outline, int64_t layer_idx, int64_t hidden_size)
    : base_(base), layer_idx_(layer_idx) {
  const auto add_zeros = [&](const std::string& name, HostTensor zeros) {
    const auto dims = zeros.view().dims();
    entries_.push_back({.name = name, .dtype_name = "F32", .dtype = DType::kF32, .shape = {dims.begin(), dims.end()}});
    replaced_[name] = std::move(zeros);
  };
  add_zeros(outline.embed_tokens + ".weight", HostTensor(DType::kF32, {1, hidden_size}));
  add_zeros(outline.norm + ".weight", HostTensor(DType::kF32, {hidden_size}));
  const std::string prefix = outline.layers[static_cast<size_t>(layer_idx)].name + ".";
  for (const TensorEntry& entry : base.entries()) {
    if (entry.name.starts_with(prefix)) entries_.push_back(entry);
  }
}

void LayerSource::replace(const std::string& name, HostTensor values) {
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

Result<HostTensor> LayerSource::read(const std::string& name) const {
  const TensorEntry* entry = find(name);
  if (entry == nullptr) return not_found("{} is missing", name);
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
  return base_.rows(*base_.find(entry.name), begin, end, scratch);
}

void LayerSource::release(const TensorEntry& entry, int64_t begin, int64_t end) const {
  if (!replaced_.contains(entry.name)) base_.release(*base_.find(entry.name), begin, end);
}

}  // namespace spate
